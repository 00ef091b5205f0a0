#!/usr/bin/env python3
"""Volumes without NVM beside what else makes data durable on the same disk, in one run, by turns.

    scripts/bench/ssd.py [--on DIRECTORY] [--rounds 3] [--seconds 1] [--writers 1,4,16] [--loads append,random,create,programs]
                         [--systems floor,host,ext4,xfs,btrfs,strict,buffered,ordered] [--json FILE]

Systems: `floor` is a bare group commit (scripts/bench/synced.c); `host` the file system of DIRECTORY itself; `ext4`, `xfs`, `btrfs` lie in
image files there, by loop devices with direct I/O, as volumes of Shale lie in image files there. `strict`, `buffered`, `ordered`
are volumes of that durability, each on the mount and under `shale run`. A system or a program that is not here is left out, with a word.

Each round has every system run every load once, in an order that turns. Printed are medians of the rounds: calls a second, then 99th percentiles of a call in us;
`x/floor` and `x/host` are medians of the rounds' own ratios of rates. Run it on a quiet machine; as root. Takes about
4 minutes a round for all. SHALE is the program, SHALE_TOOLS where LevelDB's sources are (scripts/install-deps.sh --suites).
"""

import argparse
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SHALE = os.environ.get("SHALE", os.path.join(os.environ.get("CARGO_TARGET_DIR", f"{ROOT}/target"), "release/shale"))
TOOLS = os.environ.get("SHALE_TOOLS", os.path.expanduser("~/.cache/shale-tools"))
IMAGE = 4 << 30
MEMORY = "512M"
INSERTS = 1000
LOOPED = ("ext4", "xfs", "btrfs")
POLICIES = ("strict", "buffered", "ordered")


class LeftOut(Exception):
    """Something that is measured is not here."""


def ran(*words, **more):
    """What a command printed; an error has what it said."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False, timeout=300, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(str(w) for w in words)}: exit code {done.returncode}: {(done.stderr or done.stdout)[-500:]}")
    return done.stdout


class Target:
    """Where a load runs: a directory, and what goes before its command."""

    def __init__(self, name, directory, words=(), digest=None):
        self.name, self.directory, self.words, self.digest = name, directory, list(words), digest

    def run(self, *words, **more):
        return ran(*self.words, *words, **more)

    @contextlib.contextmanager
    def work(self):
        """A directory for one load; what was left over before is out of the way."""
        path = tempfile.mkdtemp(prefix="work-", dir=self.directory)
        os.chmod(path, 0o755)
        ran("sync", "-f", path)
        if self.digest:
            ran(SHALE, "digest", self.digest)
        try:
            yield path
        finally:
            shutil.rmtree(path)


def looped(stack, kind, on):
    """An image of a file system, mounted."""
    if not shutil.which(f"mkfs.{kind}"):
        raise LeftOut(f"mkfs.{kind}")
    image, mount = f"{on}/{kind}.img", f"{on}/{kind}"
    with open(image, "wb") as file:
        file.truncate(IMAGE)
    ran(f"mkfs.{kind}", "-q", image)
    device = ran("losetup", "--find", "--show", "--direct-io=on", image).strip()
    stack.callback(ran, "losetup", "-d", device)
    os.mkdir(mount)
    ran("mount", device, mount)
    stack.callback(ran, "umount", mount)
    return [Target(kind, mount)]


def volume(stack, policy, on):
    """A volume on an image file, with the mount and `shale run` as targets."""
    toml, mount = f"{on}/{policy}.toml", f"{on}/{policy}"
    os.mkdir(mount)
    ran(SHALE, "mkfs", toml, "--ssd", f"{on}/{policy}.img:{IMAGE}", "--memory", MEMORY, "--durability", policy)
    ran(SHALE, "mount", toml, mount)
    stack.callback(ran, SHALE, "umount", mount)
    os.chmod(mount, 0o755)
    return [Target(f"{policy} mount", mount, digest=mount), Target(f"{policy} run", mount, [SHALE, "run", "--"], digest=mount)]


def targets(stack, systems, on):
    """All that is measured."""
    found = []
    for system in systems:
        try:
            if system in LOOPED:
                found += looped(stack, system, on)
            elif system in POLICIES:
                found += volume(stack, system, on)
            else:
                os.mkdir(f"{on}/{system}")
                found.append(Target(system, f"{on}/{system}"))
        except LeftOut as missing:
            print(f"{system} is left out: no {missing}", file=sys.stderr)
    return found


def synced(kind, size, writers, seconds, synced_program):
    """A load of synced.c: calls a second, 99th percentile in us."""

    def load(target, work):
        what = "floor" if target.name == "floor" else kind
        rate, _, high = target.run(synced_program, work, what, size, writers, seconds).split()
        return float(rate), float(high)

    return load


def sqlite(journal):
    """Inserts, each a transaction, with synchronous=FULL."""

    def load(target, work):
        lines = [f"PRAGMA journal_mode={journal};", "PRAGMA synchronous=FULL;", "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);"]
        lines += [f"INSERT INTO t(b) VALUES('a row of about a hundred bytes, as they are mostly, number {n} of those inserted here');" for n in range(INSERTS)]
        begin = time.monotonic()
        target.run("sqlite3", "-init", "/dev/null", f"{work}/db", input="\n".join(lines))
        return INSERTS / (time.monotonic() - begin), None

    return load


def mail(small_files):
    def load(target, work):
        return float(re.findall(r"[\d.]+", target.run(small_files, "mail", work, 500, 1000))[-1]), None

    return load


def leveldb(db_bench):
    def load(target, work):
        out = target.run(db_bench, "--benchmarks=fillsync", f"--db={work}/db", "--num=2000000")
        return 1e6 / float(re.search(r"fillsync\s*:\s*([\d.]+) micros/op", out)[1]), None

    return load


def redis(target, work):
    """SET by 8 connections, every append synced."""
    with tempfile.TemporaryDirectory(dir="/tmp") as host:
        socket = f"{host}/socket"
        server = [*target.words, "redis-server", "--port", "0", "--unixsocket", socket, "--dir", work]
        server += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        with subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                until = time.monotonic() + 10
                while not os.path.exists(socket):
                    if time.monotonic() > until:
                        raise RuntimeError("redis-server does not start")
                    time.sleep(0.05)
                out = ran("redis-benchmark", "-s", socket, "-t", "set", "-n", 10000, "-c", 8, "--csv")
            finally:
                process.terminate()
    return float(out.strip().splitlines()[-1].split(",")[1].strip('"')), None


PGBENCH = """set -e
data=$1/db
export PGHOST=$2 PGUSER=postgres PGDATABASE=bench
initdb -D "$data" -A trust >/dev/null
printf "listen_addresses=''\\nunix_socket_directories='%s'\\nshared_buffers=32MB\\n" "$2" >>"$data/postgresql.conf"
pg_ctl -D "$data" -l "$2/log" -w start >/dev/null
trap 'pg_ctl -D "$data" -m fast stop >/dev/null' EXIT
createdb bench
pgbench -i -s 2 -q bench >/dev/null 2>&1
pgbench -c 4 -j 2 -T 3 bench
"""


def pgbench(target, work):
    """Four clients of PostgreSQL, its server under `shale run` too."""
    shutil.chown(work, "postgres", "postgres")
    with tempfile.TemporaryDirectory(dir="/tmp") as host:
        shutil.chown(host, "postgres", "postgres")
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        out = ran(*user, *target.words, "bash", "-c", PGBENCH, "pgbench", work, host, cwd=host)
    return float(re.search(r"tps = ([\d.]+)", out)[1]), None


def programs(on, small_files):
    """Real programs, by name."""
    build = f"{TOOLS}/build/leveldb-bench/db_bench"
    db_bench = os.environ.get("LEVELDB_BENCH", build)
    wanted = {
        "SQLite DELETE": (sqlite("DELETE"), "sqlite3"),
        "SQLite WAL": (sqlite("WAL"), "sqlite3"),
        "mail": (mail(small_files), small_files),
        "LevelDB fillsync": (leveldb(db_bench), db_bench),
        "Redis AOF always": (redis, "redis-server"),
        "pgbench": (pgbench, "pgbench"),
    }
    os.environ["PATH"] += "".join(f":{bin}" for bin in glob.glob("/usr/lib/postgresql/*/bin"))
    found = {}
    for name, (load, program) in wanted.items():
        if shutil.which(program):
            found[name] = load
        else:
            print(f"{name} is left out: no {program}", file=sys.stderr)
    return found


def compiled(name, on):
    program = f"{on}/{name}"
    ran("cc", "-O2", "-pthread", "-o", program, f"{HERE}/{name}.c")
    return program


def measured(found, loads, rounds):
    """Results by load and target: a list of (rate, 99th percentile), one a round; and what failed, which is left out of them."""
    results = {load: {t.name: [] for t in found} for load in loads}
    failures = []
    for turn in range(rounds):
        for name, load in loads.items():
            of_files = not isinstance(load, tuple)
            function = load if of_files else load[0]
            order = found[turn % len(found):] + found[: turn % len(found)]
            for target in order:
                # The floor knows nothing of files; ordered is for what syncs to keep an order.
                if target.name == "floor" and of_files or target.name.startswith("ordered") and not name.startswith("SQLite"):
                    continue
                try:
                    with target.work() as work:
                        results[name][target.name].append(function(target, work))
                except (RuntimeError, subprocess.TimeoutExpired) as failed:
                    print(f"FAILED  {name} on {target.name}: {failed}", file=sys.stderr)
                    failures.append((name, target.name))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results, failures


def ratio(results, name, base):
    """Median of the rounds' own ratios."""
    pairs = zip(results.get(name, []), results.get(base, []), strict=False)
    ratios = [one[0] / other[0] for one, other in pairs]
    return statistics.median(ratios) if ratios else None


def show(found, results):
    names = [t.name for t in found]
    print(f"{'load':<24}" + "".join(f"{n:>16}" for n in names))
    for load, of in results.items():
        row = [f"{statistics.median(r[0] for r in of[n]):.0f}" if of[n] else "-" for n in names]
        print(f"{load:<24}" + "".join(f"{cell:>16}" for cell in row))
        if any(r[1] for n in names for r in of[n]):
            row = [f"p99 {statistics.median(r[1] for r in of[n]):.0f}" if of[n] else "-" for n in names]
            print(f"{'':<24}" + "".join(f"{cell:>16}" for cell in row))
        for base in ("floor", "host"):
            row = [ratio(of, n, base) for n in names]
            if any(row):
                print(f"{'  x/' + base:<24}" + "".join(f"{'-' if cell is None else format(cell, '.2f'):>16}" for cell in row))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", default="/var/tmp", help="directory on the disk that is measured (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1, help="of each load of synced.c (default %(default)s)")
    parser.add_argument("--writers", default="1,4,16")
    parser.add_argument("--loads", default="append,random,create,programs")
    parser.add_argument("--systems", default="floor,host,ext4,xfs,btrfs,strict,buffered,ordered")
    parser.add_argument("--json", help="file for all single results")
    arguments = parser.parse_args()
    wanted = arguments.loads.split(",")
    # What is mounted is unmounted, whatever ends it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        on = tempfile.mkdtemp(prefix="shale-ssd-", dir=arguments.on)
        stack.callback(shutil.rmtree, on)
        os.chmod(on, 0o755)
        program = compiled("synced", on)
        loads = {}
        for kind in [k for k in ("append", "random", "create") if k in wanted]:
            for size in (4096,) if kind == "create" else (128, 4096, 65536):
                for writers in map(int, arguments.writers.split(",")):
                    loads[f"{kind} {size} B, {writers}"] = (synced(kind, size, writers, arguments.seconds, program),)
        if "programs" in wanted:
            loads.update(programs(on, compiled("small-files", on)))
        found = targets(stack, arguments.systems.split(","), on)
        results, failures = measured(found, loads, arguments.rounds)
        show(found, results)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(results, file, indent=1)
        return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
