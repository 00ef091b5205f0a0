#!/usr/bin/env bash
# Unpacks a tree, compares it, deletes it, again and again.
#
#   load-tar.sh run DIRECTORY HOST      until HOST/stop exists; log: HOST/tar.log
#   load-tar.sh verify DIRECTORY HOST   what the log says of the last tree is so
#
# SYNC=1: the file system is synced before a line is logged, by the command SYNC_WITH, else by sync -f.
set -euo pipefail
verb=$1 directory=$2 host=$3

archive() {
    [ -f "$host/tree.tar" ] && return
    ( cd / && find usr/include -type f | LC_ALL=C sort | sed -n '1,300p' \
        | tar --format=posix -cf "$host/tree.tar" --no-recursion -T - )
}

note() { # note "what is so now"
    [ -z "${SYNC:-}" ] || ${SYNC_WITH:-sync -f "$directory"} >/dev/null
    echo "$1" >>"$host/tar.log"
}

run() {
    archive
    local n
    n=$( (cut -d' ' -f2 "$host/tar.log" 2>/dev/null || true) | tail -n 1)
    while [ ! -e "$host/stop" ]; do
        n=$((${n:-0} + 1))
        mkdir "$directory/tree-$n"
        tar -xpf "$host/tree.tar" -C "$directory/tree-$n"
        note "unpacked $n"
        tar --compare -f "$host/tree.tar" -C "$directory/tree-$n"
        note "deleting $n"
        rm -r "$directory/tree-$n"
        note "deleted $n"
    done
}

verify() {
    local state n
    read -r state n < <(tail -n 1 "$host/tar.log")
    case $state in
        unpacked) tar --compare -f "$host/tree.tar" -C "$directory/tree-$n" ;;
        deleted) [ ! -e "$directory/tree-$n" ] ;;
        deleting) ;;
    esac
    # What was begun and not returned from may be there in part; it must be deletable.
    rm -rf "$directory"/tree-*
    [ -z "$(find "$directory" -maxdepth 1 -name 'tree-*')" ]
    echo "$(grep -c '^deleted' "$host/tar.log") trees unpacked, compared and deleted; last: $state $n"
}

"$verb"
