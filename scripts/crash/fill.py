#!/usr/bin/env python3
"""Fills a directory until ENOSPC, checks what was written, deletes it.

    fill.py fill DIRECTORY SEED     prints "files bytes"; any error but ENOSPC fails
    fill.py verify DIRECTORY SEED   every file written in full reads back
    fill.py delete DIRECTORY        deletes everything; must work on a full volume
"""

import errno
import json
import os
import random
import shutil
import sys

PATTERN = bytes(range(251)) * 4200  # above 1 MiB; 251 is prime to any block size


def content(seed, number):
    """Bytes of file `number`: mostly small, now and then a megabyte, offset by its number."""
    source = random.Random(f"{seed}/{number}")
    size = source.choice([0, 100, 900, 4096, 5000, 40000, 262144, 1 << 20])
    start = (number * 7) % 251
    return (PATTERN[start:] + PATTERN)[:size]


def path(directory, number):
    return os.path.join(directory, f"d{number % 16}", f"f{number}")


def fill(directory, seed):
    written, bytes_written = 0, 0
    try:
        for n in range(16):
            os.mkdir(os.path.join(directory, f"d{n}"))
        while True:
            data = content(seed, written)
            descriptor = os.open(path(directory, written), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                at = 0
                while at < len(data):
                    at += os.write(descriptor, data[at:])
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            written += 1
            bytes_written += len(data)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    # Outside the volume: inside there may be no room for it.
    with open(os.environ["FILL_STATE"], "w", encoding="ascii") as state:
        json.dump({"written": written}, state)
    print(written, bytes_written)


def verify(directory, seed):
    with open(os.environ["FILL_STATE"], encoding="ascii") as state:
        written = json.load(state)["written"]
    for number in range(written):
        with open(path(directory, number), "rb") as file:
            if file.read() != content(seed, number):
                raise OSError(errno.EIO, "other bytes than were written", path(directory, number))
    # The file in which space ran out may hold a part, never other bytes.
    last = path(directory, written)
    if os.path.exists(last):
        with open(last, "rb") as file:
            part = file.read()
        if not content(seed, written).startswith(part):
            raise OSError(errno.EIO, "other bytes than were written", last)


def delete(directory, _seed=None):
    for name in os.listdir(directory):
        shutil.rmtree(os.path.join(directory, name))
    if os.listdir(directory):
        raise OSError(errno.ENOTEMPTY, "not empty after deleting everything", directory)


if __name__ == "__main__":
    try:
        {"fill": fill, "verify": verify, "delete": delete}[sys.argv[1]](*sys.argv[2:])
    except OSError as error:
        print(f"{sys.argv[1]}: {error}", file=sys.stderr)
        sys.exit(1)
