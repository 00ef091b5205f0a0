#!/usr/bin/env bash
# libshale, installed as `make install` does, from C: the example appends records that the mount
# shows and continues those that the mount got; a program makes every call in turn with the kernel; another
# one may have no more memory; another one has its daemon killed.
#
#   scripts/suites/capi.sh DIRECTORY     a Shale mount or a directory on one
#
# SHALE is the program; the libraries lie beside it.
. "$(dirname "$0")/tally.sh"
suite_begin capi "${1:-}"
need cc make
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
SHALE=${SHALE:-${CARGO_TARGET_DIR:-$root/target}/release/shale}
unset CARGO_MAKEFLAGS MAKEFLAGS MFLAGS MAKELEVEL
mount=$(stat -c %m "$work") inside=${work#"$(stat -c %m "$work")"}
installed=$host/installed/usr/local
if ! grep -q " $mount fuse.shale " /proc/self/mounts; then
    echo "capi: $target is not on a Shale mount" >&2
    echo "0 passed, 1 failed"
    exit 1
fi

flags() { # what pkg-config says of the installed library, or the same by hand
    if command -v pkg-config >/dev/null; then
        PKG_CONFIG_PATH=$installed/lib/pkgconfig pkg-config --define-variable=prefix="$installed" --cflags --libs shale
    else
        echo "-I$installed/include -L$installed/lib -lshale"
    fi
}
compile() { # compile SOURCE RESULT: with the shared library
    # shellcheck disable=SC2046
    cc -O2 -Wall -Wextra -Werror -pthread -o "$2" "$1" $(flags) -Wl,-rpath,"$installed/lib"
}
compile_static() {
    cc -O2 -pthread -I"$installed/include" -o "$2" "$1" "$installed/lib/libshale.a" -lgcc_s -lutil -lrt -lpthread -lm -ldl
}
without_memory() { # where less than 512 MiB of NVM is what records set aside, digests free memory as fast as it is used
    local bytes
    bytes=$("$SHALE" status "$mount" --json | sed -nE 's/.*"total_bytes": *([0-9]+).*/\1/p' | head -n 1)
    timeout 120 "$host/short" "$mount" "$inside/short" $([ "${bytes:-0}" -ge 536870912 ] || echo fits)
}
records() { # records FROM TO: as the example makes them
    awk -v from="$1" -v to="$2" 'BEGIN {
        for (i = from; i < to; i++) { line = "record " i " "; while (length(line) < 127) line = line "."; print line }
    }'
}
append() { timeout 60 "$host/$1" "$mount" "$inside/log" "$2"; }
same() { records 0 "$1" | cmp - "$work/log"; }
found_by_run() { # `shale run` of an installed program finds its library
    SHALE_WARM_CALLS=0 timeout 60 "$installed/bin/shale" run --report -- dd if=/dev/zero of="$work/zeros" bs=4096 count=10 2>&1 \
        | tee /dev/stderr | grep -q 'write'
}
killed_daemon() { # the program's records survive the daemon, and it goes on with the next one
    local daemon status=0 program
    timeout 120 "$host/outage" "$mount" "$inside/outage" &
    program=$!
    until [ "$(stat -c %s "$work/outage" 2>/dev/null || echo 0)" -gt 0 ]; do
        kill -0 $program || return 1
        sleep 0.05
    done
    daemon=$(timeout 10 "$SHALE" status "$mount" --json | sed -nE 's/.*"daemon_pid": *([0-9]+).*/\1/p' | head -n 1)
    [ "$(readlink "/proc/$daemon/exe")" = "$(readlink -f "$SHALE")" ] || return 1
    kill -9 "$daemon"
    wait $program || status=$?
    return $status
}

check "make install" make -C "$root" install BUILT="$(dirname "$SHALE")" DESTDIR="$host/installed"
check "shale run finds its library where it is installed" found_by_run
check "the example compiles" compile "$root/crates/client/capi/examples/append.c" "$host/append"
check "the example compiles with the static library" \
    compile_static "$root/crates/client/capi/examples/append.c" "$host/append-static"
check "append 1000 records" append append 1000
check "the mount shows them" same 1000
check "the mount appends 10 more" eval 'records 1000 1010 >>"$work/log"'
check "the library reads them and appends 10" append append 10
check "the mount shows all" same 1020
check "the same, linked statically" append append-static 1000
check "the mount shows all of those" same 2020
check "the calls of both sides compile" compile "$root/crates/client/capi/tests/c/coherence.c" "$host/coherence"
mkdir "$work/turns"
check "every call is seen by the other side at once" timeout 120 "$host/coherence" "$mount" "$inside/turns"
check "the program without memory compiles" compile "$root/crates/client/capi/tests/c/short.c" "$host/short"
check "without memory calls are refused, nothing is lost" without_memory
check "the program of the outage compiles" compile "$root/crates/client/capi/tests/c/outage.c" "$host/outage"
check "what returned before the daemon was killed is there" killed_daemon
suite_end
