#!/usr/bin/env bash
# `make deb`: Debian packages of what `make` has built, in target/package: shale, libshale0, libshale-dev.
#
#   BUILT=target/release       what is packed
#   PACKAGE_DIR=target/package where the packages go; what was there before is removed
#   PACKAGE_VERSION=…          default: the version of Cargo.toml; a later one is for trying an upgrade
#   DEBFULLNAME, DEBEMAIL      who makes them
#
# With debhelper, which Debian's own packages use: it finds what libraries the programs need, writes the scripts of the
# package for ldconfig and systemd, compresses the manual. cargo-deb makes one package of one crate, and takes no part in
# what lintian asks for. The packages need a libc as new as that of the machine that built them.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
built=${BUILT:-${CARGO_TARGET_DIR:-target}/release}
packages=${PACKAGE_DIR:-${CARGO_TARGET_DIR:-target}/package}
version=${PACKAGE_VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}

for program in dpkg-buildpackage dh; do
    command -v $program >/dev/null || {
        echo "make-deb: $program is missing: apt-get install dpkg-dev debhelper" >&2
        exit 1
    }
done
[ -x "$built/shale" ] || { echo "make-deb: $built/shale is missing: run make first" >&2; exit 1; }

rm -rf "$packages"
mkdir -p "$packages/build"
cp -r packaging/debian "$packages/build/debian"
cp README.md CHANGELOG.md crates/client/capi/examples/append.c "$packages/build/"
# A tree without history has the date of its changelog.
date=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
maintainer="${DEBFULLNAME:-Shale maintainers} <${DEBEMAIL:-maintainers@shale.invalid}>"
sed -i "s|@MAINTAINER@|$maintainer|" "$packages/build/debian/control"
cat >"$packages/build/debian/changelog" <<END
shale ($version-1) unstable; urgency=medium

  * What is new stands in CHANGELOG.md.

 -- $maintainer  $(LC_ALL=C date -u -R -d "@$date")
END
log=$packages/build.log
# What the caller's make was told is not for the make of debhelper.
if ! (
    unset MAKEFLAGS MFLAGS MAKELEVEL PREFIX DESTDIR BUILT LIBDIR MOUNT_HELPERS UNITS ZSH
    SHALE_SOURCE=$root SHALE_BUILT=$(realpath "$built")
    export SHALE_SOURCE SHALE_BUILT SOURCE_DATE_EPOCH=$date
    cd "$packages/build"
    dpkg-buildpackage --build=binary --no-sign --no-check-builddeps
) >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    echo "make-deb: failed; all of it is in $log" >&2
    exit 1
fi
rm -rf "$packages/build"
ls "$packages"/*.deb
