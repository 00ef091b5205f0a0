#!/usr/bin/env bash
# Programs that make and open many files, and one that calls on one file: on the mount, under `shale run`, on tmpfs
# and on ext4 on a RAM disk. `shale run` must not be slower than the mount: exit code 1 where run/mount is below
# MIN_RATIO (speeds, medians of the rounds; 0.97). The targets take turns.
#
#   ROUNDS=7 PROGRAMS="sqlite mail tar cp git leveldb calls" scripts/bench/run-beside-mount.sh
#
# CPU=N has everything, the daemon too, run on that processor: on which one a request wakes the daemon up decides up
# to a factor of ten on some machines, and hides everything else.
#
# LevelDB's db_bench is looked for in LEVELDB_BENCH or SHALE_TOOLS/build; without it, that row is left out.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../volume.sh"
rounds=${ROUNDS:-7} least=${MIN_RATIO:-0.97}
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
targets="mount run tmpfs"
truncate -s 512M "$host/image"
if mkfs.ext4 -q -F "$host/image" 2>/dev/null && mount -o loop "$host/image" "$host/ext4" 2>/dev/null; then
    targets="$targets ext4"
else
    echo "no ext4 on a loop device here: that column is left out" >&2
fi

# What is unpacked, copied and cloned: the sources of this tree, four times.
mkdir "$host/tree"
for copy in 1 2 3 4; do
    mkdir "$host/tree/$copy"
    (cd "$root" && tar cf - --exclude=target crates docs scripts) | tar xf - -C "$host/tree/$copy"
done
tar cf "$host/tree.tar" -C "$host" tree
(cd "$host/tree" && git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -q -m tree) || exit 1
{
    echo "PRAGMA journal_mode=DELETE; PRAGMA synchronous=FULL; CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);"
    for ((n = 0; n < 2000; n++)); do echo "INSERT INTO t(b) VALUES('a row of about a hundred bytes, as they are mostly, number $n of those that are inserted');"; done
} >"$host/inserts.sql"
db_bench=${LEVELDB_BENCH:-}
for found in "$tools/build/leveldb-bench/db_bench" "$tools/build/leveldb/db_bench"; do
    [ -n "$db_bench" ] || [ ! -x "$found" ] || db_bench=$found
done
if [ -z "$db_bench" ]; then
    programs=${programs//leveldb/}
fi

command_of() { # command_of PROGRAM DIRECTORY: sets $command
    case $1 in
    sqlite) command=(sqlite3 -init /dev/null "$2/db" ".read $host/inserts.sql") ;;
    mail) command=("$host/small-files" mail "$2" 1000 4000) ;;
    tar) command=(tar xf "$host/tree.tar" -C "$2") ;;
    cp) command=(cp -r "$2/source" "$2/copy") ;;
    git) command=(git clone -q --no-hardlinks "$host/tree" "$2/clone") ;;
    leveldb) command=("$db_bench" --benchmarks=fillrandom "--db=$2/leveldb" --num=300000) ;;
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
order=($targets)
for ((round = 0; round < rounds; round++)); do
    for program in $programs; do
        for target in "${order[@]}"; do once "$target" "$program"; done
    done
    # Who comes first has what the others left: in turns.
    order=("${order[@]:1}" "${order[0]}")
done

awk -v least="$least" -v programs="$programs" '
    function median(key,    n, list, i, j, t) {
        n = split(all[key], list, " ")
        for (i = 2; i <= n; i++) for (j = i; j > 1 && list[j - 1] + 0 > list[j] + 0; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
        return n ? list[int((n + 1) / 2)] / 1000 : 0
    }
    { all[$1 " " $2] = all[$1 " " $2] " " $3 }
    END {
        printf "%-10s %10s %10s %10s %10s %10s\n", "ms", "mount", "run", "tmpfs", "ext4", "run/mount"
        count = split(programs, order, " ")
        for (i = 1; i <= count; i++) {
            p = order[i]; ratio = median("mount " p) / median("run " p); bad += ratio < least
            printf "%-10s %10.1f %10.1f %10.1f %10.1f %10.2f%s\n", p, median("mount " p), median("run " p),
                median("tmpfs " p), median("ext4 " p), ratio, ratio < least ? "  SLOWER" : ""
        }
        exit bad > 0
    }' "$host/times"
