#!/usr/bin/env python3
"""Commits numbered rows with synchronous=FULL and logs each number after its COMMIT returned.

    load-sqlite.py run DIRECTORY HOST      until HOST/stop exists; log: HOST/sqlite.log
    load-sqlite.py verify DIRECTORY HOST   every logged row is there, whole and in order

JOURNAL=DELETE|WAL|TRUNCATE chooses the journal mode, default DELETE. SYNC=1: synchronous=EXTRA, for with
FULL the deletion of a journal, which is the commit, is not synced.
"""

import hashlib
import os
import sqlite3
import sys
import time


def payload(number):
    """What row `number` must hold: recomputable, of varying length."""
    return hashlib.sha256(str(number).encode()).digest() * (1 + number % 40)


def connect(directory):
    database = sqlite3.connect(os.path.join(directory, "rows.db"), isolation_level=None, timeout=60)
    database.execute("PRAGMA journal_mode=" + os.environ.get("JOURNAL", "DELETE"))
    database.execute("PRAGMA synchronous=" + ("EXTRA" if os.environ.get("SYNC") else "FULL"))
    return database


def run(directory, host):
    database = connect(directory)
    database.execute("CREATE TABLE IF NOT EXISTS row(id INTEGER PRIMARY KEY, content BLOB)")
    number = database.execute("SELECT coalesce(max(id), 0) FROM row").fetchone()[0]
    log = os.open(os.path.join(host, "sqlite.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    while not os.path.exists(os.path.join(host, "stop")):
        number += 1
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO row VALUES(?, ?)", (number, payload(number)))
        database.execute("COMMIT")
        os.write(log, b"%d\n" % number)
        # A hundred rounds must fit on the volume.
        time.sleep(0.0005)


def verify(directory, host):
    with open(os.path.join(host, "sqlite.log"), encoding="ascii") as log:
        committed = [int(line) for line in log]
    database = connect(directory)
    whole = database.execute("PRAGMA integrity_check").fetchone()[0]
    assert whole == "ok", whole
    last = 0
    for number, content in database.execute("SELECT id, content FROM row ORDER BY id"):
        assert number == last + 1, f"row {last + 1} is missing"
        assert content == payload(number), f"row {number} has other bytes"
        last = number
    assert committed, "no row was ever committed"
    assert committed == sorted(set(committed)), "the log itself is out of order"
    # One commit may have happened whose return was never seen.
    behind = [number for number in committed if number > last]
    assert not behind, f"{len(behind)} committed rows are lost, first {behind[0]}"
    print(f"{len(committed)} committed rows logged, {last} there, none lost")


if __name__ == "__main__":
    try:
        {"run": run, "verify": verify}[sys.argv[1]](sys.argv[2], sys.argv[3])
    except (AssertionError, OSError, sqlite3.Error) as error:
        print(f"sqlite load, {sys.argv[1]}: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
