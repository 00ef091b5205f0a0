//! `chattr`: what immutable and append-only forbid on the mount and under `shale run`, compared with what ext4
//! (Linux 6.18) returned to the same program; and that flags outlive daemon and mount.

use super::beside_ext4::compare;
use crate::volume::{self, Volume, with_library};
use std::fs;
use std::io::ErrorKind;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mounted/linux/flags.py");
/// The kernel does not ask a FUSE server about opening, so what ext4 refuses at that is refused at the first write: also
/// by a descriptor without `O_APPEND` of what is appended only, which on ext4 can be there from before.
const OTHERS: [(&str, &str); 5] = [
    (
        "0x10 file: open to append: EPERM",
        "0x10 file: open to append: ok",
    ),
    (
        "0x30 file: open to append: EPERM",
        "0x30 file: open to append: ok",
    ),
    ("0x20 file: write: ok", "0x20 file: write: EPERM"),
    (
        "0x20 file: write behind the end: ok",
        "0x20 file: write behind the end: EPERM",
    ),
    // ext4 takes the flag and does nothing.
    ("compression: ok", "compression: ENOTSUP"),
];

fn chattr(v: &Volume, flags: &str, name: &str) -> bool {
    volume::chattr(flags, &v.mountpoint().join(name))
}

#[test]
fn flags_forbid_what_they_forbid_on_ext4() {
    let Some(v) = with_library("flags") else {
        return;
    };
    compare(&v, PROGRAM, include_str!("flags.ext4"), &OTHERS);
    v.umount();
    v.fsck();
}

#[test]
fn flags_outlive_the_daemon_and_the_mount() {
    let Some(v) = with_library("flags-stay") else {
        return;
    };
    let at = |name: &str| v.mountpoint().join(name);
    fs::create_dir(at("log")).unwrap();
    for name in ["fixed", "log/lines", "both"] {
        fs::write(at(name), name).unwrap();
    }
    assert!(chattr(&v, "+i", "fixed") && chattr(&v, "+ad", "log") && chattr(&v, "+a", "log/lines"));
    fs::create_dir(at("tree")).unwrap();
    assert!(chattr(&v, "+SD", "tree"));
    assert!(chattr(&v, "+iA", "both") && chattr(&v, "-i", "both"));
    let check = |when: &str| {
        let said =
            ["fixed", "log", "log/lines", "both", "tree"].map(|name| volume::lsattr(&at(name)));
        assert_eq!(said, ["i", "ad", "a", "A", "SD"], "{when}");
        let refused = |e: std::io::Error| assert_eq!(e.raw_os_error(), Some(libc::EPERM), "{when}");
        refused(fs::remove_file(at("fixed")).unwrap_err());
        refused(fs::write(at("fixed"), "x").unwrap_err());
        refused(fs::remove_file(at("log/lines")).unwrap_err());
        let missing = fs::remove_file(at("nothing")).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    };
    check("at once");
    v.shale(&["digest", v.place()]).ok();
    check("digested");
    v.kill_daemon();
    check("after a kill");
    assert!(!chattr(&v, "+c", "both"), "compression there is not");
    v.umount();
    v.fsck();
    v.mount();
    check("after a mount");
    assert!(chattr(&v, "-i", "fixed") && chattr(&v, "-a", "log") && chattr(&v, "-a", "log/lines"));
    fs::remove_dir_all(at("log")).unwrap();
    fs::remove_file(at("fixed")).unwrap();
    v.umount();
    v.fsck();
}
