#!/usr/bin/env python3
"""Shale on NVM as slow as a model, beside ext4 on a block device as slow as the same model, in one run, by turns.

    scripts/bench/nvm-model.py [--models none,hinfs,strata,hinfs-50,hinfs-800] [--loads append,random,create] [--sizes 128,4096,65536]
                               [--writers 1,4] [--rounds 3] [--seconds 1] [--json FILE]

Loads are those of scripts/bench/synced.c: each call is followed by fsync, which is nothing on Shale's strict volumes. `mount` and `run` are one
volume, through its mount and under `shale run`; `ext4` lies on a loop device over an image in memory with the model in front
(`shale-harness tiers device`, HiNFS section 5.1). Each request of ext4's takes the way through the kernel besides, which is measured by model
`none`. Printed are medians of the rounds: calls a second, and the ratio to ext4's. Processes do not see each other's use of the model's
bandwidth. Takes 4 GiB of /dev/shm. As root; SHALE and HARNESS are the programs.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SHALE = os.environ.get("SHALE", os.path.join(os.environ.get("CARGO_TARGET_DIR", f"{ROOT}/target"), "release/shale"))
HARNESS = os.environ.get("HARNESS", os.path.join(os.path.dirname(SHALE), "shale-harness"))
VOLUME_MIB, IMAGE_MIB = 2560, 1024


def ran(*words):
    """What a command printed; an error has what it said."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: exit code {done.returncode}: {(done.stderr or done.stdout)[-500:]}")
    return done.stdout


@contextlib.contextmanager
def shale(place, model):
    """A mounted volume."""
    volume, mount = f"{place}/v.toml", f"{place}/mount"
    os.mkdir(mount)
    slow = [] if model == "none" else ["--model", f"nvm={model}"]
    ran(SHALE, "mkfs", volume, "--nvm", f"{place}/nvm:{VOLUME_MIB}M", "--log-bytes", "64M", *slow)
    ran(SHALE, "mount", volume, mount)
    try:
        yield mount
    finally:
        ran(SHALE, "umount", mount)
        for root, dirs, files in os.walk(f"{place}/nvm", topdown=False):
            for name in files:
                os.unlink(f"{root}/{name}")
        os.unlink(volume)
        os.rmdir(mount)


@contextlib.contextmanager
def ext4(place, model):
    """A mounted ext4."""
    mount, image = f"{place}/ext4", f"{place}/image"
    os.mkdir(mount)
    slow = [] if model == "none" else ["--model", model]
    server = subprocess.Popen([HARNESS, "tiers", "device", image, "--mib", str(IMAGE_MIB), *slow],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        device = json.loads(server.stdout.readline())["device"]
        ran("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", device)
        ran("mount", device, mount)
        yield mount
    finally:
        subprocess.run(["umount", mount], check=False)
        server.stdin.close()
        server.wait(60)
        os.rmdir(mount)
        if os.path.exists(image):
            os.unlink(image)


def measure(options, model, rates):
    """One model: all systems, by turns."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="shale-model.", dir="/dev/shm"))
        tool = f"{place}/synced"
        ran("cc", "-O2", "-pthread", "-o", tool, f"{HERE}/synced.c")
        on_shale, on_ext4 = stack.enter_context(shale(place, model)), stack.enter_context(ext4(place, model))
        systems = [("ext4", on_ext4, []), ("mount", on_shale, []), ("run", on_shale, [SHALE, "run", "--"])]
        for turn in range(options.rounds):
            for system, directory, words in systems[turn % 3:] + systems[:turn % 3]:
                for load in options.loads.split(","):
                    for size in options.sizes.split(","):
                        for writers in options.writers.split(","):
                            below = tempfile.mkdtemp(dir=directory)
                            said = ran(*words, tool, below, load, size, writers, options.seconds)
                            rates.setdefault((model, load, int(size), int(writers), system), []).append(float(said.split()[0]))
                            ran("rm", "-r", below)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in [("models", "none,hinfs"), ("loads", "append,random,create"), ("sizes", "128,4096,65536"), ("writers", "1,4")]:
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", default="0.5", help="at most 1: what is appended has to fit")
    parser.add_argument("--json")
    options = parser.parse_args()
    rates = {}
    for model in options.models.split(","):
        measure(options, model, rates)
    print(f"{'model':9} {'load':7} {'bytes':>6} {'writers':>7} {'ext4':>9} {'mount':>9} {'x':>6} {'run':>9} {'x':>6}")
    for model, load, size, writers in dict.fromkeys(key[:4] for key in rates):
        of = {system: statistics.median(rates[model, load, size, writers, system]) for system in ("ext4", "mount", "run")}
        print(f"{model:9} {load:7} {size:6} {writers:7} {of['ext4']:9,.0f} {of['mount']:9,.0f} {of['mount'] / of['ext4']:6.2f}"
              f" {of['run']:9,.0f} {of['run'] / of['ext4']:6.2f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([[*key, values] for key, values in rates.items()], file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
