#!/usr/bin/env bash
# Fills a volume to ENOSPC and empties it again, ROUNDS times. What was written reads back, also
# after a mount of the full volume; deleting works when full; the space comes back to the byte; fsck is clean.
#
#   ROUNDS=10 SIZE=256MiB scripts/crash/fill.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../volume.sh"
rounds=${ROUNDS:-10}
passed=0
failed=0
host=$(mktemp -d "${TMPDIR:-/tmp}/shale-fill.XXXXXX")
export FILL_STATE=$host/state.json
trap 'volume_end; rm -rf "$host"' EXIT
trap 'exit 130' INT TERM

check() { # check "what" COMMAND …
    local what=$1
    shift
    if "$@" >"$host/output" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED  round $round: $what"
        tail -n 20 "$host/output" | sed 's/^/        /'
    fi
}

free_bytes() { stat -f -c '%f %S' "$mount" | awk '{ print $1 * $2 }'; }

# Freed space returns once no reader can hold it, which takes a moment.
space_is_back() { # space_is_back BYTES
    local n found
    for ((n = 0; n < 300; n++)); do
        timeout 60 "$SHALE" digest "$mount" || return 1
        found=$(free_bytes)
        [ "$found" = "$1" ] && return 0
        sleep 0.1
    done
    echo "free: $found bytes, before: $1"
    return 1
}

most_was_used() { # most_was_used: ENOSPC with half the space free would be wrong too
    read -r files bytes <"$host/filled"
    [ "$files" -gt 0 ] && [ $((bytes * 100)) -ge $((empty * ${FILLED_PERCENT_MIN:-70})) ]
}

again() { volume_umount && volume_fsck && volume_mount; }

fill() { python3 "$here/fill.py" fill "$mount" "$round" >"$host/filled"; }

if ! { volume_begin fill "${SIZE:-256MiB}" --durability strict ${MKFS:-} && volume_mount; }; then
    echo "0 passed, 1 failed"
    exit 1
fi
echo "== fill: $rounds rounds"
# The first round pays once for what stays: the inode file, the root directory's block.
round=0
check "fill" fill
check "delete" python3 "$here/fill.py" delete "$mount"
timeout 60 "$SHALE" digest "$mount" >/dev/null 2>&1
sleep 2
empty=$(free_bytes)
for ((round = 1; round <= rounds && failed == 0; round++)); do
    check "fill until ENOSPC" fill
    check "ENOSPC only when full ($(cat "$host/filled") of $empty bytes)" most_was_used
    check "read back" python3 "$here/fill.py" verify "$mount" "$round"
    check "umount, fsck, mount while full" again
    check "read back after mount" python3 "$here/fill.py" verify "$mount" "$round"
    check "delete on a full volume" python3 "$here/fill.py" delete "$mount"
    check "the space is back" space_is_back "$empty"
    check "umount, fsck, mount when empty" again
    check "the space is back after mount" space_is_back "$empty"
done
check "umount" volume_umount
check "fsck" volume_fsck
echo "$passed passed, $failed failed"
[ $failed = 0 ]
