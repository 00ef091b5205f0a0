#!/usr/bin/env bash
# fsx.sh under `shale run`: once with calls that are served in the process only, once with maps and
# copies between files, by which the file goes to and fro between the process and the kernel.
#
#   OPS=100000 SEEDS=1 scripts/suites/run-fsx.sh DIRECTORY
. "$(dirname "$0")/tally.sh"
. "$(dirname "$0")/../volume.sh"
here=$(cd "$(dirname "$0")" && pwd)
suite_begin run-fsx "${1:-}"

served_here() { # all data calls but the first few are served in the process
    KERNEL_CALLS=0 SHALE_WARM_CALLS=0 "$SHALE" run --report -- "$here/fsx.sh" "$work" 2>&1 | tee "$host/report" || return 1
    awk '$1 ~ /^(pread64|pwrite64|ftruncate|fsync|lseek)$/ && $3 > $2 / 100 { print "left to the kernel: " $0; bad = 1 }
        $1 == "pwrite64" { seen = 1 } END { exit bad || !seen }' "$host/report"
}
to_and_fro() { KERNEL_CALLS=1 "$SHALE" run -- "$here/fsx.sh" "$work"; }
mixed() { KERNEL_CALLS=1 SHALE_WARM_CALLS=0 "$SHALE" run -- "$here/fsx.sh" "$work"; }
check "served in the process" served_here
check "with maps and copies" to_and_fro
check "with maps and copies, a client at once" mixed
suite_end
