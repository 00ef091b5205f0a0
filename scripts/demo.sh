#!/usr/bin/env bash
# `make demo`: Shale on this machine, from an empty tree to a power cut and a killed daemon, in a few minutes: without NVM,
# then with it.
# Leaves nothing behind: no mount, no process, no file outside target/.
#
#   DEMO_HOST_DIR=/var/tmp   where the volumes are, and the same work is done on the host's file system
#   DEMO_SSD=16G             size of the volume without NVM; a sparse file there
#   DEMO_TRANSACTIONS=1000   how many, on each
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
export PATH="$PATH:$HOME/.cargo/bin"
. "$here/volume.sh"
transactions=${DEMO_TRANSACTIONS:-1000}
host=$(mktemp -d "${DEMO_HOST_DIR:-/var/tmp}/shale-demo.XXXXXX")
load=
under=()

clean() {
    local status=$?
    [ -z "$load" ] || kill -9 -- "-$load" 2>/dev/null || true
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
row() { # row WHAT UNIT AMOUNT SHELL_FUNCTION: on the host, on the mount, under shale run, each in a directory of its own
    local way times=() place
    for way in host mount run; do
        case $way in
            host) place=$host/$4 ;;
            *) place=$mount/$way-$4 ;;
        esac
        mkdir "$place"
        if [ $way = run ]; then under=("$SHALE" run --); else under=(); fi
        times+=("$(seconds "$4" "$place")")
    done
    awk -v what="$1" -v unit="$2" -v amount="$3" -v h="${times[0]}" -v m="${times[1]}" -v r="${times[2]}" \
        'BEGIN { printf "    %-34s %9.0f %9.0f %9.0f %-9s %6.2f x %6.2f x\n", what, amount / h, amount / m, amount / r, unit, h / m, h / r }'
}
table_head() { printf '    %-34s %9s %9s %9s %-9s %8s %8s\n' "" host mount "shale run" "" mount run; }

transact() { # transact DIRECTORY: each row its own transaction, each COMMIT synchronous
    { echo "PRAGMA synchronous=FULL; CREATE TABLE entry(id INTEGER PRIMARY KEY, note TEXT);"
      for ((n = 1; n <= transactions; n++)); do echo "INSERT INTO entry VALUES($n, 'entry number $n');"; done
    } | ${under[@]+"${under[@]}"} sqlite3 -bail "$1/demo.db"
}
small_syncs() { # small_syncs DIRECTORY: a thousand appended records, each followed by fsync
    ${under[@]+"${under[@]}"} python3 - "$1/records" <<'PY'
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in range(1000):
    os.write(file, b"%0127d\n" % number)
    os.fsync(file)
PY
}
big_write() { ${under[@]+"${under[@]}"} dd if=/dev/zero of="$1/big" bs=1M count=64 conv=fsync status=none; }
big_read() { ${under[@]+"${under[@]}"} dd if="${1/big_read/big_write}/big" of=/dev/null bs=1M status=none; }
many_files() { # many_files DIRECTORY: 2,000 files made and removed
    ${under[@]+"${under[@]}"} python3 - "$1/many" <<'PY'
import os, shutil, sys
os.mkdir(sys.argv[1])
for number in range(2000):
    with open(os.path.join(sys.argv[1], str(number)), "wb") as file:
        file.write(b"x" * 1024)
shutil.rmtree(sys.argv[1])
PY
}

mail() { # mail DIRECTORY: 300 messages delivered as mail servers do: write, fsync, rename, fsync of the directory
    ${under[@]+"${under[@]}"} python3 - "$1" <<'PY'
import os, sys
os.chdir(sys.argv[1])
os.mkdir("tmp")
os.mkdir("new")
directory = os.open("new", os.O_RDONLY)
for number in range(300):
    with open(f"tmp/{number}", "wb") as file:
        file.write(b"x" * 3000)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"tmp/{number}", f"new/{number}")
    os.fsync(directory)
PY
}

start_load() { # commits numbered rows on the mount, in a process group of its own
    rm -f "$host/stop"
    set -m
    python3 "$here/crash/load-sqlite.py" run "$mount" "$host" >"$host/load.output" 2>&1 &
    load=$!
    set +m
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

say "2. A volume without NVM, on this machine's own disk"
volume_begin_ssd demo "$host" "${DEMO_SSD:-16G}"
volume_mount
echo "    What fsync returned from is durable, as on the host's file system. The log and the structure are"
echo "    in memory; a staging area on the disk holds what a power cut must not lose."

say "3. The same unmodified programs on this host's $(stat -f -c %T "$host") and on Shale, on the same disk"
table_head
row "sqlite3, synchronous=FULL" "commits/s" "$transactions" transact
row "python3, append 128 bytes + fsync" "fsyncs/s" 1000 small_syncs
row "python3, deliver mail" "mails/s" 300 mail
row "python3, create 1 KiB, delete" "files/s" 2000 many_files
row "dd, write 64 MiB + fsync" "MiB/s" 64 big_write
row "dd, read it again (cached)" "MiB/s" 64 big_read
for way in mount run; do
    cmp <(sqlite3 "$mount/$way-transact/demo.db" .dump) <(sqlite3 "$host/transact/demo.db" .dump)
done
echo "    all three databases hold the same."
show "$SHALE" status "$mount" | grep -E 'staging|commits|checkpoint' || true

say "4. The power is cut: programs, daemon and all memory of the volume are gone"
SYNC=1 start_load
sleep 3
kill -9 -- "-$load"
wait "$load" 2>/dev/null || true
load=
volume_cut_power
echo "    after $(wc -l <"$host/sqlite.log") commits"
volume_mount
SYNC=1 python3 "$here/crash/load-sqlite.py" verify "$mount" "$host" | sed 's/^/    /'

say "5. The daemon is killed in the middle of it"
start_load
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
cmp <(sqlite3 "$mount/run-transact/demo.db" .dump) <(sqlite3 "$host/transact/demo.db" .dump)
echo "    and the first database still equals the host's."
volume_end

say "7. With NVM: every call is durable when it returns; flash and a disk below it"
volume_begin demo 512MiB --ssd "$host/ssd.img:512M" --hdd "$host/hdd.img:2G" --durability strict
volume_mount
echo "    NVM is emulated by memory here (/dev/shm): it outlives every process, not a power cut."
echo "    On a DAX file system the same volume outlives that too. The host writes to its disk:"
echo "    this shows what byte-addressable media are worth to programs."
rm -rf "$host"/{transact,small_syncs,mail,many_files,big_write,big_read}
table_head
row "sqlite3, synchronous=FULL" "commits/s" "$transactions" transact
row "python3, append 128 bytes + fsync" "fsyncs/s" 1000 small_syncs
row "python3, deliver mail" "mails/s" 300 mail
row "python3, create 1 KiB, delete" "files/s" 2000 many_files

say "8. More than NVM holds: 900 MiB of files, and where they went"
for ((n = 0; n < 18; n++)); do part "$n" >"$mount/part-$n"; done
tiers
show "$SHALE" where "$mount/part-0" | sed -n 1,6p
for n in 0 9 17; do cmp "$mount/part-$n" <(part "$n"); done
echo "    read again and compared: the same."

say "9. Unmounted, checked, taken away"
volume_umount
show "$SHALE" fsck "$volume"
echo "    done."
