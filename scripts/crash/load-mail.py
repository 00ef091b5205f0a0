#!/usr/bin/env python3
"""Delivers and deletes messages as mail servers do (maildir): write, fsync, rename, fsync of the directory.

    load-mail.py run DIRECTORY HOST      until HOST/stop exists; log: HOST/mail.log, after each call returned
    load-mail.py verify DIRECTORY HOST   every message that was delivered and not deleted is there, whole; no other is
                                         but the last one of a run, or the last one that was being deleted
"""

import hashlib
import os
import random
import sys

KEPT = 200


def message(number):
    """What message `number` must hold, of varying length."""
    return b"Message-Id: %d\n" % number + hashlib.sha256(b"%d" % number).digest() * (1 + number * 7 % 900)


def sync_directory(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def deliver(directory, number):
    draft, final = os.path.join(directory, "tmp", str(number)), os.path.join(directory, "new", str(number))
    with open(draft, "wb") as file:
        file.write(message(number))
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, final)
    sync_directory(os.path.join(directory, "new"))


def run(directory, host):
    for name in ("tmp", "new"):
        os.makedirs(os.path.join(directory, name), exist_ok=True)
    sync_directory(directory)
    chance = random.Random(os.getpid())
    log = os.open(os.path.join(host, "mail.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    known, number = logged(host)
    present = sorted(known)
    # What was on its way when the last run ended.
    for name in os.listdir(os.path.join(directory, "new")):
        number = max(number, int(name))
        if int(name) not in known:
            os.unlink(os.path.join(directory, "new", name))
    while not os.path.exists(os.path.join(host, "stop")):
        number += 1
        deliver(directory, number)
        os.write(log, b"+%d\n" % number)
        present.append(number)
        if len(present) > KEPT:
            victim = present.pop(chance.randrange(len(present)))
            os.write(log, b"?%d\n" % victim)
            os.unlink(os.path.join(directory, "new", str(victim)))
            sync_directory(os.path.join(directory, "new"))
            os.write(log, b"-%d\n" % victim)


def logged(host):
    """Numbers that were delivered and not deleted; the highest that the log knows."""
    present, highest = set(), 0
    if not os.path.exists(os.path.join(host, "mail.log")):
        return present, highest
    with open(os.path.join(host, "mail.log"), encoding="ascii") as log:
        for line in log:
            number = int(line[1:])
            highest = max(highest, number)
            # From the moment on that it is being deleted it may be there or not.
            (present.add if line[0] == "+" else present.discard)(number)
    return present, highest


def verify(directory, host):
    present, highest = logged(host)
    assert highest, "no message was ever delivered"
    with open(os.path.join(host, "mail.log"), encoding="ascii") as log:
        last = log.read().split("\n")[-2]
    found = {int(name) for name in os.listdir(os.path.join(directory, "new"))}
    lost = present - found
    assert not lost, f"{len(lost)} messages are lost, first {min(lost)}"
    more = found - present - {highest + 1}
    # Once a deletion has begun a power cut may undo it until its directory is synced.
    more -= {int(last[1:])} if last[0] == "?" else set()
    assert not more, f"{len(more)} messages are there that were deleted, first {min(more)}"
    for number in found:
        with open(os.path.join(directory, "new", str(number)), "rb") as file:
            assert file.read() == message(number), f"message {number} has other bytes"
    print(f"{highest} messages delivered, {len(found)} there, none lost")


if __name__ == "__main__":
    try:
        {"run": run, "verify": verify}[sys.argv[1]](sys.argv[2], sys.argv[3])
    except (AssertionError, OSError, ValueError) as error:
        print(f"mail load, {sys.argv[1]}: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
