#!/usr/bin/env python3
"""Several programs on one volume of three tiers for a long time, on the mount and under `shale run`, while the
daemon and clients are killed; memory, mappings, descriptors and space are watched.

    soak.py [MINUTES]        default 60; three rounds, each: calm for two thirds, then a kill every few seconds
    SEED=n                   the moments of the kills; printed at the start
    SHALE=…                  the program (default: this tree's release build)

At the end of each calm part a sample is taken. The last sample may be larger than the first one by a fixed allowance
(`ALLOWED`), so that anything that grows with each operation, each daemon or each kill shows. With fewer minutes than 30
the first sample is taken before the caches are full. At the end every load is verified, the volume is unmounted,
checked by fsck, mounted again and verified again. Last line: "N passed, N failed"."""

import hashlib
import os
import random
import shutil
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "walk")]
from loads import Load  # noqa: E402
from walk import Failed, Tally, Volume, shale, until  # noqa: E402

MIB = 1 << 20
ROUNDS = 3
# What the last sample may have more than the first.
ALLOWED = {
    "daemon heap MiB": 24,
    "daemon heap in use MiB": 16,
    "daemon descriptors": 8,
    "daemon maps": 200,
    # The blocks granted to the mount's own client are mapped writable run by run, up to 1,024 runs (nvm/src/writable.rs):
    # how many there are follows how free space lies at the moment.
    "daemon maps of NVM": 2200,
    "supervisor heap MiB": 4,
    "supervisor descriptors": 2,
    "NVM directory MiB": 32,
    # There is one at most: that of the client that went last, for the next one (docs/DESIGN.md, section 29).
    "NVM directory, log that was left, MiB": 64,
    "client address space MiB": 64,
    "client descriptors": 2,
    "client maps": 64,
    "client maps of NVM": 2200,
    "client heap MiB": 16,
}
# What may be there in any case: the daemon's caches (64 MiB of blocks below NVM, 4 of tail blocks, leases, inodes) may still
# fill between the first sample and the last.
ANYWAY = {"daemon heap MiB": 128}
CHURN_NAMES = 50
OLD_FILES = 24
OLD_BYTES = 4 * MIB


def churn(directory, host):
    """Short-lived files over few names, renames over each other, and old files that are read and changed in part."""
    chance = random.Random(os.getpid())
    log = open(os.path.join(host, "churn.log"), "a", buffering=1, encoding="ascii")
    number = 0
    for n in range(OLD_FILES):
        path = os.path.join(directory, f"old-{n}")
        if not os.path.exists(path):
            with open(path, "wb") as file:
                file.write(old(n))
    while not os.path.exists(os.path.join(host, "stop")):
        for _ in range(200):
            number += 1
            content = hashlib.sha256(b"%d" % number).digest() * chance.randrange(1, 400)
            path = os.path.join(directory, f"file-{number % CHURN_NAMES}")
            with open(path + ".new", "wb") as file:
                file.write(content)
            os.rename(path + ".new", path)
            with open(path, "rb") as file:
                if file.read() != content:
                    raise AssertionError(f"{path} is not what was written")
            if chance.randrange(4):
                os.unlink(path)
        n = chance.randrange(OLD_FILES)
        with open(os.path.join(directory, f"old-{n}"), "rb") as file:
            if file.read() != old(n):
                raise AssertionError(f"old-{n} has changed")
        log.write(f"{number}\n")
        time.sleep(0.02)


def old(n):
    return random.Random(n).randbytes(OLD_BYTES)


def churn_verify(directory, _host):
    for n in range(OLD_FILES):
        with open(os.path.join(directory, f"old-{n}"), "rb") as file:
            assert file.read() == old(n), f"old-{n} has changed"
    for name in os.listdir(directory):
        if name.startswith("file-") and not name.endswith(".new"):
            with open(os.path.join(directory, name), "rb") as file:
                data = file.read()
            assert data[:32] * (len(data) // 32) == data, f"{name} is mixed"
    print("old files as they were, new ones whole")


def proc_status(pid, field):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
    return 0


def count_maps(pid, of_nvm):
    with open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as file:
        return sum(1 for line in file if ("/seg-" in line) == of_nvm)


LEFT_LOG = "log-999"


def disk_usage(directory, is_counted):
    total = 0
    for place, _, names in os.walk(directory):
        for name in filter(is_counted, names):
            try:
                total += os.stat(os.path.join(place, name)).st_blocks * 512
            except FileNotFoundError:
                pass
    return total


def sample(volume, loads):
    status = volume.status()
    daemon, supervisor = status["daemon_pid"], status["supervisor_pid"]
    found = {
        "daemon heap MiB": proc_status(daemon, "RssAnon"),
        "daemon heap in use MiB": status["heap_used_bytes"] / MIB,
        "daemon heap kept MiB": status["heap_free_bytes"] / MIB,
        "daemon descriptors": len(os.listdir(f"/proc/{daemon}/fd")),
        "daemon maps": count_maps(daemon, False),
        "daemon maps of NVM": count_maps(daemon, True),
        "supervisor heap MiB": proc_status(supervisor, "RssAnon"),
        "supervisor descriptors": len(os.listdir(f"/proc/{supervisor}/fd")),
        "NVM directory MiB": disk_usage(status["nvm_dir"], lambda name: name != LEFT_LOG) / MIB,
        "NVM directory, log that was left, MiB": disk_usage(status["nvm_dir"], lambda name: name == LEFT_LOG) / MIB,
    }
    # Clients that no kill has replaced.
    lasting = [load for load in loads if load.way == "run" and load.name == "churn"]
    for load in lasting:
        pid = load.pid()
        found["client address space MiB"] = proc_status(pid, "VmSize")
        found["client heap MiB"] = proc_status(pid, "RssAnon")
        found["client descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))
        found["client maps"] = count_maps(pid, False)
        found["client maps of NVM"] = count_maps(pid, True)
    found["leases"] = sum(client["leases"] for client in status["clients"])
    found["inodes"] = status["space"]["inodes"]
    return found


def all_live(loads, tally):
    for load in loads:
        if not load.lives() and not load.ended_early:
            load.ended_early = 1
            tally.see(f"{load.title}: goes on", False, load.last_words())


def calm(seconds, loads, tally):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(5, max(0, end - time.monotonic())))
        all_live(loads, tally)


def kills(seconds, chance, volume, loads, tally):
    """A kill of the daemon every few seconds, now and then of a client. Gives how many of each."""
    end, daemons, clients = time.monotonic() + seconds, 0, 0
    victims = [load for load in loads if load.name in ("append", "sqlite")]
    while time.monotonic() < end:
        time.sleep(chance.uniform(1, 6))
        if chance.randrange(4) == 0:
            load = chance.choice(victims)
            if load.lives():
                load.kill_and_start()
                clients += 1
        else:
            volume.kill()
            daemons += 1
        all_live(loads, tally)
    return daemons, clients


def soak(minutes):
    seed = int(os.environ.get("SEED", str(os.getpid())))
    chance, tally = random.Random(seed), Tally()
    host = tempfile.mkdtemp(prefix="shale-soak-")
    seconds = minutes * 60 / ROUNDS
    print(f"soak: {minutes} minutes, SEED={seed}", flush=True)
    try:
        with Volume("soak", "640M", [("ssd", "flash.img", "3G"), ("hdd", "disk.img", "8G")]) as volume:
            with open(volume.file, "r+", encoding="utf-8") as file:
                text = file.read()
                file.seek(0)
                # Most of what the loads leave is cold: it moves down from here on.
                file.write("migrate_at_percent = 20\n" + text)
            volume.up()
            loads = [Load(name, way, volume.mount, host)
                     for name in ("sqlite", "append", "tar", "git", "churn") for way in ("mount", "run")]
            for load in loads:
                load.start()
            samples = rounds(seconds, chance, volume, loads, tally)
            for load in loads:
                if not load.ended_early:
                    code = load.stop()
                    tally.see(f"{load.title}: ends without an error", code == 0, code or "")
            compare(samples, tally)
            verify(volume, loads, tally)
            volume.is_in_order(tally)
            volume.down()
            tally.see("fsck", "clean" in volume.fsck())
            volume.up()
            verify(volume, loads, tally)
            tally.see("scrub finds nothing", True, shale("scrub", volume.mount).strip().splitlines()[-1])
            volume.down()
    finally:
        shutil.rmtree(host, ignore_errors=True)
    print(f"{tally.good} passed, {tally.bad} failed")
    return tally.bad


def rounds(seconds, chance, volume, loads, tally):
    samples = []
    for n in range(1, ROUNDS + 1):
        calm(seconds * 2 / 3, loads, tally)
        samples.append(sample(volume, loads))
        shown = ", ".join(f"{name} {value:.0f}" for name, value in samples[-1].items())
        print(f"round {n}: {shown}", flush=True)
        daemons, clients = kills(seconds / 3, chance, volume, loads, tally)
        print(f"round {n}: {daemons} daemons and {clients} clients killed", flush=True)
    return samples


def compare(samples, tally):
    """What a sample shows may have grown by what is allowed, and no more."""
    first, last = samples[0], samples[-1]
    for name, allowed in ALLOWED.items():
        most = max(first[name] + allowed, ANYWAY.get(name, 0))
        tally.see(f"{name}: flat", last[name] <= most, f"{first[name]:.1f}, then {last[name]:.1f}")


def verify(volume, loads, tally):
    until("an answer of the daemon", lambda: volume.status()["daemon_pid"])
    for load in loads:
        right, said = load.verify()
        tally.see(f"{load.title}: what had returned is there", right, said)


def main(words):
    if words[:1] in (["churn-run"], ["churn-verify"]):
        try:
            {"churn-run": churn, "churn-verify": churn_verify}[words[0]](words[1], words[2])
            return 0
        except (AssertionError, OSError) as error:
            print(f"churn load: {type(error).__name__}: {error}", file=sys.stderr)
            return 1
    try:
        return 1 if soak(float(words[0]) if words else 60.0) else 0
    except Failed as error:
        print(f"soak: {error}")
        print("0 passed, 1 failed")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
