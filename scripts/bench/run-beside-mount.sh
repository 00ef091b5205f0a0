#!/usr/bin/env bash
# Programs that make and open many files, and one that calls on one file: on the mount, under `shale run`, on tmpfs
# and on ext4 on a RAM disk. `shale run` must not be slower than the mount: exit code 1 where run/mount is below
# MIN_RATIO (0.97).
#
# A virtual machine's processor is now faster and now slower by a fifth for seconds at a time. So mount and run
# come right after one another in each round, in turns first, and what counts is the median of the rounds' own
# ratios, printed with the interval in which it lies in nine of ten cases. Times are medians. tmpfs and ext4, which
# only show the scale, take part in the first five rounds.
#
#   ROUNDS=15 COPIES=4 PROGRAMS="sqlite mail tar cp git leveldb calls" scripts/bench/run-beside-mount.sh
#
# CPU=N has everything, the daemon too, run on that processor: on which one a request wakes the daemon up decides up
# to a factor of ten on some machines, and hides everything else.
#
# LevelDB's db_bench is LEVELDB_BENCH, or built once into SHALE_TOOLS/build from the sources that
# scripts/install-deps.sh --suites gets; without either, that row is left out.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../volume.sh"
rounds=${ROUNDS:-15} least=${MIN_RATIO:-0.97}
programs=${PROGRAMS:-sqlite mail tar cp git leveldb calls}
tools=${SHALE_TOOLS:-$HOME/.cache/shale-tools}
host=$(mktemp -d /dev/shm/shale-beside-host.XXXXXX)
[ -z "${CPU:-}" ] || taskset -pc "$CPU" $$ >/dev/null || exit 1
finish() {
    volume_end
    mountpoint -q "$host/ext4" && umount "$host/ext4"
    rm -rf "$host"
}
trap finish EXIT
trap 'exit 130' INT TERM
cc -O2 -o "$host/small-files" "$here/small-files.c" || exit 1
volume_begin beside 768MiB --durability strict >/dev/null && volume_mount >/dev/null || exit 1
mkdir "$host/tmpfs" "$host/ext4"
others=tmpfs
truncate -s 512M "$host/image"
if mkfs.ext4 -q -F "$host/image" 2>/dev/null && mount -o loop "$host/image" "$host/ext4" 2>/dev/null; then
    others="$others ext4"
else
    echo "no ext4 on a loop device here: that column is left out" >&2
fi

# What is unpacked, copied and cloned: the sources of this tree, COPIES (4) times.
mkdir "$host/tree"
for ((copy = 0; copy < ${COPIES:-4}; copy++)); do
    mkdir "$host/tree/$copy"
    (cd "$root" && tar cf - --exclude=target crates docs scripts) | tar xf - -C "$host/tree/$copy"
done
tar cf "$host/tree.tar" -C "$host" tree
(cd "$host/tree" && git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -q -m tree) || exit 1
{
    echo "PRAGMA journal_mode=DELETE; PRAGMA synchronous=FULL; CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);"
    for ((n = 0; n < 2000; n++)); do echo "INSERT INTO t(b) VALUES('a row of about a hundred bytes, as they are mostly, number $n of those that are inserted');"; done
} >"$host/inserts.sql"
build=$tools/build/leveldb-bench
if [ ! -x "${LEVELDB_BENCH:-$build/db_bench}" ] && [ -d "$tools/src/leveldb" ]; then
    cmake -S "$tools/src/leveldb" -B "$build" -DCMAKE_BUILD_TYPE=Release -DLEVELDB_BUILD_TESTS=OFF >"$host/build" 2>&1 \
        && cmake --build "$build" -j 2 --target db_bench >>"$host/build" 2>&1 || tail -n 20 "$host/build" >&2
fi
db_bench=$(command -v "${LEVELDB_BENCH:-$build/db_bench}")
if [ -z "$db_bench" ]; then
    echo "no LevelDB here (scripts/install-deps.sh --suites): that row is left out" >&2
    programs=${programs//leveldb/}
fi

command_of() { # command_of PROGRAM DIRECTORY: sets $command
    case $1 in
    sqlite) command=(sqlite3 -init /dev/null "$2/db" ".read $host/inserts.sql") ;;
    mail) command=("$host/small-files" mail "$2" 1000 4000) ;;
    tar) command=(tar xf "$host/tree.tar" -C "$2") ;;
    cp) command=(cp -r "$2/source" "$2/copy") ;;
    git) command=(git clone -q --no-hardlinks "$host/tree" "$2/clone") ;;
    leveldb) command=("$db_bench" --benchmarks=fillrandom "--db=$2/leveldb" --num=100000) ;;
    calls) command=("$host/small-files" calls "$2/file" 100000 4096) ;;
    esac
}
once() { # once TARGET PROGRAM: a line "TARGET PROGRAM seconds"
    local base=$host/$1 command begin end
    case $1 in mount | run) base=$mount ;; esac
    local dir=$base/work-$2
    mkdir "$dir" || exit 1
    [ "$2" != cp ] || cp -r "$host/tree" "$dir/source"
    command_of "$2" "$dir"
    [ "$1" != run ] || command=("$SHALE" run -- "${command[@]}")
    sync -f "$dir"
    # What turns before this one left in the logs is digested: else it is on whichever has its turn then.
    case $1 in mount | run) "$SHALE" digest "$mount" >/dev/null || exit 1 ;; esac
    begin=${EPOCHREALTIME/./}
    if ! "${command[@]}" >"$host/said" 2>&1; then
        echo "$1 $2 failed:" >&2
        cat "$host/said" >&2
        exit 1
    fi
    end=${EPOCHREALTIME/./}
    echo "$1 $2 $((end - begin))" >>"$host/times"
    rm -rf "$dir"
}
order="mount run"
for ((round = 0; round < rounds; round++)); do
    [ $round -lt 5 ] || others=
    for program in $programs; do
        for target in $order $others; do once "$target" "$program"; done
    done
    [ "$order" = "mount run" ] && order="run mount" || order="mount run"
done

awk -v least="$least" -v programs="$programs" '
    function sorted(text, list,    n, i, j, t) {
        n = split(text, list, " ")
        for (i = 2; i <= n; i++) for (j = i; j > 1 && list[j - 1] + 0 > list[j] + 0; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
        return n
    }
    function median(key,    n, list) {
        n = sorted(all[key], list)
        return n ? list[int((n + 1) / 2)] / 1000 : 0
    }
    { all[$1 " " $2] = all[$1 " " $2] " " $3 }
    END {
        printf "%-10s %10s %10s %10s %10s %10s  %s\n", "ms", "mount", "run", "tmpfs", "ext4", "run/mount", "9 of 10"
        count = split(programs, order, " ")
        for (i = 1; i <= count; i++) {
            p = order[i]; n = split(all["mount " p], mount, " "); split(all["run " p], run, " "); text = ""
            for (k = 1; k <= n; k++) text = text " " mount[k] / run[k]
            sorted(text, list); ratio = list[int((n + 1) / 2)]; bad += ratio < least
            # The median of n lies between the ordered values this far from the middle in nine of ten cases.
            low = int((n - 1.645 * sqrt(n)) / 2); low = low < 1 ? 1 : low
            printf "%-10s %10.1f %10.1f %10.1f %10.1f %10.3f  %.2f-%.2f%s\n", p, median("mount " p), median("run " p),
                median("tmpfs " p), median("ext4 " p), ratio, list[low], list[n + 1 - low], ratio < least ? "  SLOWER" : ""
        }
        exit bad > 0
    }' "$host/times"
