#!/usr/bin/env python3
"""Cuts the power of the SSD while a volume gets NVM, or loses it (`shale device add --nvm`, `remove --nvm`), again and again.

    nvm-switch.py [CUTS]     default 30
    SEED=n                   moments and survivors; printed at the start
    NO_FLUSH=1               a device that says that flushes are done and does none: losses have to be found
    SHALE=…, HARNESS=…       the programs (default: this tree's release build)

The device is that of power.py. NVM is a directory in memory that a cut leaves, as NVM would be; the memory tier goes with a cut. The verb is killed
at any moment, and the device loses of what was not flushed. Then fsck, or a mount: all files are as they were, on a volume of
one kind or the other; every third time files change between. Last line: "N passed, N failed"."""

import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "walk")]
from power import MIB, PERCENT_KEPT, Device  # noqa: E402
from walk import SHALE, Failed, Tally, command, shale  # noqa: E402

FILES = 60


class Volume:
    """A volume without NVM on the device; nothing of it is left after a `with`."""

    def __init__(self, chance):
        self.chance, self.sums = chance, {}
        self.place = tempfile.mkdtemp(prefix="shale-nvm-switch-", dir="/dev/shm")
        self.mount, self.file, self.nvm = (os.path.join(self.place, name) for name in ("mount", "V.toml", "nvm"))
        os.mkdir(self.mount)
        self.device = Device()

    def __enter__(self):
        shale("mkfs", self.file, "--ssd", f"{self.device.path}:{MIB}M", "--memory", "64M")
        return self

    def __exit__(self, *_):
        if os.path.ismount(self.mount):
            shale("umount", self.mount, code=None)
        command("umount", "-l", self.mount, code=None)
        self.device.end()
        self.lose_memory()
        shutil.rmtree(self.place, ignore_errors=True)

    def says(self):
        with open(self.file, "rb") as file:
            return tomllib.load(file)

    def has_nvm(self):
        return "nvm" in self.says()

    def lose_memory(self):
        shutil.rmtree(f"/dev/shm/shale-{self.says()['uuid']}", ignore_errors=True)

    def change(self):
        """Writes, overwrites and removes files, on the mounted volume, and has some of them move to the SSD."""
        for n in range(FILES):
            path = os.path.join(self.mount, f"d{n % 7}", f"f{n}")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if path in self.sums and self.chance.random() < 0.3:
                os.remove(path)
                del self.sums[path]
            elif self.chance.random() < 0.5:
                content = self.chance.randbytes(self.chance.choice([10, 5000, 300_000, 4_000_000]))
                with open(path, "wb") as file:
                    file.write(content)
                self.sums[path] = hashlib.sha256(content).hexdigest()
        if self.chance.random() < 0.5:
            shale("migrate", self.mount)

    def wrong(self):
        """Files that are not as they were."""
        found = {}
        for place, _, names in os.walk(self.mount):
            for name in names:
                path = os.path.join(place, name)
                try:
                    with open(path, "rb") as file:
                        found[path] = hashlib.sha256(file.read()).hexdigest()
                except OSError as error:
                    found[path] = str(error)
        return sorted(path for path in found.keys() | self.sums.keys() if found.get(path) != self.sums.get(path))

    def check(self, tally, what):
        said = shale("fsck", self.file, code=None).strip().splitlines()
        tally.see(what, any("is clean" in line for line in said), said[-1])

    def switch(self, seconds):
        """Begins to add NVM or to remove it, and cuts the power after so long. Says whether it had ended, and what the cut did."""
        if self.has_nvm():
            words = ["remove", self.file, "--nvm", "--staging", "32M"]
        else:
            least = self.says()["staged"]["memory_bytes"]
            bytes_ = max(least, self.chance.choice([96, 112, 128]) << 20)
            words = ["add", self.file, "--nvm", f"{self.nvm}:{bytes_}"]
        verb = subprocess.Popen([SHALE, "device"] + words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        time.sleep(seconds)
        ended = verb.poll() is not None
        self.device.ask("hold")
        verb.kill()
        emptied = self.device.ask(f"cut {self.chance.getrandbits(32)} {self.chance.choice(PERCENT_KEPT)}")
        verb.communicate(timeout=60)
        self.lose_memory()
        self.device.ask("on")
        return ended, emptied


def cuts(count):
    seed = int(os.environ.get("SEED", str(os.getpid())))
    chance, tally = random.Random(seed), Tally()
    print(f"nvm-switch: {count} cuts, SEED={seed}", flush=True)
    kinds = {True: 0, False: 0}
    in_time = lost = unflushed = 0
    with Volume(chance) as volume:
        shale("mount", volume.file, volume.mount)
        volume.change()
        shale("umount", volume.mount)
        longest = 2.0
        for n in range(1, count + 1):
            had, seconds = volume.has_nvm(), chance.uniform(0, longest)
            ended, emptied = volume.switch(seconds)
            # So that half of them are cut.
            longest = min(8.0, max(0.2, longest * (0.9 if ended else 1.1)))
            in_time += ended
            lost, unflushed = lost + emptied["lost"], unflushed + emptied["unflushed"]
            has = volume.has_nvm()
            kinds[has] += had != has
            print(f"cut {n}: {'had ended' if ended else 'cut'}, {'NVM' if has else 'no NVM'}, {emptied['lost']} sectors lost", flush=True)
            if chance.random() < 0.5:
                volume.check(tally, "fsck before a mount")
            shale("mount", volume.file, volume.mount)
            wrong = volume.wrong()
            tally.see("all files are as they were", not wrong, f"{len(volume.sums)} files, wrong: {wrong[:3]}")
            if n % 3 == 0:
                volume.change()
            shale("umount", volume.mount)
            volume.check(tally, "fsck")
            if tally.bad:
                break
    print(f"{in_time} of {count} had ended; NVM added {kinds[True]} times, removed {kinds[False]} times")
    print(f"{lost} of {unflushed} sectors that were not flushed were lost")
    print(f"{tally.good} passed, {tally.bad} failed")
    return tally.bad


if __name__ == "__main__":
    try:
        sys.exit(1 if cuts(int(sys.argv[1]) if sys.argv[1:] else 30) else 0)
    except Failed as error:
        print(f"nvm-switch: {error}")
        print("0 passed, 1 failed")
        sys.exit(1)
