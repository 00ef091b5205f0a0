#!/usr/bin/env bash
# `make install` and `make uninstall`: puts what was built, and what belongs to it, where it is used, or takes it away.
#
#   scripts/install.sh install|uninstall     with these in the environment:
#
#   PREFIX=/usr/local         where it is used
#   DESTDIR=                  in front of every path that is written: the root of a package
#   BUILT=target/release      what `make` has built
#   LIBDIR=PREFIX/lib         libshale for C
#   MOUNT_HELPERS=/sbin       where mount(8) looks for mount.shale; links to PREFIX/bin/shale
#   UNITS=PREFIX/lib/systemd/system
#   ZSH=PREFIX/share/zsh/site-functions
#
# The list of files stands once, below, for both. Builds nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
verb=${1:-}
case $verb in
    install | uninstall) ;;
    *) echo "usage: $0 install|uninstall" >&2; exit 2 ;;
esac
prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}
built=${BUILT:-target/release}
libdir=${LIBDIR:-$prefix/lib}
helpers=${MOUNT_HELPERS:-/sbin}
units=${UNITS:-$prefix/lib/systemd/system}
share=$prefix/share
zsh=${ZSH:-$share/zsh/site-functions}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

made=
if [ "$verb" = install ]; then
    for file in shale libshale_preload.so libshale.so libshale.a; do
        test -f "$built/$file" || { echo "$built/$file is missing: run make first" >&2; exit 1; }
    done
    # What the program says of itself.
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    mkdir "$made/man1"
    "$built/shale" man-pages "$made/man1"
    for shell in bash zsh fish; do "$built/shale" completions $shell >"$made/$shell"; done
    sed -e "s|@PREFIX@|$prefix|g" packaging/systemd/shale@.service >"$made/shale@.service"
    sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|${libdir/#$prefix\//\$\{prefix\}/}|" -e "s|@VERSION@|$version|" \
        crates/client/capi/shale.pc.in >"$made/shale.pc"
fi

put() { # put MODE SOURCE PATH
    case $verb in
        install)
            install -d "$root$(dirname "$3")"
            install -m "$1" "$2" "$root$3"
            ;;
        uninstall) rm -f "$root$3" ;;
    esac
}
link() { # link TARGET PATH
    case $verb in
        install)
            install -d "$root$(dirname "$2")"
            ln -sf "$1" "$root$2"
            ;;
        # One that leads elsewhere is another installation's.
        uninstall) [ "$(readlink "$root$2")" != "$1" ] || rm -f "$root$2" ;;
    esac
}
gone() { # gone DIRECTORY: of ours alone, if nothing else is in it
    [ "$verb" = install ] || rmdir "$root$1" 2>/dev/null || true
}

put 755 "$built/shale" "$prefix/bin/shale"
put 755 "$built/libshale_preload.so" "$prefix/lib/shale/libshale_preload.so"
gone "$prefix/lib/shale"

put 755 "$built/libshale.so" "$libdir/libshale.so.$version"
link "libshale.so.$version" "$libdir/libshale.so.0"
link libshale.so.0 "$libdir/libshale.so"
put 644 "$built/libshale.a" "$libdir/libshale.a"
put 644 crates/client/capi/include/shale.h "$prefix/include/shale.h"
put 644 "$made/shale.pc" "$libdir/pkgconfig/shale.pc"

if [ "$verb" = install ]; then
    for page in "$made"/man1/*.1; do put 644 "$page" "$share/man/man1/${page##*/}"; done
else
    rm -f "$root$share/man/man1/shale.1" "$root$share/man/man1"/shale-*.1
fi
put 644 packaging/man/mount.shale.8 "$share/man/man8/mount.shale.8"
for alias in umount.shale mount.fuse.shale umount.fuse.shale; do
    link mount.shale.8 "$share/man/man8/$alias.8"
done
for file in packaging/watch/*; do put 644 "$file" "$share/shale/watch/${file##*/}"; done
put 644 "$made/bash" "$share/bash-completion/completions/shale"
put 644 "$made/zsh" "$zsh/_shale"
put 644 "$made/fish" "$share/fish/vendor_completions.d/shale.fish"
put 644 "$made/shale@.service" "$units/shale@.service"

# Nobody but root may write there; a program in a home directory works without.
if [ -z "$root" ] && [ ! -w "$helpers" ]; then
    [ "$verb" = uninstall ] || echo "$helpers cannot be written: without $helpers/mount.shale, shale mount works and mount -t shale does not" >&2
else
    for helper in mount.shale umount.shale mount.fuse.shale umount.fuse.shale; do
        link "$prefix/bin/shale" "$helpers/$helper"
    done
fi

# A package has triggers for these.
if [ -z "$root" ] && [ "$verb" = install ]; then
    # ldconfig may be where users do not look.
    if ! PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -qF "=> $libdir/libshale.so.0"; then
        echo "the linker does not know $libdir/libshale.so.0 yet: run ldconfig as root, or set LD_LIBRARY_PATH=$libdir"
    fi
    if [ -d /run/systemd/system ]; then
        echo "systemd does not know shale@.service yet: run systemctl daemon-reload"
    fi
fi
