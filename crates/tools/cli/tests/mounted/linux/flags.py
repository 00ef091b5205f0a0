"""What the flags of chattr(1) forbid: `python3 flags.py DIR` tries, below DIR, every change of a file and of a
directory with each flag, and prints what each gets."""
import array, ctypes, errno, fcntl, mmap, os, sys

libc = ctypes.CDLL(None, use_errno=True)
GET, SET = 0x80086601, 0x40086602
FSGET, FSSET = 0x801C581F, 0x401C5820
IMMUTABLE, APPEND, NODUMP, NOATIME = 0x10, 0x20, 0x40, 0x80


def ioctl(path, command, words):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        words = array.array("I", words)
        fcntl.ioctl(fd, command, words, True)
        return words
    finally:
        os.close(fd)


def get(path):
    return ioctl(path, GET, [0, 0])[0] & 0xF0


def put(path, flags):
    # As chattr(1) does: the flags that it does not know stay what they are (ext4: extents).
    others = ioctl(path, GET, [0, 0])[0] & ~0xF0
    ioctl(path, SET, [others | flags, 0])


def call(name, *args):
    if getattr(libc, name)(*args) != 0:
        raise OSError(ctypes.get_errno(), name)


def said(what):
    try:
        done = what()
        return "ok" if done is None or done is True else str(done)
    except OSError as e:
        return errno.errorcode[e.errno]


def rename(old, new, flags):
    call("renameat2", -100, old.encode(), -100, new.encode(), flags)


def fallocate(fd, mode, at, n):
    call("fallocate", fd, mode, ctypes.c_long(at), ctypes.c_long(n))


def write_all(fd, data, at=None):
    n = os.write(fd, data) if at is None else os.pwrite(fd, data, at)
    assert n == len(data)


def of_file(top, flags):
    """Each change of a file that has the flags; with the file open for writing from before."""
    f, beside, other = (os.path.join(top, n) for n in ("f", "beside", "other"))
    for path in (f, beside, other):
        with open(path, "w") as file:
            file.write("some content")
    os.setxattr(f, "user.there", b"1")
    os.utime(f, (1000, 1000))
    plain, at_end = os.open(f, os.O_RDWR), os.open(f, os.O_RDWR | os.O_APPEND)
    os.link(f, f + "2")
    put(f, flags)
    assert get(f) == flags, hex(get(f))
    tries = {
        "read": lambda: os.pread(plain, 4, 0) == b"some",
        "write": lambda: write_all(plain, b"x", 0),
        "write behind the end": lambda: write_all(plain, b"x", 50),
        "append": lambda: write_all(at_end, b"more"),
        "large append": lambda: write_all(at_end, b"more" * (3 << 18)),
        "open to append": lambda: os.close(os.open(f, os.O_WRONLY | os.O_APPEND)),
        "open and cut": lambda: os.close(os.open(f, os.O_WRONLY | os.O_TRUNC)),
        "truncate": lambda: os.truncate(f, 3),
        "ftruncate": lambda: os.ftruncate(plain, 3),
        "make longer": lambda: os.ftruncate(plain, 9 << 20),
        "allocate": lambda: fallocate(plain, 1, 0, 1 << 20),
        "punch": lambda: fallocate(plain, 3, 0, 4096),
        "zero": lambda: fallocate(plain, 16, 0, 4096),
        "chmod": lambda: os.chmod(f, 0o600),
        "fchmod": lambda: os.fchmod(plain, 0o600),
        "chown": lambda: os.chown(f, 1, 1),
        "touch": lambda: os.utime(f),
        "utime": lambda: os.utime(f, (5, 5)),
        "setxattr": lambda: os.setxattr(f, "user.new", b"1"),
        "trusted": lambda: os.setxattr(f, "trusted.new", b"1"),
        "removexattr": lambda: os.removexattr(f, "user.there"),
        "link": lambda: os.link(f, f + "3"),
        "rename": lambda: os.rename(f, f + "4"),
        "rename over it": lambda: os.rename(beside, f),
        "rename no replace": lambda: rename(f, other, 1),
        "exchange": lambda: rename(f, other, 2),
        "exchange with it": lambda: rename(other, f, 2),
        "rename to itself": lambda: os.rename(f, f + "2"),
        "unlink": lambda: os.unlink(f),
        "unlink another name": lambda: os.unlink(f + "2"),
    }
    for name, what in tries.items():
        print(f"{flags:#x} file: {name}: {said(what)}")
    os.close(plain)
    os.close(at_end)


def of_directory(top, flags):
    """Each change in a directory that has the flags."""
    d, beside = os.path.join(top, "d"), os.path.join(top, "outside")
    os.makedirs(os.path.join(d, "sub"))
    os.mkdir(os.path.join(d, "sub2"))
    for path in (beside, beside + "2", os.path.join(d, "in"), os.path.join(d, "in2")):
        with open(path, "w") as file:
            file.write("content")
    put(d, flags)
    assert get(d) == flags, hex(get(d))
    at = lambda name: os.path.join(d, name)
    tries = {
        "list": lambda: "in" in os.listdir(d),
        "create": lambda: os.close(os.open(at("new"), os.O_CREAT | os.O_WRONLY)),
        "create what is there": lambda: os.close(os.open(at("in"), os.O_CREAT | os.O_WRONLY)),
        "exclusive": lambda: os.close(os.open(at("in"), os.O_CREAT | os.O_EXCL | os.O_WRONLY)),
        "tmpfile": lambda: os.close(os.open(d, os.O_TMPFILE | os.O_WRONLY)),
        "mkdir": lambda: os.mkdir(at("newdir")),
        "mkdir there": lambda: os.mkdir(at("sub")),
        "mkfifo": lambda: os.mkfifo(at("fifo")),
        "symlink": lambda: os.symlink("x", at("symlink")),
        "link": lambda: os.link(beside, at("link")),
        "write in": lambda: os.truncate(at("in"), 3),
        "chmod in": lambda: os.chmod(at("in"), 0o600),
        "unlink": lambda: os.unlink(at("in")),
        "rmdir": lambda: os.rmdir(at("sub")),
        "rename in": lambda: os.rename(at("in"), at("in3")),
        "rename over": lambda: os.rename(at("in"), at("in2")),
        "rename out": lambda: os.rename(at("in2"), beside + "3"),
        "rename into": lambda: os.rename(beside, at("came")),
        "rename into, over": lambda: os.rename(beside + "2", at("in2")),
        "exchange": lambda: rename(beside + "2", at("in2"), 2),
        "move the directory": lambda: os.rename(d, d + "2"),
        "remove the directory": lambda: os.rmdir(d),
        "chmod": lambda: os.chmod(d, 0o700),
        "touch": lambda: os.utime(d),
        "setxattr": lambda: os.setxattr(d, "user.new", b"1"),
    }
    for name, what in tries.items():
        print(f"{flags:#x} directory: {name}: {said(what)}")


def cleared(top):
    for where, dirs, files in os.walk(top):
        for name in dirs + files + ["."]:
            path = os.path.join(where, name)
            if os.path.isfile(path) or os.path.isdir(path):
                if not os.path.islink(path):
                    put(path, 0)


def mapped(top):
    """What is in a mapping when the file is made immutable counts."""
    f = os.path.join(top, "mapped")
    fd = os.open(f, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"." * 8192)
    over = mmap.mmap(fd, 8192)
    over[4090:4100] = b"0123456789"
    put(f, IMMUTABLE)
    os.close(fd)
    with open(f, "rb") as file:
        print("mapped:", file.read()[4088:4102])
    over.close()


def main(top):
    for flags in (IMMUTABLE, APPEND, IMMUTABLE | APPEND, NODUMP | NOATIME, 0):
        below = os.path.join(top, f"with{flags:x}")
        os.mkdir(below)
        of_file(below, flags)
        of_directory(below, flags)
        cleared(below)
    mapped(top)
    # Inherited, but not by a name that comes.
    d = os.path.join(top, "inherits")
    os.mkdir(d)
    put(d, NODUMP | NOATIME | APPEND)
    for name, what in (("f", lambda p: open(p, "w").close()), ("d", os.mkdir)):
        path = os.path.join(d, name)
        what(path)
        print("inherited:", name, hex(get(path)))
    # Both forms of the ioctls tell the same; what there is not is refused.
    path = os.path.join(top, "forms")
    open(path, "w").close()
    ioctl(path, FSSET, [0x8 | 0x80, 0, 0, 0, 0, 0, 0])
    print("forms:", hex(get(path)), hex(ioctl(path, FSGET, [0] * 7)[0] & 0xF8))
    # What stays immutable keeps its other flags.
    for before, after in ((0x10, 0x10), (0x10, 0x50), (0x50, 0x10), (0x10, 0x30), (0x30, 0x10), (0x50, 0x80), (0x40, 0x50)):
        put(path, 0)
        put(path, before)
        print(f"from {before:#x} to {after:#x}:", said(lambda: put(path, after)), hex(get(path)))
    put(path, 0)
    ioctl(path, FSSET, [0x8 | 0x80, 0, 0, 0, 0, 0, 0])
    print("immutable, the other form:", said(lambda: ioctl(path, FSSET, [0x8, 0, 0, 0, 0, 0, 0]) and None))
    put(path, 0)
    print("project:", said(lambda: ioctl(path, FSSET, [0, 0, 0, 7, 0, 0, 0]) and None))
    print("compression:", said(lambda: put(path, 0) or ioctl(path, SET, [0x4 | 0x80000, 0]) and None))
    # Who may: the owner what backup programs use, and nobody without the capability the rest.
    os.chmod(top, 0o777)
    mine = os.path.join(top, "mine")
    open(mine, "w").close()
    open(mine + "2", "w").close()
    os.chown(mine, 1000, 1000)
    put(path, APPEND)
    os.seteuid(1000)
    for name, flags in (("immutable", IMMUTABLE), ("append", APPEND), ("nodump", NODUMP), ("noatime", NOATIME)):
        print(f"user, {name}: own {said(lambda: put(mine, flags))}, other's {said(lambda: put(mine + '2', flags))}")
    print("user, takes append away:", said(lambda: put(path, 0)))
    os.seteuid(0)
    # No access time.
    os.utime(mine, (1, 1))
    put(mine, NOATIME)
    with open(mine) as f:
        f.read()
    print("access time:", int(os.stat(mine).st_atime))
    put(path, 0)
    cleared(top)


main(sys.argv[1])
