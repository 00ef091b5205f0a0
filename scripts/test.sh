#!/usr/bin/env bash
# `make test`: everything that has to pass before a change lands. Last line: "N passed, N failed".
#
#   1. dependencies (nothing to do where they are there)
#   2. cargo xtask ci: format, tidy, spec, clippy, every test of the workspace, faults at named points of running processes among them
#   3. the release build
#   4. shale-harness crash: power cuts of many workloads, for a minute; with tiers below NVM, for half a minute; of writes above 1 MiB;
#      of volumes without NVM
#   5. scripts/ci-suites.sh: public suites and crash scripts on real mounts
# A part that fails does not keep the next from running.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.." || exit 1
export PATH="$PATH:$HOME/.cargo/bin"
passed=0
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

part() { # part "name" COMMAND …: adds the counts of its last line; without them it is one check
    local name=$1 begin=$SECONDS ok bad status
    shift
    printf '\n######## %s\n' "$name"
    "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    read -r ok bad < <(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed$/\1 \2/p' "$log" | tail -n 1)
    if [ -z "${bad:-}" ]; then
        if [ "$status" = 0 ]; then ok=1 bad=0; else ok=0 bad=1; fi
    elif [ "$status" != 0 ] && [ "$bad" = 0 ]; then
        bad=1
    fi
    passed=$((passed + ok))
    failed=$((failed + bad))
    parts+=("$(printf '%-16s %7d %7d %8d' "$name" "$ok" "$bad" $((SECONDS - begin)))")
}

parts=()
part "dependencies" "$here/install-deps.sh" --suites
part "xtask ci" cargo xtask ci
# All in one: with the whole program optimised each link takes minutes on one processor, and a package alone would be built with other
# features of what all use, so once more.
part "release build" cargo build --release --locked -p shale-cli -p shale-preload -p shale-capi -p shale-harness
harness=${CARGO_TARGET_DIR:-target}/release/shale-harness
part "power cuts" "$harness" crash --seconds 60 --at-least 20000
part "power cuts below" "$harness" crash --tiers --seconds 30 --at-least 500
part "huge writes" "$harness" crash --kinds huge --seconds 20 --at-least 300
part "power cuts of buffered clients" "$harness" crash --buffered --seconds 20 --at-least 5000
part "power cuts of ordered clients" "$harness" crash --ordered --seconds 20 --at-least 2000
part "power cuts without NVM" "$harness" crash --staged --seconds 20 --at-least 48
part "suites" "$here/ci-suites.sh"

printf '\n%-16s %7s %7s %8s\n' part passed failed seconds
printf '%s\n' "${parts[@]}"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
