#!/usr/bin/env python3
"""What users see of rights, ACLs, handles of files and a full file system, line by line beside ext4.

    scripts/walk/like_ext4.py [CASE …]    all cases, or only these; root; a minute
    SHALE=/path/shale                     the program, with libshale_preload.so beside it (default: this tree's release build)

Each case of like_ext4_cases.py runs on ext4 (a loop device), on the mount, and under `shale run` with every file served by the process
from its first call on; those about names also with all names served there. What it prints there must be what it prints on ext4. It covers what the tests generic/026, 087, 093, 099, 103,
105, 193, 237, 307, 319, 355, 375, 389, 426, 444, 449, 467, 477, 529, 673, 683 to 687, 697, 756 and 777 of xfstests look at.
Exit code 1 where something differs.
"""

import difflib
import os
import shutil
import sys
import tempfile

from like_ext4_cases import CASES
from use_tools import RUN, Place, attempt, public_library, scratch, small_ext4
from walk import SHALE, Tally, command

HERE = os.path.dirname(os.path.abspath(__file__))
REMOUNTED, FULL = "handles-of-a-new-mount", "full"
# Cases that are run with all names served in the process, too.
NAMES = ("names-of-a-user", "rights-chown", "acl-rights", "acl-set", "acl-inherited")
# What Linux answers by itself on a FUSE mount.
NOT_ON_THE_MOUNT = "rights-dropped-in-a-process"
SECONDS = 300


def printed(script, case, directory, prefix=(), env=None, remount=None):
    """What a case prints in a new directory; `remount`: mounts again what it is on, between the two halves of a case."""
    os.makedirs(directory)
    said = []
    for phase in (1, 2) if remount else (0,):
        code, text = attempt(*prefix, "python3", script, case, directory, str(phase), timeout=SECONDS, env=env)
        said += [text] + ([f"exit code {code}"] if code != 0 else [])
        if phase == 1:
            remount()
    return "\n".join(said).splitlines()


def on_ext4(case, script, mib):
    with tempfile.TemporaryDirectory(prefix="shale-walk-like-", dir="/var/tmp") as place:
        os.chmod(place, 0o755)
        with small_ext4(place, mib) as ext4:

            def remount():
                command("umount", ext4)
                command("mount", "-o", "loop", os.path.join(place, "ext4.img"), ext4)

            return printed(script, case, f"{ext4}/{case}", remount=remount if case == REMOUNTED else None)


def compare(tally, case, way, right, found):
    differs = [line for line in difflib.unified_diff(right, found, "ext4", way, lineterm="", n=0) if line[0] in "+-"][2:]
    tally.see(f"{case}, {way}: {len(right)} lines as on ext4", not differs and bool(right), "\n    ".join(["", *differs[:40]]) if differs else "")


def main():
    chosen = sys.argv[1:] or list(CASES)
    if unknown := [case for case in chosen if case not in CASES]:
        sys.exit(f"unknown: {', '.join(unknown)} (known: {', '.join(CASES)})")
    tally = Tally()
    print(f"{SHALE}: {command(SHALE, '--version').strip()}", flush=True)
    with scratch("like") as tools:
        for part in ("like_ext4_users.py", "like_ext4_cases.py"):
            script = shutil.copy(os.path.join(HERE, part), tools)
        env = public_library(tools)
        for case in chosen:
            right = on_ext4(case, script, 64 if case == FULL else 300)
            ways = [("mount", (), None), ("shale run", RUN, env)]
            if case in NAMES:
                ways.append(("shale run, names", RUN, {**env, "SHALE_NAMES": "0"}))
            for way, prefix, more in ways:
                if case == NOT_ON_THE_MOUNT and way == "mount":
                    continue
                with Place("like", "64M" if case == FULL else "256M", options=("--trust", "nobody")) as v:
                    v.opened().up()
                    again = v.again if case == REMOUNTED else None
                    compare(tally, case, way, right, printed(script, case, v.path(case), prefix, more, again))
                    v.down()
                    tally.see(f"{case}, {way}: fsck", "clean" in v.fsck())
    print(f"{tally.good} passed, {tally.bad} failed")
    sys.exit(tally.bad > 0)


if __name__ == "__main__":
    main()
