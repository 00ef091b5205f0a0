#!/usr/bin/env python3
"""What a user who is not root may do with names, in a tree of which others own parts. A case of like_ext4.py.

    like_ext4_users.py DIRECTORY SEED CALLS    as that user: makes random calls and prints the result of each one

Names are random, results depend on what earlier calls left: the same calls are made everywhere."""

import errno
import grp
import mmap
import os
import random
import stat
import subprocess
import sys

NOBODY = 65534
SEEDS, CALLS = (1, 2, 3), 1500
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
HERE = os.path.abspath(__file__)


def tried(what):
    try:
        return what()
    except OSError as e:
        return errno.errorcode.get(e.errno, e.errno)
    except (ValueError, UnicodeDecodeError) as e:
        return e


def acl(*entries):
    packed = [(2).to_bytes(4, "little")]
    packed += [tag.to_bytes(2, "little") + rights.to_bytes(2, "little") + who.to_bytes(4, "little") for tag, rights, who in entries]
    return b"".join(packed)


NONE = 0xFFFF_FFFF
LETS_NOBODY = acl((1, 7, NONE), (2, 7, NOBODY), (4, 0, NONE), (16, 7, NONE), (32, 0, NONE))
READ_ONLY = acl((1, 5, NONE), (4, 5, NONE), (16, 5, NONE), (32, 0, NONE))


def prepare(top):
    """Directories of all kinds, with files of all kinds in them. Root makes them."""
    games, own = grp.getgrnam("games").gr_gid, grp.getgrgid(NOBODY).gr_gid
    kinds = [
        (NOBODY, own, 0o755), (0, 0, 0o755), (0, 0, 0o1777), (0, games, 0o2775), (NOBODY, own, 0o500), (0, own, 0o770),
        (0, 0, 0o711), (NOBODY, games, 0o2755), (0, games, 0o777), (NOBODY, own, 0o1770), (0, 0, 0o700), (0, 0, 0o700),
    ]
    files = [(NOBODY, own, 0o644), (0, 0, 0o644), (0, own, 0o664), (NOBODY, games, 0o444), (0, games, 0o4755), (NOBODY, own, 0o000)]
    for number, (uid, gid, mode) in enumerate(kinds):
        directory = f"{top}/d{number}"
        os.mkdir(directory)
        for n, (owner, group, bits) in enumerate(files):
            with open(f"{directory}/f{n}", "w") as f:
                f.write("content" * n)
            os.chown(f.name, owner, group)
            os.chmod(f.name, bits)
        os.symlink("f0", f"{directory}/s0")
        os.symlink("../d0/f0", f"{directory}/s1")
        os.chown(directory, uid, gid)
        os.chmod(directory, mode)
    os.setxattr(f"{top}/d11", ACCESS, LETS_NOBODY)
    os.setxattr(f"{top}/d0", DEFAULT, READ_ONLY)
    os.chown(top, NOBODY, own)
    os.chmod(top, 0o755)


class User:
    """A process that makes random calls."""

    def __init__(self, top, seed):
        self.chance, self.top, self.open, self.names, self.did = random.Random(seed), top, [], {}, ""
        os.chdir(top)

    def name(self):
        of = self.chance
        here = f"d{of.randrange(12)}" if of.random() < 0.95 else "."
        start = f"{self.top}/{here}" if of.random() < 0.4 else here
        return f"{start}/{of.choice('fffffnnns')}{of.randrange(7)}" + ("/x" if of.random() < 0.03 else "")

    def mode(self):
        return self.chance.choice([0o644, 0o600, 0o444, 0o000, 0o755, 0o2755, 0o4711, 0o200, 0o770])

    def opened(self):
        of = self.chance
        flags = of.choice([os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
        for more, share in ((os.O_CREAT, 0.6), (os.O_EXCL, 0.2), (os.O_TRUNC, 0.2), (os.O_APPEND, 0.2), (os.O_NOFOLLOW, 0.1)):
            flags |= more if of.random() < share else 0
        path, mode = self.name(), self.mode()
        self.did = f"{self.short(path)} {flags:o} {mode:o}"
        fd = os.open(path, flags, mode)
        self.names[fd] = self.short(path)
        self.open.append(fd)
        if len(self.open) > 8:
            os.close(self.open.pop(of.randrange(8)))
        return "a descriptor"

    def short(self, path):
        return os.path.relpath(path, self.top)

    def with_open(self):
        of = self.chance
        what, mode, group = of.randrange(12), self.mode(), of.choice([NOBODY, 60, 0])
        if not self.open:
            return "none"
        fd = of.choice(self.open)

        def mapped():
            with mmap.mmap(fd, 1, mmap.MAP_SHARED, mmap.PROT_READ) as m:
                return bytes(m[:1])

        calls = [
            ("write", lambda: os.write(fd, b"written")),
            ("pread", lambda: os.pread(fd, 20, 0)),
            ("pwrite", lambda: os.pwrite(fd, b"there", 3)),
            ("ftruncate", lambda: os.ftruncate(fd, 12)),
            ("fchmod", lambda: os.fchmod(fd, mode)),
            ("fchown", lambda: os.fchown(fd, -1, group)),
            ("fstat", lambda: self.status(os.fstat(fd))),
            ("fsetxattr", lambda: os.setxattr(fd, "user.a", b"of a descriptor")),
            ("flistxattr", lambda: os.listxattr(fd)),
            ("mmap", mapped),
            ("fallocate", lambda: os.posix_fallocate(fd, 0, 9)),
            ("futimens", lambda: os.utime(fd)),
        ]
        name, call = calls[what]
        self.did = f"{name} {self.names[fd]} {mode:o} {group}"
        return call()

    @staticmethod
    def status(s):
        size = s.st_size if stat.S_ISREG(s.st_mode) else 0
        return f"{s.st_mode:o} {s.st_uid}.{s.st_gid} {s.st_nlink} {size}"

    def by_path(self):
        of = self.chance
        a, b, mode, group = self.name(), self.name(), self.mode(), of.choice([NOBODY, 60, 0])
        name = of.choice(["user.a", "user.b", ACCESS, DEFAULT, "trusted.a", "security.a"])
        calls = [
            ("rename", lambda: os.rename(a, b)),
            ("link", lambda: os.link(a, b, follow_symlinks=False)),
            ("unlink", lambda: os.unlink(a)),
            ("mkdir", lambda: os.mkdir(a, mode)),
            ("rmdir", lambda: os.rmdir(a)),
            ("symlink", lambda: os.symlink(os.path.basename(b), a)),
            ("readlink", lambda: os.readlink(a)),
            ("stat", lambda: self.status(os.stat(a))),
            ("lstat", lambda: self.status(os.lstat(a))),
            ("access", lambda: [os.access(a, want) for want in (0, 1, 2, 4)]),
            ("chmod", lambda: os.chmod(a, mode)),
            ("chgrp", lambda: os.chown(a, -1, group)),
            ("chown", lambda: os.chown(a, of.choice([1, 0]), -1)),
            ("utime", lambda: os.utime(a)),
            ("utime-at", lambda: os.utime(a, (5, 6))),
            ("truncate", lambda: os.truncate(a, 4)),
            ("list", lambda: sorted(os.listdir(os.path.dirname(a)))),
            ("setxattr", lambda: os.setxattr(a, name, b"value" if name.startswith("user") else LETS_NOBODY)),
            ("getxattr", lambda: os.getxattr(a, name)),
            ("listxattr", lambda: sorted(os.listxattr(a))),
            ("removexattr", lambda: os.removexattr(a, name)),
            ("read", lambda: open(a).read()),
            ("umask", lambda: os.umask(of.choice([0o022, 0, 0o077, 0o222]))),
        ]
        what, call = of.choice(calls)
        self.did = f"{what} {self.short(a)} {self.short(b)} {mode:o} {group} {name}"
        return call()

    def calls(self, count):
        for number in range(count):
            self.did = ""
            what = self.chance.choice([self.opened, self.opened, self.with_open, self.by_path, self.by_path, self.by_path])
            result = tried(what)
            yield f"{number} {what.__name__} {self.did}: {result}"


def names_of_a_user(top, _phase):
    """A user who is not root, in directories of its own, of others, with set-group-id, sticky bits and access control lists."""
    for seed in SEEDS:
        tree = f"{top}/{seed}"
        os.mkdir(tree)
        prepare(tree)
        user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "python3", HERE, tree, str(seed), str(CALLS)]
        print(subprocess.run(user, stdout=subprocess.PIPE, text=True, check=True).stdout)
        for directory, directories, files in sorted(os.walk(tree)):
            for name in sorted(directories + files):
                path = os.path.join(directory, name)
                print(os.path.relpath(path, top), User.status(os.lstat(path)), sorted(os.listxattr(path, follow_symlinks=False)))


if __name__ == "__main__":
    for line in User(sys.argv[1], int(sys.argv[2])).calls(int(sys.argv[3])):
        print(line)
