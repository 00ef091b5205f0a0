# Sourced by every suite: one scratch directory inside $1, counted checks, one last line.
#
#   suite_begin NAME DIRECTORY    sets $work (inside DIRECTORY) and $host (outside)
#   check "what" COMMAND …        runs it; prints its output only when it fails
#   count PASSED FAILED           adds results that a program counted itself
#   suite_end                     prints "N passed, N failed" and exits accordingly
set -uo pipefail

tools=${SHALE_TOOLS:-$HOME/.cache/shale-tools}
passed=0
failed=0

suite_begin() {
    suite=$1
    if [ $# -lt 2 ] || [ ! -d "$2" ]; then
        echo "usage: scripts/suites/$suite.sh DIRECTORY (a mount point or any directory)" >&2
        exit 2
    fi
    target=$(cd "$2" && pwd)
    work=$(mktemp -d "$target/$suite.XXXXXX") || exit 1
    host=$(mktemp -d "${TMPDIR:-/tmp}/shale-$suite.XXXXXX") || exit 1
    # Other users take part in some suites.
    chmod 755 "$work"
    trap 'suite_clean' EXIT
    trap 'exit 130' INT TERM
    echo "== $suite in $target ($(stat -f -c %T "$target"))"
}

suite_clean() {
    cd /
    # KEEP=1 leaves both directories for a look.
    [ "${KEEP:-}" = 1 ] && { echo "kept $work and $host"; return; }
    chmod -R u+rwx "$work" 2>/dev/null
    rm -rf "$work" "$host"
}

check() {
    local what=$1
    shift
    if ( "$@" ) >"$host/output" 2>&1; then
        passed=$((passed + 1))
        [ "${VERBOSE:-}" = 1 ] && echo "ok      $what"
    else
        local status=$?
        failed=$((failed + 1))
        echo "FAILED  $what (exit $status)"
        tail -n "${FAILURE_LINES:-20}" "$host/output" | sed 's/^/        /'
    fi
    return 0
}

count() {
    passed=$((passed + $1))
    failed=$((failed + $2))
}

need() { # need PROGRAM …: a missing program is a failure that says what to do
    local program
    for program in "$@"; do
        if ! command -v "$program" >/dev/null; then
            echo "$suite: $program is missing; run scripts/install-deps.sh --suites (or --long)" >&2
            echo "0 passed, 1 failed"
            exit 1
        fi
    done
}

suite_end() {
    echo "$passed passed, $failed failed"
    # A suite that ran nothing has shown nothing.
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
    exit
}
