"""What the modules of use.py share: commands that are allowed to fail or to hang, other users, C programs."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time

from walk import SHALE, Failed, Volume, command, until

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
RUN = (SHALE, "run", "--")
# A process is a client from its first call on, as a program is that has run for a while.
SERVED = {"SHALE_WARM_CALLS": "0"}
LIBRARY = os.environ.get("SHALE_PRELOAD", os.path.join(os.path.dirname(SHALE), "libshale_preload.so"))


def attempt(*words, timeout=20, env=None, stdin=subprocess.DEVNULL, **more):
    """Runs a program that may fail or hang. Gives its exit code (None: it did not end) and what it printed."""
    environment = {**os.environ, **(env or {})}
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(
            words, stdout=said, stderr=said, stdin=stdin, env=environment, start_new_session=True, **more
        ) as process:
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                code = None
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        said.seek(0)
        return code, said.read().decode(errors="replace").strip()


def last(said, lines=1):
    """The last lines of what a program printed, in one."""
    return " / ".join(said.strip().splitlines()[-lines:])[-400:]


def short(said, most=300):
    return " / ".join(said.strip().splitlines())[:most]


class Place(Volume):
    """A volume of which nothing is left, also where the program that serves it hangs."""

    def __init__(self, name, nvm, devices=(), options=()):
        super().__init__(name, nvm, devices, options)
        self.processes, self.others = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        for other in self.others:
            attempt("umount", "-l", other)
        if is_mounted(self.mount):
            attempt(SHALE, "umount", self.mount, timeout=20)
        if is_mounted(self.mount):
            attempt("umount", "-l", self.mount)
        for loop in self.loops:
            attempt("losetup", "-d", loop)
        for directory in (self.place, self.below, self.mount):
            shutil.rmtree(directory, ignore_errors=True)

    def opened(self):
        """Has other users come as far as the files of the volume, which have modes of their own."""
        os.chmod(self.place, 0o755)
        os.chmod(self.below, 0o755)
        return self

    def start(self, *words, env=None, **more):
        """A process that ends with the volume at the latest."""
        environment = {**os.environ, **(env or {})}
        process = subprocess.Popen(words, env=environment, **more)
        self.processes.append(process)
        return process

    def client(self, process, seconds=15):
        """What status says of a process, once it is a client."""
        found = []

        def attached():
            found[:] = [c for c in self.status()["clients"] if c["pid"] == process.pid]
            return found

        until(f"process {process.pid} is a client", attached, seconds)
        return found[0]

    def heap_kib(self):
        with open(f"/proc/{self.status()['daemon_pid']}/status", encoding="ascii") as file:
            return int(file.read().split("RssAnon:")[1].split()[0])

    def leases(self):
        return sum(client["leases"] for client in self.status()["clients"])


def is_mounted(directory):
    with open("/proc/self/mounts", encoding="utf8") as table:
        return any(line.split()[1] == directory for line in table)


def scratch(name, where="/dev/shm"):
    """A directory that all users may read, taken away at the end of a `with`."""
    directory = tempfile.TemporaryDirectory(prefix=f"shale-walk-{name}-", dir=where, ignore_cleanup_errors=True)
    os.chmod(directory.name, 0o755)
    return directory


def compiled(directory, name, source, *options, compiler="cc"):
    """A program, or with -shared a library, in the directory, which every user may run."""
    path = os.path.join(directory, name)
    suffix = ".cc" if compiler == "c++" else ".c"
    with open(path + suffix, "w", encoding="ascii") as file:
        file.write(source)
    command(compiler, "-O1", "-pthread", "-o", path, path + suffix, *options)
    os.chmod(path, 0o755)
    return path


def public_library(directory):
    """The library of `shale run` where other users can read it, as the environment of such a run."""
    path = os.path.join(directory, "libshale_preload.so")
    shutil.copy(LIBRARY, path)
    os.chmod(path, 0o755)
    return {**SERVED, "SHALE_PRELOAD": path}


LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS = 0x20000


@contextlib.contextmanager
def apart():
    """A mount namespace with a /run/shale of its own: what is locked or flooded there is nobody else's."""
    with open("/proc/self/ns/mnt", "rb") as before:
        if LIBC.unshare(CLONE_NEWNS) != 0:
            raise Failed(f"unshare: {os.strerror(ctypes.get_errno())}")
        try:
            with open("/proc/self/mounts", encoding="utf8") as table:
                ours = [line.split()[1] for line in table if " fuse.shale " in line]
            command("mount", "--make-rprivate", "/")
            for mounted in ours:
                attempt("umount", "-l", mounted)
            os.makedirs("/run/shale", exist_ok=True)
            command("mount", "-t", "tmpfs", "-o", "mode=755", "none", "/run/shale")
            yield
        finally:
            directory = os.getcwd()
            if LIBC.setns(before.fileno(), CLONE_NEWNS) != 0:
                raise Failed(f"setns: {os.strerror(ctypes.get_errno())}")
            os.chdir(directory)


@contextlib.contextmanager
def small_ext4(directory, mib=300):
    """A file system of its own, in an image."""
    image, at = os.path.join(directory, "ext4.img"), os.path.join(directory, "small")
    with open(image, "wb") as file:
        file.truncate(mib << 20)
    command("mkfs.ext4", "-q", "-F", image)
    os.makedirs(at)
    command("mount", "-o", "loop", image, at)
    try:
        yield at
    finally:
        attempt("umount", "-l", at)


@contextlib.contextmanager
def at_most(seconds):
    """Ends with a Failed what takes longer, in a call that hangs, too."""

    def ring(*_):
        raise Failed(f"not done in {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def took(begun):
    return f"{time.monotonic() - begun:.1f} s"
