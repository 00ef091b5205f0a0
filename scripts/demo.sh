#!/usr/bin/env bash
# `make demo`: Shale on this machine, from an empty tree to a killed daemon, in a few minutes.
# Leaves nothing behind: no mount, no process, no file outside target/.
#
#   DEMO_HOST_DIR=/var/tmp   where the same work is done on the host's file system
#   DEMO_TRANSACTIONS=1000   how many, on each
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
export PATH="$PATH:$HOME/.cargo/bin"
. "$here/volume.sh"
transactions=${DEMO_TRANSACTIONS:-1000}
host=$(mktemp -d "${DEMO_HOST_DIR:-/var/tmp}/shale-demo.XXXXXX")
load=

clean() {
    local status=$?
    [ -z "$load" ] || kill -9 "$load" 2>/dev/null || true
    volume_end || true
    rm -rf "$host"
    [ $status = 0 ] || echo "demo: stopped with exit status $status; everything it made is taken away"
}
trap clean EXIT
trap 'exit 130' INT TERM

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() { printf '  $ %s\n' "${*//$root\//}"; "$@" 2>&1 | sed 's/^/    /'; }
seconds() { # seconds COMMAND …: how long it took
    local begin
    begin=$(date +%s%N)
    "$@" >/dev/null
    echo $(($(date +%s%N) - begin)) | awk '{ printf "%.6f\n", $1 / 1e9 }'
}
row() { # row WHAT UNIT AMOUNT SHALE_SECONDS HOST_SECONDS
    awk -v what="$1" -v unit="$2" -v amount="$3" -v a="$4" -v b="$5" \
        'BEGIN { printf "    %-44s %10.0f %10.0f %-12s %6.2f x\n", what, amount / a, amount / b, unit, b / a }'
}

transact() { # transact DIRECTORY: each row its own transaction, each COMMIT synchronous
    { echo "PRAGMA synchronous=FULL; CREATE TABLE entry(id INTEGER PRIMARY KEY, note TEXT);"
      for ((n = 1; n <= transactions; n++)); do echo "INSERT INTO entry VALUES($n, 'entry number $n');"; done
    } | sqlite3 -bail "$1/demo.db"
}
small_syncs() { # small_syncs DIRECTORY: a thousand appended records, each followed by fsync
    python3 - "$1/records" <<'PY'
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in range(1000):
    os.write(file, b"%0127d\n" % number)
    os.fsync(file)
PY
}
big_write() { dd if=/dev/zero of="$1/big" bs=1M count=64 conv=fsync status=none; }
big_read() { dd if="$1/big" of=/dev/null bs=1M status=none; }
many_files() { # many_files DIRECTORY: 2,000 files made and removed
    python3 - "$1/many" <<'PY'
import os, shutil, sys
os.mkdir(sys.argv[1])
for number in range(2000):
    with open(os.path.join(sys.argv[1], str(number)), "wb") as file:
        file.write(b"x" * 1024)
shutil.rmtree(sys.argv[1])
PY
}

part() { # part N: 50 MiB, others for each N
    python3 -c "import random, sys; sys.stdout.buffer.write(random.Random($1).randbytes(50 << 20))"
}
tiers() { # what each tier below NVM holds
    "$SHALE" status "$mount" --json | python3 -c '
import json, sys
for tier in json.load(sys.stdin)["tiers"]:
    print("    %-4s %5d MiB" % (tier["tier"], tier["live_bytes"] >> 20))'
}

say "1. What it needs"
"$here/install-deps.sh"
cargo build --release --locked --quiet -p shale-cli -p shale-preload
echo "    built: ${SHALE#"$root"/}"

say "2. A volume, mounted"
volume_begin demo 512MiB --ssd "$host/ssd.img:512M" --hdd "$host/hdd.img:2G" --durability strict
volume_mount
show "$SHALE" status "$mount"
echo "    NVM is emulated by memory here (/dev/shm): it outlives every process, not a power cut."
echo "    On a DAX file system the same volume outlives that too."

say "3. The same unmodified programs on Shale and on this host's $(stat -f -c %T "$host") ($(dirname "$host"))"
printf '    %-44s %10s %10s\n' "" Shale host
row "sqlite3, synchronous=FULL" "commits/s" "$transactions" \
    "$(seconds transact "$mount")" "$(seconds transact "$host")"
row "python3, append 128 bytes + fsync" "fsyncs/s" 1000 "$(seconds small_syncs "$mount")" "$(seconds small_syncs "$host")"
row "python3, create 1 KiB, delete" "files/s" 2000 "$(seconds many_files "$mount")" "$(seconds many_files "$host")"
row "dd, write 64 MiB + fsync" "MiB/s" 64 "$(seconds big_write "$mount")" "$(seconds big_write "$host")"
row "dd, read it again (cached)" "MiB/s" 64 "$(seconds big_read "$mount")" "$(seconds big_read "$host")"
echo "    The host writes to its disk, Shale to emulated NVM: this shows what byte-addressable"
echo "    media are worth to programs, not that one file system is better than the other."
cmp <(sqlite3 "$mount/demo.db" .dump) <(sqlite3 "$host/demo.db" .dump)
echo "    both databases hold the same."

say "4. More than NVM holds: 900 MiB of files, and where they went"
for ((n = 0; n < 18; n++)); do part "$n" >"$mount/part-$n"; done
tiers
show "$SHALE" where "$mount/part-0" | sed -n 1,6p
for n in 0 9 17; do cmp "$mount/part-$n" <(part "$n"); done
echo "    read again and compared: the same."
rm "$mount"/part-*

say "5. The daemon is killed in the middle of it"
python3 "$here/crash/load-sqlite.py" run "$mount" "$host" >"$host/load.output" 2>&1 &
load=$!
for round in 1 2 3 4 5; do
    sleep 0.7
    process=$(status_field daemon_pid)
    before=$(wc -l <"$host/sqlite.log")
    kill -9 "$process"
    for ((n = 0; n < 300; n++)); do
        next=$(status_field daemon_pid)
        if [ -n "$next" ] && [ "$next" != "$process" ] && [ "$(wc -l <"$host/sqlite.log")" -gt $((before + 1)) ]; then break; fi
        sleep 0.05
    done
    daemon_processes+=("$next")
    echo "    kill -9 $process after $before commits; daemon is now ${next:-nowhere}, commits go on: $(wc -l <"$host/sqlite.log")"
done
touch "$host/stop"
if wait "$load"; then
    echo "    sqlite3 saw no error."
else
    sed 's/^/    /' "$host/load.output"
    exit 1
fi
load=

say "6. Nothing is lost: unmounted, checked, mounted again"
volume_umount
show "$SHALE" fsck "$volume"
volume_mount
python3 "$here/crash/load-sqlite.py" verify "$mount" "$host" | sed 's/^/    /'
cmp <(sqlite3 "$mount/demo.db" .dump) <(sqlite3 "$host/demo.db" .dump)
echo "    and the first database still equals the host's."

say "7. Unmounted and taken away"
volume_umount
echo "    done."
