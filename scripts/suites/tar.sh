#!/usr/bin/env bash
# A large tree is unpacked into DIRECTORY, compared with the original (names, types, modes,
# owners, times to the nanosecond, contents, links, holes, attributes), packed again, compared again.
#
#   FILES=4000 scripts/suites/tar.sh DIRECTORY
. "$(dirname "$0")/tally.sh"
suite_begin tar "${1:-}"
need tar getfattr setfattr
files=${FILES:-4000}

# Part of the host's own tree, and beside it what such trees lack.
mkdir -p "$host/origin/special"
( cd / && find usr/include usr/share/doc \( -type f -o -type l \) 2>/dev/null | LC_ALL=C sort | head -n "$files" \
    | tar -cf - --no-recursion -T - | tar -xf - -C "$host/origin" )
(
    cd "$host/origin/special" || exit 1
    echo one >hard-a && ln hard-a hard-b && mkdir dir && ln hard-a dir/hard-c
    ln -s hard-a soft && ln -s /nowhere/at/all dangling && mkfifo pipe
    truncate -s 10M holes && printf end >>holes && printf middle | dd of=holes bs=1 seek=5000000 conv=notrunc status=none
    : >empty && mkdir empty-dir
    printf 'odd' >"$(printf 'new\nline and \303\244 and \377 byte')"
    long=$(printf 'n%.0s' $(seq 1 255)) && echo long >"$long"
    for mode in 0000 0400 0755 4755 2755 1777; do echo "$mode" >"mode-$mode" && chmod "$mode" "mode-$mode"; done
    mkdir sticky setgid && chmod 1777 sticky && chmod 2775 setgid
    touch -d '1971-02-03 04:05:06.123456789' old && touch -d '2099-02-03 04:05:06.987654321' future
    touch -h -d '1999-09-09 09:09:09.5' soft
    echo attributes >with-xattr
    # Not every host file system stores these; then there are none to compare.
    setfattr -n user.note -v 'kept by tar' with-xattr 2>/dev/null
    deep=. ; for n in $(seq 1 40); do deep=$deep/level-$n; done ; mkdir -p "$deep" && echo bottom >"$deep/file"
)
options=(--format=posix --xattrs --sparse)

manifest() { # every attribute that has to survive; times of directories included
    cd "$1" && find . -mindepth 1 -printf '%p\t%y\t%m\t%U:%G\t%s\t%n\t%T@\t%l\n' \
        | sed -E 's/^([^\t]*\td\t[^\t]*\t[^\t]*)\t[^\t]*\t[^\t]*/\1\t-\t-/' | LC_ALL=C sort
    # (size and link count of a directory are the file system's own business)
}
contents() { cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum; }
attributes() { cd "$1" && getfattr -R -h -d -m '^user\.' . 2>/dev/null; }

same() { # same WHAT DIRECTORY
    "$1" "$host/origin" >"$host/expected.$1"
    "$1" "$2" >"$host/found.$1"
    diff "$host/expected.$1" "$host/found.$1"
}

tar "${options[@]}" -cf "$host/origin.tar" -C "$host/origin" .
mkdir "$work/first" "$work/second"
check "unpack $(tar -tf "$host/origin.tar" | wc -l) entries" tar "${options[@]}" -xpf "$host/origin.tar" -C "$work/first"
check "tar --compare" tar "${options[@]}" --compare -f "$host/origin.tar" -C "$work/first"
for what in manifest contents attributes; do check "$what" same $what "$work/first"; done
check "pack" tar "${options[@]}" -cf "$work/again.tar" -C "$work/first" .
check "unpack what was packed" tar "${options[@]}" -xpf "$work/again.tar" -C "$work/second"
for what in manifest contents attributes; do check "$what, second time" same $what "$work/second"; done
check "cp -a" cp -a "$work/second" "$work/third"
for what in manifest contents attributes; do check "$what, after cp -a" same $what "$work/third"; done
check "delete" rm -rf "$work/first" "$work/second" "$work/third" "$work/again.tar"
check "nothing is left" test -z "$(ls -A "$work")"
suite_end
