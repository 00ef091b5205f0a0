#!/usr/bin/env bash
# Random reads, writes, maps, truncations and holes on one file, each read verified.
#
#   OPS=100000 SEEDS=1 scripts/suites/fsx.sh DIRECTORY     (in full: OPS=1000000 SEEDS=10)
#   FIRST_SEED=n …     to run one seed again
. "$(dirname "$0")/tally.sh"
suite_begin fsx "${1:-}"
PATH="$tools/bin:$PATH"
need fsx
ops=${OPS:-100000}
first=${FIRST_SEED:-1}
seeds=${SEEDS:-1}

# KERNEL_CALLS=0: nothing that only the kernel can do, such as mapping the file.
kernel=${KERNEL_CALLS:-1}
cat >"$host/fsx.toml" <<TOML
flen = 1048576
[opsize]
max = 65536
[weights]
close_open = 1
read = 10
write = 10
mapread = $((kernel * 5))
mapwrite = $((kernel * 5))
invalidate = $kernel
truncate = 3
fsync = 1
fdatasync = 1
posix_fallocate = 1
punch_hole = 2
sendfile = $kernel
posix_fadvise = 1
copy_file_range = $kernel
TOML

one_seed() {
    if ! fsx -q -N "$ops" -S "$1" -f "$host/fsx.toml" -P "$host" "$work/seed-$1" >"$host/fsx" 2>&1; then
        # The tail names the operation that read wrong bytes and the seed to run again.
        tail -n 15 "$host/fsx"
        return 1
    fi
    rm -f "$work/seed-$1"
}
# fsx never unmaps what it mapped for reading: a long run needs more maps than the kernel allows.
maps=$(sysctl -n vm.max_map_count)
if [ "$ops" -gt 200000 ] && [ "$maps" -lt $((ops + 65530)) ]; then
    sysctl -q vm.max_map_count=$((ops + 65530)) && trap 'sysctl -q vm.max_map_count=$maps; suite_clean' EXIT
fi
for ((seed = first; seed < first + seeds; seed++)); do
    check "$ops operations, FIRST_SEED=$seed" one_seed "$seed"
done
suite_end
