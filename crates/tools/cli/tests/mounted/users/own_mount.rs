//! Mounts that a user without privilege makes: what is needed is named, and nobody else sees them unless that was asked for.

use crate::volume::{SHALE, can_mount, library};
use std::fs;
use std::process::Command;

/// In a mount namespace of its own, in which any user may open the device, as on most machines.
const SCRIPT: &str = r#"set -e
mkdir $D/dev $D/m $D/users $D/users/65534
mount -t tmpfs -o mode=755 none $D/dev
mknod -m 666 $D/dev/fuse c 10 229
: > $D/dev/fuse.conf
mount --bind $D/dev/fuse /dev/fuse
mount --bind $D/dev/fuse.conf /etc/fuse.conf
mkdir -p /run/user; mount --bind $D/users /run/user
cp $SHALE $D/shale; cp $LIBRARY $D/library.so
chmod 755 $D $D/shale $D/library.so; chmod 700 $D/users/65534; chown -R 65534:65534 $D/m $D/users/65534 $D
user="setpriv --reuid=65534 --regid=65534 --clear-groups env -u XDG_RUNTIME_DIR SHALE_PRELOAD=$D/library.so"
try() { "$@" && echo "worked: $*" || echo "refused with code $?"; }

$user $D/shale mkfs $D/V.toml --nvm $D/nvm:32M >/dev/null
echo "== others"; try $user $D/shale mount -o allow_other $D/V.toml $D/m
echo "== its own"; $user $D/shale mount $D/V.toml $D/m
$user sh -c "echo content > $D/m/file"
grep " $D/m " /proc/self/mounts
try cat $D/m/file
SHALE_WARM_CALLS=0 $user env SHALE_WARM_CALLS=0 $D/shale run --report -- dd if=/dev/zero of=$D/m/zeros bs=4096 count=20 status=none
kill -9 $($user $D/shale status $D/m --json | grep -o '"daemon_pid": *[0-9]*' | grep -o '[0-9]*$')
$user cat $D/m/file; $user stat -c 'bytes %s' $D/m/zeros
$user $D/shale umount $D/m
echo "== again, for others"; echo user_allow_other > $D/dev/fuse.conf
$user $D/shale mount -o allow_other $D/V.toml $D/m
cat $D/m/file
$user $D/shale umount $D/m; $user $D/shale fsck $D/V.toml
echo "== without a directory of the session"; rmdir $D/users/65534 || rm -r $D/users/65534
try $user $D/shale mount $D/V.toml $D/m
"#;

/// A mount of a user's own, without a word in `/etc/fuse.conf` and without `XDG_RUNTIME_DIR`.
#[test]
fn a_user_mounts_for_himself_without_privilege() {
    if !can_mount() || fs::metadata("/etc/fuse.conf").is_err() {
        eprintln!("SKIPPED: needs root, /dev/fuse and /etc/fuse.conf");
        return;
    }
    let own = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut command = Command::new("unshare");
    let arguments = [
        "-m",
        "--propagation",
        "private",
        "timeout",
        "60",
        "bash",
        "-c",
    ];
    command.args(arguments).arg(format!("({SCRIPT}) 2>&1"));
    command.env("D", own.path()).env("SHALE", SHALE);
    let done = command.env("LIBRARY", library()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{said}");
    let parts: Vec<_> = said.split("== ").collect();
    let [_, others, own, again, without] = parts[..] else {
        panic!("{said}");
    };
    assert!(
        others.contains("user_allow_other") && others.contains("refused"),
        "{others}"
    );
    assert!(!own.contains("allow_other"), "{own}");
    // Root is one of the others.
    assert!(
        own.contains("Permission denied") && own.contains("content"),
        "{own}"
    );
    assert!(
        own.contains("write                        20") && own.contains("bytes 81920"),
        "{own}"
    );
    assert!(
        again.contains("content") && again.contains("0 errors"),
        "{again}"
    );
    assert!(
        without.contains("XDG_RUNTIME_DIR") && without.contains("refused"),
        "{without}"
    );
}
