#!/usr/bin/env bash
# A real C project (zlib) configured, built with make -j and tested on DIRECTORY;
# its objects must equal those built on the host, and a second make must find nothing to do.
#
#   JOBS=2 scripts/suites/make.sh DIRECTORY
. "$(dirname "$0")/tally.sh"
suite_begin make "${1:-}"
need make gcc
source=$tools/src/zlib
if [ ! -d "$source" ]; then
    echo "make: no sources; run scripts/install-deps.sh --suites" >&2
    echo "0 passed, 1 failed"
    exit 1
fi
unset CARGO_MAKEFLAGS MAKEFLAGS MFLAGS MAKELEVEL

build() { # build WHERE: in a directory of the same name, so that paths in objects agree
    cp -a "$source" "$1/zlib" && cd "$1/zlib" && ./configure && make -j "${JOBS:-2}"
}
tests() { cd "$work/zlib" && make test && ! make test 2>&1 | grep -i fail; }
settled() { cd "$work/zlib" && make -q all; }
objects() { # same names, same bytes
    local object
    for object in $(cd "$host/zlib" && find . -name '*.o' -o -name '*.a' -o -name '*.so.*'); do
        cmp "$host/zlib/$object" "$work/zlib/$object" || return 1
    done
}
rebuild() { cd "$work/zlib" && sleep 0.05 && touch zutil.h && ! make -q all && make -j "${JOBS:-2}" && make -q all; }
clean() { cd "$work/zlib" && make distclean && ! find . -name '*.o' | grep .; }

check "build on the host" build "$host"
check "configure and make" build "$work"
check "make has nothing left to do" settled
check "objects as built on the host" objects
check "make test" tests
check "touch a header, make again" rebuild
check "distclean" clean
suite_end
