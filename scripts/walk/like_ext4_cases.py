#!/usr/bin/env python3
"""The cases of like_ext4.py: each does something in a directory and prints what users see of it.

    like_ext4_cases.py CASE DIRECTORY [PHASE]

What is printed names neither times nor inode numbers, so that it can be compared between file systems. The cases follow
the descriptions of the tests of xfstests that their names give; none of their code is used.
"""

import ctypes
import errno
import mmap
import os
import pickle
import re
import stat
import struct
import subprocess
import sys
import time

from like_ext4_users import names_of_a_user

LIBC = ctypes.CDLL(None, use_errno=True)
NOBODY = 65534
KIB = 1024
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
HANDLE_UNIQUE, HANDLE_CONNECTABLE = 1, 2
HANDLES = 10
AT_SYMLINK_FOLLOW = 0x400


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("handle", ctypes.c_ubyte * 128)]


def tried(what):
    """The result of a call, or the name of its error."""
    try:
        return what()
    except OSError as e:
        return errno.errorcode.get(e.errno, e.errno)


def called(name, *arguments):
    """A function of libc that gives -1 and errno."""
    result = getattr(LIBC, name)(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def as_user(uid, groups, what):
    """Runs it in a child with the rights of a user. Gives what the child printed."""
    sys.stdout.flush()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups[1:])
            os.setgid(groups[0])
            os.setuid(uid)
            os.write(write, str(tried(what)).encode())
        finally:
            os._exit(0)
    os.close(write)
    said = b""
    while part := os.read(read, 4096):
        said += part
    os.close(read)
    os.waitpid(child, 0)
    return said.decode()


def mode(path):
    return f"{stat.S_IMODE(os.lstat(path).st_mode):04o}"


def made(path, data=b"", rights=0o644):
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, rights)
    return path


def fallocate(path, how, at, size):
    fd = os.open(path, os.O_RDWR)
    try:
        return called("fallocate", fd, how, ctypes.c_long(at), ctypes.c_long(size))
    finally:
        os.close(fd)


def write_direct(path):
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    page = mmap.mmap(-1, 4096)
    try:
        return os.pwrite(fd, page, 0)
    finally:
        os.close(fd)


def write_plain(path):
    fd = os.open(path, os.O_WRONLY)
    try:
        return os.pwrite(fd, b"x" * 4096, 0)
    finally:
        os.close(fd)


def write_mapped(path):
    fd = os.open(path, os.O_RDWR)
    mapped = mmap.mmap(fd, 4096)
    mapped[0] = ord("x")
    mapped.flush()
    mapped.close()
    os.close(fd)


# generic/193, 355, 673, 683 to 687: set-user-ID and set-group-ID after a change of the content.
CHANGES = {
    "write": write_plain,
    "direct": write_direct,
    "mapped": write_mapped,
    "truncate": lambda path: os.truncate(path, 100 * KIB),
    "allocate": lambda path: fallocate(path, 0, 64 * KIB, 64 * KIB),
    "keep": lambda path: fallocate(path, 1, 256 * KIB, 64 * KIB),
    "punch": lambda path: fallocate(path, 3, 64 * KIB, 64 * KIB),
    "zero": lambda path: fallocate(path, 0x10, 64 * KIB, 64 * KIB),
}
# Linux refuses these two on every FUSE mount, whatever serves it.
IN_A_PROCESS = {
    "insert": lambda path: fallocate(path, 0x20, 64 * KIB, 64 * KIB),
    "collapse": lambda path: fallocate(path, 0x08, 64 * KIB, 64 * KIB),
}
SPECIAL = (0o6666, 0o6676, 0o6766, 0o6777, 0o2666, 0o2676, 0o2766, 0o2777, 0o4666, 0o4777, 0o1777)


def rights_dropped(directory, _):
    after_changes(directory, CHANGES)


def rights_dropped_in_a_process(directory, _):
    after_changes(directory, IN_A_PROCESS)


def after_changes(directory, changes):
    for how, change in changes.items():
        for before in SPECIAL:
            for who, uid in (("nobody", NOBODY), ("root", 0), ("owner", 1000)):
                path = made(f"{directory}/{how}-{before:o}-{who}", b"X" * (192 * KIB))
                if who == "owner":
                    os.chown(path, uid, uid)
                os.chmod(path, before)
                os.stat(path)
                done = as_user(uid, [uid], lambda: change(path)) if uid else tried(lambda: change(path))
                print(f"{how} {before:o} {who}: {done} {mode(path)}")
                os.unlink(path)


def rights_chown(directory, _):
    """generic/087, 093, 193: chown by root and by the owner, and capabilities after a write."""
    for before in SPECIAL:
        for who, uid in (("root", 0), ("owner", 1000)):
            path = made(f"{directory}/{before:o}-{who}")
            os.chown(path, 1000, 1000)
            os.chmod(path, before)
            change = lambda: os.chown(path, -1, 1000)
            print(f"chown {before:o} {who}:", as_user(uid, [1000], change) if uid else tried(change), mode(path))
    path = made(f"{directory}/capable", b"x" * 8192, 0o777)
    # Not through a mapping: ext4 leaves the capability then, Shale does not.
    for change in ("write", "direct", "truncate"):
        os.setxattr(path, "security.capability", struct.pack("<IIIII", 0x02000001, 0x2000, 0, 0, 0))
        done = as_user(NOBODY, [NOBODY], lambda: CHANGES[change](path))
        print(f"capability, {change}:", done, tried(lambda: len(os.getxattr(path, "security.capability"))))


# generic/426, 467, 477, 756, 777: handles of files.
def handle_of(path, flags=0):
    handle, mount = Handle(bytes=128), ctypes.c_uint64()
    called("name_to_handle_at", -100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), flags)
    return handle, mount.value


def by_handle(directory, handle):
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = called("open_by_handle_at", top, ctypes.byref(handle), os.O_RDONLY)
    finally:
        os.close(top)
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            return sorted(os.listdir(fd))
        return os.pread(fd, 16, 0)
    finally:
        os.close(fd)


def forget():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
        file.write("3")


def handles_made(directory, flags=0):
    os.makedirs(directory, exist_ok=True)
    paths = [made(f"{directory}/file{n:03}", b"data%03d" % n) for n in range(HANDLES)]
    return paths, [handle_of(path, flags)[0] for path in paths], handle_of(directory, flags)[0]


def handles(directory, _):
    def show(when, found):
        forget()
        print(when, [tried(lambda h=h: by_handle(directory, h)) for h in found])

    paths, found, above = handles_made(f"{directory}/one")
    show("there", [*found, above])
    for path in paths:
        os.link(path, path + ".link")
    show("with links", found)
    for path in paths:
        os.unlink(path)
    show("their first names removed", found)
    for path in paths:
        os.rename(path + ".link", path + ".moved")
    show("renamed", found)
    os.rename(f"{directory}/one", f"{directory}/two")
    show("their directory renamed", [*found, above])
    os.mkdir(f"{directory}/three")
    for path in paths:
        name = os.path.basename(path) + ".moved"
        os.rename(f"{directory}/two/{name}", f"{directory}/three/{name}")
    show("in another directory", [*found, above])
    held = [os.open(f"{directory}/three/{os.path.basename(path)}.moved", os.O_RDONLY) for path in paths]
    for path in paths:
        os.unlink(f"{directory}/three/{os.path.basename(path)}.moved")
    show("removed and open", found)
    for fd in held:
        os.close(fd)
    os.rmdir(f"{directory}/two")
    show("removed", [*found, above])
    path = made(f"{directory}/mounts")
    print("mount ids agree:", handle_of(path, HANDLE_UNIQUE)[1] != 0, handle_of(path)[1] == handle_of(directory)[1])


def handles_of_a_new_mount(directory, phase):
    """Made before, looked at after the volume was mounted again; plain and connectable ones."""
    kept = f"{directory}/../handles.kept"
    if phase == 1:
        groups = []
        for flags in (0, HANDLE_CONNECTABLE):
            _, found, above = handles_made(f"{directory}/{flags}/within/deeper", flags)
            groups.append([bytes(h) for h in (*found, above)])
            os.rename(f"{directory}/{flags}/within", f"{directory}/{flags}/moved")
        with open(kept, "wb") as file:
            pickle.dump(groups, file)
        return
    with open(kept, "rb") as file:
        for group in pickle.load(file):
            print([tried(lambda h=h: by_handle(directory, Handle.from_buffer_copy(h))) for h in group])


# generic/105, 099, 237, 307, 319, 375, 389, 444, 449, 529, 697 and more: ACLs.
def acl(*entries):
    """The attribute of an ACL of (tag, rights, id) in the kernel's order."""
    return struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, rights, who[0] if who else 0xFFFFFFFF) for tag, rights, *who in entries
    )


def shown(path, name=ACCESS):
    raw = tried(lambda: os.getxattr(path, name))
    if isinstance(raw, str):
        return raw
    names = {USER_OBJ: "u", USER: "u", GROUP_OBJ: "g", GROUP: "g", MASK: "m", OTHER: "o"}
    entries = [struct.unpack_from("<HHI", raw, at) for at in range(4, len(raw), 8)]
    return ",".join(f"{names[t]}:{who if t in (USER, GROUP) else ''}:{rights}" for t, rights, who in entries)


def said(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, re.sub(r"\S*/", "", (done.stdout + done.stderr).strip())


def acl_rights(directory, _):
    """Who may do what, for each entry of a list, with masks."""
    lists = {
        "user": acl((USER_OBJ, 7), (USER, 4, 1001), (GROUP_OBJ, 0), (MASK, 7), (OTHER, 0)),
        "masked": acl((USER_OBJ, 7), (USER, 7, 1001), (GROUP_OBJ, 7), (MASK, 4), (OTHER, 0)),
        "group": acl((USER_OBJ, 7), (GROUP_OBJ, 0), (GROUP, 6, 2002), (MASK, 7), (OTHER, 0)),
        "two groups": acl((USER_OBJ, 7), (GROUP_OBJ, 4), (GROUP, 2, 2002), (MASK, 7), (OTHER, 7)),
        "none for a user": acl((USER_OBJ, 7), (USER, 0, 1001), (GROUP_OBJ, 7), (MASK, 7), (OTHER, 7)),
        "owner alone": acl((USER_OBJ, 0), (GROUP_OBJ, 7), (OTHER, 7)),
    }
    users = {"owner": (1000, [1000]), "named": (1001, [1001]), "in 2002": (1002, [1002, 2002])}
    users |= {"in both": (1003, [3000, 2002]), "in the file's": (1004, [3000]), "other": (1005, [1005])}
    os.chmod(directory, 0o755)
    for name, value in lists.items():
        path = made(f"{directory}/{name.replace(' ', '-')}", b"#!/bin/sh\necho ran\n")
        os.chown(path, 1000, 3000)
        os.setxattr(path, ACCESS, value)
        print(name, mode(path), shown(path))
        for who, (uid, groups) in users.items():
            opened = [
                as_user(uid, groups, lambda f=f: os.close(os.open(path, f))) for f in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR)
            ]
            ran = as_user(uid, groups, lambda: os.access(path, os.X_OK))
            print(f"  {who}: read, write, both {opened}, may execute {ran}")


def acl_set(directory, _):
    """Who may set one, what is refused, what a mode and a list do to each other."""
    path = made(f"{directory}/file", b"x", 0o640)
    os.chmod(directory, 0o777)
    good = acl((USER_OBJ, 6), (USER, 4, 1001), (GROUP_OBJ, 4), (MASK, 4), (OTHER, 0))
    print("another user sets:", as_user(NOBODY, [NOBODY], lambda: os.setxattr(path, ACCESS, good)), shown(path))
    print("another user's file:", said("setpriv", "--reuid=65534", "--clear-groups", "setfacl", "-m", "u:1001:r", path)[0])
    bad = {
        "version": struct.pack("<I", 1) + good[4:],
        "short": good[:10],
        "empty": b"",
        "header": good[:4],
        "no mask": acl((USER_OBJ, 6), (USER, 4, 1001), (GROUP_OBJ, 4), (OTHER, 0)),
        "two owners": acl((USER_OBJ, 6), (USER_OBJ, 6), (GROUP_OBJ, 4), (OTHER, 0)),
        "order": acl((OTHER, 0), (USER_OBJ, 6), (GROUP_OBJ, 4)),
        "rights": acl((USER_OBJ, 15), (GROUP_OBJ, 4), (OTHER, 0)),
        "one user twice": acl((USER_OBJ, 6), (USER, 4, 5), (USER, 4, 5), (GROUP_OBJ, 4), (MASK, 4), (OTHER, 0)),
        "no other": acl((USER_OBJ, 6), (GROUP_OBJ, 4)),
    }
    for name, value in bad.items():
        print(f"refused, {name}:", tried(lambda v=value: os.setxattr(path, ACCESS, v)), mode(path), shown(path))
    for flags, when in ((1, "created"), (2, "replaced")):
        print(f"{when}:", tried(lambda f=flags: os.setxattr(path, ACCESS, good, f)), shown(path))
    print("default of a file:", tried(lambda: os.setxattr(path, DEFAULT, good)), shown(path, DEFAULT))
    before = os.stat(path).st_ctime_ns
    time.sleep(0.02)
    os.setxattr(path, ACCESS, acl((USER_OBJ, 6), (USER, 6, 1001), (GROUP_OBJ, 4), (MASK, 4), (OTHER, 0)))
    print("change time moves:", os.stat(path).st_ctime_ns > before, mode(path))
    os.chmod(path, 0o777)
    print("chmod 777:", shown(path))
    os.chmod(path, 0o604)
    print("chmod 604:", shown(path))
    plain = acl((USER_OBJ, 6), (GROUP_OBJ, 4), (OTHER, 4))
    print("what a mode can say:", tried(lambda: os.setxattr(path, ACCESS, plain)), mode(path), shown(path))
    print("removed:", tried(lambda: os.removexattr(path, ACCESS)), mode(path), shown(path))
    os.setxattr(path, ACCESS, good)
    print("removed:", tried(lambda: os.removexattr(path, ACCESS)), mode(path), shown(path))
    os.chown(path, 1000, 2000)
    for groups in ([2000], [1000], [1000, 2000]):
        os.chmod(path, 0o2775)
        done = as_user(1000, groups, lambda: os.setxattr(path, ACCESS, good))
        print(f"set-group-ID, a list set by its owner in {groups}:", done, mode(path))
        os.chmod(path, 0o2775)
        done = as_user(1000, groups, lambda: os.chmod(path, 0o2770))
        print(f"set-group-ID, chmod by its owner in {groups}:", done, mode(path))
    os.symlink("file", f"{directory}/link")
    print("of a link:", tried(lambda: os.setxattr(f"{directory}/link", ACCESS, good, follow_symlinks=False)))
    fitted = 0
    for count in (20, 100, 500, 10_000):
        many = acl((USER_OBJ, 6), *((USER, 4, n + 1) for n in range(count)), (GROUP_OBJ, 4), (MASK, 4), (OTHER, 0))
        done = tried(lambda m=many: os.setxattr(path, ACCESS, m))
        # How many fit depends on the file system: all of them, or what was there is left.
        fitted = fitted if done else count
        print(f"{count} users:", shown(path).count("u:") - 1 == fitted, done if count <= 100 else "")


def acl_inherited(directory, _):
    """What a directory hands on, to whatever is made in it and with each umask."""
    theirs = acl((USER_OBJ, 7), (USER, 6, 1001), (GROUP_OBJ, 5), (MASK, 7), (OTHER, 5))
    plain = acl((USER_OBJ, 7), (GROUP_OBJ, 5), (OTHER, 0))
    for name, value in (("theirs", theirs), ("plain", plain)):
        above = f"{directory}/{name}"
        os.mkdir(above)
        os.setxattr(above, DEFAULT, value)
        print(name, shown(above), shown(above, DEFAULT))
        for mask in (0o022, 0o077, 0o777):
            os.umask(mask)
            for rights in (0o666, 0o777, 0o600):
                path = f"{above}/{mask:o}-{rights:o}"
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, rights))
                os.mkdir(path + "-d", rights)
                os.mknod(path + "-p", stat.S_IFIFO | rights)
                fd = os.open(above, os.O_TMPFILE | os.O_RDWR, rights)
                called("linkat", -100, f"/proc/self/fd/{fd}".encode(), -100, f"{path}-t".encode(), AT_SYMLINK_FOLLOW)
                os.close(fd)
                for kind in ("", "-d", "-p", "-t"):
                    print(f"  {mask:o} {rights:o}{kind}:", mode(path + kind), shown(path + kind), shown(path + kind, DEFAULT))
        os.umask(0o022)
        os.symlink("nowhere", f"{above}/link")
        print("  a link:", mode(f"{above}/link"))
    os.chmod(f"{directory}/theirs", 0o2777)
    os.chown(f"{directory}/theirs", 0, 2000)
    os.chmod(f"{directory}/theirs", 0o2777)
    new = f"{directory}/theirs/by-nobody"
    as_user(NOBODY, [NOBODY], lambda: os.close(os.open(new, os.O_CREAT | os.O_WRONLY, 0o2775)))
    as_user(NOBODY, [NOBODY], lambda: os.mkdir(new + "-d", 0o2775))
    for path in (new, new + "-d"):
        print("in a directory with set-group-ID:", mode(path), os.stat(path).st_gid, shown(path), shown(path, DEFAULT))
    copied = said("cp", "-a", f"{directory}/theirs", f"{directory}/copied")
    print("cp -a:", copied, shown(f"{directory}/copied", DEFAULT), shown(f"{directory}/copied/22-666"))
    print("default removed:", tried(lambda: os.removexattr(f"{directory}/theirs", DEFAULT)))
    os.close(os.open(f"{directory}/theirs/last", os.O_CREAT | os.O_WRONLY, 0o666))
    print("after that:", mode(f"{directory}/theirs/last"), shown(f"{directory}/theirs/last"))
    print(*said("getfacl", "-cp", *(f"{directory}/plain/{name}" for name in sorted(os.listdir(f"{directory}/plain")))))


# generic/103, 213, 228, 256: what `df` says is free can be allocated; when it is full, attributes fail cleanly.
def full(directory, _):
    names = [made(f"{directory}/{n:03}") for n in range(64)]
    free = os.statvfs(directory)
    size = (free.f_bavail * free.f_frsize // KIB - 512) * KIB
    made(f"{directory}/space")
    print("all but 512 KiB of what is free:", tried(lambda: fallocate(f"{directory}/space", 0, 0, size)))
    # Whether they fit depends on what a file system keeps for them.
    done = {tried(lambda p=p: os.setxattr(p, "user.test", b"v" * 3000)) for p in names}
    print("attributes fit or do not:", done <= {None, "ENOSPC"}, flush=True)
    for path in (*names, f"{directory}/space"):
        os.unlink(path)
    for _ in range(100):
        after = os.statvfs(directory)
        if after.f_bavail * after.f_frsize >= size:
            break
        time.sleep(0.1)
    print("free again:", after.f_bavail * after.f_frsize >= size)


CASES = {
    "rights-dropped": rights_dropped,
    "rights-dropped-in-a-process": rights_dropped_in_a_process,
    "rights-chown": rights_chown,
    "handles": handles,
    "handles-of-a-new-mount": handles_of_a_new_mount,
    "acl-rights": acl_rights,
    "acl-set": acl_set,
    "acl-inherited": acl_inherited,
    "full": full,
    "names-of-a-user": names_of_a_user,
}

if __name__ == "__main__":
    os.umask(0o022)
    CASES[sys.argv[1]](sys.argv[2], int((sys.argv[3:] or ["0"])[0]))
