#!/usr/bin/env bash
# A lock that changes hands hands over the data that it protects: four processes, two of them clients
# (`shale run`) and two by way of the mount, add one to a counter under a lock of its file. Each kind
# of lock; the total has to be exact.
#
#   ROUNDS=100000 scripts/crash/locks.sh [posix] [ofd] [flock]      ROUNDS: of each kind, of all four
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../volume.sh"
rounds=${ROUNDS:-8000}
kinds=("$@")
[ ${#kinds[@]} != 0 ] || kinds=(posix ofd flock)
passed=0
failed=0
program=$(mktemp "${TMPDIR:-/tmp}/shale-locks.XXXXXX")
trap 'volume_end; rm -f "$program"' EXIT
trap 'exit 130' INT TERM

report() { # report "what" STATUS
    if [ "$2" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAILED  $1"; fi
}

count() { # count KIND: the four of them; the total is right
    local kind=$1 n process status=0 found begin
    local processes=()
    begin=$(date +%s%N)
    for n in 1 2; do
        SHALE_WARM_CALLS=0 timeout 600 "$SHALE" run -- "$program" "$mount/$kind" "$kind" $((rounds / 4)) &
        processes+=($!)
        timeout 600 "$program" "$mount/$kind" "$kind" $((rounds / 4)) &
        processes+=($!)
    done
    for process in "${processes[@]}"; do wait "$process" || status=1; done
    found=$(tail -c +4097 "$mount/$kind")
    echo "$kind: $found of $((rounds / 4 * 4)) in $((($(date +%s%N) - begin) / 1000000)) ms"
    [ $status = 0 ] && [ "$found" = $((rounds / 4 * 4)) ]
}

cc -O2 -o "$program" "$here/locks.c"
report "the program compiles" $?
volume_begin locks 256MiB --durability strict && volume_mount
report mount $?
for kind in "${kinds[@]}"; do
    count "$kind"
    report "$kind" $?
done
volume_umount
report umount $?
volume_fsck >/dev/null
report fsck $?
echo "$passed passed, $failed failed"
[ $failed = 0 ]
