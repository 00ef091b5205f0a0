//! A file whose inode is damaged is the only one that is, and `fsck` finds damage.

use crate::volume::{Volume, can_mount};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};

const INODE_BYTES: usize = 256;

/// Spoils the slot of an inode: it begins with the number and the mode.
fn damage(v: &Volume, ino: u64, mode: u32) {
    let segment = v.dir().join("nvm/seg-0000");
    let bytes = fs::read(&segment).unwrap();
    let head = [&ino.to_le_bytes()[..], &mode.to_le_bytes()].concat();
    let slots = bytes.chunks(INODE_BYTES);
    let slot = slots.clone().position(|s| s.starts_with(&head)).unwrap();
    assert_eq!(slots.filter(|s| s.starts_with(&head)).count(), 1);
    let at = slot * INODE_BYTES + 70;
    let file = OpenOptions::new().write(true).open(segment).unwrap();
    file.write_all_at(&[bytes[at] ^ 0x10], at as u64).unwrap();
}

#[test]
fn a_damaged_inode_leaves_the_rest_of_its_directory() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("damaged");
    v.mount();
    let dir = v.mountpoint().join("dir");
    fs::create_dir(&dir).unwrap();
    let names: Vec<String> = (0..8).map(|n| format!("file-{n}")).collect();
    for name in &names {
        fs::write(dir.join(name), name).unwrap();
    }
    let damaged = fs::metadata(dir.join(&names[3])).unwrap();
    v.umount();
    damage(&v, damaged.ino(), damaged.mode());
    v.mount();
    let listed = fs::read_dir(&dir).unwrap();
    let name = |e: std::io::Result<fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
    let mut listed: Vec<String> = listed.map(name).collect();
    listed.sort();
    assert_eq!(listed, names);
    for (n, name) in names.iter().enumerate() {
        match fs::read_to_string(dir.join(name)) {
            Ok(found) => assert!(n != 3 && found == *name),
            Err(e) => assert_eq!((n, e.raw_os_error()), (3, Some(5))),
        }
    }
    v.umount();
    let repaired = v.shale(&["fsck", v.file(), "--repair"]).ok();
    assert!(repaired.contains("file-3"), "{repaired}");
    v.fsck();
}

#[test]
fn fsck_finds_damage() {
    let v = Volume::new("damage");
    v.fsck();
    let report = v.shale(&["fsck", v.file(), "--json"]).ok();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["errors"], 0);
    assert_eq!(report["totals"]["inodes"], 2);
    let segment = v.dir().join("nvm/seg-0000");
    let segment = fs::OpenOptions::new().write(true).open(segment).unwrap();
    // The root block.
    segment.write_all_at(&[0xff; 512], 4096).unwrap();
    let damaged = v.shale(&["fsck", v.file()]).failed(3);
    assert!(
        damaged.contains("NOT clean") && damaged.contains("error"),
        "{damaged}"
    );
}
