"""Programs that write in a known order without fsync, and say on standard output how far they are."""

import os
import sqlite3
import subprocess
import sys

# Of the table, so that it does not fill the volume.
ROWS = 2000


def say(number):
    os.write(1, b"%d\n" % number)


def opened(name):
    return os.open(os.path.join(sys.argv[2], name), os.O_RDWR | os.O_CREAT)


def two_files():
    """Each number to `a`, then `b`, then `c`, which is now and then another file under the same name."""
    a, b, c = opened("a"), opened("b"), opened("c")
    place = os.path.join(sys.argv[2], "")
    number = 0
    while True:
        number += 1
        text = b"%020d" % number
        os.pwrite(a, text, 0)
        os.pwrite(b, text, 0)
        if number % 20 == 0:
            new = opened("new")
            os.pwrite(new, text, 0)
            os.rename(place + "new", place + "c")
            os.close(c)
            c = new
        else:
            os.pwrite(c, text, 0)
        say(number)


def tell_other():
    """`first` and `third` on the mount; `second`, between them, by a program under shale run."""
    first, third = opened("first"), opened("third")
    shale = os.environ["SHALE_PRELOAD"]
    other = subprocess.Popen(
        [sys.executable, __file__, "second", sys.argv[2]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ, LD_PRELOAD=shale),
    )
    number = 0
    while True:
        number += 1
        text = b"%020d" % number
        os.pwrite(first, text, 0)
        os.write(other.stdin.fileno(), b"x")
        if os.read(other.stdout.fileno(), 1) != b"y":
            return
        os.pwrite(third, text, 0)
        say(number)


def second():
    file = opened("second")
    number = 0
    while os.read(0, 1) == b"x":
        number += 1
        os.pwrite(file, b"%020d" % number, 0)
        os.write(1, b"y")


def database():
    return sqlite3.connect(os.path.join(sys.argv[2], "db"), isolation_level=None)


def sqlite():
    db = database()
    db.execute("pragma journal_mode=wal")
    db.execute("pragma synchronous=normal")
    db.execute("pragma wal_autocheckpoint=50")
    db.execute("create table t (n integer primary key, text)")
    number = 0
    while True:
        number += 1
        db.execute("begin")
        db.execute("insert into t values (?, ?)", (number, "x" * (number * 37 % 3000)))
        db.execute("update t set text = ? where n = ?", ("y" * 900, number - number % 777))
        db.execute("delete from t where n <= ?", (number - ROWS,))
        db.execute("commit")
        say(number)


def sqlite_check():
    db = database()
    (whole,) = db.execute("pragma integrity_check").fetchone()
    assert whole == "ok", whole
    count, last = db.execute("select count(*), max(n) from t").fetchone()
    assert count == min(last, ROWS), (count, last)
    print(last)


{
    "two-files": two_files,
    "tell-other": tell_other,
    "second": second,
    "sqlite": sqlite,
    "sqlite-check": sqlite_check,
}[sys.argv[1]]()
