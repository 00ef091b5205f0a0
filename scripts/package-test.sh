#!/usr/bin/env bash
# The Debian packages on a machine of their own: a clean Debian in a container with its own systemd, from install to purge.
# Installed with what they depend on; a volume mounted by a line of fstab and one by its unit; upgraded while mounted; shut
# down, booted again, and switched off without a word; removed.
#
#   scripts/package-test.sh          needs root, /dev/fuse, a Debian mirror; scripts/install-deps.sh --packages
#
#   BUILT=target/release     what is packed (default: builds it, as make deb does)
#   PACKAGES=DIR             packages that were made before: DIR/old, DIR/new
#   SUITE=bookworm           the Debian that is tried
#   LINTIAN=no               without lintian, which takes the longest
#   KEEP=1                   leaves the container's tree for a look
#
# Leaves nothing behind but the unpacked Debian in SHALE_TOOLS, which the next run uses. Last line: "N passed, N failed".
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
. "$here/suites/tally.sh"
debian=${SUITE:-bookworm}
scratch=$(mktemp -d /var/tmp/shale-packages.XXXXXX) || exit 1
suite_begin packages "$scratch"
need mmdebstrap systemd-nspawn nsenter lintian dpkg-buildpackage dh sqlite3
if [ "$(id -u)" != 0 ] || [ ! -e /dev/fuse ]; then
    echo "packages: needs root and /dev/fuse" >&2
    echo "0 passed, 1 failed"
    exit 1
fi
tree=$work/tree
# As in tally.sh, but in this shell: the machine that runs and the rows of the database are its variables.
check() {
    local what=$1 status=0
    shift
    "$@" >"$host/output" 2>&1 || status=$?
    if [ $status = 0 ]; then
        passed=$((passed + 1))
        [ "${VERBOSE:-}" = 1 ] && echo "ok      $what"
    else
        failed=$((failed + 1))
        echo "FAILED  $what (exit $status)"
        tail -n "${FAILURE_LINES:-20}" "$host/output" | sed 's/^/        /'
    fi
    return 0
}
machine=
leader=

power_off() { # power_off: without a word to anybody in it
    [ -z "$machine" ] || kill -9 "$leader" "$machine" 2>/dev/null
    wait "$machine" 2>/dev/null
    machine=
}
packages_clean() {
    power_off
    suite_clean
    [ "${KEEP:-}" = 1 ] || rm -rf "$scratch"
}
trap packages_clean EXIT

make_tree() { # a Debian, made once
    local tar=$tools/packages-$debian.tar
    if [ ! -f "$tar" ]; then
        mkdir -p "$tools"
        mmdebstrap --variant=minbase --include=systemd-sysv,dbus,sqlite3,ca-certificates "$debian" "$tar.new" \
            && mv "$tar.new" "$tar" || return 1
    fi
    mkdir "$tree" && tar -C "$tree" -xf "$tar" || return 1
    cp /etc/resolv.conf "$tree/etc/resolv.conf"
    # The machine's own way to the mirror.
    local conf
    for conf in /etc/apt/apt.conf.d/*proxy* /etc/apt/apt.conf.d/*registry*; do
        [ ! -f "$conf" ] || cp "$conf" "$tree/etc/apt/apt.conf.d/"
    done
    # No pty, no login prompt.
    ln -sf /dev/null "$tree/etc/systemd/system/console-getty.service"
}
boot() { # boot: starts the machine and waits for the end of its start
    systemd-nspawn --quiet --register=no --keep-unit --directory="$tree" --bind=/dev/fuse --link-journal=no --boot \
        --console=pipe </dev/null >"$host/console" 2>&1 &
    machine=$!
    local tries
    for tries in $(seq 100); do
        read -r leader _ <"/proc/$machine/task/$machine/children" 2>/dev/null
        [ -n "$leader" ] && inside systemctl is-system-running --wait >/dev/null 2>&1
        case $(inside systemctl is-system-running 2>/dev/null) in
            running | degraded) return 0 ;;
        esac
        kill -0 "$machine" || return 1
        sleep 0.2
    done
    return 1
}
shut_down() { # shut_down: in order; fails if that takes longer than a minute
    inside systemctl poweroff
    local tries
    for tries in $(seq 300); do
        kill -0 "$machine" 2>/dev/null || break
        sleep 0.2
    done
    kill -0 "$machine" 2>/dev/null && { cat "$host/console"; return 1; }
    wait "$machine"
    machine=
}
inside() { # inside COMMAND …: in the machine that runs
    timeout -k 5 "${LIMIT:-120}" nsenter --target "$leader" --mount --uts --ipc --net --pid --cgroup -- \
        /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C "$@"
}
outside() { # outside COMMAND …: in the tree, while no machine runs
    timeout -k 5 120 systemd-nspawn --quiet --register=no --keep-unit --directory="$tree" --pipe -- "$@" </dev/null
}
script() { inside sh -euc "$1"; }
refused() { # refused CODE TEXT COMMAND …: ends with this code and says so
    local code=$1 text=$2 said status=0
    shift 2
    said=$(inside "$@" 2>&1) || status=$?
    [ "$status" = "$code" ] && grep -qF -- "$text" <<<"$said" || { echo "exit $status: $said"; return 1; }
}
is_mounted() { inside grep -q "^$1 $2 fuse.shale " /proc/mounts; }
not_mounted() { ! inside grep -q " $1 fuse.shale " /proc/mounts; }
nothing_left() { inside sh -c '! ls /run/shale | grep -v "^lock$"' && not_mounted "[^ ]*"; }
daemon_of() { inside shale status "$1" --json | sed -nE 's/.*"'"$2"'": *([0-9]+).*/\1/p' | head -n 1; }
database() { # database: every row that was ever committed is there
    [ "$(inside sqlite3 /srv/data/db 'PRAGMA integrity_check; SELECT count(*), sum(n) FROM t')" = "ok
$rows|$((rows * (rows + 1) / 2))" ]
}
rows=0
insert() { # insert COUNT: each a transaction of its own; EXTRA, since FULL does not sync that the journal is gone
    local n sql=
    for ((n = rows + 1; n <= rows + $1; n++)); do sql+="INSERT INTO t VALUES($n);"; done
    inside sqlite3 -bail /srv/data/db "PRAGMA synchronous=EXTRA; $sql" && rows=$((rows + $1))
}

made=${PACKAGES:-$host}
make_packages() {
    [ -z "${PACKAGES:-}" ] || { ls "$made"/old/*.deb "$made"/new/*.deb; return; }
    [ -n "${BUILT:-}" ] || make -C "$root" all || return 1
    local version
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
    PACKAGE_DIR=$host/old "$here/make-deb.sh" && PACKAGE_VERSION=$version+next PACKAGE_DIR=$host/new "$here/make-deb.sh"
}
check_unit() { inside systemd-analyze verify --man=no shale@data.service 2>&1 | (! grep -F shale@); }
install_packages() { # install_packages old|new
    mkdir -p "$tree/packages"
    rm -f "$tree"/packages/*
    cp "$made/$1"/{shale_,libshale}*_*.deb "$tree/packages/" && rm -f "$tree"/packages/*dbgsym*
    # Not by the path below /tmp of the machine, which is a file system of its own.
    LIMIT=300 script 'apt-get install -y --no-install-recommends /packages/*.deb'
}

check "packages are made" make_packages
[ "${LINTIAN:-}" = no ] || check "lintian finds no error" lintian --allow-root --fail-on error "$made"/old/*.changes
check "a clean Debian is made" make_tree
check "it boots" boot
[ -n "$machine" ] || suite_end

check "it has nothing of Shale" script '! command -v shale && ! ls /sbin/mount.shale'
update_lists() { LIMIT=300 inside apt-get update -q; }
check "apt-get update" update_lists
check "install, with what they depend on" install_packages old
check "fuse3 came with it" script 'command -v fusermount3'
check "the library is known to the linker" script 'ldconfig -p | grep -q libshale.so.0'
check "every verb has its page, and the helpers theirs" script '
    for verb in $(shale --help | sed -n "/^Commands:/,/^Options:/s/^  \([a-z]*\) .*/\1/p" | grep -v help); do
        test -f /usr/share/man/man1/shale-$verb.1.gz
    done
    for page in mount.shale umount.shale mount.fuse.shale umount.fuse.shale; do test -e /usr/share/man/man8/$page.8.gz; done'
check "the unit is understood" check_unit

# By fstab: two commands from nothing to a database on an SSD image.
check "mkfs" inside shale mkfs /etc/shale/data.toml --ssd /var/lib/data.img:1G
check "a line in fstab mounts it" script '
    echo "data /srv/data shale noatime,nosuid,nofail,x-systemd.mount-timeout=15min 0 0" >>/etc/fstab
    mkdir -p /srv/data && systemctl daemon-reload && mount /srv/data'
check "so the table says" is_mounted data /srv/data
check "with its options" script 'grep " /srv/data " /proc/mounts | grep -q "rw,nosuid,noatime"'
check "mount -a finds it mounted" script 'mount -a && test $(grep -c " /srv/data " /proc/mounts) = 1'
check "a database" inside sqlite3 /srv/data/db 'CREATE TABLE t(n INTEGER PRIMARY KEY)'
check "with rows" insert 50
check "mount -o remount,ro" script 'mount -o remount,ro /srv/data && ! touch /srv/data/x 2>/dev/null && mount -o remount,rw /srv/data'
check "an option that is not known is named" refused 1 "-o nonsense: " mount -t shale data /mnt -o nonsense
check "so is durability" refused 1 "shale mkfs --durability" mount -t shale data /mnt -o durability=strict
check "a volume that is not there is named" refused 32 "/etc/shale/nowhere.toml" mount -t shale nowhere /mnt
check "a second mount of it is refused" refused 32 "mounted on /srv/data already" mount -t shale data /mnt

# By its unit.
check "a second volume" inside shale mkfs /etc/shale/more.toml --ssd /var/lib/more.img:1G
check "with its place" script 'printf "MOUNTPOINT=/srv/more\nOPTIONS=noatime\n" >/etc/shale/more.conf'
check "systemctl enable --now" inside systemctl enable --now shale@more
check "it is mounted" is_mounted "[^ ]*" /srv/more
check "the unit waits until it is" script 'test "$(systemctl show -P SubState shale@more)" = running'
check "its log is in the journal, with fields" script 'journalctl -u shale@more -o cat --output-fields=MESSAGE,SHALE_VOLUME MESSAGE=mounted | grep -qx /etc/shale/more.toml'
check "and says once what is said of each thread" script 'test $(journalctl -u shale@more -o cat | grep -c "not locked in memory") -le 1'
check "a file" script 'echo kept >/srv/more/file; sync /srv/more/file'

# Upgraded while both are mounted.
check "upgrade while mounted" install_packages new
check "the new one is there" script 'dpkg-query -W shale | grep -q next'
check "both are still mounted" script 'test $(grep -c " fuse.shale " /proc/mounts) = 2'
check "the database is served" database
check "rows are added" insert 10
check "shale run of the new one works with the daemon of the old one" script 'shale run -- sh -c "cat /srv/more/file; echo run >/srv/more/run" | grep -q kept'
killed_daemon() {
    local old
    old=$(daemon_of /srv/data daemon_pid)
    script "kill -9 $old"
    database && [ "$(daemon_of /srv/data daemon_pid)" != "$old" ]
}
check "a killed daemon is followed by another, though its program is gone" killed_daemon
killed_supervisor() {
    local tries
    script 'kill -9 $(systemctl show -P MainPID shale@more)'
    for tries in $(seq 100); do
        sleep 0.3
        inside systemctl is-active -q shale@more && is_mounted "[^ ]*" /srv/more && break
    done
    [ "$(inside cat /srv/more/file)" = kept ]
}
check "a killed supervisor: the unit mounts again" killed_supervisor

# Off and on.
check "more rows" insert 10
check "shut down" shut_down
clean() { outside shale fsck "/etc/shale/$1.toml" 2>&1 | grep "volume is clean"; }
nothing_waits() { ! outside shale fsck "/etc/shale/$1.toml" | grep -E "[1-9][0-9]* batch"; }
for volume in data more; do
    check "$volume is clean" clean $volume
    check "$volume was unmounted in order: nothing waits to be replayed" nothing_waits $volume
done
check "boot" boot
check "fstab has mounted its volume" is_mounted data /srv/data
check "the unit has mounted its volume" is_mounted "[^ ]*" /srv/more
check "the database is whole" database
check "the file is there" script 'test "$(cat /srv/more/file)" = kept'
# What a login leaves running is ended by a signal.
check "a volume mounted by hand, a file that nobody syncs" script '
    shale mkfs /root/hand.toml --ssd /var/lib/hand.img:1G && mkdir /srv/hand
    systemd-run -q --scope shale mount /root/hand.toml /srv/hand && echo kept >/srv/hand/file'
check "shut down" shut_down
check "boot" boot
check "an orderly shutdown loses nothing" script '
    shale mount /root/hand.toml /srv/hand && test "$(cat /srv/hand/file)" = kept && shale umount /srv/hand'
check "rows, each with its fsync" insert 10
power_off
check "switched off without a word; boot" boot
check "the database has every row that was committed" database

# What umount and systemctl do.
held() { # held SECONDS PATH: a program has it open
    inside sh -c "exec sleep $1 <$2" &
    sleep 0.5
}
busy() {
    local code=0
    held 3 /srv/data/db
    refused 32 "(sleep; file" umount /srv/data || code=1
    wait $!
    return $code
}
check "umount of one in use names who uses it" busy
check "umount" inside umount /srv/data
check "returns when its processes have ended" script 'test $(ls /run/shale | grep -vc "^lock$") = 1'
check "mount" inside mount /srv/data
check "systemctl stop" inside systemctl stop shale@more
check "it has not failed" script '! systemctl is-failed -q shale@more'
check "it is unmounted" not_mounted /srv/more
check "systemctl start" inside systemctl start shale@more
stopped_in_use() { # a program that has a file open goes on, and the mount goes when it has gone
    inside sh -c 'exec 3</srv/more/file; sleep 3; cat <&3 >/tmp/kept' &
    sleep 0.5
    inside systemctl stop shale@more && not_mounted /srv/more && wait $! && script 'test "$(cat /tmp/kept)" = kept' \
        && script '! systemctl is-failed -q shale@more'
}
check "systemctl stop of one in use: it is served as long as somebody uses it" stopped_in_use
check "and started again" inside systemctl start shale@more
check "plain umount of it is no failure" script 'umount /srv/more; sleep 2; ! systemctl is-failed -q shale@more'
check "and it is not mounted again" not_mounted /srv/more
check "systemctl restart of the unit that fstab made" script 'systemctl stop srv-data.mount; ! grep " /srv/data " /proc/mounts; systemctl start srv-data.mount'
check "the database is whole again" database

# Removed while mounted.
removed() { script 'apt-get remove -y shale >/tmp/removed 2>&1; cat /tmp/removed; grep -F "umount /srv/data" /tmp/removed'; }
check "remove names what is mounted" removed
check "it is still served" database
check "umount works without the package" inside umount /srv/data
ends() {
    local tries
    for tries in $(seq 50); do
        nothing_left >/dev/null && return 0
        sleep 0.2
    done
    return 1
}
check "and its processes end" ends
check "purge" script 'apt-get purge -y shale libshale0 libshale-dev'
check "nothing of it is left, but what is the user's" script '
    ! find / -xdev \( -name "*shale*" -o -name "*libshale*" \) -not -path "/proc/*" -not -path "/packages*" -not -path "/etc/shale*" \
        -not -path "/run/*" -not -path "/var/log/*" -not -path "/etc/systemd/system/*" -not -path "/var/lib/systemd/*" | grep .'
check "volumes are" script 'test -f /etc/shale/data.toml && test -f /var/lib/data.img'
suite_end
