"""Access control lists: `python3 acls.py DIR` sets, removes, changes, inherits and tries them below DIR, as root and as users
without rights, and prints what each gets and what is there afterwards."""
import errno, os, socket, stat, struct, sys

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
TAGS = {"u": (1, 2), "g": (4, 8), "m": (16, 16), "o": (32, 32)}
NOBODY = 0xFFFFFFFF
ANN, BOB, STAFF, TEAM, OTHERS = 1001, 1002, 2001, 2002, 2003
UMASK = 0o027


def entry(part):
    kind, name, may = part.split(":")
    tag = TAGS[kind][1 if name else 0]
    bits = sum({"r": 4, "w": 2, "x": 1, "-": 0}[c] for c in may)
    return struct.pack("<HHI", tag, bits, int(name) if name else NOBODY)


def acl(text, version=2):
    parts = [p for p in text.split(",") if p]
    return struct.pack("<I", version) + b"".join(entry(p) for p in parts)


def text(value):
    names = {1: "u", 2: "u", 4: "g", 8: "g", 16: "m", 32: "o"}
    out = []
    assert struct.unpack("<I", value[:4])[0] == 2
    for at in range(4, len(value), 8):
        tag, bits, who = struct.unpack("<HHI", value[at : at + 8])
        may = "".join(c if bits & b else "-" for c, b in (("r", 4), ("w", 2), ("x", 1)))
        out.append(f"{names[tag]}:{'' if who == NOBODY else who}:{may}")
    return ",".join(out)


def said(what):
    try:
        done = what()
        return "ok" if done is None or done is True else str(done)
    except OSError as e:
        return errno.errorcode[e.errno]


def got(path, name):
    try:
        return text(os.getxattr(path, name, follow_symlinks=False))
    except OSError as e:
        return errno.errorcode[e.errno]


def there(path):
    s = os.lstat(path)
    listed = sorted(n for n in os.listxattr(path, follow_symlinks=False) if n.startswith("system."))
    short = [n.removeprefix("system.posix_acl_") for n in listed]
    return f"{s.st_mode:o} access {got(path, ACCESS)} default {got(path, DEFAULT)} {short}"


def as_user(uid, gid, groups, what):
    """What `what` prints, done by another user in a process of its own."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            what()
            sys.stdout.flush()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def new(path, directory=False, mode=None, owner=(0, 0)):
    if directory:
        os.mkdir(path)
    else:
        with open(path, "w") as f:
            f.write("content")
    os.chown(path, *owner)
    os.chmod(path, (0o755 if directory else 0o644) if mode is None else mode)
    return path


NAMED = "u::rwx,u:1001:rw-,g::r-x,g:2002:rwx,m::rw-,o::r--"
LISTS = [
    NAMED,
    "u::rw-,g::r--,o::---",
    "u::rwx,g::rwx,o::rwx",
    "u::rw-,g::r--,m::-wx,o::---",
    "u::rw-,u:1001:rwx,g::r--,m::---,o::r--",
    "u::---,u:1002:r--,u:1001:r--,g::---,g:5:r--,g:4:r--,m::rwx,o::---",
    "u::rw-,u:1001:r--,u:1001:rw-,g::r--,m::rw-,o::---",
    "u::rw-",
    "",
    "g::r--,o::r--",
    "u::rw-,g::r--",
    "u::rw-,u::rw-,g::r--,o::r--",
    "u::rw-,g::r--,g::r--,o::r--",
    "u::rw-,g::r--,o::r--,o::r--",
    "u::rw-,g::r--,m::r--,m::r--,o::r--",
    "u::rw-,u:1001:r--,g::r--,o::r--",
    "u::rw-,g::r--,g:2001:r--,o::r--",
    "g::r--,u::rw-,o::r--",
    "u::rw-,g::r--,u:1001:r--,m::r--,o::r--",
    "u::rw-,g::r--,o::r--,m::r--",
    "u::rw-,g:2001:r--,g::r--,m::r--,o::r--",
    f"u::rw-,u:{NOBODY - 1}:r--,g::r--,m::r--,o::r--",
]
BYTES = {
    "empty": b"",
    "two bytes": b"\2\0",
    "no entry": acl(""),
    "version 1": acl(NAMED, 1),
    "version 3": acl(NAMED, 3),
    "half an entry": acl(NAMED)[:-3],
    "unknown tag": acl(NAMED)[:4] + b"\x40" + acl(NAMED)[5:],
    "too many rights": acl(NAMED)[:6] + b"\x0f" + acl(NAMED)[7:],
    "nobody named": acl("u::rw-,u:7:r--,g::r--,m::r--,o::r--").replace(struct.pack("<I", 7), b"\xff" * 4),
    "a number for the owner": acl("u::rw-,g::r--,o::---")[:8] + b"\7\0\0\0" + acl("u::rw-,g::r--,o::---")[12:],
}


def lists(top):
    """Which lists can be set, and what is there then."""
    n = 0
    for directory in (False, True):
        kind = "directory" if directory else "file"
        for name in (ACCESS, DEFAULT):
            short = name.removeprefix("system.posix_acl_")
            for what, value in [(l or "nothing", acl(l)) for l in LISTS] + list(BYTES.items()):
                n += 1
                path = new(f"{top}/{n}", directory)
                print(f"{kind}, {short}, {what}:", said(lambda: os.setxattr(path, name, value)), there(path))
    # Kept until it is removed, changed in place, gone when it says no more than the mode.
    path = new(f"{top}/kept", True)
    for name in (ACCESS, DEFAULT):
        os.setxattr(path, name, acl(NAMED))
    for flags in (os.XATTR_CREATE, os.XATTR_REPLACE):
        print("flags", flags, said(lambda: os.setxattr(path, ACCESS, acl(LISTS[3]), flags)), there(path))
    print("bad beside good:", said(lambda: os.setxattr(path, ACCESS, acl(LISTS[7]))), there(path))
    print("mode alone:", said(lambda: os.setxattr(path, ACCESS, acl(LISTS[1]))), there(path))
    os.setxattr(path, ACCESS, acl(NAMED))
    print("removed:", said(lambda: os.removexattr(path, ACCESS)), there(path))
    print("again:", said(lambda: os.removexattr(path, ACCESS)), there(path))
    print("default removed:", said(lambda: os.removexattr(path, DEFAULT)), there(path))
    print("of a file removed:", said(lambda: os.removexattr(f"{top}/1", DEFAULT)), there(f"{top}/1"))
    link = f"{top}/link"
    os.symlink("kept", link)
    for name in (ACCESS, DEFAULT):
        print("link:", said(lambda: os.setxattr(link, name, acl(NAMED), follow_symlinks=False)), there(link))
        print("link, removed:", said(lambda: os.removexattr(link, name, follow_symlinks=False)))
    many = ",".join(f"u:{n}:r--" for n in range(100))
    print("100 users:", said(lambda: os.setxattr(path, ACCESS, acl(f"u::rwx,{many},g::---,m::r--,o::---"))), len(os.getxattr(path, ACCESS)))
    many = ",".join(f"u:{n}:r--" for n in range(600))
    print("600 users:", said(lambda: os.setxattr(path, ACCESS, acl(f"u::rwx,{many},g::---,m::r--,o::---"))), len(os.getxattr(path, ACCESS)))
    print("other name:", said(lambda: os.setxattr(path, "system.posix_acl_other", acl(NAMED))))


def modes(top):
    """A change of the mode changes the list, and nothing else does."""
    n = 0
    for before in (NAMED, LISTS[3], LISTS[4]):
        for mode in (0, 0o777, 0o640, 0o4751, 0o2610, 0o1007):
            for directory in (False, True):
                n += 1
                path = new(f"{top}/{n}", directory)
                os.setxattr(path, ACCESS, acl(before))
                print(f"chmod {mode:o}:", said(lambda: os.chmod(path, mode)), there(path))
    path = f"{top}/1"
    os.setxattr(path, ACCESS, acl(NAMED))
    os.chmod(path, 0o6675)
    os.chown(path, ANN, STAFF)
    print("chown:", there(path))
    with open(path, "a") as f:
        f.write("more")
    os.truncate(path, 3)
    os.link(path, path + "-link")
    os.rename(path, path + "-moved")
    print("other changes:", there(path + "-moved"), there(path + "-link"))
    os.setxattr(path + "-link", "user.more", b"x" * 2000)
    os.chmod(path + "-link", 0o604)
    print("beside another attribute:", there(path + "-link"), len(os.getxattr(path + "-link", "user.more")))


def inherited(top):
    """What is made in a directory with a default list has one of its own."""
    n = 0
    defaults = [None, NAMED, "u::rwx,g::r-x,o::---", "u::r--,u:1001:rwx,g::rwx,m::rwx,o::rwx", "u::rwx,g::rwx,m::r-x,o::-wx"]
    for default in defaults:
        for setgid in (0, 0o2000):
            n += 1
            d = new(f"{top}/{n}", True)
            os.chown(d, 0, TEAM)
            os.chmod(d, 0o755 | setgid)
            if default:
                os.setxattr(d, DEFAULT, acl(default))
            for mode in (0o666, 0o777, 0o600, 0o2775, 0o1471):
                def unnamed():
                    fd = os.open(d, os.O_TMPFILE | os.O_RDWR, mode)
                    # With a directory it is linkat, which follows.
                    os.link(f"/proc/self/fd/{fd}", f"{d}/{mode:o}-unnamed", src_dir_fd=fd, follow_symlinks=True)
                    os.close(fd)
                def bound():
                    s = socket.socket(socket.AF_UNIX)
                    os.chdir(d)
                    s.bind(f"{mode:o}-socket")
                    s.close()
                    os.chdir("/")
                makes = {
                    "file": lambda: os.close(os.open(f"{d}/{mode:o}-file", os.O_CREAT | os.O_WRONLY, mode)),
                    "node": lambda: os.mknod(f"{d}/{mode:o}-node", stat.S_IFREG | mode),
                    "dir": lambda: os.mkdir(f"{d}/{mode:o}-dir", mode),
                    "fifo": lambda: os.mkfifo(f"{d}/{mode:o}-fifo", mode),
                    "device": lambda: os.mknod(f"{d}/{mode:o}-device", stat.S_IFCHR | mode, os.makedev(1, 3)),
                    "unnamed": unnamed,
                    "socket": bound,
                }
                for name, make in makes.items():
                    result = said(make)
                    print(f"{default} {setgid:o}: {name} {mode:o}:", result, there(f"{d}/{mode:o}-{name}"))
            os.symlink("x", f"{d}/link")
            print(f"{default} {setgid:o}: link:", there(f"{d}/link"))
    deep = f"{top}/2/777-dir"
    os.makedirs(f"{deep}/a/b")
    print("deep:", there(f"{deep}/a"), there(f"{deep}/a/b"))
    os.rename(f"{top}/1/666-file", f"{deep}/came")
    print("moved in:", there(f"{deep}/came"))
    as_user(ANN, STAFF, [], lambda: print("user:", said(lambda: os.mkdir(f"{deep}/no"))))
    open_to_all = new(f"{top}/all", True, 0o2777, (0, TEAM))
    os.setxattr(open_to_all, DEFAULT, acl(NAMED))
    def make():
        os.umask(0o077)
        os.mkdir(f"{open_to_all}/dir")
        os.close(os.open(f"{open_to_all}/file", os.O_CREAT | os.O_WRONLY, 0o2775))
    as_user(BOB, STAFF, [], make)
    for name in ("dir", "file"):
        print("made by a user:", there(f"{open_to_all}/{name}"), os.stat(f"{open_to_all}/{name}").st_gid)


def rights(top):
    """Who may do what: each of six users with files and directories of twelve lists."""
    tried = [
        None,
        NAMED,
        "u::---,u:1001:rwx,g::---,m::rwx,o::---",
        "u::rwx,u:1001:---,g::rwx,m::rwx,o::rwx",
        "u::rwx,u:1001:rwx,g::rwx,m::---,o::r--",
        "u::rwx,u:1001:rwx,g::---,m::r--,o::---",
        "u::rwx,g::r--,g:2002:-w-,m::rwx,o::rwx",
        "u::rwx,g::---,g:2002:rwx,m::rwx,o::rwx",
        "u::rwx,g::rwx,g:2002:---,m::rwx,o::rwx",
        "u::rwx,g::rwx,g:2002:rwx,m::-w-,o::---",
        "u::rwx,g::rwx,m::r--,o::---",
        "u::rw-,u:1001:r--,u:1001:-w-,g::---,m::rwx,o::---",
    ]
    users = [(0, 0, []), (1000, OTHERS, []), (ANN, OTHERS, []), (BOB, STAFF, []), (BOB, OTHERS, [TEAM]), (BOB, TEAM, [STAFF]), (BOB, OTHERS, [])]
    for n, listed in enumerate(tried):
        f = new(f"{top}/{n}-file", False, 0o640, (1000, STAFF))
        d = new(f"{top}/{n}-dir", True, 0o750, (1000, STAFF))
        new(f"{d}/in", False, 0o666)
        if listed:
            for path in (f, d):
                os.setxattr(path, ACCESS, acl(listed))
        for uid, gid, groups in users:
            def tries():
                def opened(flags):
                    os.close(os.open(f, flags))
                def wrote():
                    fd = os.open(f, os.O_WRONLY | os.O_APPEND)
                    assert os.write(fd, b"x") == 1
                    os.close(fd)
                def made():
                    os.close(os.open(f"{d}/made", os.O_CREAT | os.O_WRONLY))
                    os.unlink(f"{d}/made")
                tries = {
                    "may": lambda: "".join(c for c, b in (("r", 4), ("w", 2), ("x", 1)) if os.access(f, b, effective_ids=True)) or "none",
                    "read": lambda: opened(os.O_RDONLY),
                    "write": lambda: wrote(),
                    "both": lambda: opened(os.O_RDWR),
                    "truncate": lambda: os.truncate(f, 9),
                    "utime": lambda: os.utime(f),
                    "chmod": lambda: os.chmod(f, stat.S_IMODE(os.stat(f).st_mode)),
                    "xattr": lambda: os.setxattr(f, "user.a", b"1"),
                    "list": lambda: os.listdir(d) == ["in"],
                    "search": lambda: os.stat(f"{d}/in").st_size >= 0,
                    "make": made,
                }
                results = " ".join(f"{name} {said(what)}" for name, what in tries.items())
                print(f"{listed}: {uid}:{gid}:{groups}: {results}")
            as_user(uid, gid, groups, tries)


def owners(top):
    """Who may set and remove lists; set-group-ID."""
    for uid, gid, groups in [(0, 0, []), (ANN, STAFF, []), (BOB, OTHERS, [TEAM]), (BOB, STAFF, [])]:
        for mode in (0o2755, 0o2745, 0o6777):
            d = new(f"{top}/{uid}-{gid}-{mode:o}", True, 0o777, (ANN, TEAM))
            f = new(f"{d}/f", False, mode, (ANN, TEAM))
            os.chmod(f, mode)
            g = new(f"{d}/g", False, mode, (ANN, STAFF))
            os.chmod(g, mode)
            def tries():
                for path in (f, g):
                    for value in (acl(NAMED), acl(LISTS[1]), acl(LISTS[7])):
                        print(f"{uid}:{gid}:{groups}: {mode:o}: set:", said(lambda: os.setxattr(path, ACCESS, value)), there(path))
                print("default:", said(lambda: os.setxattr(d, DEFAULT, acl(NAMED))), said(lambda: os.setxattr(f, DEFAULT, acl(NAMED))))
                print("read:", got(d, DEFAULT), "remove:", said(lambda: os.removexattr(d, DEFAULT)))
            as_user(uid, gid, groups, tries)
    d = new(f"{top}/trusted-with-all", True, 0o755)
    os.setxattr(d, ACCESS, acl("u::rwx,u:1001:rwx,g::r-x,m::rwx,o::r-x"))
    as_user(ANN, STAFF, [], lambda: print("named, all rights:", said(lambda: os.setxattr(d, ACCESS, acl(NAMED))), said(lambda: os.removexattr(d, ACCESS)), said(lambda: os.chmod(d, 0o777))))
    print(there(d))


def main(top):
    os.umask(UMASK)
    os.chmod(top, 0o755)
    for name, part in [("lists", lists), ("modes", modes), ("inherited", inherited), ("rights", rights), ("owners", owners)]:
        print("==", name)
        where = os.path.join(top, name)
        os.mkdir(where)
        os.chmod(where, 0o755)
        part(where)


main(sys.argv[1])
