#!/usr/bin/env bash
# Eight processes on one small tree, four of them clients (`shale run`), four by way of the mount:
# is there an order in which everything they saw is right? Each seed on a fresh volume; fsck after it.
#
#   SECONDS_EACH=20 SEEDS=3 FIRST_SEED=1 scripts/crash/coherence.sh
#   TURNS=20 SECONDS_EACH=30 scripts/crash/coherence.sh    that often on one mount, so that logs fit in memory
#   scripts/crash/coherence.sh --disturb    clients are killed, stopped and resumed meanwhile
#   scripts/crash/coherence.sh --names [--disturb]    half of all calls make, move, remove, list and open names in a few directories: is
#       there one order of them? Of four clients three serve all names in the process, and one those that pay; how many calls were
#       served is printed, and none is a failure
#   scripts/crash/coherence.sh --rests      programs on the mount rest now and then: files change hands
#   CLIENTS=8 scripts/crash/coherence.sh    so many of the eight go past the mount (default 4)
#   ROUNDS=1000000 scripts/crash/coherence.sh --pingpong    a lock file between two processes: both
#       clients, one of them, none, and both on tmpfs beside it
#   SIZE=256MiB is the volume's, HARNESS the program that works and judges, KEEP=1 keeps logs that failed
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../volume.sh"
HARNESS=${HARNESS:-$(dirname "$SHALE")/shale-harness}
seconds=${SECONDS_EACH:-10}
seeds=${SEEDS:-1}
first=${FIRST_SEED:-1}
passed=0
failed=0
logs=$(mktemp -d "/dev/shm/shale-coherence-logs.XXXXXX")

clean() {
    volume_end
    if [ "${KEEP:-}" = 1 ] && [ $failed != 0 ]; then echo "logs: $logs"; else rm -rf "$logs"; fi
}
trap clean EXIT
trap 'exit 130' INT TERM

report() { # report "what" STATUS
    if [ "$2" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    [ "$2" = 0 ] || echo "FAILED  $1"
}

on_a_volume() { # on_a_volume "what" COMMAND …
    local what=$1 status
    shift
    volume_begin coherence "${SIZE:-256MiB}" --durability strict ${MKFS:-} && volume_mount
    report "$what: mount" $?
    "$@"
    report "$what" $?
    volume_umount
    report "$what: umount" $?
    volume_fsck >"$logs/fsck" 2>&1
    status=$?
    report "$what: fsck" $status
    [ $status = 0 ] || tail -n 20 "$logs/fsck"
    volume_end
}

drive() { # drive SEED [--names] [--disturb | --rests]
    local first=$1 turns=${TURNS:-1} turn seed
    shift
    for ((turn = 0; turn < turns; turn++)); do
        seed=$((first + turn * 1000))
        timeout $((seconds + 200)) "$HARNESS" coherence drive "$mount" --logs "$logs/$seed" --seed "$seed" \
            --seconds "$seconds" --shale "$SHALE" --clients "${CLIENTS:-4}" "$@" || return
        # Else the files of all turns would fill the volume.
        rm -rf "${logs:?}/$seed" "${mount:?}/coherence-$seed"
    done
}

pingpong() { timeout 7200 "$HARNESS" coherence pingpong "$1" --shale "$SHALE" --clients "$2" --rounds "$rounds"; }

play() {
    local clients
    for clients in 2 1 0; do
        pingpong "$mount" $clients
        report "pingpong, $clients clients" $?
    done
}

if [ ! -x "$HARNESS" ]; then
    echo "no shale-harness program at $HARNESS; build it with: cargo build --release -p shale-harness"
    echo "0 passed, 1 failed"
    exit 1
fi
case ${1:-} in
    --pingpong)
        rounds=${ROUNDS:-20000}
        mkdir "$logs/tmpfs"
        echo "tmpfs:"
        pingpong "$logs/tmpfs" 0
        report "pingpong on tmpfs" $?
        on_a_volume pingpong play
        ;;
    "" | --names | --disturb | --rests)
        for ((seed = first; seed < first + seeds; seed++)); do
            echo "== coherence $*: SECONDS_EACH=$seconds FIRST_SEED=$seed"
            on_a_volume "seed $seed" drive "$seed" "$@"
        done
        ;;
    *) echo "usage: $0 [--names] [--disturb | --rests] | --pingpong" >&2; exit 2 ;;
esac
echo "$passed passed, $failed failed"
[ $failed = 0 ]
