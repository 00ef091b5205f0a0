//! A tree with everything that an inode can have, and what is seen of one.

use crate::volume::{chattr, pattern};
use rustix::fs::{AtFlags, FileType, Mode, SeekFrom, Timespec, Timestamps, XattrFlags};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

fn ran(program: &str, args: &[&str], path: &Path) {
    let status = Command::new(program).args(args).arg(path).status();
    assert!(status.unwrap().success(), "{program} {args:?}");
}

/// Makes one.
pub fn make(root: &Path) {
    let at = |name: &str| root.join(name);
    fs::create_dir(at("dir")).unwrap();
    fs::create_dir(at("dir/deeper")).unwrap();
    fs::write(at("dir/file"), pattern(1, 700_000)).unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::write(at("dir/name \n\\ \u{e4}"), "odd").unwrap();
    fs::hard_link(at("dir/file"), at("dir/deeper/link")).unwrap();
    fs::hard_link(at("dir/file"), at("a-link")).unwrap();
    symlink("dir/../nowhere", at("symbolic")).unwrap();
    let mut holes = fs::File::create(at("holes")).unwrap();
    holes.set_len(9_000_000).unwrap();
    rustix::fs::seek(&holes, SeekFrom::Start(5_000_000)).unwrap();
    holes.write_all(b"data between holes").unwrap();
    for (name, kind, device) in [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        (
            "disk",
            FileType::BlockDevice,
            rustix::fs::makedev(259, 70_001),
        ),
        (
            "terminal",
            FileType::CharacterDevice,
            rustix::fs::makedev(4, 5),
        ),
    ] {
        let mode = Mode::RUSR | Mode::WGRP;
        rustix::fs::mknodat(rustix::fs::CWD, at(name), kind, mode, device).unwrap();
    }
    let set = |name: &str, attribute: &str, value: &[u8]| {
        let flags = XattrFlags::empty();
        rustix::fs::lsetxattr(at(name), attribute, value, flags).unwrap();
    };
    set("dir", "user.colour", b"blue");
    set("dir/file", "user.bytes", &[0, 255, 10]);
    set("dir/file", "trusted.root", b"only");
    set("symbolic", "trusted.link", b"too");
    ran(
        "setfacl",
        &["-m", "u:nobody:r,g:daemon:rw"],
        &at("dir/file"),
    );
    ran("setfacl", &["-d", "-m", "u:nobody:rx"], &at("dir"));
    ran("setcap", &["cap_net_raw+ep"], &at("empty"));
    for (name, uid, gid) in [("dir/deeper", 5, 6), ("symbolic", 7, 8), ("fifo", 9, 10)] {
        std::os::unix::fs::lchown(at(name), Some(uid), Some(gid)).unwrap();
    }
    fs::set_permissions(at("dir/deeper"), fs::Permissions::from_mode(0o7751)).unwrap();
    for (n, name) in ["dir/file", "symbolic", "fifo", "dir/deeper", "holes"]
        .iter()
        .enumerate()
    {
        let time = |s: i64, ns| Timespec {
            tv_sec: s,
            tv_nsec: ns,
        };
        let times = Timestamps {
            last_access: time(-5 + n as i64, 999_999_999),
            last_modification: time(1_000_000_000 * n as i64, 1),
        };
        rustix::fs::utimensat(rustix::fs::CWD, at(name), &times, AtFlags::SYMLINK_NOFOLLOW)
            .unwrap();
    }
}

/// Has chattr(1) set flags.
pub fn set_flags(root: &Path) {
    assert!(chattr("+i", &root.join("dir/file")) && chattr("+a", &root.join("holes")));
    assert!(chattr("+S", &root.join("dir")) && chattr("+d", &root.join("dir/deeper")));
}

/// Takes those away again that forbid to remove the tree.
pub fn clear_flags(root: &Path) {
    let _ = chattr("-i", &root.join("dir/file")) && chattr("-a", &root.join("holes"));
}

fn xattrs(path: &Path) -> String {
    let mut names = vec![0; 65536];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let mut all = BTreeMap::new();
    for name in names[..length].split(|&b| b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0; 65536];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        all.insert(
            String::from_utf8_lossy(name).into_owned(),
            value[..length].to_vec(),
        );
    }
    format!("{all:?}")
}

fn content(path: &Path, meta: &fs::Metadata) -> String {
    let kind = meta.file_type();
    if kind.is_symlink() {
        return format!("{:?}", fs::read_link(path).unwrap());
    }
    if !kind.is_file() {
        let special = [kind.is_fifo(), kind.is_socket(), kind.is_block_device()];
        return format!("{special:?} {}", meta.rdev());
    }
    let bytes = fs::read(path).unwrap();
    let sum = bytes.iter().fold(7u64, |sum, &b| {
        (sum ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{} {sum:x} {}", bytes.len(), meta.blocks())
}

fn flags(path: &Path, meta: &fs::Metadata) -> String {
    match meta.is_file() || meta.is_dir() {
        true => crate::volume::lsattr(path),
        false => String::new(),
    }
}

/// What is seen of a tree, by path.
pub fn seen(root: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut first: BTreeMap<u64, String> = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let name = format!("{:?}", path.strip_prefix(root).unwrap());
        if meta.is_dir() {
            let mut inside: Vec<_> = fs::read_dir(&path)
                .unwrap()
                .map(|e| e.unwrap().path())
                .collect();
            inside.sort();
            waiting.extend(inside);
        }
        let same = match meta.is_dir() {
            true => String::new(),
            false => first.entry(meta.ino()).or_insert(name.clone()).clone(),
        };
        let seen = format!(
            "mode {:o} of {}:{}, {} names as {same}, changed {}.{:09}, holds {}, has {}, flags {}",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.nlink(),
            meta.mtime(),
            meta.mtime_nsec(),
            content(&path, &meta),
            xattrs(&path),
            flags(&path, &meta),
        );
        all.insert(name, seen);
    }
    all
}

/// That two trees are seen alike.
#[track_caller]
pub fn assert_same(one: &Path, other: &Path) {
    compare(&seen(one), &seen(other));
}

/// The same of what is in two directories.
#[track_caller]
pub fn assert_same_below(one: &Path, other: &Path) {
    let below = |root| {
        let mut all = seen(root);
        all.remove("\"\"");
        all
    };
    compare(&below(one), &below(other));
}

#[track_caller]
fn compare(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>) {
    for (name, seen) in one {
        assert_eq!(Some(seen), other.get(name), "{name}");
    }
    assert_eq!(one.len(), other.len(), "{:?}", other.keys());
}
