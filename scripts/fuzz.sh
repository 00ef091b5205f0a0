#!/usr/bin/env bash
# Runs the cargo-fuzz targets: scripts/fuzz.sh [SECONDS] [TARGET…]   (default: 60 s each of all)
#
# Installs what is missing: a nightly toolchain and cargo-fuzz. Where there is no nightly to be had,
# stable is used without a sanitizer (RUSTC_BOOTSTRAP). A target fails if an input panics, takes
# longer than 20 s, allocates 256 MiB at once, or if the process ever holds more than 2 GiB (the
# sanitizer's own memory counts). Leaks are not looked for one by one: a thread that is just ending
# looks like one. What is found is in fuzz/artifacts; new inputs and what was
# printed are in fuzz/found; the corpus in the tree stays as it is. Prints "N passed, N failed".
set -u -o pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
[ $# -gt 0 ] && shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(decoders messages logs images staged)

toolchain=+nightly
sanitizer=address
if ! cargo +nightly --version >/dev/null 2>&1 &&
    ! rustup toolchain install nightly --profile minimal; then
    toolchain=+stable
    sanitizer=none
    export RUSTC_BOOTSTRAP=1
fi
if ! cargo "$toolchain" fuzz --version >/dev/null 2>&1; then
    cargo install cargo-fuzz --locked || exit 2
fi

# A process that ends leaves its volumes.
SHALE_FUZZ_DIR=$(mktemp -d /dev/shm/shale-fuzz-XXXXXX) || exit 2
export SHALE_FUZZ_DIR
trap 'rm -rf "$SHALE_FUZZ_DIR"' EXIT

# Inputs whose names are left out of what is printed are in the log.
shown='ERROR|panicked|^SUMMARY|stat::|^Done|Test unit|^==|cov: .* (INITED|pulse|DONE)|#.*(INITED|DONE)'
passed=0 failed=0
for target in "${targets[@]}"; do
    mkdir -p "fuzz/found/$target"
    rm -rf "$SHALE_FUZZ_DIR"/*
    echo "== $target, $seconds s, sanitizer $sanitizer"
    if cargo "$toolchain" fuzz run --sanitizer "$sanitizer" "$target" \
        "fuzz/found/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=256 \
        -detect_leaks=0 -max_len=8192 -print_final_stats=1 >"fuzz/found/$target.log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        tail -n 40 "fuzz/found/$target.log"
    fi
    grep -aE "$shown" "fuzz/found/$target.log"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
