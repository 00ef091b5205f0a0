//! Small files until NVM is full of their inodes: some lie below then, and all are found right.

use crate::volume::{Volume, can_mount, wait_until};
use shale_format::Ino;
use shale_format::inode::slot_of;
use shale_nvm::{Access, Map};
use shale_volume::{FoundInode, View};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const DIRECTORIES: usize = 20;
const IN_EACH: usize = 200;
/// What nothing can move out of NVM: so much that inodes which are read do not come back.
const PINNED: usize = 28 << 20;

/// What `stat` says of a file: mode, size, time of change.
type Facts = (u32, u64, i64);

/// A volume and what is on it, by name.
struct Full {
    v: Volume,
    files: BTreeMap<String, Facts>,
}

fn content(n: usize) -> Vec<u8> {
    format!("{n} ").repeat(n % 50).into_bytes()
}

impl Full {
    fn new(name: &str) -> Full {
        let below = tempfile::tempdir_in("/var/tmp").unwrap();
        let flash = below.path().join("ssd.img");
        let devices = [("--ssd", flash.as_path(), "64M")];
        let v = Volume::with_devices(name, "34M", below, &devices);
        v.mount();
        let big = v.mountpoint().join("big");
        // Before it is written: what had gone below while NVM was full of it might not fit above again.
        fs::write(&big, []).unwrap();
        v.shale(&["pin", big.to_str().unwrap(), "--tier", "nvm"])
            .ok();
        fs::write(&big, vec![7; PINNED]).unwrap();
        let mut full = Full {
            v,
            files: BTreeMap::new(),
        };
        for d in 0..DIRECTORIES {
            fs::create_dir(full.v.mountpoint().join(format!("dir-{d}"))).unwrap();
            for n in 0..IN_EACH {
                full.make(&format!("dir-{d}/file-{n}"), d * IN_EACH + n);
            }
        }
        full
    }

    fn path(&self, name: &str) -> PathBuf {
        self.v.mountpoint().join(name)
    }

    fn make(&mut self, name: &str, n: usize) {
        let (path, bytes) = (self.path(name), content(n));
        fs::write(&path, &bytes).unwrap();
        let (mode, time) = (0o600 + (n % 64) as u32, 1_000_000_000 + n as i64);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(time as u64);
        file.set_modified(at).unwrap();
        file.set_permissions(fs::Permissions::from_mode(mode))
            .unwrap();
        self.files
            .insert(name.to_owned(), (mode, bytes.len() as u64, time));
    }

    /// What NVM holds is above the mark: as long as it is, inodes go down by themselves.
    #[track_caller]
    fn wait_for_inodes_below(&self) {
        wait_until("inodes are below NVM", || {
            self.v.status()["tiers"][0]["inode_bytes"].as_u64().unwrap() > 0
        });
    }

    /// One of these inodes, on flash, and where its slot lies there. Nobody serves the volume.
    fn an_inode_below(&self, numbers: &BTreeMap<u64, String>) -> (u64, u64) {
        let segment = self.v.dir().join("nvm/seg-0000");
        let map = Map::open_files(&[segment], Access::ReadOnly).unwrap();
        let (view, _) = View::open(Arc::new(map)).unwrap();
        let place = view.device_table().unwrap().of(0)[0];
        let lies = |ino: &u64| match view.find_inode(Ino(*ino)).unwrap() {
            FoundInode::Below { addr, .. } => Some((*ino, addr)),
            _ => None,
        };
        let found = numbers.keys().find_map(lies);
        let (ino, addr) = found.expect("an inode on flash");
        (
            ino,
            place.byte_of(addr.index()) + slot_of(Ino(ino)).1 as u64,
        )
    }

    /// Names and what `stat` says are right on the mount, and for a program past it.
    #[track_caller]
    fn verify(&self) {
        let mut found = BTreeMap::new();
        for d in 0..DIRECTORIES {
            let name = format!("dir-{d}");
            for entry in fs::read_dir(self.path(&name)).unwrap() {
                let entry = entry.unwrap();
                let stat = entry.metadata().unwrap();
                let name = format!("{name}/{}", entry.file_name().to_str().unwrap());
                let facts = (stat.mode() & 0o7777, stat.size(), stat.mtime());
                found.insert(name, facts);
            }
        }
        self.compare(&found, "on the mount");
        let find = ["find", self.v.place(), "-type", "f"];
        let format = ["-name", "file-*", "-printf", "%P %m %s %Ts\n"];
        let text = self
            .v
            .shale(&[&["run", "--"], &find[..], &format[..]].concat())
            .ok();
        let facts = |line: &str| {
            let [name, mode, size, time] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let mode = u32::from_str_radix(mode, 8).unwrap();
            let facts = (mode, size.parse().unwrap(), time.parse().unwrap());
            (name.to_owned(), facts)
        };
        self.compare(&text.lines().map(facts).collect(), "under `shale run`");
    }

    #[track_caller]
    fn compare(&self, found: &BTreeMap<String, Facts>, how: &str) {
        for (name, facts) in &self.files {
            assert_eq!(found.get(name), Some(facts), "{name} {how}");
        }
        assert_eq!(found.len(), self.files.len(), "{how}");
    }

    /// Some get another mode, another name, or go, each sixteenth.
    fn change(&mut self, first: usize) {
        let names: Vec<String> = self.files.keys().skip(first).step_by(16).cloned().collect();
        for (n, name) in names.into_iter().enumerate() {
            let (path, mut facts) = (self.path(&name), self.files.remove(&name).unwrap());
            match n % 3 {
                0 => {
                    facts.0 ^= 0o100;
                    fs::set_permissions(path, fs::Permissions::from_mode(facts.0)).unwrap();
                    self.files.insert(name, facts);
                }
                1 => {
                    let to = name.replace("file-", "file-new-");
                    fs::rename(path, self.path(&to)).unwrap();
                    self.files.insert(to, facts);
                }
                _ => fs::remove_file(path).unwrap(),
            }
        }
    }
}

#[test]
fn small_files_go_on_where_nvm_is_full_of_inodes() {
    if !can_mount() {
        return;
    }
    let mut full = Full::new("inodes");
    full.wait_for_inodes_below();
    full.verify();
    full.change(3);
    full.verify();
    full.v.kill_daemon();
    full.wait_for_inodes_below();
    full.verify();
    full.change(8);
    full.v.umount();
    full.v.fsck();
    full.v.mount();
    full.wait_for_inodes_below();
    full.verify();
    full.v.shale(&["scrub", full.v.place()]).ok();
    for d in 0..DIRECTORIES {
        fs::remove_dir_all(full.path(&format!("dir-{d}"))).unwrap();
    }
    full.v.umount();
    full.v.fsck();
}

/// One slot of a block below is spoiled: its 16 inodes are EIO, and repair gives 15 back.
#[test]
fn of_a_damaged_block_below_one_inode_is_lost() {
    if !can_mount() {
        return;
    }
    let mut full = Full::new("spoiled");
    full.wait_for_inodes_below();
    let numbers: BTreeMap<u64, String> = full
        .files
        .keys()
        .map(|name| (fs::metadata(full.path(name)).unwrap().ino(), name.clone()))
        .collect();
    full.v.umount();
    let (ino, byte) = full.an_inode_below(&numbers);
    let image = full.v.below().join("ssd.img");
    let image = OpenOptions::new().read(true).write(true).open(image);
    let (image, mut there) = (image.unwrap(), [0]);
    image.read_exact_at(&mut there, byte + 70).unwrap();
    image.write_all_at(&[there[0] ^ 0x10], byte + 70).unwrap();
    drop(image);
    full.v.mount();
    for (n, name) in &numbers {
        let stat = fs::metadata(full.path(name)).map_err(|e| e.raw_os_error());
        match n / 16 == ino / 16 {
            true => assert_eq!(stat.err(), Some(Some(5)), "{name}"),
            false => assert_eq!(stat.unwrap().size(), full.files[name].1, "{name}"),
        }
    }
    full.v.umount();
    let first = ino / 16 * 16;
    let output = full.v.shale(&["fsck", full.v.file()]).failed(3);
    assert!(
        output.contains(&format!("{first} to {}", first + 15)),
        "{output}"
    );
    let output = full.v.shale(&["fsck", full.v.file(), "--repair"]).ok();
    assert!(output.contains("15 of them"), "{output}");
    full.v.fsck();
    full.files.remove(&numbers[&ino]);
    full.v.mount();
    full.verify();
    full.v.umount();
}

/// The only device below NVM is gone for good, with inodes on it: these are given up, and nothing else.
#[test]
fn inodes_on_a_device_that_is_gone_are_given_up() {
    if !can_mount() {
        return;
    }
    let full = Full::new("gone");
    full.wait_for_inodes_below();
    full.v.umount();
    fs::remove_file(full.v.below().join("ssd.img")).unwrap();
    let (v, mut gone) = (&full.v, Vec::new());
    v.shale(&["mount", v.file(), v.place()]).failed(1);
    v.shale(&["mount", "--degraded", v.file(), v.place()]).ok();
    for (name, facts) in &full.files {
        match fs::metadata(full.path(name)) {
            Ok(stat) => assert_eq!(stat.size(), facts.1, "{name}"),
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(5), "{name}");
                gone.push(name);
            }
        }
    }
    assert!(!gone.is_empty() && gone.len() < full.files.len());
    v.umount();
    let refused = v.shale(&["fsck", v.file(), "--repair"]).failed(1);
    assert!(refused.contains("--without-missing"), "{refused}");
    let repair = ["fsck", v.file(), "--repair", "--without-missing"];
    assert!(v.shale(&repair).ok().contains("lost"));
    assert!(v.shale(&repair).ok().contains("nothing to repair"));
    v.shale(&["mount", "--degraded", v.file(), v.place()]).ok();
    for (name, facts) in &full.files {
        let there = fs::metadata(full.path(name));
        match gone.contains(&name) {
            true => assert_eq!(there.unwrap_err().raw_os_error(), Some(2), "{name}"),
            false => assert_eq!(there.unwrap().size(), facts.1, "{name}"),
        }
    }
    // NVM is as full as it was, and nothing can move.
    fs::remove_file(full.path("big")).unwrap();
    for n in 0..100 {
        fs::write(full.path(&format!("new-{n}")), content(n)).unwrap();
    }
    v.umount();
    assert!(v.shale(&repair).ok().contains("nothing to repair"));
}
