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
# fsx never unmaps what it mapped for reading, and the more maps there are the slower is all
# else: a long run makes as many as one of 100,000 operations.
maps=$(awk -v ops="$ops" -v kernel="$kernel" 'BEGIN { print kernel * (ops > 100000 ? 100000 / ops : 1) }')
cat >"$host/fsx.toml" <<TOML
flen = 1048576
[opsize]
# To allocate nothing is EINVAL everywhere.
min = 1
max = 65536
[weights]
close_open = 1
read = 10
write = 10
mapread = $(awk -v m="$maps" 'BEGIN { printf "%.3f", 5 * m }')
mapwrite = $((kernel * 5))
invalidate = $maps
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
for ((seed = first; seed < first + seeds; seed++)); do
    check "$ops operations, FIRST_SEED=$seed" one_seed "$seed"
done
suite_end
