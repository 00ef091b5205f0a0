#!/usr/bin/env bash
# The public suites and the crash scripts on real mounts, each on a fresh volume, checked by fsck after it.
#
#   scripts/ci-suites.sh              short versions, a few minutes
#   scripts/ci-suites.sh --full       in full: hours
#   scripts/ci-suites.sh fsx git …    only these
#
# Last line: "N passed, N failed" over everything. SHALE is the program (default: this tree's release build).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/volume.sh"
logs=$(mktemp -d "${TMPDIR:-/tmp}/shale-suites.XXXXXX")
passed=0
failed=0
table=()
beside=
trap 'volume_end; [ -z "$beside" ] || kill "$beside" 2>/dev/null; [ $failed = 0 ] && rm -rf "$logs"' EXIT
trap 'exit 130' INT TERM

full=no
names=()
for argument in "$@"; do
    case $argument in
        --full) full=yes ;;
        -*) echo "usage: $0 [--full] [SUITE …]" >&2; exit 2 ;;
        *) names+=("$argument") ;;
    esac
done
# Without names all of them: the first half here, the second one beside it, on volumes of its own. Most of a suite is waiting
# for one answer after another, which keeps one processor busy and not two.
if [ ${#names[@]} = 0 ]; then
    names=(pjdfstest fsx sqlite git tar make stress capi kill-daemon kill-supervisor fill locks
        run-programs run-pjdfstest run-fsx run-sqlite run-git run-tar run-make run-kill-daemon)
    second=(leveldb pingpong memory failed-device guide)
    if [ $full = yes ]; then
        names+=(coherence coherence-disturb run-python run-databases run-kill-supervisor)
        second=(--full "${second[@]}" run-leveldb)
    fi
    SHALE=$SHALE "$0" "${second[@]}" >"$logs/second" 2>&1 &
    beside=$!
fi

if [ $full = yes ]; then
    export OPS=${OPS:-1000000} SEEDS=${SEEDS:-10} STRESS_SECONDS=${STRESS_SECONDS:-60} EROFS=${EROFS:-1}
    export ROWS=${ROWS:-20000} COMMITS=${COMMITS:-500} FILES=${FILES:-20000} LIMIT_SECONDS=${LIMIT_SECONDS:-3600}
    limit=14400 kills=${ROUNDS:-100} outages=${ROUNDS:-20} fills=${ROUNDS:-10} turns=1000000 counts=100000
    gone=2000000 live=200000
else
    export OPS=${OPS:-20000} SEEDS=${SEEDS:-2} STRESS_SECONDS=${STRESS_SECONDS:-1}
    export ROWS=${ROWS:-1000} COMMITS=${COMMITS:-20} FILES=${FILES:-2000}
    limit=900 kills=${ROUNDS:-5} outages=${ROUNDS:-2} fills=${ROUNDS:-2} turns=20000 counts=8000
    gone=60000 live=20000
fi

record() { # record NAME PASSED FAILED SECONDS
    passed=$((passed + $2))
    failed=$((failed + $3))
    table+=("$(printf '%-16s %7s %7s %8s' "$1" "$2" "$3" "$4")")
}

run() { # run NAME COMMAND …: counts by its line "N passed, N failed"
    local name=$1 begin=$SECONDS ok bad status
    shift
    timeout -k 20 "$limit" "$@" 2>&1 | tee "$logs/$name"
    status=${PIPESTATUS[0]}
    read -r ok bad < <(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed$/\1 \2/p' "$logs/$name" | tail -n 1)
    # No count, or a failure that no count shows (a timeout, a crash), is one failure.
    if [ -z "${bad:-}" ] || { [ "$status" != 0 ] && [ "$bad" = 0 ]; }; then
        echo "FAILED  $name: exit $status without a count of failures (124, 137: more than $limit s)"
        bad=$((${bad:-0} + 1))
    fi
    record "$name" "${ok:-0}" "$bad" $((SECONDS - begin))
}

on_a_mount() { # on_a_mount SUITE: the command is in suite
    if ! { volume_begin "${1#run-}" "${SIZE:-2GiB}" --durability strict && volume_mount; } >"$logs/$1-mount" 2>&1; then
        cat "$logs/$1-mount"
        echo "FAILED  $1: no mounted volume to run on"
        record "$1" 0 1 0
        volume_end
        return
    fi
    run "$1" "${suite[@]}" "$mount"
    if volume_umount >"$logs/$1-fsck" 2>&1 && volume_fsck >>"$logs/$1-fsck" 2>&1; then
        record "  umount, fsck" 1 0 ""
    else
        echo "FAILED  $1: umount or fsck afterwards"
        tail -n 20 "$logs/$1-fsck"
        record "  umount, fsck" 0 1 ""
    fi
    volume_end
}

if [ ! -x "$SHALE" ]; then
    echo "ci-suites: there is no shale program at $SHALE, so nothing can be mounted or tested."
    echo "ci-suites: build it with: cargo build --release -p shale-cli -p shale-preload -p shale-capi"
    failed=1
    echo "0 passed, 1 failed"
    exit 1
fi

for name in "${names[@]}"; do
    echo
    case $name in
        kill-daemon) ROUNDS=$kills run "$name" "$here/crash/kill-daemon.sh" ;;
        run-kill-daemon) ROUNDS=$kills run "$name" "$here/crash/kill-daemon.sh" --run ;;
        run-kill-supervisor) ROUNDS=$outages run "$name" "$here/crash/kill-daemon.sh" --supervisor --run ;;
        kill-supervisor) ROUNDS=$outages run "$name" "$here/crash/kill-daemon.sh" --supervisor ;;
        pingpong) ROUNDS=${ROUNDS:-$turns} run "$name" "$here/crash/coherence.sh" --pingpong ;;
        locks) ROUNDS=${ROUNDS:-$counts} run "$name" "$here/crash/locks.sh" ;;
        memory) LIVE=$live run "$name" python3 "$here/crash/memory.py" "$gone" ;;
        failed-device) SHALE=$SHALE run "$name" python3 "$here/crash/failed-device.py" ;;
        guide) SHALE=$SHALE run "$name" python3 "$here/guide-test.py" ;;
        coherence) run "$name" "$here/crash/coherence.sh" ;;
        coherence-disturb) run "$name" "$here/crash/coherence.sh" --disturb ;;
        fill) ROUNDS=$fills run "$name" "$here/crash/fill.sh" ;;
        *)
            if [ -x "$here/suites/$name.sh" ]; then
                suite=("$here/suites/$name.sh")
                on_a_mount "$name"
            elif [ -x "$here/suites/${name#run-}.sh" ]; then
                # The same suite with the library in all its programs, and most of them clients.
                suite=(env SHALE_WARM_CALLS="${SHALE_WARM_CALLS:-8}" "$SHALE" run -- "$here/suites/${name#run-}.sh")
                on_a_mount "$name"
            else
                echo "FAILED  there is no suite $name"
                record "$name" 0 1 0
            fi
            ;;
    esac
done

if [ -n "$beside" ]; then
    echo "(and beside these)"
    wait "$beside"
    beside=
    # Its table and its count become part of ours.
    sed '/^suite  *passed/,$d' "$logs/second"
    while read -r -a columns; do
        case ${columns[*]} in
        suite\ passed*) in_table=yes ;;
        *\ passed,\ *\ failed) in_table= ;;
        umount,*) [ -z "${in_table:-}" ] || record "  umount, fsck" "${columns[2]}" "${columns[3]}" "" ;;
        *) [ -z "${in_table:-}" ] || [ ${#columns[@]} -lt 4 ] || record "${columns[@]}" ;;
        esac
    done <"$logs/second"
    # What ended before its count is a failure.
    grep -qE '^[0-9]+ passed, [0-9]+ failed$' "$logs/second" || record "second half" 0 1 ""
fi

printf '\n%-16s %7s %7s %8s\n' suite passed failed seconds
printf '%s\n' "${table[@]}"
[ $failed = 0 ] || echo "logs: $logs"
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
