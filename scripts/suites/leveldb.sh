#!/usr/bin/env bash
# LevelDB's own tests, from the distribution's source package, with their databases in DIRECTORY.
# Built once into SHALE_TOOLS.
#
#   TESTS="db_test env_posix_test" …   only these programs
#   GTEST_FILTER=… is honoured, as by any such test
. "$(dirname "$0")/tally.sh"
suite_begin leveldb "${1:-}"
need cmake g++
source=$tools/src/leveldb
build=$tools/build/leveldb
if [ ! -d "$source" ]; then
    echo "leveldb: no sources; run scripts/install-deps.sh --suites" >&2
    echo "0 passed, 1 failed"
    exit 1
fi

build_leveldb() {
    # -O1: the tests are many small programs, and building is most of the time.
    cmake -S "$source" -B "$build.new" -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_STANDARD=17 \
        -DCMAKE_CXX_FLAGS=-O1 -DCMAKE_C_FLAGS=-O1 -DLEVELDB_BUILD_BENCHMARKS=OFF -DLEVELDB_BUILD_TESTS=ON \
        && cmake --build "$build.new" -j "${JOBS:-2}" \
        && rm -rf "$build" && mv "$build.new" "$build"
}
if [ ! -d "$build" ]; then
    echo "building LevelDB's tests into $build"
    if ! build_leveldb >"$host/build" 2>&1; then
        tail -n 30 "$host/build"
        echo "0 passed, 1 failed"
        exit 1
    fi
fi

export TEST_TMPDIR=$work
# db_test runs benchmarks after its tests; not here.
export BENCHMARK_FILTER=NONE
for program in "$build"/*_test; do
    name=$(basename "$program")
    case " ${TESTS:-$name} " in *" $name "*) ;; *) continue ;; esac
    if [ "$name" = c_test ]; then # the one that counts nothing
        check c_test "$program"
        continue
    fi
    timeout "${LIMIT_SECONDS:-600}" "$program" >"$host/$name" 2>&1
    status=$?
    ok=$(sed -nE 's/^\[  PASSED  \] ([0-9]+) tests?\..*/\1/p' "$host/$name")
    bad=$(sed -nE 's/^\[  FAILED  \] ([0-9]+) tests?, listed below:.*/\1/p' "$host/$name")
    # A program that died before its summary is one failure.
    [ -z "$ok" ] || [ $status -gt 1 ] && bad=$((${bad:-0} + 1))
    count "${ok:-0}" "${bad:-0}"
    if [ "${bad:-0}" != 0 ]; then
        echo "FAILED  $name (exit $status)"
        grep -E 'Failure|^\[  FAILED  \]' -A 4 "$host/$name" | head -n 30 | sed 's/^/        /'
    fi
    rm -rf "${work:?}"/*
done
suite_end
