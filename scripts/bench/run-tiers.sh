#!/usr/bin/env bash
# Volumes of several tiers under load, on real programs' calls:
#
#   grow   a file server whose files become more, with a checker beside it, until the volume is 90% full
#   zipf   4 KiB reads and durable writes, 80:20, on a file four times the NVM, by Zipf's law; the same
#          on ext4 on the same SSD
#   fig7   a file server with appends of 1 MiB that grows (Strata, Figure 7); the same on three ext4, between
#          which whole files move down by least recent use
#
#   NVM=1G SSD=4G HDD=16G UNTIL=90 scripts/bench/run-tiers.sh [grow] [zipf] [fig7]
#
# NVM is in /dev/shm. For grow SSD and HDD are images below DIR (default /var/tmp), as fast as they are. For
# zipf and fig7 both sides get the same block devices: images below DIR, past the page cache, with models
# of flash and disk in front (`shale-harness tiers device`). ext4 has the page cache besides: all the
# machine's, and, in a second run, as much memory as CACHE says (64M, what a client of Shale takes) and
# 32M more for the program and the kernel's objects. Each ends with 1 if a byte was wrong.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../volume.sh"
nvm=${NVM:-1G} ssd=${SSD:-4G} hdd=${HDD:-16G} until=${UNTIL:-90}
zipf_nvm=${ZIPF_NVM:-256M} zipf_count=${ZIPF_COUNT:-100000}
fig7_nvm=${FIG7_NVM:-128M} fig7_ssd=${FIG7_SSD:-512M} fig7_hdd=${FIG7_HDD:-2G}
limit=$(($(numfmt --from=iec "${CACHE:-64M}") + 32 * 1048576))
harness=${HARNESS:-$(dirname "$SHALE")/shale-harness}
below=$(mktemp -d "${DIR:-/var/tmp}/shale-tiers.XXXXXX")
on_memory=
group=/sys/fs/cgroup/memory/shale-tiers.$$
[ -d /sys/fs/cgroup/memory ] || group=/sys/fs/cgroup/shale-tiers.$$
declare -A model_in model_out model_pid
leave() {
    volume_end
    ext4_end
    rmdir "$group" 2>/dev/null || true
    rm -rf "$below"
}
trap leave EXIT
trap 'exit 130' INT TERM

mib() { echo $(($(numfmt --from=iec "$1") / 1048576)); }

# model_begin NAME SIZE MODEL: a block device as slow as MODEL; sets $device.
model_begin() {
    local name=$1 from to answer
    mkfifo "$below/$name.in" "$below/$name.out"
    setsid "$harness" tiers device "$below/$name.img" --mib "$(mib "$2")" --model "$3" \
        <"$below/$name.in" >"$below/$name.out" &
    model_pid[$name]=$!
    exec {to}>"$below/$name.in" {from}<"$below/$name.out"
    model_in[$name]=$to model_out[$name]=$from
    read -r answer <&"$from"
    device=$(sed -E 's/.*"device":"([^"]*)".*/\1/' <<<"$answer")
    if [ "$3" = disk ]; then
        # What a kernel takes for a disk.
        echo mq-deadline >"/sys/block/${device#/dev/}/queue/scheduler"
    fi
}

models() { # what the devices did until now
    local name answer
    for name in "${!model_in[@]}"; do
        echo counters >&"${model_in[$name]}" && read -r answer <&"${model_out[$name]}" && echo "$name: $answer"
    done
}

model_end() { # model_end NAME: it goes, with what is mounted on it
    local to=${model_in[$1]:-} from=${model_out[$1]:-}
    [ -n "$to" ] || return 0
    unset "model_in[$1]" "model_out[$1]"
    # Others have its input open, too, so it would not end.
    echo quit >&"$to"
    exec {to}>&-
    wait "${model_pid[$1]}" || true
    exec {from}<&-
    rm -f "$below/$1".*
}

# ext4_on NAME DEVICE: a new one, mounted at $below/NAME.
ext4_on() {
    mkfs.ext4 -q -F -m 0 -E lazy_itable_init=0,lazy_journal_init=0 "$2"
    mkdir -p "$below/$1"
    mount "$2" "$below/$1"
}

ext4_end() { # all of them, and the devices
    local name
    for name in nvm ssd hdd; do
        umount "$below/$name" 2>/dev/null || true
        model_end "$name"
    done
    if [ -n "$on_memory" ]; then
        losetup -d "${on_memory%%:*}"
        rm -f "${on_memory#*:}"
        on_memory=
    fi
}

# limited BYTES command …: with so much memory, page cache included.
limited() {
    local bytes=$1 file=memory.max done=0
    shift
    [ ! -d /sys/fs/cgroup/memory ] || file=memory.limit_in_bytes
    mkdir "$group"
    echo "$bytes" >"$group/$file"
    (echo "$BASHPID" >"$group/cgroup.procs" && exec "$@") || done=$?
    rmdir "$group"
    return "$done"
}

begin() { # begin NAME NVM [mkfs arguments …]
    local name=$1 size=$2
    shift 2
    volume_begin "$name" "$size" "$@" --durability strict >/dev/null
    volume_mount >/dev/null
}

finish() { # the volume is checked and goes
    timeout 1800 "$SHALE" scrub "$mount" | tail -n 3
    volume_umount >/dev/null
    volume_fsck | tail -n 2
    volume_end
}

counts() { # what moved
    local field
    for field in down_bytes direct_to_tier_bytes up_bytes cleaned_bytes aborted_bytes space_waits space_wait_max_ns inode_scans backref_misses flushes out_of_order; do
        echo "$field $("$SHALE" status "$mount" --json | sed -nE "s/.*\"$field\": *([0-9]+).*/\1/p" | tr '\n' ' ')"
    done
}

grow() {
    echo "== grow: NVM $nvm, SSD $ssd, HDD $hdd, until $until%"
    begin grow "$nvm" --ssd "$below/ssd.img:$ssd" --hdd "$below/hdd.img:$hdd"
    mkdir "$mount/files"
    "$SHALE" run -- "$harness" tiers grow "$mount/files" --until "$until"
    "$SHALE" df "$mount"
    counts
    finish
    rm -f "$below/ssd.img" "$below/hdd.img"
}

below_reads() { # operations for which a client has gone below NVM so far; nothing where there is no volume
    local asked direct
    asked=$(status_field client_reads)
    direct=$(status_field direct_reads)
    [ -z "$asked" ] || echo $((asked + direct))
}

# zipf_on NAME FILE [options]: prints the report; behind it, for a volume, the operations that had to
# wait for a tier below NVM.
zipf_on() {
    local name=$1 file=$2 before after size
    shift 2
    size=$(($(mib "$zipf_nvm") * 4))
    echo "-- $name"
    coproc load { "${launch[@]}" "$harness" tiers zipf "$file" --mib "$size" --warm "$zipf_count" --count "$zipf_count" --sync --marks "$@"; }
    local from=${load[0]} to=${load[1]} pid=$load_PID
    read -r _ <&"$from"
    before=$(below_reads)
    echo >&"$to"
    read -r _ <&"$from"
    after=$(below_reads)
    echo >&"$to"
    cat <&"$from"
    wait "$pid"
    models
    if [ -n "$before" ]; then
        awk -v n=$((after - before)) -v all="$zipf_count" \
            'BEGIN { printf "served from NVM or a cache: %.1f%% of %d operations\n", 100 - 100 * n / all, all }'
    fi
}

zipf() {
    local size=$(($(mib "$zipf_nvm") * 8))M spread
    echo "== zipf: NVM $zipf_nvm, SSD $size as the model flash"
    for spread in "" --scattered; do
        model_begin ssd "$size" flash
        begin zipf "$zipf_nvm" --ssd "$device:$size"
        launch=("$SHALE" run --)
        zipf_on "shale ${spread#--}" "$mount/file" $spread
        finish >/dev/null
        model_end ssd
        for launch in "env" "limited $limit"; do
            read -ra launch <<<"$launch"
            model_begin ssd "$size" flash
            ext4_on ssd "$device"
            mount=/nowhere zipf_on "ext4 ${spread#--} (${launch[*]})" "$below/ssd/file" $spread
            ext4_end
        done
    done
}

# fig7_load NAME command … -- DIR …: the load, its report in $below/NAME.json, the time of its calls.
fig7_load() {
    local name=$1
    shift
    echo "-- $name"
    models
    "$@" --until "$until" --append-kib 1024 --no-check >"$below/$name.json"
    models
    grep -E '"(seconds|written_bytes|read_bytes|files|moved_bytes|waits)"' "$below/$name.json" | tr -d '\n'
    echo
}

fig7_shale() { # fig7_shale NAME [options]
    local ssd_device
    model_begin ssd "$fig7_ssd" flash
    ssd_device=$device
    model_begin hdd "$fig7_hdd" disk
    begin fig7 "$fig7_nvm" --ssd "$ssd_device:$fig7_ssd" --hdd "$device:$fig7_hdd"
    mkdir "$mount/files"
    fig7_load "$1" "$SHALE" run -- "$harness" tiers grow "$mount/files" "${@:2}"
    counts
    finish
    model_end ssd
    model_end hdd
}

fig7_levels() { # fig7_levels NAME launch … -- [options]
    local name=$1 by=()
    shift
    while [ "$1" != -- ]; do
        by+=("$1")
        shift
    done
    shift
    # Its pages are there before, so they are nobody's memory who writes them.
    on_memory=$(mktemp /dev/shm/shale-fig7.XXXXXX)
    fallocate -l "$fig7_nvm" "$on_memory"
    device=$(losetup --find --show --direct-io=on "$on_memory")
    on_memory=$device:$on_memory
    ext4_on nvm "$device"
    model_begin ssd "$fig7_ssd" flash
    ext4_on ssd "$device"
    model_begin hdd "$fig7_hdd" disk
    ext4_on hdd "$device"
    fig7_load "$name" "${by[@]}" "$harness" tiers grow "$below"/{nvm,ssd,hdd} "$@"
    ext4_end
}

fig7() {
    echo "== fig7: NVM $fig7_nvm, SSD $fig7_ssd, HDD $fig7_hdd as the models flash and disk, until $until%"
    fig7_shale shale-sync --sync
    fig7_levels ext4-sync limited "$limit" -- --sync
    fig7_levels ext4-sync-all-memory env -- --sync
    fig7_shale shale
    fig7_levels ext4 limited "$limit" --
    fig7_levels ext4-all-memory env --
    local other
    for other in sync sync-all-memory "" all-memory; do
        local mine=shale
        [ "${other#sync}" = "$other" ] || mine=shale-sync
        other=ext4${other:+-$other}
        echo "$other:"
        "$harness" tiers ratio "$mine=$below/$mine.json" "$other=$below/$other.json"
    done
}

for what in "${@:-grow}"; do
    case $what in
        grow | zipf | fig7) "$what" ;;
        *) echo "unknown: $what (known: grow, zipf, fig7)" >&2 && exit 2 ;;
    esac
done
