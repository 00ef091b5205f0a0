#!/usr/bin/env python3
"""Writes large files, makes each durable, removes old ones; the number of each is logged after its fsync returned.

    load-copy.py run DIRECTORY HOST      until HOST/stop exists; log: HOST/copy.log
    load-copy.py verify DIRECTORY HOST   every file that was logged is whole, but for those that were about to be removed

Content and size follow from the number: 1 to 12 MiB, in writes of 64 KiB to 2 MiB. Every third is written again in the middle,
every fifth is renamed over another one."""

import os
import random
import sys

KEPT = 6


def content(number):
    chance = random.Random(number)
    data = bytearray(chance.randbytes(chance.randrange(1 << 20, 12 << 20)))
    if number % 3 == 0:
        at = chance.randrange(len(data) - 70_000)
        data[at : at + 70_000] = bytes([number % 251]) * 70_000
        return data, at
    return data, None


def put(directory, number):
    data, again_at = content(number)
    chance = random.Random(-number)
    path = os.path.join(directory, str(number))
    name = path + ".new" if number % 5 == 0 else path
    if name != path:
        open(path, "wb").close()
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    at = 0
    while at < len(data):
        end = min(len(data), at + chance.choice([64, 128, 512, 1024, 2048]) * 1024)
        # What is written again at the end is different at first.
        part = bytes(end - at) if again_at is not None and at <= again_at < end else data[at:end]
        at += os.pwrite(fd, part, at)
    if again_at is not None:
        for at in range(max(0, again_at - (2 << 20)), min(len(data), again_at + (2 << 20)), 1 << 20):
            os.pwrite(fd, data[at : at + (1 << 20)], at)
    os.fsync(fd)
    os.close(fd)
    if name != path:
        os.rename(name, path)
    names = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(names)
    os.close(names)


def logged(host):
    """Numbers whose files were durable, and those that may be gone."""
    done, going = [], set()
    try:
        with open(os.path.join(host, "copy.log")) as log:
            lines = log.read().split("\n")[:-1]
    except FileNotFoundError:
        lines = []
    for line in lines:
        word, number = line.split()
        done.append(int(number)) if word == "has" else going.add(int(number))
    return done, going


def run(directory, host):
    done, going = logged(host)
    log = os.open(os.path.join(host, "copy.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    number = max(done, default=0)
    for name in os.listdir(directory):
        if int(name.split(".")[0]) > number:
            os.unlink(os.path.join(directory, name))
    kept = [n for n in done if n not in going]
    while not os.path.exists(os.path.join(host, "stop")):
        number += 1
        put(directory, number)
        os.write(log, b"has %d\n" % number)
        kept.append(number)
        while len(kept) > KEPT:
            old = kept.pop(0)
            os.write(log, b"going %d\n" % old)
            os.unlink(os.path.join(directory, str(old)))


def verify(directory, host):
    done, going = logged(host)
    bad = 0
    for number in done:
        path = os.path.join(directory, str(number))
        if number in going and not os.path.exists(path):
            continue
        with open(path, "rb") as file:
            found = file.read()
        if found != content(number)[0]:
            print(f"{path}: {len(found)} bytes, not those of {len(content(number)[0])}")
            bad += 1
    print(f"{len(done)} files were made, {len(done) - len(going)} have to be there: {bad} are wrong")
    sys.exit(bad > 0)


if __name__ == "__main__":
    {"run": run, "verify": verify}[sys.argv[1]](sys.argv[2], sys.argv[3])
