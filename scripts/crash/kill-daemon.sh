#!/usr/bin/env bash
# Kills the daemon with -9 at random moments under four loads. No load may see an error, and
# everything that had returned must be there afterwards.
#
#   ROUNDS=10 scripts/crash/kill-daemon.sh                 (in full: ROUNDS=100)
#   ROUNDS=10 scripts/crash/kill-daemon.sh --supervisor    kills the supervisor too: then the loads
#       do fail; the volume is mounted anew and must hold everything that had returned
#   ROUNDS=10 scripts/crash/kill-daemon.sh --run           the loads are clients themselves (`shale run`)
#   SEED=n repeats the moments of a run, SIZE=1GiB is the volume's, MKFS="…" goes to mkfs
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../volume.sh"
kill_supervisor=no
run=()
for argument in "$@"; do
    case $argument in
        --supervisor) kill_supervisor=yes ;;
        # At once, so that every call is one that a dead daemon could lose.
        --run) run=(env SHALE_WARM_CALLS=0 "$SHALE" run --) ;;
        *) echo "usage: $0 [--supervisor] [--run]" >&2; exit 2 ;;
    esac
done
rounds=${ROUNDS:-10}
seed=${SEED:-$$}
RANDOM=$seed
read -r -a loads <<<"${LOADS:-sqlite tar git append}"
declare -A load_process
passed=0
failed=0
host=$(mktemp -d "${TMPDIR:-/tmp}/shale-crash.XXXXXX")

report() { # report "what" STATUS
    if [ "$2" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    [ "$2" = 0 ] || echo "FAILED  $1"
}

clean() {
    touch "$host/stop"
    local name
    for name in "${loads[@]}"; do
        [ -n "${load_process[$name]:-}" ] && kill -9 -- "-${load_process[$name]}" 2>/dev/null
    done
    volume_end
    [ "${KEEP:-}" = 1 ] || rm -rf "$host"
}
trap clean EXIT
trap 'exit 130' INT TERM

load() { # load NAME VERB
    case $1 in
        sqlite | append) "${run[@]}" python3 "$here/load-$1.py" "$2" "$mount" "$host" ;;
        *) "${run[@]}" "$here/load-$1.sh" "$2" "$mount" "$host" ;;
    esac
}

start_loads() {
    rm -f "$host/stop"
    local name
    for name in "${loads[@]}"; do
        # A process group of its own, so that a git of the load ends with it.
        set -m
        load "$name" run >"$host/$name.output" 2>&1 &
        load_process[$name]=$!
        set +m
    done
}

log_lines() { if [ -f "$host/$1.log" ]; then wc -l <"$host/$1.log"; else echo 0; fi; }

loads_move_on() { # each load logs something new, within a minute
    local name before deadline=$(($(date +%s) + 60))
    for name in "${loads[@]}"; do
        before=$(log_lines "$name")
        while [ "$(log_lines "$name")" -le "$before" ]; do
            if ! kill -0 "${load_process[$name]}" 2>/dev/null; then
                echo "the $name load ended:"
                tail -n 5 "$host/$name.output" | sed 's/^/        /'
                return 1
            fi
            if [ "$(date +%s)" -ge "$deadline" ]; then
                echo "the $name load hangs"
                return 1
            fi
            sleep 0.05
        done
    done
}

moment() { # up to two seconds; drawn in this shell, for a subshell draws other numbers
    local wait
    printf -v wait '%d.%03d' $((RANDOM % 2)) $((RANDOM % 1000))
    sleep "$wait"
}

verify_loads() {
    local name
    for name in "${loads[@]}"; do
        load "$name" verify >"$host/verify" 2>&1
        report "$name: what had returned is there" $?
        sed 's/^/        /' <(tail -n 8 "$host/verify")
    done
}

one_kill() {
    moment
    local process next begin deadline
    process=$(status_field daemon_pid)
    [ -n "$process" ] || { echo "status names no daemon_pid"; return 1; }
    begin=$(date +%s%N)
    kill -9 "$process" || return 1
    deadline=$(($(date +%s) + 30))
    while next=$(status_field daemon_pid); [ -z "$next" ] || [ "$next" = "$process" ]; do
        [ "$(date +%s)" -lt $deadline ] || { echo "no new daemon within 30 s"; return 1; }
        sleep 0.02
    done
    pauses+=($((($(date +%s%N) - begin) / 1000000)))
    daemon_processes+=("$next")
    loads_move_on
}

one_outage() {
    moment
    local supervisor process name
    supervisor=$(status_field supervisor_pid)
    process=$(status_field daemon_pid)
    [ -n "$supervisor" ] && [ -n "$process" ] || { echo "status names no supervisor_pid, daemon_pid"; return 1; }
    kill -9 "$supervisor" "$process" || return 1
    # Their file system is gone: the loads end with an error, or are ended.
    sleep 0.2
    for name in "${loads[@]}"; do
        kill -9 -- "-${load_process[$name]}" 2>/dev/null
        wait "${load_process[$name]}" 2>/dev/null
    done
    umount -l "$mount" || fusermount3 -uz "$mount" || return 1
    volume_mount || return 1
}

volume_begin crash "${SIZE:-1GiB}" --durability strict ${MKFS:-} && volume_mount
if [ $? != 0 ]; then
    echo "0 passed, 1 failed"
    exit 1
fi
echo "== kill-daemon: $rounds rounds, SEED=$seed, supervisor too: $kill_supervisor, ${run[*]:-on the mount}"
pauses=()
start_loads
loads_move_on
report "the loads start" $?
for ((round = 1; round <= rounds && failed == 0; round++)); do
    if [ $kill_supervisor = yes ]; then
        one_outage
        report "round $round: mounted anew" $?
        verify_loads
        start_loads
        loads_move_on
        report "round $round: the loads go on" $?
    else
        one_kill
        report "round $round: no load saw the daemon die" $?
    fi
done

touch "$host/stop"
for name in "${loads[@]}"; do
    # A load that hangs is not waited for longer than a minute.
    for ((n = 0; n < 600; n++)); do kill -0 "${load_process[$name]}" 2>/dev/null || break; sleep 0.1; done
    kill -9 -- "-${load_process[$name]}" 2>/dev/null
    wait "${load_process[$name]}"
    status=$?
    report "$name load ends without an error" $status
    [ $status = 0 ] || tail -n 5 "$host/$name.output" | sed 's/^/        /'
done
verify_loads
volume_umount
report "umount" $?
volume_fsck >"$host/fsck" 2>&1
status=$?
report "fsck" $status
[ $status = 0 ] || tail -n 20 "$host/fsck"
if [ ${#pauses[@]} -gt 0 ]; then
    printf '%s\n' "${pauses[@]}" | sort -n | awk '{ p[NR] = $1 } END {
        printf "kill to answering again: median %d ms, worst %d ms, %d kills\n", p[int((NR + 1) / 2)], p[NR], NR }'
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
