#!/usr/bin/env bash
# POSIX semantics call by call: pjdfstest on DIRECTORY. Needs root (it changes users).
#
#   PATTERN=rename scripts/suites/pjdfstest.sh DIRECTORY    only matching tests
#   EROFS=1 …      also the erofs group, which remounts DIRECTORY read-only and back
#                  (DIRECTORY must be a mount point nothing else uses)
. "$(dirname "$0")/tally.sh"
suite_begin pjdfstest "${1:-}"
PATH="$tools/bin:$PATH"
need pjdfstest
if [ "$(id -u)" != 0 ]; then
    echo "pjdfstest needs root" >&2
    echo "0 passed, 1 failed"
    exit 1
fi

# Links and renames across file systems need a second one.
second=/dev/shm
[ "$(stat -c %d "$target")" = "$(stat -c %d /dev/shm)" ] && second=/tmp

# naptime must exceed the granularity of the kernel's coarse clock (4 ms at 250 Hz).
configuration() { # configuration ALLOW_REMOUNT
    cat <<TOML
[features]
secondary_fs = "$second"
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = $1
[dummy_auth]
entries = [["pjdfstest1", "pjdfstest1"], ["pjdfstest2", "pjdfstest2"]]
TOML
}

run() { # run FILE PATTERN…
    configuration "$1" >"$host/pjdfstest.toml"
    shift
    RUST_BACKTRACE=0 NO_COLOR=1 pjdfstest -c "$host/pjdfstest.toml" -p "$work" "$@" >"$host/log" 2>&1
    local summary
    summary=$(grep '^Summary:' "$host/log")
    if [ -z "$summary" ]; then
        tail -n 20 "$host/log"
        count 0 1
        return
    fi
    grep -A 3 -E 'FAILED|PASSED UNEXPECTEDLY' "$host/log"
    echo "$summary"
    count "$(sed -E 's/.* ([0-9]+) passed.*/\1/' <<<"$summary")" \
        "$(sed -E 's/^Summary: ([0-9]+) failed.*/\1/' <<<"$summary")"
}

# shellcheck disable=SC2086 # several patterns are several words
run false ${PATTERN:-}
if [ "${EROFS:-}" = 1 ]; then
    if mountpoint -q "$target" && [ "$target" != / ]; then
        run true erofs
    else
        echo "EROFS=1: $target is not a mount point of its own, nothing remounted"
    fi
fi
suite_end
