#!/usr/bin/env bash
# Volumes of three tiers under load, on real programs' calls:
#
#   grow   a file server whose files become more, with a checker beside it, until the volume is 90% full
#   zipf   4 KiB reads and durable writes, 80:20, on a file four times the NVM, by Zipf's law; the same
#          on ext4 on an image in the same directory
#
#   NVM=1G SSD=4G HDD=16G UNTIL=90 scripts/bench/run-tiers.sh [grow] [zipf]
#
# NVM is in /dev/shm; SSD and HDD are images below DIR (default /var/tmp). Each ends with 1 if a byte was wrong.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../volume.sh"
nvm=${NVM:-1G} ssd=${SSD:-4G} hdd=${HDD:-16G} until=${UNTIL:-90}
zipf_nvm=${ZIPF_NVM:-256M} zipf_count=${ZIPF_COUNT:-100000}
harness=${HARNESS:-$(dirname "$SHALE")/shale-harness}
below=$(mktemp -d "${DIR:-/var/tmp}/shale-tiers.XXXXXX")
image=
leave() {
    volume_end
    if [ -n "$image" ]; then
        umount "$below/ext4" 2>/dev/null || true
    fi
    rm -rf "$below"
}
trap leave EXIT
trap 'exit 130' INT TERM

begin() { # begin NAME NVM SSD HDD
    volume_begin "$1" "$2" --ssd "$below/ssd:$3" --hdd "$below/hdd:$4" --durability strict >/dev/null
    volume_mount >/dev/null
}

finish() { # the volume is checked and goes
    timeout 1800 "$SHALE" scrub "$mount" | tail -n 3
    volume_umount >/dev/null
    volume_fsck | tail -n 2
    volume_end
    rm -f "$below/ssd" "$below/hdd"
}

grow() {
    echo "== grow: NVM $nvm, SSD $ssd, HDD $hdd, until $until%"
    begin grow "$nvm" "$ssd" "$hdd"
    mkdir "$mount/files"
    "$SHALE" run -- "$harness" tiers grow "$mount/files" --until "$until"
    "$SHALE" df "$mount"
    local field
    for field in down_bytes up_bytes cleaned_bytes vain_bytes waits out_of_order; do
        echo "$field $("$SHALE" status "$mount" --json | sed -nE "s/.*\"$field\": *([0-9]+).*/\1/p" | tr '\n' ' ')"
    done
    finish
}

# zipf_on NAME FILE [options]: prints the report; behind it, for a volume, the operations that had to
# wait for a tier below NVM.
zipf_on() {
    local name=$1 file=$2 before after mib
    shift 2
    mib=$(($(numfmt --from=iec "$zipf_nvm") * 4 / 1048576))
    echo "-- $name"
    coproc load { "${launch[@]}" "$harness" tiers zipf "$file" --mib "$mib" --warm "$zipf_count" --count "$zipf_count" --sync --marks "$@"; }
    local from=${load[0]} to=${load[1]} pid=$load_PID
    read -r _ <&"$from"
    before=$(status_field client_reads)
    echo >&"$to"
    read -r _ <&"$from"
    after=$(status_field client_reads)
    echo >&"$to"
    cat <&"$from"
    wait "$pid"
    if [ -n "$before" ]; then
        awk -v n=$((after - before)) -v all="$zipf_count" \
            'BEGIN { printf "served from NVM or a cache: %.1f%% of %d operations\n", 100 - 100 * n / all, all }'
    fi
}

zipf() {
    echo "== zipf: NVM $zipf_nvm"
    local spread
    for spread in "" --scattered; do
        begin zipf "$zipf_nvm" 4G 4G
        launch=("$SHALE" run --)
        zipf_on "shale ${spread#--}" "$mount/file" $spread
        finish >/dev/null
        image=$below/ext4.img
        truncate -s 4G "$image"
        mkfs.ext4 -q "$image"
        mkdir -p "$below/ext4"
        mount -o loop "$image" "$below/ext4"
        launch=(env)
        mount=/nowhere zipf_on "ext4 ${spread#--}" "$below/ext4/file" $spread
        umount "$below/ext4"
        rm "$image"
        image=
    done
}

for what in "${@:-grow}"; do
    case $what in
        grow | zipf) "$what" ;;
        *) echo "unknown: $what (known: grow, zipf)" >&2 && exit 2 ;;
    esac
done
