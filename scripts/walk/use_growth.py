"""Items 8 to 12 and 14 of the walk through what use has found: what grows, stalls, or asks too often."""

import contextlib
import os
import sqlite3
import subprocess
import sys
import time

from use_tools import RUN, SERVED, Place, attempt, compiled, is_mounted, last, scratch, short, took
from walk import SHALE, Failed, command, until

RESTARTS = int(os.environ.get("RESTARTS", "40"))
ROUNDS = {"mount": 15_000, "shale run": 5_000}
LIVE = 20_000
# With more files than this the table of leases does not grow (docs/DESIGN.md, *What a live file costs the daemon*).
LEASES_KEPT = 65_536
# What a program may have more after all restarts than after the first few (as in scripts/crash/soak.py).
ALLOWED = {"address space MiB": 64, "descriptors": 2, "maps": 64}
# What is free for the noise of an allocator, beside what files take.
NOISE_KIB = 4 << 10
# What e1516b8 did of tmpfs with `WAITS`, alone on a machine of two processors, 2026-11-25; 1.5 times that is wanted.
OVERWRITES_BEFORE = 0.24

LASTING = """
import os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
n = 0
while True:
    at = n % 64 * 8192
    block = b'%08d' % n * 1024
    assert os.pwrite(f, block, at) == 8192 and os.pread(f, 8192, at) == block
    n += 1
    if n % 50 == 0: open(sys.argv[2], 'w').write(str(n))
"""


def has(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        size = int(file.read().split("VmSize:")[1].split()[0]) // 1024
    with open(f"/proc/{pid}/maps", encoding="utf8", errors="replace") as file:
        maps = file.readlines()
    return {
        "address space MiB": size,
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "maps": len(maps),
        "maps of deleted files": sum("(deleted)" in line for line in maps),
    }


def item_8(tally):
    """a program under shale run that outlives 40 daemons, or RESTARTS"""
    with Place("restarts", "64M") as v:
        v.up()
        count = os.path.join(v.below, "count")
        load = v.start(
            *RUN, sys.executable, "-c", LASTING, v.path("file"), count, env=SERVED, stderr=subprocess.DEVNULL
        )
        first = now = None
        restarts = served = 0
        try:
            v.client(load)
            for restarts in range(1, RESTARTS + 1):
                v.kill()
                with open(count, encoding="ascii") as file:
                    before = file.read()
                until("the program goes on", lambda: goes_on(count, before), 10)
                try:
                    v.client(load, 2)
                    served += 1
                except Failed:
                    pass
                now = has(load.pid)
                first = first or (now if restarts == 3 else None)
        except (Failed, OSError) as e:
            tally.see(f"restart {restarts}", False, short(str(e)))
        tally.see("restarts after which the program is a client again", served == RESTARTS, f"{served} of {RESTARTS}")
        tally.see("the program goes on", load.poll() is None, "" if load.poll() is None else f"exit code {load.poll()}")
        flat = first and now and all(now[k] - first[k] <= more for k, more in ALLOWED.items())
        tally.see(f"what it has after 3 restarts, and after {restarts}", bool(flat), f"{first}, {now}")
        load.kill()
        load.wait()
        v.down()
        tally.see("fsck", "clean" in v.fsck(), last(v.fsck()))


def goes_on(count, before):
    with open(count, encoding="ascii") as file:
        return file.read() not in (before, "")


CHURN = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **v) {
    char path[4096], data[200] = {0};
    if (argc < 3) return 2;
    for (int n = 0; n < atoi(v[2]); n++) {
        snprintf(path, sizeof path, "%s/n%d", v[1], n % 50);
        int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644);
        if (fd < 0 || write(fd, data, sizeof data) != sizeof data || close(fd) || unlink(path)) return perror(path), 1;
    }
    return 0;
}
"""


def item_9(tally):
    """leases and heap of the daemon after 15,000 rounds of create, write, unlink over 50 names"""
    with Place("churn", "96M") as v, scratch("churn") as tools:
        program = compiled(tools, "churn", CHURN)
        v.up()
        for way, prefix in (("mount", ()), ("shale run", RUN)):
            directory = v.path(way.replace(" ", "-"))
            os.mkdir(directory)
            # What the first ones take may stay; more of them take no more.
            rounds = ROUNDS[way]
            command(*prefix, program, directory, str(rounds), timeout=60)
            command(SHALE, "digest", v.mount)
            heap, leases, begun = v.heap_kib(), v.leases(), time.monotonic()
            command(*prefix, program, directory, str(rounds), timeout=60)
            command(SHALE, "digest", v.mount)
            time.sleep(1)
            grown, leases = v.heap_kib() - heap, v.leases() - leases
            said = f"{grown} KiB, {grown / rounds:.2f} kB per file ({took(begun)}), {v.status()['space']['inodes']} inodes live"
            tally.see(f"{rounds} rounds after as many, {way}: heap grown by", grown < NOISE_KIB, said)
            tally.see("leases more than before", leases < rounds / 10, leases)
        v.down()
        tally.see("fsck", "clean" in v.fsck(), last(v.fsck()))


WAITS = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
int main(int argc, char **v) {
    static char page[4096];
    const long blocks = 256 << 8;
    int fd = argc > 2 ? open(v[1], O_RDWR | O_CREAT, 0644) : -1;
    double seconds = argc > 2 ? atof(v[2]) : 0, longest = 0;
    for (long n = 0; n < blocks; n++) if (pwrite(fd, page, 4096, n * 4096) != 4096) return perror("fill"), 1;
    unsigned long at = 88172645463325252, calls = 0;
    double begun = now(), last = begun, warm = begun + 2;
    while (last < warm + seconds) {
        at ^= at << 13, at ^= at >> 7, at ^= at << 17;
        *(unsigned long *)page = at;
        if (pwrite(fd, page, 4096, (long)(at % blocks) * 4096) != 4096) return perror("write"), 1;
        double then = now();
        if (then > warm) { if (then - last > longest) longest = then - last; calls++; }
        last = then;
    }
    printf("%.0f %.1f\n", calls * 4096 / seconds / 1e6, longest * 1e3);
    return 0;
}
"""


def item_10(tally):
    """random 4 KiB overwrites of 256 MiB with a full log: throughput beside tmpfs, and the longest call"""
    with Place("waits", "640M") as v, scratch("waits") as tools:
        program = compiled(tools, "waits", WAITS)
        v.up()
        load = os.getloadavg()[0]
        host = command(program, f"{tools}/file", "3").split()
        os.remove(f"{tools}/file")
        ours = command(*RUN, program, v.path("file"), "8", timeout=60).split()
        part = float(ours[0]) / float(host[0])
        tally.see(
            f"shale run, MB/s; tmpfs; part of it, where {OVERWRITES_BEFORE} was before",
            part >= 1.5 * OVERWRITES_BEFORE,
            f"{ours[0]}; {host[0]}; {part:.2f}",
        )
        tally.see(
            "longest call in ms, below 20 (judged where the machine's load was below 2 before); tmpfs",
            float(ours[1]) < 20 or load > 2,
            f"{ours[1]}; {host[1]}; load of the machine {load:.1f}",
        )
        digest = v.status()["digest"]
        tally.see(
            "digests: chunks, the last error", digest["last_error"] is None, (digest["chunks"], digest["last_error"])
        )
        v.down()


MAKES = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **v) {
    char path[4096];
    for (int n = argc > 3 ? atoi(v[2]) : 0; n < atoi(v[3]); n++) {
        snprintf(path, sizeof path, "%s/d%d/file-%d", v[1], n % 20, n);
        int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644);
        if (fd < 0 || (n < 25000 && write(fd, path, 10) != 10) || close(fd)) return perror(path), 1;
    }
    return 0;
}
"""


def item_11(tally):
    """what live files cost the daemon"""
    with Place("live", "192M") as v, scratch("live") as tools:
        program = compiled(tools, "makes", MAKES)
        v.up()
        for n in range(20):
            os.mkdir(v.path(f"d{n}"))

        def more(first, end):
            command(program, v.mount, str(first), str(end), timeout=90)
            command(SHALE, "digest", v.mount)
            time.sleep(1)
            return v.heap_kib(), v.leases()

        # What a first digest takes does not grow with files.
        heap, leases = more(0, 2000)
        after, leases_after = more(2000, 2000 + LIVE)
        said = f"{(after - heap) / LIVE:.2f} kB of heap per file, {leases_after - leases} leases"
        tally.see(f"{LIVE} live files more than 2,000", True, said)
        at = LEASES_KEPT + 4000
        heap, leases = more(2000 + LIVE, at)
        # What a digest takes comes and goes, up to 14 MiB of it: what files cost is there every time.
        grown = []
        for _ in range(2):
            after, leases_after = more(at, at + LIVE)
            grown.append((after - heap) / LIVE)
            at, heap = at + LIVE, after
        each = min(grown)
        said = f"{each:.2f} kB, {leases_after - leases} leases; heap {after // 1024} MiB, leases {leases_after}"
        tally.see(f"{LIVE} more than {LEASES_KEPT + 4000}, and as many again: bounded", each < 0.5, said)
        v.down()


WRITER = r"""
#include <fcntl.h>
#include <unistd.h>
int main(int argc, char **v) {
    static char data[65536];
    int fd = argc > 1 ? open(v[1], O_RDWR | O_CREAT, 0644) : -1;
    for (unsigned long at = 88172645463325252;;) {
        at ^= at << 13, at ^= at >> 7, at ^= at << 17;
        data[0] = at;
        if (pwrite(fd, data, sizeof data, (long)(at % 384) * 65536) != sizeof data) return 1;
    }
}
"""


def mib(said):
    """Of "48 MiB moved", the last line of what migrate says."""
    number, unit = said.splitlines()[-1].split()[:2]
    return float(number) * {"GiB": 1024, "MiB": 1, "KiB": 1 / 1024, "B": 0}[unit]


def item_12(tally):
    """migrate while writers run; umount while a bind mount exists"""
    devices = [("ssd", "a.img", "256M"), ("hdd", "c.img", "256M")]
    with Place("busy", "64M", devices) as v, scratch("busy") as tools:
        program = compiled(tools, "writer", WRITER)
        v.up()
        writers = [v.start(program, v.path(f"written-{n}")) for n in range(3)]
        time.sleep(2)
        begun = time.monotonic()
        code, said = attempt(SHALE, "migrate", v.mount, timeout=15)
        ended = "no end" if code is None else f"exit code {code}"
        tally.see(
            "three writers; shale migrate ends, and moves no more than NVM has",
            code == 0 and mib(said) <= 64,
            f"{ended} in {took(begun)} {last(said)}",
        )
        for writer in writers:
            writer.kill()
            writer.wait()
        begun = time.monotonic()
        code, said = attempt(SHALE, "migrate", v.mount, timeout=20)
        tally.see("idle", code == 0, f"{took(begun)} {last(said)}")
        bind = os.path.join(v.below, "bind")
        os.mkdir(bind)
        command("mount", "--bind", v.mount, bind)
        v.others.append(bind)
        begun = time.monotonic()
        code, said = attempt(SHALE, "umount", v.mount, timeout=8)
        ended = "no end" if code is None else f"exit code {code}"
        tally.see(
            "shale umount while a bind mount exists names it",
            code is not None and bind in said,
            f"{ended} in {took(begun)}: {short(said)}",
        )
        command("umount", bind)
        if is_mounted(v.mount):
            v.down()
        until("the daemon ends", lambda: attempt(SHALE, "fsck", v.file)[0] == 0, 15)
        tally.see("fsck", "clean" in v.fsck(), last(v.fsck()))


def counted(v, what):
    """Requests by kind that something takes."""
    before = v.status()["mount_requests"]
    what()
    after = v.status()["mount_requests"]
    return {kind: n - before.get(kind, 0) for kind, n in sorted(after.items()) if n != before.get(kind, 0)}


def item_14(tally):
    """requests of the kernel per operation, as status counts them"""
    with Place("requests", "64M") as v:
        v.up()
        if "mount_requests" not in v.status():
            tally.see("status --json counts requests by kind", False, "no mount_requests")
            return
        count, top = 500, os.open(v.mount, os.O_RDONLY)

        def files():
            for n in range(count):
                fd = os.open(v.path(f"f{n}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                os.write(fd, b"x" * 4096)
                os.fsync(fd)
                os.close(fd)
                os.fsync(top)
            for n in range(count):
                os.unlink(v.path(f"f{n}"))

        def inserts():
            with contextlib.closing(sqlite3.connect(v.path("db"))) as db:
                db.execute("create table t (a integer primary key, b text)")
                for n in range(200):
                    db.execute("insert into t (b) values (?)", (f"row {n}" * 10,))
                    db.commit()

        sent = counted(v, files)
        tally.see(
            f"{count} files made, written, synced with their directory, removed: FSYNC and FSYNCDIR",
            sent.get("FSYNC", 0) + sent.get("FSYNCDIR", 0) <= 2,
            sent,
        )
        # What else the kernel asks, and why it cannot be fewer: docs/DESIGN.md, *Requests for each operation*.
        few = [sent.get(kind, 0) for kind in ("GETATTR", "LOOKUP", "GETXATTR")]
        most = [2 * count, count, count]
        what = "GETATTR after each change of a directory, LOOKUP before, GETXATTR at the first write: no more than that"
        tally.see(what, all(n <= m for n, m in zip(few, most)), few)
        sent = counted(v, inserts)
        tally.see("200 inserts by SQLite, journal DELETE: FSYNC and FSYNCDIR", sent.get("FSYNC", 0) == 0, sent)
        os.close(top)
        # Beside other work the kernel places them well itself.
        bound = max(placed(v, n) for n in range(3))
        what = "2,000 files made by one program, the machine quiet: readers are bound, each to a processor"
        tally.see(what, bound >= 10, f"in {bound} of 40 looks")
        v.down()


def placed(v, attempt):
    """Of 40 looks at a program that makes files alone: in how many readers of the mount were bound to a processor."""
    threads = [int(thread) for thread in os.listdir(f"/proc/{v.status()['daemon_pid']}/task")]
    bound = 0
    for n in range(2000):
        os.close(os.open(v.path(f"placed{attempt}-{n}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        if n % 50 == 49:
            bound += any(len(processors(thread)) == 1 for thread in threads)
    return bound


def processors(thread):
    """Where a thread may run; nowhere, if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        return os.sched_getaffinity(thread)
    return set()


ITEMS = {8: item_8, 9: item_9, 10: item_10, 11: item_11, 12: item_12, 14: item_14}
