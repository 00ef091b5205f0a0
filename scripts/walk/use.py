#!/usr/bin/env python3
"""Walks through what use has found (24 items), each with the commands that showed it, and prints what is found.

    scripts/walk/use.py [ITEM …]     all items, or only these; root, cc and c++; five minutes
    SHALE=/path/shale                the program, with shale-harness and libshale_preload.so beside it
                                     (default: this tree's release build); an older one shows what was

Item 13 is shown by scripts/bench/run-beside-mount.sh. The last line says how much was looked at; exit code 1 where something is BAD.
"""

import subprocess
import sys
import time

import use_ext4
import use_growth
import use_loss
import use_verbs
from use_tools import at_most
from walk import SHALE, Failed, Tally, command

ITEMS = {**use_loss.ITEMS, **use_growth.ITEMS, **use_ext4.ITEMS, **use_verbs.ITEMS}
SECONDS = max(120, 3 * use_growth.RESTARTS)


def main():
    tally = Tally()
    chosen = [int(word) for word in sys.argv[1:]] or sorted(ITEMS)
    if unknown := [n for n in chosen if n not in ITEMS]:
        sys.exit(f"unknown: {unknown} (known: {', '.join(map(str, sorted(ITEMS)))})")
    print(f"{SHALE}: {command(SHALE, '--version').strip()}", flush=True)
    for number in chosen:
        print(f"== {number}: {ITEMS[number].__doc__.splitlines()[0]}", flush=True)
        begun = time.monotonic()
        try:
            with at_most(SECONDS):
                ITEMS[number](tally)
        except (Failed, OSError, subprocess.SubprocessError, LookupError, ValueError, StopIteration) as e:
            tally.see("ended early", False, " ".join(repr(e).split())[-400:])
        print(f"   {time.monotonic() - begun:.0f} s", flush=True)
    print(f"{tally.good} passed, {tally.bad} failed")
    sys.exit(tally.bad > 0)


if __name__ == "__main__":
    main()
