#!/usr/bin/env python3
"""Memory of the daemon while files come and go, and with many live files.

    memory.py [FILES]        default 2,000,000 files made, written and removed on the mount, as many under `shale run`
    LIVE=n                   live files at a time, default 200,000
    SHALE=…                  the program (default: this tree's release build)

Of every tenth of the files a line is printed: the daemon's heap (RssAnon), VmRSS, the leases it knows and inodes in use.
After the first `WARM` files the heap may grow by `GROWS_MIB` at most, and leases are few: 50 names are used again and again.
Live files may take `LIVE_MIB` of the heap in all, and where they are many more than the bound for leases the second half
of them adds `LIVE_GROWS_MIB` at most; all is still read as it was written, on the mount and under `shale run`.
WAYS="mount run" chooses. Last line: "N passed, N failed"."""

import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "walk"))
from walk import MIB, SHALE, Failed, Tally, Volume, until  # noqa: E402

NAMES = 50
# Files before the first sample: by then digests have taken the memory that they need.
WARM = 60_000
# Of the heap, from the first sample on.
GROWS_MIB = 16
# Granted numbers that wait for a file to be made, and what no digest has come to yet, have leases too.
LEASES_MOST = 70_000
# All that live files take, and what the second half of many more than the bound for leases adds.
LIVE_MIB = 320
LIVE_GROWS_MIB = 32
LIVE_MANY = 150_000
PARTS = 10

CHURN = """
import os, sys
place, count, names, warm = sys.argv[1], *map(int, sys.argv[2:])
paths = [f"{place}/n{k}".encode() for k in range(names)]
data = bytes(range(200))
for n in range(-warm, count):
    path = paths[n % names]
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    os.write(file, data)
    os.close(file)
    os.unlink(path)
    if n + 1 >= 0 and (n + 1) % (count // 10) == 0:
        print(n + 1, flush=True)
        sys.stdin.readline()
"""

LIVE = """
import os, sys
place, first, end = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for n in range(first, end):
    if n % 1000 == 0:
        os.makedirs(f"{place}/{n // 1000}", exist_ok=True)
    with open(f"{place}/{n // 1000}/{n}", "wb") as file:
        file.write(b"%d" % n)
print(end, flush=True)
sys.stdin.readline()
"""

VERIFY = """
import sys
place, count = sys.argv[1], int(sys.argv[2])
for n in range(count):
    with open(f"{place}/{n // 1000}/{n}", "rb") as file:
        assert file.read() == b"%d" % n, n
print(count)
"""


def memory(pid):
    """Heap and VmRSS in bytes."""
    found = {}
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        for line in file:
            name, value = line.split(":", 1)
            if name in ("RssAnon", "VmRSS"):
                found[name] = int(value.split()[0]) << 10
    return found["RssAnon"], found["VmRSS"]


class Sample:
    def __init__(self, volume, what):
        status = volume.status()
        self.heap, self.rss = memory(status["daemon_pid"])
        self.leases = status["leases"].get("known", sum(c["leases"] for c in status["clients"]))
        self.inodes = status["space"]["inodes"]
        print(
            f"  {what:>10}  heap {self.heap / MIB:8.1f} MiB  VmRSS {self.rss / MIB:8.1f} MiB"
            f"  leases {self.leases:8}  inodes {self.inodes:8}",
            flush=True,
        )


def program(way, text, *words):
    """Runs a Python program; gives each line it prints before it goes on."""
    run = [SHALE, "run", "--"] if way == "run" else []
    process = subprocess.Popen(
        run + [sys.executable, "-c", text, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        yield line.strip()
        process.stdin.write("\n")
        process.stdin.flush()
    if process.wait() != 0:
        raise Failed(f"the program ended with {process.returncode}")


def settled(volume):
    """All is digested."""
    until("all is digested", lambda: volume.status()["space"]["dirty_bytes"] < 5 * MIB, 120)
    time.sleep(1)


def churn(tally, way, files):
    print(f"{files} files made, written and removed, {way}", flush=True)
    with Volume(f"memory-{way}", "512M", []) as v:
        v.up()
        began, samples = time.monotonic(), []
        for done in program(way, CHURN, v.mount, files, NAMES, WARM):
            samples.append(Sample(v, done))
        spent = time.monotonic() - began
        files += WARM
        grown = max(s.heap for s in samples) - samples[0].heap
        most = max(s.leases for s in samples)
        tally.see(f"heap grows by no more than {GROWS_MIB} MiB", grown <= GROWS_MIB * MIB, f"{grown / MIB:.1f} MiB")
        tally.see(f"no more than {LEASES_MOST} leases", most <= LEASES_MOST, most)
        print(f"  {files / spent:.0f} files a second", flush=True)
        v.down()
        tally.see("fsck", "clean" in v.fsck())


def live(tally, way, files):
    print(f"{files} live files, {way}", flush=True)
    with Volume(f"memory-live-{way}", "1200M", []) as v:
        v.up()
        samples, each = [Sample(v, 0)], files // PARTS
        for part in range(PARTS):
            for done in program(way, LIVE, v.mount, part * each, (part + 1) * each):
                samples.append(Sample(v, done))
        first, middle, last = samples[0], samples[PARTS // 2], samples[-1]
        taken, grown = (last.heap - first.heap) / MIB, (last.heap - middle.heap) / MIB
        tally.see(f"no more than {LIVE_MIB} MiB of heap for live files", taken <= LIVE_MIB, f"{taken:.1f} MiB")
        if files >= LIVE_MANY:
            right = grown <= LIVE_GROWS_MIB
            tally.see(f"the second half adds no more than {LIVE_GROWS_MIB} MiB", right, f"{grown:.1f} MiB")
        print(f"  {taken * MIB / files:.0f} bytes of heap for a file", flush=True)
        settled(v)
        last = Sample(v, "settled")
        tally.see(f"no more than {LEASES_MOST} leases", last.leases <= LEASES_MOST, last.leases)
        for other in ("mount", "run"):
            for count in program(other, VERIFY, v.mount, each * PARTS):
                tally.see(f"read as they were written, {other}", count == str(each * PARTS), count)
        Sample(v, "read")
        v.down()
        tally.see("fsck", "clean" in v.fsck())


def main():
    files = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    files -= files % PARTS
    count = int(os.environ.get("LIVE", "200000"))
    ways = os.environ.get("WAYS", "mount run").split()
    tally = Tally()
    for way in ways:
        if files:
            churn(tally, way, files)
        if count:
            live(tally, way, count)
    print(f"{tally.good} passed, {tally.bad} failed")
    return 1 if tally.bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as e:
        sys.exit(f"memory.py: {e}")
