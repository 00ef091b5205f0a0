"""Items 15 to 18 of the walk through what use has found: what differs from what users of ext4 have."""

import array
import ctypes
import errno
import fcntl
import os
import stat
import time

from use_tools import (
    LIBC,
    NOBODY,
    RUN,
    SERVED,
    Place,
    attempt,
    compiled,
    is_mounted,
    last,
    public_library,
    scratch,
    short,
)
from walk import SHALE, command

XFS_IOC_GOINGDOWN = 0x8004587D
RENAME_WHITEOUT = 4


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("handle", ctypes.c_ubyte * 128)]


def handle_of(path):
    handle, mount = Handle(bytes=128), ctypes.c_int()
    if LIBC.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0) != 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return handle


def opened(directory, handle):
    """What is read by a handle, or the error."""
    mount = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    fd = LIBC.open_by_handle_at(mount, ctypes.byref(handle), os.O_RDONLY)
    why = ctypes.get_errno()
    os.close(mount)
    if fd < 0:
        return errno.errorcode.get(why, why)
    try:
        return os.pread(fd, 100, 0).decode()
    finally:
        os.close(fd)


def forget():
    """Has the kernel forget what it has cached."""
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
        file.write("2")


def item_15(tally):
    """open_by_handle_at after drop_caches, a killed daemon and a new mount"""
    with Place("handles", "64M") as v:
        v.up()
        os.makedirs(v.path("d/e"))
        for name in ("one", "d/e/two", "gone"):
            with open(v.path(name), "w", encoding="ascii") as file:
                file.write(f"content of {name}")
        handles = {name: handle_of(v.path(name)) for name in ("one", "d/e/two", "gone")}
        os.unlink(v.path("gone"))
        right = {"one": "content of one", "d/e/two": "content of d/e/two", "gone": "ESTALE"}
        for when, what in (("drop_caches", forget), ("kill -9 of the daemon", v.kill), ("a new mount", v.again)):
            what()
            found = {name: opened(v.mount, handle) for name, handle in handles.items()}
            tally.see(f"after {when}", found == right, found)
        v.down()


INSERTS = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifndef FALLOC_FL_UNSHARE_RANGE
#define FALLOC_FL_UNSHARE_RANGE 0x40
#endif
static void all(int fd, const char *when) {
    const int modes[] = {FALLOC_FL_INSERT_RANGE, FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_UNSHARE_RANGE};
    const char *names[] = {"INSERT", "COLLAPSE", "UNSHARE"};
    for (int n = 0; n < 3; n++)
        printf("%s %s: %s\n", when, names[n], fallocate(fd, modes[n], 4096, 4096) ? strerror(errno) : "ok");
}
int main(int argc, char **v) {
    static char page[65536];
    int fd = argc > 1 ? open(v[1], O_RDWR | O_CREAT, 0644) : -1;
    if (write(fd, page, sizeof page) != sizeof page) return perror("write"), 1;
    all(fd, "before");
    char *m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (m == MAP_FAILED) return perror("mmap"), 1;
    m[0] = 'x';
    all(fd, "mapped");
    munmap(m, 4096);
    all(fd, "after");
    return 0;
}
"""


def item_16(tally):
    """fallocate INSERT, COLLAPSE, UNSHARE under shale run before, while and after the file is mapped"""
    with Place("inserts", "64M") as v, scratch("inserts") as tools:
        program = compiled(tools, "inserts", INSERTS)
        v.up()
        code, said = attempt(*RUN, program, v.path("file"), env=SERVED)
        answers = [line.rsplit(": ", 1)[-1] for line in said.splitlines()]
        tally.see(
            "one answer for one file", code == 0 and len(answers) == 9 and set(answers) == {"ok"}, short(said, 400)
        )
        v.down()
        tally.see("fsck", "clean" in v.fsck(), last(v.fsck()))


def item_17(tally):
    """POSIX ACLs, chattr and lsattr, the shutdown ioctl, whiteouts"""
    with scratch("ext4") as tools, Place("ext4", "64M", options=("--trust", "nobody")) as v:
        v.opened().up()
        env = public_library(tools)
        acls(tally, v, (), {}, "mount")
        acls(tally, v, RUN, env, "shale run")
        flags(tally, v)
        with open(v.path("white"), "w", encoding="ascii") as file:
            file.write("x")
        done = LIBC.renameat2(-100, v.path("white").encode(), -100, v.path("moved").encode(), RENAME_WHITEOUT)
        why = "" if done == 0 else os.strerror(ctypes.get_errno())
        at = os.lstat(v.path("white"))
        is_whiteout = done == 0 and stat.S_ISCHR(at.st_mode) and at.st_rdev == 0 and os.path.exists(v.path("moved"))
        tally.see("renameat2 RENAME_WHITEOUT leaves a device 0, 0", is_whiteout, why or oct(at.st_mode))
        shutdown(tally, v)


def acls(tally, v, prefix, env, way):
    """A user beside owner and group, the mask, and what a directory hands on; `prefix` goes before each program."""
    directory, file = v.path(f"acl-{way[0]}"), v.path(f"acl-{way[0]}/file")
    os.mkdir(directory)
    with open(file, "w", encoding="ascii") as made:
        os.chmod(made.fileno(), 0o600)
        made.write("for nobody too\n")
    as_nobody = lambda *words: attempt(*prefix, *NOBODY, *words, env=env)
    before = as_nobody("cat", file)
    code, said = attempt(*prefix, "setfacl", "-m", "u:nobody:r", file, env=env)
    after = as_nobody("cat", file)
    right = before[0] == 1 and code == 0 and after == (0, "for nobody too")
    tally.see(f"{way}: setfacl -m u:nobody:r on a file of mode 0600; nobody's cat", right, short(said or after[1]))
    _, shown = attempt(*prefix, "getfacl", "-cp", file, env=env)
    tally.see("getfacl", "user:nobody:r--" in shown and "mask::r--" in shown, short(shown))
    refused = as_nobody("sh", "-c", f"echo x >> {file}")
    tally.see("nobody writes", refused[0] != 0, short(refused[1]) or "it did")
    code, said = attempt(*prefix, "setfacl", "-d", "-m", "u:nobody:rwx", directory, env=env)
    attempt(*prefix, "sh", "-c", f"umask 077; echo inherited > {directory}/new; mkdir {directory}/sub", env=env)
    _, shown = attempt(*prefix, "getfacl", "-cp", f"{directory}/new", f"{directory}/sub", env=env)
    right = code == 0 and shown.count("user:nobody:rwx") >= 3 and "default:user:nobody:rwx" in shown
    tally.see("a default ACL is handed on to files and directories", right, short(said or shown, 200))
    os.chmod(file, 0o600)
    masked = as_nobody("cat", file)
    tally.see("chmod 600 sets the mask: nobody's cat", code == 0 and masked[0] == 1, short(masked[1]))


def flags(tally, v):
    """chattr and lsattr."""
    file = v.path("flags")
    for flag, forbidden in (("i", "echo x >> {}"), ("i", "rm -f {}"), ("a", "echo x > {}"), ("a", "truncate -s 1 {}")):
        with open(file, "w", encoding="ascii") as made:
            made.write("content")
        code, said = attempt("chattr", f"+{flag}", file)
        _, shown = attempt("lsattr", file)
        tried = attempt("sh", "-c", forbidden.format(file))
        ran = attempt(*RUN, "sh", "-c", forbidden.format(file), env=SERVED)
        right = code == 0 and flag in shown.split(" ")[0] and tried[0] != 0 and ran[0] != 0
        tally.see(
            f"chattr +{flag}; lsattr; {forbidden.format('FILE')}, on the mount and under shale run",
            right,
            short(f"{said} {shown.split(' ')[0]} {last(tried[1])}"),
        )
        attempt("chattr", f"-{flag}", file)
    code, said = attempt("chattr", "+dA", file)
    v.again()
    _, shown = attempt("lsattr", file)
    tally.see(
        "chattr +dA, mounted again",
        code == 0 and {"d", "A"} <= set(shown.split(" ")[0]),
        short(f"{said} {shown.split(' ')[0]}"),
    )


def shutdown(tally, v):
    """The ioctl of crash tests: all is EIO until the volume is unmounted, and what had returned is there then."""
    with open(v.path("returned"), "w", encoding="ascii") as file:
        file.write("returned")
    top, why = os.open(v.mount, os.O_RDONLY), ""
    try:
        fcntl.ioctl(top, XFS_IOC_GOINGDOWN, array.array("I", [1]), True)
    except OSError as e:
        why = e.strerror
    os.close(top)
    code, said = attempt("sh", "-c", f"echo x > {v.path('later')}")
    tally.see(
        "the shutdown ioctl; a write then",
        not why and code != 0 and "Input/output error" in said,
        why or short(said) or "written",
    )
    attempt(SHALE, "umount", v.mount)
    if is_mounted(v.mount):
        command("umount", "-l", v.mount)
    tally.see("fsck", "clean" in v.fsck(), last(v.fsck()))
    v.up()
    with open(v.path("returned"), encoding="ascii") as file:
        tally.see("what had returned is there after the next mount", file.read() == "returned")
    v.down()


def item_18(tally):
    """fallocate of what df says is free; options of mounts; fsck right after umount(8)"""
    with Place("free", "512M") as v:
        v.up()
        free = int(command("df", "-B1", "--output=avail", v.mount).split()[1])
        file = os.open(v.path("all"), os.O_RDWR | os.O_CREAT)
        why = "ok"
        try:
            os.posix_fallocate(file, 0, free)
        except OSError as e:
            why = e.strerror
        os.close(file)
        left = os.statvfs(v.mount)
        tally.see(
            f"fallocate of the {free} bytes that df says are free",
            why == "ok",
            f"{why}; then free: {left.f_bavail * left.f_frsize}",
        )
        v.down()
    with Place("options", "64M") as v:
        options(tally, v)
        for n in range(3):
            v.up()
            for name in range(200):
                with open(v.path(f"{n}-{name}"), "wb") as made:
                    made.write(bytes(20_000))
            command("umount", v.mount)
            code, said = attempt(SHALE, "fsck", v.file)
            tally.see("umount(8), then shale fsck", code == 0, last(said))
            time.sleep(0.5)


def options(tally, v):
    """Given to `shale mount`, and at a remount by mount(8)."""
    shown = lambda: next(
        (l.split()[3] for l in open("/proc/mounts", encoding="utf8") if l.split()[1] == v.mount), "not mounted"
    )
    wanted = ("noatime", "nosuid", "nodev", "noexec")
    code, said = attempt(SHALE, "mount", "-o", ",".join(wanted), v.file, v.mount)
    tally.see(
        "shale mount -o noatime,nosuid,nodev,noexec",
        code == 0 and all(o in shown().split(",") for o in wanted),
        short(said) if code else shown(),
    )
    if not is_mounted(v.mount):
        v.up()
    command("cp", "/bin/true", v.path("true"))
    # The second is what mount(8) calls: it finds the program by its name only where it is installed.
    for what, before, behind in (
        ("shale mount", ("mount",), (v.mount,)),
        ("mount(8)", ("shale", v.mount), ("-t", "fuse.shale")),
    ):
        code, said = attempt(SHALE, *before, "-o", "remount,ro", *behind)
        tried = attempt("sh", "-c", f"echo x > {v.path('file')}")
        ran = attempt(*RUN, "sh", "-c", f"echo x > {v.path('file')}", env=SERVED)
        right = code == 0 and "ro" in shown().split(",") and tried[0] != 0 and ran[0] != 0
        tally.see(f"{what} -o remount,ro; a write", right, short(said or tried[1] or "written"))
        attempt(SHALE, *before, "-o", "remount,rw", *behind)
    code, _ = attempt("sh", "-c", f"echo x > {v.path('file')}")
    tally.see("and remount,rw", code == 0 and "rw" in shown().split(","), shown())
    if is_mounted(v.mount):
        v.down()
    code, said = attempt(SHALE, "mount", "-o", "ro", v.file, v.mount)
    tally.see("shale mount -o ro", code == 0 and "ro" in shown().split(","), short(said) if code else shown())
    if is_mounted(v.mount):
        v.down()


ITEMS = {15: item_15, 16: item_16, 17: item_17, 18: item_18}
