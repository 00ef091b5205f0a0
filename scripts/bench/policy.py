#!/usr/bin/env python3
"""The strict and the buffered policy on NVM as slow as a model, by the four server loads of Filebench (servers.c), in one run, by turns.

    scripts/bench/policy.py [--loads fileserver,webserver,webproxy,varmail] [--models hinfs] [--threads 1,2] [--io 1024] [--rounds 3]
                            [--seconds 4] [--files 1000] [--log-bytes 256M] [--json FILE]

`mount` and `run` are the same volume, through its mount and under `shale run`; `tmpfs` is memory without any of it. Each measurement is on a new
volume. Printed are medians of the rounds: operations a second, buffered as a ratio to strict of the same round, and bytes that reached NVM for
each byte that the load wrote (by the daemon's counts, from before the load to after a digest of all of it). Takes 4 GiB of /dev/shm. As root;
SHALE, SHALE_PRELOAD are the programs.
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

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SHALE = os.environ.get("SHALE", os.path.join(os.environ.get("CARGO_TARGET_DIR", f"{ROOT}/target"), "release/shale"))
VOLUME = "2560M"


def ran(*words, **more):
    """What a command printed; an error has what it said."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False, timeout=300, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: exit code {done.returncode}: {(done.stderr or done.stdout)[-500:]}")
    return done.stdout


@contextlib.contextmanager
def volume(place, policy, model, log_bytes):
    """A mounted volume."""
    file, mount = f"{place}/v.toml", f"{place}/mount"
    os.mkdir(mount)
    slow = [] if model == "none" else ["--model", f"nvm={model}"]
    ran(SHALE, "mkfs", file, "--nvm", f"{place}/nvm:{VOLUME}", "--log-bytes", log_bytes, "--durability", policy, *slow)
    ran(SHALE, "mount", file, mount)
    try:
        yield mount
    finally:
        ran(SHALE, "umount", mount)
        shutil.rmtree(f"{place}/nvm")
        os.unlink(file)
        os.rmdir(mount)


def nvm_bytes(mount):
    """Bytes that reached NVM since the daemon started: blocks and structure by its counts, and the logs of clients."""
    status = json.loads(ran(SHALE, "status", mount, "--json"))
    stored = sum(path["bytes_stored"] for path in status["device"])
    accounts = [client["written"] for client in status["clients"]] + [status["written_by_others"]]
    # What digests wrote is in both.
    return stored + sum(account["nvm_bytes"] - account["copied_bytes"] for account in accounts)


def measure(program, load, directory, args, threads, io, command=()):
    """Operations a second and bytes written of one load."""
    os.mkdir(directory)
    words = ran(*command, program, load, directory, args.seconds, threads, args.files, 0, io).split()
    return {"ops": float(words[words.index("ops/s") + 1]), "written": int(words[words.index("written") + 1])}


def one(place, program, load, policy, model, threads, io, args):
    """The load on a new volume of this policy, by both ways."""
    found = {}
    with volume(place, policy, model, args.log_bytes) as mount:
        for way, command in (("mount", ()), ("run", (SHALE, "run", "--"))):
            before = nvm_bytes(mount)
            found[way] = measure(program, load, f"{mount}/{way}", args, threads, io, command)
            ran(SHALE, "digest", mount)
            found[way]["nvm"] = nvm_bytes(mount) - before
    return found


def median(values):
    """Of numbers."""
    return statistics.median(values)


def report(cell, rounds):
    """One line for each way."""
    load, model, threads, io = cell
    for way in ("mount", "run"):
        strict = [r["strict"][way] for r in rounds]
        buffered = [r["buffered"][way] for r in rounds]
        ratios = [b["ops"] / s["ops"] for s, b in zip(strict, buffered)]
        each = [median([r["nvm"] / max(r["written"], 1) for r in rows]) for rows in (strict, buffered)]
        print(
            f"{load:<11} {model:<9} {threads:>2} {io:>5} {way:<5} {median([s['ops'] for s in strict]):>9.0f} {median([b['ops'] for b in buffered]):>9.0f}"
            f"  {median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})  {each[0]:.2f} {each[1]:.2f}  tmpfs {median([r['tmpfs'] for r in rounds]):.0f}",
            flush=True,
        )


def main():
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", default="fileserver,webserver,webproxy,varmail")
    parser.add_argument("--models", default="hinfs")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--io", default="1024", help="KiB of one call")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--log-bytes", default="256M")
    parser.add_argument("--json")
    args = parser.parse_args()
    if not os.access(SHALE, os.X_OK):
        sys.exit(f"{SHALE}: not there; build it, or set SHALE")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="shale-policy-") as place:
        program = f"{place}/servers"
        ran("cc", "-O2", "-o", program, f"{HERE}/servers.c", "-lpthread", "-lm")
        cells = [
            (load, model, int(threads), int(io))
            for model in args.models.split(",")
            for io in args.io.split(",")
            for threads in args.threads.split(",")
            for load in args.loads.split(",")
        ]
        results = {cell: [] for cell in cells}
        print(f"{'load':<11} {'model':<9} thr   KiB way      strict  buffered  ratio (range)     bytes to NVM for each written")
        for cell in cells:
            load, model, threads, io = cell
            for _ in range(args.rounds):
                found = {policy: one(place, program, load, policy, model, threads, io, args) for policy in ("strict", "buffered")}
                found["tmpfs"] = measure(program, load, f"{place}/memory", args, threads, io)["ops"]
                shutil.rmtree(f"{place}/memory")
                results[cell].append(found)
            report(cell, results[cell])
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump([{"cell": cell, "rounds": rounds} for cell, rounds in results.items()], file)


if __name__ == "__main__":
    main()
