# Sourced by whatever needs a real mount: makes a volume in /dev/shm, mounts it, takes it away again.
#
#   volume_begin NAME SIZE [mkfs arguments …]   sets $volume (VOLUME.toml), $mount, $place
#   volume_begin_ssd NAME DIRECTORY SIZE [mkfs arguments …]   the same without NVM, on a file in DIRECTORY; sets $memory, too
#   volume_cut_power                            of such a volume: kills daemon and supervisor, takes its memory away
#   volume_mount / volume_umount / volume_fsck
#   status_field NAME                           one field of `shale status --json`
#   volume_end                                  unmounts whatever happened and deletes everything
#
# SHALE is the program, default target/release/shale of this tree. TIERS=1G:4G puts flash and a disk of these sizes
# (images in TMPDIR) below every volume, and has it move down what is cold from 20% on; DURABILITY=buffered is the policy.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SHALE=${SHALE:-${CARGO_TARGET_DIR:-$root/target}/release/shale}
export SHALE
daemon_processes=()

volume_has_program() {
    [ -x "$SHALE" ] && return
    echo "no shale program at $SHALE; build it with: cargo build --release -p shale-cli -p shale-preload -p shale-capi" >&2
    return 1
}

volume_is_made() {
    [ -s "$volume" ] && return
    echo "shale mkfs succeeded and wrote no $volume" >&2
    return 1
}

volume_place() { # volume_place NAME DIRECTORY: where the volume and its mount point will be
    place=$(mktemp -d "$2/shale-$1.XXXXXX") || return 1
    mount=$(mktemp -d "${TMPDIR:-/tmp}/shale-$1.XXXXXX") || return 1
    # Suites that change users walk through both.
    chmod 755 "$place" "$mount"
    volume=$place/VOLUME.toml
}

volume_begin() {
    local name=$1 size=$2
    shift 2
    if [ -n "${DURABILITY:-}" ]; then
        set -- "${@/#strict/$DURABILITY}"
        [[ " $* " == *" --durability "* ]] || set -- "$@" --durability "$DURABILITY"
    fi
    volume_has_program && volume_place "$name" /dev/shm || return 1
    mkdir "$place/nvm"
    local below=()
    if [ -n "${TIERS:-}" ]; then
        images=$(mktemp -d "${TMPDIR:-/tmp}/shale-$name-images.XXXXXX") || return 1
        below=(--ssd "$images/ssd:${TIERS%:*}" --hdd "$images/hdd:${TIERS#*:}")
    fi
    timeout 120 "$SHALE" mkfs "$volume" --nvm "$place/nvm:$(numfmt --from=iec "${size%iB}")" \
        ${below[@]+"${below[@]}"} "$@" || return 1
    [ ${#below[@]} = 0 ] || sed -i '1i migrate_at_percent = 20' "$volume"
    volume_is_made
}

volume_begin_ssd() {
    local name=$1 directory=$2 size=$3
    shift 3
    volume_has_program && volume_place "$name" "$directory" || return 1
    timeout 120 "$SHALE" mkfs "$volume" --ssd "$place/ssd.img:$size" "$@" || return 1
    memory=$(sed -n 's/^memory_dir = "\(.*\)"$/\1/p' "$volume")
    volume_is_made
}

volume_cut_power() { # what runs on it is killed before
    local process supervisor
    supervisor=$(status_field supervisor_pid)
    process=$(status_field daemon_pid)
    [ -n "$supervisor" ] && [ -n "$process" ] && [ -n "$memory" ] || return 1
    kill -9 "$supervisor" "$process" || return 1
    umount -l "$mount" || return 1
    while is_shale "$supervisor" || is_shale "$process"; do sleep 0.05; done
    rm -rf "$memory"
}

volume_mount() {
    timeout 120 "$SHALE" mount "$volume" "$mount" || return 1
    # A program that does nothing also exits with 0.
    if ! mountpoint -q "$mount"; then
        echo "shale mount succeeded and $mount is not a mount point" >&2
        return 1
    fi
    chmod 755 "$mount"
    daemon_processes=("$(status_field supervisor_pid)" "$(status_field daemon_pid)")
}

volume_umount() { timeout 120 "$SHALE" umount "$mount" && ! mountpoint -q "$mount"; }

volume_fsck() { timeout 300 "$SHALE" fsck "$volume"; }

status_field() { # empty where there is no answer
    # The field stands once in the answer; starting an interpreter would cost more than asking.
    timeout 10 "$SHALE" status "$mount" --json 2>/dev/null \
        | sed -nE "s/.*\"$1\": *\"?([^\",}]*).*/\1/p" | head -n 1 || true
}

is_shale() { # is process $1 still the program we started?
    [ -n "$1" ] && [ "$(readlink "/proc/$1/exe" 2>/dev/null)" = "$(readlink -f "$SHALE")" ]
}

volume_end() {
    [ -n "${mount:-}" ] || return 0
    cd /
    # In the table of mounts even when it answers no more.
    if grep -q " $mount " /proc/self/mounts; then
        local process
        for process in "$(status_field supervisor_pid)" "$(status_field daemon_pid)"; do
            daemon_processes+=("$process")
        done
        if ! timeout 60 "$SHALE" umount "$mount" >/dev/null 2>&1; then
            umount -l "$mount" 2>/dev/null || fusermount3 -uz "$mount" 2>/dev/null
            for process in "${daemon_processes[@]}"; do
                is_shale "$process" && kill -9 "$process" 2>/dev/null
            done
        fi
    fi
    rmdir "$mount" 2>/dev/null
    rm -rf "$place" ${images:+"$images"} ${memory:+"$memory"}
    images=
    memory=
    mount=
}
