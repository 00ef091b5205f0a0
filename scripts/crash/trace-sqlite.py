#!/usr/bin/env python3
"""Records what sqlite3 does to its files, as workloads of `shale-harness crash --kinds programs`.

    scripts/crash/trace-sqlite.py [DIR]      writes DIR/sqlite-MODE.trace (crates/proof/model/traces)

One line of a trace is one operation:

    open SLOT PATH FLAGS       flags as in open(2): r or rw, then +c (create) +x (excl) +t (trunc)
    write SLOT OFFSET BYTES    hexadecimal; XX*N is a byte N times
    truncate SLOT SIZE
    sync SLOT
    close SLOT
    unlink PATH
    committed N                transaction N has been answered: it has to be there from now on

Needs sqlite3 and strace. Reads, locks and attributes are left out.
"""
import os
import re
import subprocess
import sys
import tempfile

MODES = ["delete", "truncate", "persist", "wal"]
SLOTS = 5


def script(mode):
    yield "PRAGMA page_size=512;"
    if mode == "wal":
        # Else its index would be in shared memory, which no call writes.
        yield "PRAGMA locking_mode=EXCLUSIVE;"
    yield f"PRAGMA journal_mode={mode}; PRAGMA synchronous=FULL;"
    yield "PRAGMA cache_size=10; PRAGMA wal_autocheckpoint=12;"
    yield "BEGIN; CREATE TABLE accounts(id INTEGER PRIMARY KEY, balance INT);"
    yield "CREATE TABLE done(n INTEGER PRIMARY KEY, text);"
    for account in range(6):
        yield f"INSERT INTO accounts VALUES({account}, 100);"
    yield "INSERT INTO done VALUES(0, ''); COMMIT; SELECT readfile('/committed-0');"
    for n in range(1, 9):
        yield "BEGIN;"
        yield f"UPDATE accounts SET balance=balance-{n} WHERE id={n % 6};"
        yield f"UPDATE accounts SET balance=balance+{n} WHERE id={(n * 5 + 1) % 6};"
        # More than the cache holds: the journal is synced and the file written before the end.
        rows = 14 if n == 4 else 1
        for row in range(rows):
            yield f"INSERT INTO done VALUES({n * 100 + row}, '{'x' * (9 * (row + n))}');"
        yield f"DELETE FROM done WHERE n >= {n * 100}; INSERT INTO done VALUES({n}, 't{n}');"
        yield f"COMMIT; SELECT readfile('/committed-{n}');"
        if n == 5:
            yield "BEGIN; UPDATE accounts SET balance=0; DELETE FROM done; ROLLBACK;"
    yield "VACUUM;"


def unescape(text):
    return bytes(int(h, 16) for h in re.findall(r"\\x([0-9a-f]{2})", text))


def packed(data):
    out, at = [], 0
    for match in re.finditer(rb"(.)\1{7,}", data, re.S):
        out.append(data[at:match.start()].hex())
        out.append(f"{match.group(0)[:1].hex()}*{len(match.group(0))}")
        at = match.end()
    out.append(data[at:].hex())
    return ",".join(part for part in out if part)


def flags_of(text):
    access = "rw" if "O_RDWR" in text else "r"
    for name, letter in (("O_CREAT", "c"), ("O_EXCL", "x"), ("O_TRUNC", "t")):
        if name in text:
            access += "+" + letter
    return access


def convert(strace, root):
    slots = {}
    for line in strace.splitlines():
        call = re.match(r"(\w+)\((.*)\)\s+= (-?\d+)", line)
        if not call:
            continue
        name, args, result = call.group(1), call.group(2), int(call.group(3))
        path = re.search(r'"((?:\\x[0-9a-f]{2})*)"', args)
        path = unescape(path.group(1)).decode("latin1") if path else ""
        if name == "openat":
            if path.startswith("/committed-"):
                yield f"committed {path.split('-')[1]}"
            elif path.startswith(root + "/") and result >= 0:
                slot = min(set(range(SLOTS)) - set(slots.values()))
                slots[result] = slot
                yield f"open {slot} {os.path.basename(path)} {flags_of(args)}"
        elif name in ("unlink", "unlinkat"):
            if path.startswith(root + "/") and result == 0:
                yield f"unlink {os.path.basename(path)}"
        elif result >= 0 and (fd := re.match(r"(\d+)", args)) and int(fd.group(1)) in slots:
            slot = slots[int(fd.group(1))]
            if name == "pwrite64":
                data, rest = re.match(r'\d+, "([^"]*)", (.*)', args).groups()
                data = unescape(data)
                assert len(data) == result, "strace cut a write short"
                yield f"write {slot} {rest.split(', ')[1]} {packed(data)}"
            elif name == "ftruncate":
                yield f"truncate {slot} {args.split(', ')[1]}"
            elif name in ("fsync", "fdatasync"):
                yield f"sync {slot}"
            elif name == "close":
                del slots[int(fd.group(1))]
                yield f"close {slot}"
            elif name in ("write", "pwritev", "fallocate", "rename"):
                raise SystemExit(f"{name}: not known here")


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    out = sys.argv[1] if len(sys.argv) > 1 else f"{here}/../../crates/proof/model/traces"
    calls = "openat,unlink,unlinkat,pwrite64,write,ftruncate,fsync,fdatasync,close,fallocate"
    for mode in MODES:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
            command = ["strace", "-o", f"{root}.strace", "-xx", "-s", "1000000", "-e", calls]
            program = ["sqlite3", f"{root}/t.db"]
            text = "\n".join(script(mode))
            subprocess.run(command + program, input=text.encode(), check=True,
                           stdout=subprocess.DEVNULL)
            with open(f"{root}.strace", encoding="ascii") as file:
                lines = list(convert(file.read(), root))
            os.unlink(f"{root}.strace")
        with open(f"{out}/sqlite-{mode}.trace", "w", encoding="ascii") as file:
            file.write("\n".join(lines) + "\n")
        print(f"sqlite-{mode}: {len(lines)} operations")


main()
