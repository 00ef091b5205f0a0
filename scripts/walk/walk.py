"""A volume with tiers for the walks in this directory, and a copy in memory of all that is put on it.

SHALE is the program, HARNESS the other one (default: this tree's release build)."""

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILT = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release")
SHALE = os.environ.get("SHALE", os.path.join(BUILT, "shale"))
HARNESS = os.environ.get("HARNESS", os.path.join(os.path.dirname(SHALE), "shale-harness"))
BLOCK = 4096
MIB = 1 << 20


class Failed(Exception):
    """Something is not as it was said to be."""


class Tally:
    """What was looked at, and what was found."""

    def __init__(self):
        self.good, self.bad = 0, 0

    def see(self, what, right, found=""):
        self.good += bool(right)
        self.bad += not right
        print(f"  {'ok  ' if right else 'BAD '}{what}{': ' if found != '' else ''}{found}", flush=True)
        return right


def command(*words, code=0, timeout=300, **more):
    """Runs a program; `code`: the exit code that is wanted, None: any. Gives what it printed."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False, **more)
    said = done.stdout + done.stderr
    if code is not None and done.returncode != code:
        raise Failed(f"{' '.join(words)}: exit code {done.returncode}, not {code}: {said.strip()[-500:]}")
    return said if code != 0 else done.stdout


def shale(*words, **more):
    return command(SHALE, *words, **more)


def until(what, true, seconds=60):
    """Waits; a Failed after so long."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise Failed(f"not within {seconds} s: {what}")
        time.sleep(0.05)


class Volume:
    """A volume; whatever happens it is taken away at the end of a `with`."""

    def __init__(self, name, nvm, devices, options=()):
        self.place = tempfile.mkdtemp(prefix=f"shale-walk-{name}-", dir="/dev/shm")
        self.below = tempfile.mkdtemp(prefix=f"shale-walk-{name}-", dir="/var/tmp")
        self.mount = tempfile.mkdtemp(prefix=f"shale-walk-{name}-")
        self.file, self.loops, self.copy = os.path.join(self.place, "V.toml"), [], {}
        words = []
        for tier, image, size in devices:
            words += [f"--{tier}", f"{self.device(image, size)}:{size}"]
        shale("mkfs", self.file, "--nvm", f"{self.place}/nvm:{nvm}", *words, *options)

    def device(self, image, size):
        """The path of an image, made by mkfs, or of a loop device for `loop:NAME`."""
        if not image.startswith("loop:"):
            return os.path.join(self.below, image)
        path = os.path.join(self.below, image.removeprefix("loop:"))
        with open(path, "wb") as file:
            file.truncate(int(size.split(",")[0].split(":")[0].removesuffix("M")) * MIB)
        loop = command("losetup", "--find", "--show", "--direct-io=on", path).strip()
        self.loops.append(loop)
        return loop

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if os.path.ismount(self.mount):
            shale("umount", self.mount, code=None)
        if os.path.ismount(self.mount):
            command("umount", "-l", self.mount, code=None)
        for loop in self.loops:
            command("losetup", "-d", loop, code=None)
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.rmtree(self.below, ignore_errors=True)
        os.rmdir(self.mount)

    def up(self, *options):
        return shale("mount", *options, self.file, self.mount)

    def down(self):
        shale("umount", self.mount)

    def again(self):
        self.down()
        self.up()

    def fsck(self):
        return shale("fsck", self.file)

    def status(self):
        return json.loads(shale("status", self.mount, "--json"))

    def tier(self, name):
        return next(t for t in self.status()["tiers"] if t["tier"] == name)

    def moved(self):
        return self.status()["migration"]

    def devices(self):
        return json.loads(shale("device", "list", self.mount, "--json"))

    def of_device(self, path):
        return next(d for d in self.devices() if d["path"] == path)

    def migrate(self, *options):
        return shale("migrate", self.mount, *options)

    def kill(self):
        """kill -9 of the daemon; a new one is there when this is done."""
        old = self.status()["daemon_pid"]
        os.kill(old, signal.SIGKILL)
        until("a new daemon", lambda: self.status()["daemon_pid"] != old)

    def path(self, name):
        return os.path.join(self.mount, name)

    def where(self, name, *options):
        return json.loads(shale("where", self.path(name), "--json", *options))

    def tiers_of(self, name):
        """Bytes of a file by tier."""
        held = {}
        for part in self.where(name):
            held[part["tier"]] = held.get(part["tier"], 0) + part["bytes"]
        return held

    def put(self, name, size, seed=None):
        """Makes a file, on the volume and in the copy."""
        data = bytearray(random.Random(seed or name).randbytes(size))
        self.copy[name] = data
        with open(self.path(name), "wb") as file:
            file.write(data)

    def change(self, name, at, data):
        """Overwrites a part of a file."""
        with open(self.path(name), "r+b") as file:
            file.seek(at)
            file.write(data)
        mine = self.copy[name]
        if len(mine) < at + len(data):
            mine.extend(bytes(at + len(data) - len(mine)))
        mine[at : at + len(data)] = data

    def remove(self, name):
        os.remove(self.path(name))
        del self.copy[name]

    def wrong(self, names=None):
        """Files that are not as in the copy, or cannot be read."""
        wrong = []
        for name in names or list(self.copy):
            try:
                with open(self.path(name), "rb") as file:
                    if file.read() != self.copy[name]:
                        wrong.append(name)
            except OSError as e:
                wrong.append(f"{name}: {e.strerror}")
        return wrong

    def is_right(self, tally, when):
        wrong = self.wrong()
        size = sum(map(len, self.copy.values())) // MIB
        tally.see(f"{len(self.copy)} files, {size} MiB, byte by byte {when}", not wrong, wrong or "all right")

    def is_in_order(self, tally):
        found = {t["tier"]: t["out_of_order"] for t in self.status()["tiers"]}
        tally.see("writes out of order within a zone", not any(found.values()), found)


THREE = [("ssd", "a.img", "96M"), ("ssd", "loop:b.img", "96M"), ("hdd", "c.img", "192M"), ("hdd", "d.img", "192M")]


def fill(v, count, size, first=0):
    for n in range(first, first + count):
        v.put(f"file-{n:03}", size)


def overwrite(v, names, count, seed):
    """Random blocks of files anew. Gives the longest call in ms."""
    chance, longest = random.Random(seed), 0
    for _ in range(count):
        name = chance.choice(names)
        at = chance.randrange(len(v.copy[name]) // BLOCK) * BLOCK
        begun = time.monotonic()
        v.change(name, at, chance.randbytes(BLOCK))
        longest = max(longest, time.monotonic() - begun)
    return round(longest * 1000, 1)
