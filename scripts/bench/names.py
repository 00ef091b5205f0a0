#!/usr/bin/env python3
"""What calls about names take: on tmpfs, on ext4 on a disk in memory, and on Shale's mount, under `shale run`, and with names in the process.

    scripts/bench/names.py [--rounds 5] [--calls 2000] [--commits 500] [--messages 4000] [--json FILE]

Single calls and a mail load are those of scripts/bench/names.c, an unmodified program; `sqlite` is the real SQLite (Python's), one insert each
transaction, `journal_mode=DELETE`. In each round every place is measured once, in turn; printed are medians of the rounds, in microseconds, and ratios to tmpfs. Of the mail load also which
part of the records in the log was digested at all, and of the single calls the system calls, by strace. Takes 2 GiB of /dev/shm. As root; SHALE is the program.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SHALE = os.environ.get("SHALE", os.path.join(os.environ.get("CARGO_TARGET_DIR", f"{ROOT}/target"), "release/shale"))
PLACES = ["tmpfs", "ext4", "mount", "run", "names"]
SQLITE = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("pragma journal_mode=delete"); db.execute("create table t(a integer primary key, b text)")
def some(n):
    for i in range(n): db.execute("insert into t(b) values(?)", ("x" * 100,))
some(50)
begun = time.perf_counter(); n = int(sys.argv[2]); some(n)
print("sqlite", (time.perf_counter() - begun) / n * 1e9)
"""


def ran(*words, **more):
    """What a command printed; an error has what it said."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False, timeout=600, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: exit code {done.returncode}: {(done.stderr or done.stdout)[-500:]}")
    return done.stdout


@contextlib.contextmanager
def ext4(place):
    """A mounted ext4 on a loop device over an image in memory."""
    image, mount = f"{place}/image", f"{place}/ext4"
    os.mkdir(mount)
    with open(image, "wb") as file:
        file.truncate(512 << 20)
    ran("mkfs.ext4", "-q", "-F", image)
    ran("mount", "-o", "loop", image, mount)
    try:
        yield mount
    finally:
        ran("umount", mount)
        os.unlink(image)


@contextlib.contextmanager
def shale(place):
    """A mounted volume."""
    volume, mount = f"{place}/v.toml", f"{place}/mount"
    os.mkdir(mount)
    ran(SHALE, "mkfs", volume, "--nvm", f"{place}/nvm:1G")
    ran(SHALE, "mount", volume, mount)
    try:
        yield mount
    finally:
        ran(SHALE, "umount", mount)


def command(place):
    """What comes before a command in a place."""
    return {"run": [SHALE, "run", "--names=off", "--"], "names": [SHALE, "run", "--"]}.get(place, [])


def digest(mount):
    """Counts of what was digested, of everything logged so far."""
    ran(SHALE, "digest", mount)
    return json.loads(ran(SHALE, "status", mount, "--json"))["digest"]


def measure(place, base, program, arguments, results):
    """One round in one place."""
    directory = f"{base}/{place}"
    os.mkdir(directory)

    def note(text):
        for line in text.splitlines():
            what, ns = line.rsplit(" ", 1)
            results.setdefault(what, {}).setdefault(place, []).append(float(ns) / 1000)

    note(ran(*command(place), program, directory, arguments.calls))
    on_shale = place in ("mount", "run", "names")
    before = digest(base) if on_shale else None
    note(ran(*command(place), program, directory, arguments.messages, "mail"))
    if before:
        after = digest(base)
        records, skipped = (after[n] - before[n] for n in ("records", "skipped"))
        results.setdefault("records skipped", {}).setdefault(place, []).append(skipped / max(records, 1))
    note(ran(*command(place), "/usr/bin/python3", "-c", SQLITE, f"{directory}/db", arguments.commits))
    shutil.rmtree(directory)


def system_calls(program, mount):
    """System calls of a round of single calls, with names in the process."""
    counts = []
    for calls in (200, 1200):
        directory = tempfile.mkdtemp(dir=mount)
        trace = f"{os.path.dirname(mount)}/trace"
        ran(SHALE, "run", "--names", "--", "strace", "-f", "-o", trace, program, directory, calls)
        with open(trace, encoding="utf-8", errors="replace") as file:
            counts.append(sum("+++" not in line for line in file))
        shutil.rmtree(directory)
    return (counts[1] - counts[0]) / 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 5), ("calls", 2000), ("commits", 500), ("messages", 4000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="shale-names-", dir="/dev/shm") as place:
        program = f"{place}/names"
        ran("cc", "-O2", "-Wall", "-o", program, f"{HERE}/names.c")
        os.mkdir(f"{place}/tmpfs")
        with ext4(place) as disk, shale(place) as mount:
            bases = {"tmpfs": f"{place}/tmpfs", "ext4": disk}
            for _ in range(arguments.rounds):
                for where in PLACES:
                    measure(where, bases.get(where, mount), program, arguments, results)
            calls = system_calls(program, mount) if shutil.which("strace") else None
    print(f"{'µs':<18}" + "".join(f"{p:>10}" for p in PLACES) + f"{'names/tmpfs':>14}{'mount/names':>14}")
    for what, places in results.items():
        medians = {p: statistics.median(v) for p, v in places.items()}
        if what == "records skipped":
            print(f"{what:<18}" + "".join(f"{medians[p]:>10.3f}" if p in medians else f"{'':>10}" for p in PLACES))
        elif what != "warm":
            ratios = f"{medians['names'] / medians['tmpfs']:>14.2f}{medians['mount'] / medians['names']:>14.2f}"
            print(f"{what:<18}" + "".join(f"{medians[p]:>10.2f}" for p in PLACES) + ratios)
    if calls is not None:
        print(f"system calls of all single calls together, with names in the process, per round: {calls:.2f} (5 opens and 5 closes are among them)")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"date": time.strftime("%Y-%m-%d"), "results": results, "system_calls": calls}, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
