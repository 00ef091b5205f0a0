#!/usr/bin/env bash
# Two processes under `shale run`, each writing a file of its own, beside one: what they share must
# not cost them anything. Medians over rounds of the processes' medians and 99th percentiles, ns.
#
#   ROUNDS=5 CALLS=20000 scripts/bench/run-writers.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../volume.sh"
rounds=${ROUNDS:-5} calls=${CALLS:-20000}
host=$(mktemp -d "${TMPDIR:-/tmp}/shale-writers.XXXXXX")
trap 'volume_end; rm -rf "$host"' EXIT
trap 'exit 130' INT TERM
cc -O2 -o "$host/writer" "$here/writer.c" || exit 1
volume_begin writers 1GiB --durability strict >/dev/null && volume_mount >/dev/null || exit 1

together() { # together NUMBER BYTES: that many processes begin at once
    local n pids=()
    mkfifo "$host/go"
    exec 7<>"$host/go"
    for ((n = 0; n < $1; n++)); do
        SHALE_WARM_CALLS=0 "$SHALE" run -- "$host/writer" "$mount/writer-$n" "$2" "$calls" <"$host/go" | sed "s/^/$1 /" >>"$host/times" &
        pids+=($!)
    done
    sleep 0.5
    for ((n = 0; n < $1; n++)); do echo >&7; done
    wait "${pids[@]}"
    exec 7>&-
    rm "$host/go"
}
for ((round = 0; round < rounds; round++)); do
    for bytes in 128 4096; do together 1 $bytes; together 2 $bytes; done
done
sort -k2,2n -k1,1n -k3,3n "$host/times" | awk '
    { key = $2 " " $1; if (!(key in count)) order[++keys] = key; all[key, ++count[key]] = $3; high[key, count[key]] = $4 }
    function middle(list, key,    n, i, j, t, v) {
        n = count[key]
        for (i = 1; i <= n; i++) v[i] = list[key, i]
        for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j - 1] > v[j]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
        return v[int((n + 1) / 2)]
    }
    END {
        printf "%6s %10s %8s %6s %8s\n", "bytes", "processes", "median", "ratio", "p99"
        for (i = 1; i <= keys; i++) {
            split(order[i], k, " "); m = middle(all, order[i])
            if (k[2] == 1) alone = m
            printf "%6d %10d %8d %6.2f %8d\n", k[1], k[2], m, m / alone, middle(high, order[i])
        }
    }'
