#!/usr/bin/env bash
# SQLite in its three common journal modes: transactions, rollbacks, a reader beside a writer,
# VACUUM, integrity_check; the result is compared with the same statements run in memory.
#
#   ROWS=2000 scripts/suites/sqlite.sh DIRECTORY
. "$(dirname "$0")/tally.sh"
suite_begin sqlite "${1:-}"
need sqlite3
rows=${ROWS:-2000}

statements() {
    echo "CREATE TABLE book(id INTEGER PRIMARY KEY, name TEXT, page BLOB);"
    echo "CREATE INDEX by_name ON book(name);"
    awk -v rows="$rows" 'BEGIN {
        for (i = 1; i <= rows; i++) {
            if (i % 20 == 1) print "BEGIN;";
            printf "INSERT INTO book VALUES(%d, printf(\"name-%%05d\", %d), zeroblob(%d));\n",
                i, (i * 7919) % rows, (i * 37) % 3000;
            if (i % 3 == 0) printf "UPDATE book SET name = name || \"-again\" WHERE id = %d;\n", i / 3;
            if (i % 5 == 0) printf "DELETE FROM book WHERE id = %d;\n", i / 5;
            # Every tenth transaction is rolled back: its journal is the one that counts.
            if (i % 20 == 0) print (i % 200 == 0) ? "ROLLBACK;" : "COMMIT;";
        }
    }'
    # ROWS need not be a multiple of 20.
    [ $((rows % 20)) = 0 ] || echo "COMMIT;"
}
statements >"$host/statements.sql"
{ cat "$host/statements.sql"; echo ".dump"; } | sqlite3 :memory: >"$host/expected"

load() { # load MODE
    { echo "PRAGMA journal_mode=$1;"; echo "PRAGMA synchronous=FULL;"; cat "$host/statements.sql"; } \
        | sqlite3 -bail "$work/$1.db" >"$host/mode" && [ "$(head -n 1 "$host/mode")" = "${1,,}" ]
}
same() { sqlite3 "$work/$1.db" .dump >"$host/found" && cmp "$host/expected" "$host/found"; }
whole() { [ "$(sqlite3 "$work/$1.db" 'PRAGMA integrity_check;' | tee /dev/stderr)" = ok ]; }

beside() { # a writer and two readers at once; readers see committed states only
    local mode=$1 reader file=$work/$1-beside.db
    # SQLite answers "busy" at once in some lock orders whatever the timeout, hence IMMEDIATE.
    sqlite3 "$file" "PRAGMA journal_mode=$mode; CREATE TABLE pair(a, b); INSERT INTO pair VALUES(0, 0);" || return 1
    ( for i in $(seq 1 100); do
        echo "BEGIN IMMEDIATE; UPDATE pair SET a = $i; UPDATE pair SET b = $i; COMMIT;"
      done | sqlite3 -bail -cmd '.timeout 30000' "$file" ) &
    local writer=$!
    local readers=()
    for reader in 1 2; do
        ( for i in $(seq 1 100); do echo "SELECT CASE WHEN a = b THEN 'same' ELSE 'torn' END FROM pair;"; done \
            | sqlite3 -bail -cmd '.timeout 30000' "$file" >"$host/reader-$reader" ) &
        readers+=($!)
    done
    wait $writer || { echo "the writer failed"; return 1; }
    local process
    for process in "${readers[@]}"; do wait "$process" || { echo "a reader failed"; return 1; }; done
    ! grep -v '^same$' "$host/reader-1" "$host/reader-2" \
        && [ "$(sqlite3 "$file" 'SELECT a, b FROM pair;')" = "100|100" ]
}

for mode in DELETE WAL TRUNCATE; do
    check "$mode: $rows rows in transactions" load "$mode"
    check "$mode: same as in memory" same "$mode"
    check "$mode: integrity_check" whole "$mode"
    check "$mode: a writer and two readers" beside "$mode"
    check "$mode: VACUUM" sqlite3 "$work/$mode.db" "VACUUM;"
    check "$mode: same after VACUUM" same "$mode"
    check "$mode: integrity_check after VACUUM" whole "$mode"
    check "$mode: copy by .backup" sqlite3 "$work/$mode.db" ".backup '$work/$mode-copy.db'"
    check "$mode: the copy is the same" cmp <(sqlite3 "$work/$mode-copy.db" .dump) "$host/expected"
    check "$mode: no journal left" test ! -s "$work/$mode.db-journal"
done
suite_end
