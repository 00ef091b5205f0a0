#!/usr/bin/env python3
"""What the mount's requests for names are, and what they take beside ext4 on a disk in memory.

    scripts/bench/mount.py [--rounds 5] [--files 10000] [--json FILE]

Loads: files made with 4 KiB in each, then removed; appends, each O_SYNC; this repository unpacked by tar, looked at by `git status`,
removed by `rm -rf`. In each round each place is measured once, in turn; printed are medians in milliseconds, their ratio, and the requests that
the mount got by kind, for each file (or call) of the load, from `shale status`. Takes 2 GiB of /dev/shm. As root; SHALE is the program.
"""

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import names  # noqa: E402  (beside this file)

APPENDS = 2000


def made(place, files):
    """Makes files of 4 KiB."""
    content = b"x" * 4096
    os.mkdir(f"{place}/files")
    for number in range(files):
        fd = os.open(f"{place}/files/{number}", os.O_CREAT | os.O_WRONLY, 0o644)
        os.write(fd, content)
        os.close(fd)


def removed(place, files):
    """Removes them."""
    for number in range(files):
        os.unlink(f"{place}/files/{number}")
    os.rmdir(f"{place}/files")


def appended(place, calls):
    """Appends 128 bytes so often, each of which survives a power cut when the call returns."""
    fd = os.open(f"{place}/log", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_SYNC, 0o644)
    for _ in range(calls):
        os.write(fd, b"y" * 128)
    os.close(fd)
    os.unlink(f"{place}/log")


def loads(place, archive, files, tree):
    """Name, times that its counts are divided by, and what to do; in this order."""
    repository = f"{place}/tree"
    git = ["git", "-c", f"safe.directory={repository}", "-C", repository]

    def unpack():
        os.mkdir(repository)
        names.ran("tar", "-xf", archive, "-C", repository)

    def prepare():
        names.ran(*git, "init", "-q")
        names.ran(*git, "add", "-A")

    return [
        ("create + 4 KiB + close", files, lambda: made(place, files), None),
        ("unlink", files, lambda: removed(place, files), None),
        ("append, O_SYNC", APPENDS, lambda: appended(place, APPENDS), None),
        ("tar x", tree, unpack, None),
        ("git status", tree, lambda: names.ran(*git, "status", "--short"), prepare),
        ("rm -rf", tree, lambda: names.ran("rm", "-rf", repository), None),
    ]


def requests(mount):
    """Requests of a mount so far, by kind."""
    return collections.Counter(json.loads(names.ran(names.SHALE, "status", mount, "--json"))["mount_requests"])


def round_of(results, place, where, archive, options):
    """Measures all loads once in one place."""
    for load, times, run, before in loads(where, archive, options.files, options.tree):
        if before:
            before()
        counted = requests(where) if place == "mount" else None
        begun = time.perf_counter()
        run()
        results[load][place].append((time.perf_counter() - begun) * 1000)
        if counted is not None:
            # One request of the status itself, which is the same each time.
            spent = requests(where) - counted
            results[load]["requests"] = {kind: count / times for kind, count in spent.items() if count / times >= 0.005}


def main():
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=10000)
    parser.add_argument("--json", help="write all numbers to this file")
    options = parser.parse_args()
    listed = names.ran("git", "-C", names.ROOT, "ls-files").splitlines()
    options.tree = len(listed)
    results = collections.defaultdict(lambda: collections.defaultdict(list))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        archive = f"{place}/tree.tar"
        names.ran("git", "-C", names.ROOT, "archive", "-o", archive, "HEAD")
        with names.ext4(place) as ext4, names.shale(place) as mount:
            for _ in range(options.rounds):
                round_of(results, "ext4", ext4, archive, options)
                round_of(results, "mount", mount, archive, options)
    print("| | ext4, ms | mount, ms | mount / ext4 | requests for each of |")
    print("| --- | ---: | ---: | ---: | --- |")
    for load, times, *_ in loads("", "", options.files, options.tree):
        ext4, mount = (statistics.median(results[load][place]) for place in ("ext4", "mount"))
        kinds = ", ".join(f"{kind} {count:.2f}" for kind, count in sorted(results[load]["requests"].items(), key=lambda kind: -kind[1]))
        print(f"| {load} | {ext4:.1f} | {mount:.1f} | {mount / ext4:.2f} | {times}: {kinds} |")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("run it as root: it mounts")
    try:
        main()
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        sys.exit(f"mount.py: {error}")
