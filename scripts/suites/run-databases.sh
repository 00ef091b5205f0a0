#!/usr/bin/env bash
# RocksDB, Redis and PostgreSQL under `shale run`, each made to sync every write, looked into
# afterwards by its own checker; Redis and PostgreSQL are also killed and started again.
#
#   N=50000 SECONDS_EACH=10 scripts/suites/run-databases.sh DIRECTORY
. "$(dirname "$0")/tally.sh"
. "$(dirname "$0")/../volume.sh"
suite_begin run-databases "${1:-}"
PATH=$PATH:$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1)
need db_bench ldb redis-server redis-cli redis-benchmark redis-check-aof initdb pg_ctl pgbench setpriv
n=${N:-50000}
each=${SECONDS_EACH:-5}

rocksdb() {
    "$SHALE" run --report -- db_bench --db="$work/rocksdb" --num="$n" --sync=1 --verify_checksum=1 \
        --compression_type=none --benchmarks=fillseq,fillrandom,overwrite,readrandom,readseq,deleterandom,readwhilewriting \
        >"$host/rocksdb" 2>&1 || { tail -n 5 "$host/rocksdb"; return 1; }
    # Most writes and syncs are served in the process.
    awk '$1 == "write" || $1 == "fdatasync" { print; n++; if ($3 > $2 / 100) bad = 1 } END { exit bad || n < 2 }' "$host/rocksdb" \
        && ldb --db="$work/rocksdb" checkconsistency | grep -qx OK
}

redis() { redis-cli -s "$host/redis.sock" "$@"; }
redis_start() {
    "$SHALE" run -- redis-server --port 0 --unixsocket "$host/redis.sock" --dir "$work" --appendonly yes \
        --appendfsync always --save "" >>"$host/redis.log" 2>&1 &
    redis_process=$!
    local try
    for try in $(seq 100); do [ "$(redis ping 2>/dev/null)" = PONG ] && return; sleep 0.1; done
    tail "$host/redis.log"
    return 1
}
redis_killed() {
    redis_start || return 1
    redis-benchmark -s "$host/redis.sock" -n "$n" -c 8 -q -t set,lpush,incr | tr '\r' '\n' | grep second
    local i
    for i in $(seq 500); do echo "SET key$i value$i"; done | redis >/dev/null
    redis bgrewriteaof
    for i in $(seq 501 1000); do echo "SET key$i value$i"; done | redis >/dev/null
    kill -9 $redis_process
    wait $redis_process
    redis_start || return 1
    for i in $(seq 1000); do echo "GET key$i"; done | redis >"$host/values"
    redis shutdown nosave
    wait $redis_process
    cmp <(for i in $(seq 1000); do echo "value$i"; done) "$host/values" \
        && redis-check-aof "$work"/appendonlydir/*.manifest | grep -q 'are valid'
}

postgres_killed() { # as its own user; a client of the volume if that user owns it, else by the mount
    mkdir "$work/postgres" && chown postgres: "$work/postgres" && chmod 711 "$host" && mkdir "$host/pg" && chown postgres: "$host/pg"
    cat >"$host/pg.sh" <<'PG'
set -e
data=$1/db log=$2/server.log
export PGHOST=$2 PGUSER=postgres PGDATABASE=bench
initdb -D "$data" -A trust --data-checksums >"$2/init.log"
echo "listen_addresses=''
unix_socket_directories='$2'
shared_buffers=32MB" >>"$data/postgresql.conf"
totals() { psql -AtX -c "select (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches) and
    (select sum(delta) from pgbench_history) = (select sum(tbalance) from pgbench_tellers), (select count(*) from pgbench_history)"; }
pg_ctl -D "$data" -l "$log" -w start
createdb bench
pgbench -i -s 2 -q bench
pgbench -c 4 -j 2 -T "$3" bench | tee "$2/pgbench"
done=$(sed -nE 's/^number of transactions actually processed: ([0-9]+).*/\1/p' "$2/pgbench")
[ "$(totals)" = "t|$done" ]
pg_ctl -D "$data" -m immediate stop
pg_ctl -D "$data" -l "$log" -w start
[ "$(totals)" = "t|$done" ]
pg_ctl -D "$data" -m fast stop
pg_checksums -c -D "$data"
PG
    setpriv --reuid=postgres --regid=postgres --init-groups "$SHALE" run -- \
        bash "$host/pg.sh" "$work/postgres" "$host/pg" "$each"
}

check "RocksDB: synced writes, all read back, consistent" rocksdb
check "Redis: every append synced, killed, all there" redis_killed
check "PostgreSQL: pgbench, stopped at once, all there, checksums right" postgres_killed
suite_end
