#!/usr/bin/env bash
# Installs what building, testing and demonstrating Shale needs on Debian 12 or newer.
#
#   scripts/install-deps.sh            packages of the distribution
#   scripts/install-deps.sh --suites   also pjdfstest, fsx, and the sources of the
#                                      public programs the suites build
#   scripts/install-deps.sh --long     also what only the long suites run
#   scripts/install-deps.sh --packages also what make deb and scripts/package-test.sh run
#
# Safe to run again: it does nothing and prints nothing when all is there.
# SHALE_TOOLS (default ~/.cache/shale-tools) is where the suites' tools live.
set -euo pipefail

tools=${SHALE_TOOLS:-$HOME/.cache/shale-tools}
suites=no
long=no
deb=no
for argument in "$@"; do
    case $argument in
        --suites) suites=yes ;;
        --long) long=yes ;;
        --packages) deb=yes ;;
        *) echo "usage: $0 [--suites] [--long] [--packages]" >&2; exit 2 ;;
    esac
done

say() { echo "install-deps: $*" >&2; }

root_do() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else say "need root (or sudo) for: $*"; exit 1
    fi
}

apt_updated=no
apt_update() {
    [ $apt_updated = yes ] && return
    # A third-party list that cannot be reached must not stop us: the install that
    # follows fails by itself when the lists it needs are missing.
    root_do apt-get update -qq >/dev/null 2>"$scratch/apt-update" \
        || say "apt-get update complained: $(tail -n 1 "$scratch/apt-update")"
    apt_updated=yes
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# package -> why
packages=(
    fuse3            # fusermount3, the mount of every program
    e2fsprogs btrfs-progs # file systems to compare with
    attr acl         # getfattr and setfattr, getfacl and setfacl
    sqlite3          # demo, suites, crash loads
    git make         # suites and crash loads
    gcc g++ cmake    # suites that build programs
    libgtest-dev libgmock-dev libbenchmark-dev # LevelDB's own tests
    stress-ng        # file-system stressors
    strace           # looking at what a program called
    python3          # fsync-heavy loads, reports
    tar xz-utils rsync # suites, and the backups of docs/GUIDE.md
    dpkg-dev         # apt-get source
    procps util-linux psmisc ca-certificates curl
)
# What the long suites run under `shale run`: Python's own tests, and databases; and scripts/dashboard-test.py.
if [ $long = yes ]; then
    python=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo 3.11)
    packages+=("libpython$python-testsuite" redis-server redis-tools rocksdb-tools postgresql prometheus)
fi
if [ $deb = yes ]; then
    packages+=(debhelper lintian mmdebstrap systemd-container)
fi
missing=()
for package in "${packages[@]}"; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    say "installing ${missing[*]}"
    install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends)
    if ! root_do "${install[@]}" "${missing[@]}" >"$scratch/apt" 2>&1; then
        apt_update
        if ! root_do "${install[@]}" "${missing[@]}" >"$scratch/apt" 2>&1; then
            cat "$scratch/apt" >&2
            exit 1
        fi
    fi
fi

if ! command -v cargo >/dev/null && [ ! -x "$HOME/.cargo/bin/cargo" ]; then
    say "no cargo found: install Rust 1.95 or newer first (https://rustup.rs)"
    exit 1
fi

[ $suites = yes ] || exit 0

export PATH="$PATH:$HOME/.cargo/bin"
mkdir -p "$tools"

cargo_tool() { # cargo_tool PROGRAM VERSION
    [ -x "$tools/bin/$1" ] && return
    say "cargo install $1 into $tools"
    # Its own target directory: the workspace's lock file and flags are not its business.
    if ! (cd "$tools" && CARGO_TARGET_DIR="$tools/build/cargo" \
            cargo install --locked --quiet --root "$tools" --version "$2" "$1") 2>"$scratch/cargo"; then
        cat "$scratch/cargo" >&2
        exit 1
    fi
    rm -rf "$tools/build/cargo"
}
cargo_tool pjdfstest 0.2.2
cargo_tool fsx 0.3.2

# pjdfstest changes identity to users it is told of; see scripts/suites/pjdfstest.sh.
for user in pjdfstest1 pjdfstest2; do
    if ! getent passwd "$user" >/dev/null; then
        say "adding user $user (no login, no home) for pjdfstest"
        root_do useradd --system --user-group --no-create-home --shell /usr/sbin/nologin "$user"
    fi
done

# Sources come from the archive the machine already trusts. Images often ship without
# deb-src lines, so a list of our own repeats the configured mirror, suites and key.
debian_source() {
    local codename mirror key=/usr/share/keyrings/debian-archive-keyring.gpg
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    if apt-get indextargets --format '$(CREATED_BY)' 2>/dev/null | grep -qx Sources; then
        return
    fi
    mirror=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Codename: $codename" 2>/dev/null | head -n 1)
    mirror=${mirror:-http://deb.debian.org/debian}
    say "adding deb-src for $mirror $codename"
    printf 'Types: deb-src\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' \
        "$mirror" "$codename" "$key" >"$scratch/shale-deb-src.sources"
    root_do install -m 644 "$scratch/shale-deb-src.sources" /etc/apt/sources.list.d/shale-deb-src.sources
    apt_updated=no
    apt_update
}

source_package() { # source_package NAME: unpacks into $tools/src/NAME
    [ -d "$tools/src/$1" ] && return
    debian_source
    say "fetching the sources of $1"
    mkdir -p "$scratch/src-$1" "$tools/src"
    if ! (cd "$scratch/src-$1" && apt-get source -qq "$1") >"$scratch/source" 2>&1; then
        apt_update
        (cd "$scratch/src-$1" && apt-get source -qq "$1") >"$scratch/source" 2>&1 \
            || { cat "$scratch/source" >&2; exit 1; }
    fi
    local unpacked
    unpacked=$(find "$scratch/src-$1" -mindepth 1 -maxdepth 1 -type d | head -n 1)
    mv "$unpacked" "$tools/src/$1"
}
source_package leveldb
source_package zlib
