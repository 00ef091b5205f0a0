#!/usr/bin/env bash
# Python's own tests of files and processes under `shale run`. What fails on the host as well
# is not counted.
#
#   TESTS="test_os …" scripts/suites/run-python.sh DIRECTORY
. "$(dirname "$0")/tally.sh"
. "$(dirname "$0")/../volume.sh"
suite_begin run-python "${1:-}"
need /usr/bin/python3
tests=${TESTS:-test_os test_io test_file test_fileio test_mmap test_shutil test_tempfile test_posix test_subprocess}
if ! /usr/bin/python3 -c 'import test.test_os' 2>/dev/null; then
    echo "run-python: the tests are missing; run scripts/install-deps.sh --long" >&2
    echo "0 passed, 1 failed"
    exit 1
fi

# Most tests make few calls: have them served in the process all the same.
export SHALE_WARM_CALLS=${SHALE_WARM_CALLS:-8}

failures() { sed -nE 's/^(ERROR|FAIL): ([^ ]+ \([^)]+\)).*/\2/p' "$1" | sort -u; }

one() { # one TEST
    mkdir -p "$work/$1" "$host/$1"
    TMPDIR=$host/$1 timeout 300 /usr/bin/python3 -m test -v "$1" >"$host/$1.host" 2>&1
    TMPDIR=$work/$1 timeout 300 "$SHALE" run -- /usr/bin/python3 -m test -v "$1" >"$host/$1.run" 2>&1
    local status=$?
    comm -13 <(failures "$host/$1.host") <(failures "$host/$1.run") >"$host/$1.new"
    if [ $status -ge 124 ] || { [ $status != 0 ] && [ ! -s "$host/$1.new" ] && [ -z "$(failures "$host/$1.host")" ]; }; then
        tail -n 15 "$host/$1.run"
        return 1
    fi
    sed -nE 's/^Ran ([0-9]+) tests.*/\1/p' "$host/$1.run"
    if [ -s "$host/$1.new" ]; then
        cat "$host/$1.new"
        grep -A 12 -E '^(ERROR|FAIL):' "$host/$1.run" | head -n 60
        return 1
    fi
}
for test in $tests; do check "$test" one "$test"; done
suite_end
