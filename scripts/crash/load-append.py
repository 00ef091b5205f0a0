#!/usr/bin/env python3
"""One thread appends numbered lines, another overwrites numbered blocks; each call's number is
logged after it returned.

    load-append.py run DIRECTORY HOST      until HOST/stop exists; logs: HOST/append.log, HOST/blocks.log
    load-append.py verify DIRECTORY HOST   every line is there once and in order, every block is whole
                                           and as new as its last call

SYNC=1: each call is durable when it returns (O_DSYNC), which a power cut must not undo.
"""

import hashlib
import os
import sys
import threading
import time

LINE_BYTES = 10
PAGE_BYTES = 4096
BLOCKS = 64
BLOCK_BYTES = 16384


def block(number):
    """The bytes of write `number`, which say so."""
    return hashlib.sha256(b"%d" % number).digest() * (BLOCK_BYTES // 32 - 1) + b"%032d" % number


def sync_name(directory):
    """Makes the names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def until_stopped(directory, host, name, flags, write):
    """Calls `write(fd, number)` for one number after the other."""
    flags |= os.O_DSYNC if os.environ.get("SYNC") else 0
    fd = os.open(os.path.join(directory, name), os.O_RDWR | os.O_CREAT | flags, 0o644)
    if flags & os.O_DSYNC:
        sync_name(directory)
    log = os.open(os.path.join(host, name + ".log"), os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    known = os.pread(log, 1 << 30, 0).split()
    number = write(fd, None) if known else 0
    while not os.path.exists(os.path.join(host, "stop")):
        for _ in range(20):
            number += 1
            write(fd, number)
            os.write(log, b"%d\n" % number)
        # A hundred rounds must fit on the volume.
        time.sleep(0.002)


def append(fd, number):
    if number is None:
        lines = os.fstat(fd).st_size // LINE_BYTES
        os.ftruncate(fd, lines * LINE_BYTES)
        return lines
    line = b"%09d\n" % number
    assert os.write(fd, line) == len(line)
    return number


def overwrite(fd, number):
    if number is None:
        size = os.fstat(fd).st_size
        tails = (os.pread(fd, 32, at + BLOCK_BYTES - 32) for at in range(0, size, BLOCK_BYTES))
        # The first block is written as the last one, and is zeros until then.
        return max((int(tail) for tail in tails if tail != bytes(32)), default=0)
    assert os.pwrite(fd, block(number), number % BLOCKS * BLOCK_BYTES) == BLOCK_BYTES
    return number


def run(directory, host):
    threads = [
        threading.Thread(target=work, args=(directory, host, name, flags, write))
        for name, flags, write in (("append", os.O_APPEND, append), ("blocks", 0, overwrite))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def work(*arguments):
    try:
        until_stopped(*arguments)
    except BaseException as error:
        print(f"append load: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def logged(host, name):
    with open(os.path.join(host, name + ".log"), encoding="ascii") as log:
        numbers = [int(line) for line in log]
    assert numbers, f"no call of {name} ever returned"
    return numbers


def verify(directory, host):
    with open(os.path.join(directory, "append"), "rb") as file:
        content = file.read()
    lines = content.split(b"\n")
    # Linux sends a FUSE mount a write across the end of a page that it has not read as two requests, each of which survives or does not.
    part = lines.pop()
    at_page_end = len(content) % PAGE_BYTES == 0 and (b"%09d\n" % (len(lines) + 1)).startswith(part)
    assert part == b"" or at_page_end, f"the last line is torn: {part} at byte {len(content) - len(part)}"
    for number, line in enumerate(lines, 1):
        assert line == b"%09d" % number, f"line {number} is {line}"
    last = logged(host, "append")[-1]
    assert last <= len(lines), f"{last - len(lines)} lines are lost"
    newest = {}
    for number in logged(host, "blocks"):
        newest[number % BLOCKS] = number
    with open(os.path.join(directory, "blocks"), "rb") as file:
        content = file.read()
    for place, number in newest.items():
        found = content[place * BLOCK_BYTES:][:BLOCK_BYTES]
        said = int(found[-32:])
        assert found == block(said), f"block {place} is torn"
        assert said >= number, f"block {place} is of write {said}, {number} had returned"
    print(f"{len(lines)} lines, {last} logged; {max(newest.values())} writes of blocks; none lost")


if __name__ == "__main__":
    try:
        {"run": run, "verify": verify}[sys.argv[1]](sys.argv[2], sys.argv[3])
    except (AssertionError, OSError, ValueError) as error:
        print(f"append load, {sys.argv[1]}: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
