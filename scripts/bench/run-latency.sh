#!/usr/bin/env bash
# Latency of unmodified programs' calls under `shale run`, beside the copy of the same bytes, the
# mount, tmpfs and ext4; and what the library costs at the start of a program.
#
#   ROUNDS=5 EXT4=DIR scripts/bench/run-latency.sh      EXT4: a directory on ext4, default none
#
# The targets take turns; each number is the median of the rounds, each of those a median of calls.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../volume.sh"
rounds=${ROUNDS:-5}
host=$(mktemp -d "${TMPDIR:-/tmp}/shale-latency.XXXXXX")
trap 'volume_end; rm -rf "$host" /dev/shm/shale-latency-$$' EXIT
trap 'exit 130' INT TERM
cc -O2 -o "$host/latency" "$here/latency.c" || exit 1
volume_begin latency 1GiB --durability strict >/dev/null && volume_mount >/dev/null || exit 1
plain=/dev/shm/shale-latency-$$
mkdir "$plain"

turn() { # turn NAME COMMAND …
    local name=$1
    shift
    "$@" | sed "s/^/$name /" >>"$host/times" || { echo "$name failed" >&2; exit 1; }
}
for ((round = 0; round < rounds; round++)); do
    turn floor "$host/latency" floor "$plain/floor"
    turn run env SHALE_WARM_CALLS=0 "$SHALE" run -- "$host/latency" calls "$mount/run"
    turn mount "$host/latency" calls "$mount/mount"
    turn tmpfs "$host/latency" calls "$plain/tmpfs"
    [ -z "${EXT4:-}" ] || turn ext4+sync "$host/latency" synced "$EXT4/shale-latency-$$"
done
[ -z "${EXT4:-}" ] || rm -f "$EXT4/shale-latency-$$"

awk -v with_ext4="${EXT4:-}" '
    function median(key,    n, list, i, j, t) {
        n = split(all[key], list, " ")
        for (i = 2; i <= n; i++) for (j = i; j > 1 && list[j - 1] + 0 > list[j] + 0; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
        return list[int((n + 1) / 2)]
    }
    { all[$1 " " $2 " " $3] = all[$1 " " $2 " " $3] " " $4; if (!seen[$2 " " $3]++) order[++count] = $2 " " $3 }
    END {
        printf "%-14s %9s %9s %7s %9s %9s %10s\n", "ns", "floor", "run", "ratio", "mount", "tmpfs", "ext4+sync"
        for (i = 1; i <= count; i++) {
            f = median("floor " order[i]); r = median("run " order[i])
            printf "%-14s %9.0f %9.0f %7.2f %9.0f %9.0f %10s\n", order[i], f, r, r / f, median("mount " order[i]),
                median("tmpfs " order[i]), with_ext4 == "" ? "-" : sprintf("%.0f", median("ext4+sync " order[i]))
        }
    }' "$host/times"

start() { # start NAME COMMAND …: 200 starts
    local name=$1 begin n
    shift
    begin=$(date +%s%N)
    for ((n = 0; n < 200; n++)); do "$@" >/dev/null; done
    echo "$name $((($(date +%s%N) - begin) / 200000))"
}
library=$(dirname "$SHALE")/libshale_preload.so
echo data >"$mount/small"
for ((round = 0; round < rounds; round++)); do
    start "true" /bin/true
    start "true with the library" env LD_PRELOAD="$library" /bin/true
    start "env true" env /bin/true
    start "cat of a small file" /bin/cat "$mount/small"
    start "cat of a small file, with the library" env LD_PRELOAD="$library" /bin/cat "$mount/small"
    start "cat of a small file, a client at once" env SHALE_WARM_CALLS=0 LD_PRELOAD="$library" /bin/cat "$mount/small"
done | awk '{ us = $NF; $NF = ""; all[$0] = all[$0] " " us; if (!seen[$0]++) order[++n] = $0 }
    END { for (i = 1; i <= n; i++) { m = split(all[order[i]], l, " "); asort_min = l[1]; for (j = 2; j <= m; j++) if (l[j] + 0 < asort_min + 0) asort_min = l[j]; printf "start of %-42s %6d us\n", order[i], asort_min } }'

echo "system calls of open, read nothing, close; and of making a file:"
cat >"$host/open.c" <<'C'
#include <fcntl.h>
#include <stdlib.h>
#include <stdio.h>
#include <unistd.h>
int main(int c, char **v) { char p[500]; int n = atoi(v[2]); (void)c;
    for (int i = 0; i < n; i++) { snprintf(p, sizeof p, "%s-%d", v[1], v[3][0] == 'c' ? i : 0); close(open(p, O_RDWR | (v[3][0] == 'c' ? O_CREAT | O_EXCL : 0), 0644)); }
    return 0; }
C
cc -O1 -o "$host/open" "$host/open.c"
: >"$mount/existing-0"
counted() { strace -f -c -o "$host/strace" -E LD_PRELOAD="$library" -E SHALE_WARM_CALLS=0 "$@" && awk '$NF == "total" { print $(NF - 1) == "total" ? $(NF - 2) : $4 }' "$host/strace"; }
if command -v strace >/dev/null; then
    for kind in existing create; do
        few=$(counted "$host/open" "$mount/$kind" 10 "$kind")
        rm -f "$mount"/create-*
        many=$(counted "$host/open" "$mount/$kind" 110 "$kind")
        echo "  $kind: $(((many - few + 50) / 100)) each"
    done
fi
