#!/usr/bin/env python3
"""Cuts the power of the device of a volume without NVM under real programs, again and again.

    power.py [CUTS]          default 20
    SEED=n                   moments and survivors; printed at the start
    POLICY=strict|buffered   the volume's, default buffered; with it the programs sync before they log what they did
    LOADS="sqlite mail …"    default: sqlite tar git append mail copy
    WAYS="mount run"         on the mount, under `shale run`, default both
    NO_FLUSH=1               a device that says that flushes are done and does none: losses have to be found
    SHALE=…, HARNESS=…       the programs (default: this tree's release build)

The device is `shale-harness cut-device`, a loop device whose write cache a cut empties: of each sector of 512 bytes that was
not flushed, the new content or what was durable survives. A cut: writes and flushes are answered no more; loads, daemon and
supervisor are killed; the cache is emptied; the memory tier is removed. Then: mount, every load verifies that what had
returned is there; unmount, fsck, mount, and the loads go on. Last line: "N passed, N failed"."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "walk")]
from loads import Load  # noqa: E402
from walk import HARNESS, Failed, Tally, command, shale, until  # noqa: E402

MIB = 1024
PERCENT_KEPT = [0, 50, 50, 95, 100]
POLICY = os.environ.get("POLICY", "buffered")
NO_FLUSH = bool(os.environ.get("NO_FLUSH"))


class Device:
    """The process that is the device."""

    def __init__(self):
        words = [HARNESS, "cut-device", "--mib", str(MIB)] + ["--no-flush"] * NO_FLUSH
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise Failed("shale-harness cut-device did not start")
        self.path = json.loads(line)["device"]

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Volume:
    """A volume without NVM on the device; nothing of it is left after a `with`."""

    def __init__(self):
        self.place = tempfile.mkdtemp(prefix="shale-power-")
        self.mount = os.path.join(self.place, "mount")
        self.file = os.path.join(self.place, "V.toml")
        os.mkdir(self.mount)
        self.device = Device()
        try:
            shale("mkfs", self.file, "--ssd", f"{self.device.path}:{MIB}M", "--durability", POLICY)
            with open(self.file, "r+", encoding="utf-8") as file:
                text = file.read()
                self.memory = tomllib.loads(text)["staged"]["memory_dir"]
                file.seek(0)
                # Data moves down all the time, so that cuts meet it.
                file.write("migrate_at_percent = 20\n" + text)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if os.path.ismount(self.mount):
            shale("umount", self.mount, code=None)
        command("umount", "-l", self.mount, code=None)
        self.device.end()
        shutil.rmtree(getattr(self, "memory", "/nonexistent"), ignore_errors=True)
        shutil.rmtree(self.place, ignore_errors=True)

    def up(self):
        shale("mount", self.file, self.mount)

    def down(self):
        shale("umount", self.mount)

    def status(self):
        return json.loads(shale("status", self.mount, "--json"))

    def cut(self, chance, loads):
        """A power cut. Says what it did to the device."""
        status = self.status()
        pids = [status["supervisor_pid"], status["daemon_pid"]]
        self.device.ask("hold")
        # More comes and is not answered.
        time.sleep(chance.uniform(0, 0.1))
        for load in loads:
            load.kill()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        emptied = self.device.ask(f"cut {chance.getrandbits(32)} {chance.choice(PERCENT_KEPT)}")
        # Those who waited for the device get its error, and are gone.
        until("all killed processes are gone", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
        command("umount", "-l", self.mount, code=None)
        for load in loads:
            load.process.wait(60)
        shutil.rmtree(self.memory)
        self.device.ask("on")
        return emptied


def move_on(loads, chance):
    """Lets the loads run until each has logged something, and a moment longer."""
    before = {load.title: load.logged() for load in loads}

    def all_have():
        for load in loads:
            if not load.lives():
                raise Failed(f"{load.title}: it ended: {load.last_words()}")
        return all(load.logged() > before[load.title] for load in loads)

    until("each load logs something", all_have, 120)
    time.sleep(chance.uniform(0, 2))


def cuts(count):
    seed = int(os.environ.get("SEED", str(os.getpid())))
    chance, tally = random.Random(seed), Tally()
    names = os.environ.get("LOADS", "sqlite tar git append mail copy").split()
    ways = os.environ.get("WAYS", "mount run").split()
    print(f"power: {count} cuts, SEED={seed}, {POLICY}, {' '.join(names)} on {' and '.join(ways)}", flush=True)
    host = tempfile.mkdtemp(prefix="shale-power-host-")
    environment = {} if POLICY == "strict" else {"SYNC": "1"}
    lost = unflushed = 0
    try:
        with Volume() as volume:
            volume.up()
            loads = [Load(name, way, volume.mount, host, environment) for name in names for way in ways]
            for n in range(1, count + 1):
                for load in loads:
                    load.start()
                move_on(loads, chance)
                emptied = volume.cut(chance, loads)
                lost, unflushed = lost + emptied["lost"], unflushed + emptied["unflushed"]
                print(f"cut {n}: {emptied['lost']} of {emptied['unflushed']} sectors lost", flush=True)
                volume.up()
                for load in loads:
                    right, said = load.verify()
                    tally.see(f"{load.title}: what had returned is there", right, said)
                recovery = volume.status()["recovery"]
                volume.down()
                found = f"{recovery['batches']} batches replayed, {recovery['problems'] or 'no problem'}"
                tally.see("fsck", "clean" in shale("fsck", volume.file, code=None), found)
                volume.up()
                if tally.bad:
                    break
            volume.down()
    finally:
        shutil.rmtree(host, ignore_errors=True)
    print(f"{lost} of {unflushed} sectors that were not flushed were lost")
    print(f"{tally.good} passed, {tally.bad} failed")
    return tally.bad


if __name__ == "__main__":
    try:
        sys.exit(1 if cuts(int(sys.argv[1]) if sys.argv[1:] else 20) else 0)
    except Failed as error:
        print(f"power: {error}")
        print("0 passed, 1 failed")
        sys.exit(1)
