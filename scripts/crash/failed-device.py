#!/usr/bin/env python3
"""A volume without NVM whose device fails under a living mount: every call that promises that data lasts says EIO, on the mount and
under `shale run`, each time; what is in memory can still be read; and when the device is back, the next mount has everything.

Usage: failed-device.py. SHALE, HARNESS and SHALE_PRELOAD are the programs and the library (default: this tree's release build). Needs
root and loop devices. The last line is "N passed, N failed"."""

import errno
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "walk"))
from power import Volume  # noqa: E402
from walk import SHALE, Failed, Tally, shale  # noqa: E402

BYTES = 5000


def fails(call, *words):
    """The error that a call gives, by name; "" for none."""
    try:
        call(*words)
        return ""
    except OSError as error:
        return errno.errorcode[error.errno]


def put(path):
    """A new file that stays open."""
    file = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    if os.write(file, b"x" * BYTES) != BYTES:
        raise Failed(f"{path}: a short write")
    return file


def run(*words):
    """Exit code of a command, and what it printed."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()


def look(volume, tally):
    at = lambda name: os.path.join(volume.mount, name)  # noqa: E731
    volume.up()
    old = put(at("before"))
    for words in ([SHALE, "run", "--", "sync", "-f", at("before")], [SHALE, "sync", volume.mount]):
        code, said = run(*words)
        tally.see(f"{' '.join(words[1:-1])} while the device works", code == 0, said)
    tally.see("fsync while the device works", fails(os.fsync, old) == "")

    # All writes are there, and no more are done.
    volume.device.ask("hold")
    volume.device.ask("cut 1 100")
    new = put(at("after"))
    root = os.open(volume.mount, os.O_RDONLY)
    late = os.open(at("before"), os.O_RDONLY)
    for name, file in (("a new file", new), ("an old file", old), ("a directory", root), ("a file opened later", late)):
        found = [fails(os.fsync, file), fails(os.fdatasync, file), fails(os.fsync, file)]
        tally.see(f"fsync, fdatasync and fsync of {name}", found == ["EIO"] * 3, " ".join(found))
    for what in (["-f", at("before")], [at("before")], [volume.mount]):
        code, said = run(SHALE, "run", "--", "sync", *what)
        tally.see(f"under shale run: sync {' '.join(what)}", code == 1 and "Input/output error" in said, said)
    code, said = run(SHALE, "sync", volume.mount)
    tally.see("shale sync names the device", code == 1 and volume.device.path in said, said)
    tally.see("what is in memory is read", len(os.pread(old, 2 * BYTES, 0)) == BYTES)
    code, said = run(SHALE, "status", volume.mount)
    tally.see("status says it", "NOTHING CAN BE HARDENED" in said)
    for file in (new, old, root, late):
        os.close(file)
    code, said = run(SHALE, "umount", volume.mount)
    tally.see("umount says it", code == 1 and volume.device.path in said, said)

    volume.device.ask("on")
    volume.up()
    for name in ("before", "after"):
        found = os.path.getsize(at(name))
        tally.see(f"{name} is there when the device is", found == BYTES, found)
    file = put(at("again"))
    tally.see("fsync again", fails(os.fsync, file) == "")
    os.close(file)
    volume.down()
    tally.see("fsck", "clean" in shale("fsck", volume.file, code=None))


if __name__ == "__main__":
    seen = Tally()
    try:
        with Volume() as on_device:
            look(on_device, seen)
    except (Failed, OSError) as error:
        seen.see("all of it", False, str(error))
    print(f"{seen.good} passed, {seen.bad} failed")
    sys.exit(1 if seen.bad else 0)
