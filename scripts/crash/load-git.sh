#!/usr/bin/env bash
# Commits one change after another and logs each commit after git returned.
#
#   load-git.sh run DIRECTORY HOST      until HOST/stop exists; log: HOST/git.log
#   load-git.sh verify DIRECTORY HOST   every logged commit is there, in order, and fsck is clean
#
# SYNC=1: the file system is synced (by the command SYNC_WITH, else by sync -f) before a commit is logged, for git does not sync the directory of a reference.
set -euo pipefail
verb=$1 directory=$2 host=$3
repository=$directory/repository
export GIT_CONFIG_GLOBAL=$host/gitconfig GIT_CONFIG_NOSYSTEM=1
cat >"$GIT_CONFIG_GLOBAL" <<'CONFIG'
[user]
    name = load
    email = load@localhost
[core]
    fsync = all
[gc]
    auto = 0
[init]
    defaultBranch = main
[safe]
    directory = *
CONFIG

run() {
    if [ ! -s "$host/git.log" ]; then # nothing was ever promised about what may be there
        rm -rf "$repository"
        git init -q "$repository"
    fi
    cd "$repository"
    # Left behind by a git that was killed with its file system; the second one by gc, which refuses to go on with it.
    find .git \( -name '*.lock' -o -name packed-refs.new \) -delete
    local n
    n=$(git rev-list --count HEAD 2>/dev/null || echo 0)
    while [ ! -e "$host/stop" ]; do
        n=$((n + 1))
        seq "$n" $((n + 200)) >"file-$((n % 10))"
        echo "$n" >>history
        git add -A
        git commit -q --allow-empty -m "$n"
        [ -z "${SYNC:-}" ] || ${SYNC_WITH:-sync -f .} >/dev/null
        git rev-parse --verify HEAD >>"$host/git.log"
        [ $((n % 50)) != 0 ] || git gc -q --prune=now
    done
}

verify() {
    cd "$repository"
    find .git -name '*.lock' -delete
    git fsck --full --strict --no-dangling --no-progress
    # Oldest first. At most one commit is there whose return was not seen, at the end of each run.
    git rev-list --reverse HEAD >"$host/git.found"
    diff <(grep -Fx -f "$host/git.log" "$host/git.found") "$host/git.log"
    echo "$(wc -l <"$host/git.log") commits logged, $(wc -l <"$host/git.found") there, none lost"
}

"$verb"
