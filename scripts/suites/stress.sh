#!/usr/bin/env bash
# stress-ng's file-system stressors, one after another, each verifying what it did.
#
#   STRESS_SECONDS=5 WORKERS=2 scripts/suites/stress.sh DIRECTORY   (in full: 60)
#   STRESSORS="rename xattr" …   only these
. "$(dirname "$0")/tally.sh"
suite_begin stress "${1:-}"
need stress-ng

# stress-ng's class "filesystem", written down so that another version of stress-ng does not
# change what is tested, and those of its class "io" that work on files. Not here: what touches
# nothing below --temp-path (binderfs, eventfd, ioprio) and what stress-ng itself disables
# because it may hang the machine (bind-mount).
stressors=${STRESSORS:-"access chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify
    dup fallocate fanotify fcntl fiemap file-ioctl filename flock fpunch fsize fstat getdent handle
    hdd inode-flags inotify io iomix lease link locka lockf lockofd mknod open procfs rename symlink
    sync-file touch utime verity xattr aio aiol msync readahead revio seek sendfile splice"}

skipped=()
for stressor in $stressors; do
    timeout -k 10 $((${STRESS_SECONDS:-5} + ${GRACE_SECONDS:-120})) \
        stress-ng --temp-path "$work" --verify --timeout "${STRESS_SECONDS:-5}" \
        --"$stressor" "${WORKERS:-2}" >"$host/log" 2>&1
    status=$?
    if grep -qE 'skipped: *[1-9]' "$host/log" || [ $status = 3 ] || [ $status = 4 ]; then
        skipped+=("$stressor")
    elif [ $status = 0 ] && ! grep -qE '(fail|error):' "$host/log"; then
        count 1 0
        [ "${VERBOSE:-}" = 1 ] && echo "ok      $stressor"
    else
        count 0 1
        echo "FAILED  $stressor (exit $status)"
        grep -E 'fail|error|unexpected' "$host/log" | head -n 8 | sed 's/^/        /'
    fi
    rm -rf "${work:?}"/* 2>/dev/null
done
[ ${#skipped[@]} -gt 0 ] && echo "skipped by stress-ng here: ${skipped[*]}"
suite_end
