#!/usr/bin/env bash
# git on DIRECTORY: clone, commit, branch, merge, rebase, gc, worktree, fsck, clone back.
# The repository is this one; where it is shallow or has little history, one is generated.
#
#   COMMITS=40 scripts/suites/git.sh DIRECTORY
. "$(dirname "$0")/tally.sh"
suite_begin git "${1:-}"
need git
commits=${COMMITS:-40}
export GIT_CONFIG_GLOBAL=$host/gitconfig GIT_CONFIG_NOSYSTEM=1
git config --global user.name suite
git config --global user.email suite@localhost
git config --global init.defaultBranch main
git config --global gc.auto 0
git config --global advice.detachedHead false
git config --global core.fsync all
git config --global --add safe.directory '*'

generate() {
    git init -q "$host/generated"
    cd "$host/generated" || return 1
    local n
    for n in $(seq 1 30); do
        mkdir -p "d$((n % 7))/e$((n % 3))"
        seq 1 $((n * 40)) >"d$((n % 7))/e$((n % 3))/file-$n"
        seq $n 300 >"d$((n % 7))/often"
        git add -A && git commit -q -m "generated $n" || return 1
    done
}
origin=$(cd "$(dirname "$0")/../.." && git rev-parse --show-toplevel 2>/dev/null)
if [ -z "$origin" ] || [ "$(git -C "$origin" rev-parse --is-shallow-repository)" = true ] \
    || [ "$(git -C "$origin" rev-list --count HEAD)" -lt 20 ]; then
    check "generate a repository" generate
    origin=$host/generated
fi

repository=$work/repository
check "clone" git clone -q --no-local --no-hardlinks "$origin" "$repository"
cd "$repository" || { count 0 1; suite_end; }
git checkout -q -B main
git config core.checkStat default
check "clean after clone" test -z "$(git status --porcelain)"
check "same tree as the origin" test "$(git rev-parse 'HEAD^{tree}')" = "$(git -C "$origin" rev-parse 'HEAD^{tree}')"

commit_many() {
    local n
    for n in $(seq 1 "$commits"); do
        mkdir -p "suite/$((n % 5))"
        seq "$n" $((n + 500)) >"suite/$((n % 5))/$n"
        echo "$n" >>suite/log
        git add -A && git commit -q -m "suite $n" || return 1
    done
    [ "$(wc -l <suite/log)" = "$commits" ]
}
check "$commits commits" commit_many
branch_and_merge() {
    git checkout -q -b side HEAD~5 && echo side >suite/side && git add -A && git commit -q -m side \
        && git checkout -q main && git merge -q --no-edit side && test -f suite/side
}
check "branch and merge" branch_and_merge
rebase() {
    git checkout -q -b moved HEAD~3 && echo moved >moved && git add -A && git commit -q -m moved \
        && git rebase -q main && git checkout -q main && git merge -q --ff-only moved
}
check "rebase" rebase
check "clean after all that" test -z "$(git status --porcelain)"
check "fsck before gc" git fsck --full --strict
check "gc" git gc -q --prune=now
check "repack everything" git repack -q -a -d -f
check "fsck after gc" git fsck --full --strict
check "still clean" test -z "$(git status --porcelain)"
worktree() { git worktree add -q "$work/tree" HEAD~2 && git -C "$work/tree" status && git worktree remove "$work/tree"; }
check "worktree" worktree
check "clone back to the host" git clone -q --no-local --no-hardlinks "$repository" "$host/back"
check "fsck of the clone" git -C "$host/back" fsck --full --strict
check "files are the same" diff -r --exclude=.git "$repository" "$host/back"
suite_end
