//! A volume goes on without a device that is not there, takes it back, or gives it up.

use super::devices::{FILE_BYTES, below, device, file, fill, live, move_down};
use crate::volume::{Volume, can_mount, pattern, shale};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const FILES: usize = 16;

/// A volume with files on two devices, which is not mounted.
struct Two {
    v: Volume,
    a: PathBuf,
    b: PathBuf,
}

impl Two {
    fn new(name: &str) -> Two {
        let dir = below();
        let (a, b) = (dir.path().join("a.img"), dir.path().join("b.img"));
        let all = [("--ssd", a.as_path(), "48M"), ("--ssd", b.as_path(), "48M")];
        let two = Two {
            v: Volume::with_devices(name, "64M", dir, &all),
            a,
            b,
        };
        two.v.mount();
        fill(&two.v, 0..FILES);
        move_down(&two.v);
        assert!(live(&two.v, &two.a) > 8 << 20 && live(&two.v, &two.b) > 8 << 20);
        two.v.umount();
        two
    }

    fn aside(&self) -> PathBuf {
        self.b.with_extension("aside")
    }

    /// Mounts without `b`; what is said names it.
    #[track_caller]
    fn mount_without(&self) {
        let (v, b) = (&self.v, self.b.to_str().unwrap());
        let refused = shale(&["mount", v.file(), v.place()]).failed(1);
        assert!(
            refused.contains(b) && refused.contains("--degraded"),
            "{refused}"
        );
        let said = shale(&["mount", "--degraded", v.file(), v.place()]).ok();
        assert!(said.contains(&format!("without {b}")), "{said}");
        assert_eq!(device(v, &self.b)["state"], "missing");
    }

    /// Reads all files: each is right or EIO, and EIO are those that `where` names.
    #[track_caller]
    fn lost(&self) -> BTreeSet<PathBuf> {
        let (v, mut lost) = (&self.v, BTreeSet::new());
        for n in 0..FILES {
            match fs::read(file(v, n)) {
                Ok(bytes) => assert!(bytes == pattern(n, FILE_BYTES), "file {n}"),
                Err(e) if e.raw_os_error() == Some(5) => drop(lost.insert(file(v, n))),
                Err(e) => panic!("file {n}: {e}"),
            }
        }
        let there = ["where", v.place(), "--device", self.b.to_str().unwrap()];
        let text = v.shale(&[&there[..], &["--json"]].concat()).ok();
        let named: Vec<Value> = serde_json::from_str(&text).unwrap();
        let path = |one: &Value| PathBuf::from(one["path"].as_str().unwrap());
        assert_eq!(named.iter().map(path).collect::<BTreeSet<_>>(), lost);
        assert!(!lost.is_empty() && lost.len() < FILES);
        lost
    }
}

#[test]
fn a_volume_goes_on_without_a_device_and_with_it_again() {
    if !can_mount() {
        return;
    }
    let t = Two::new("degraded");
    let old = t.b.with_extension("old");
    fs::copy(&t.b, &old).unwrap();
    t.v.mount();
    t.v.umount();
    fs::rename(&t.b, t.aside()).unwrap();
    t.mount_without();
    let lost = t.lost();
    // What is new goes elsewhere; what was there can be removed.
    fs::remove_file(lost.first().unwrap()).unwrap();
    fs::write(t.v.mountpoint().join("new"), pattern(100, FILE_BYTES)).unwrap();
    move_down(&t.v);
    t.v.kill_daemon();
    assert_eq!(
        fs::read(t.v.mountpoint().join("new")).unwrap(),
        pattern(100, FILE_BYTES)
    );
    let b = t.b.to_str().unwrap();
    for verb in ["evacuate", "remove"] {
        let said = t.v.shale(&["device", verb, t.v.place(), b]).failed(1);
        assert!(said.contains("--device"), "{verb}: {said}");
    }
    t.v.umount();
    let said = shale(&["fsck", t.v.file()]).failed(3);
    assert!(said.contains("--degraded"), "{said}");
    // A copy from before it was used last is not what comes back.
    fs::rename(&old, &t.b).unwrap();
    let said = shale(&["mount", t.v.file(), t.v.place()]).failed(1);
    assert!(said.contains("it is older"), "{said}");
    t.mount_without();
    t.v.umount();
    fs::rename(t.aside(), &t.b).unwrap();
    for _ in 0..2 {
        t.v.mount();
        assert_eq!(device(&t.v, &t.b)["state"], "in use");
        for n in (0..FILES).filter(|n| file(&t.v, *n) != *lost.first().unwrap()) {
            assert!(
                fs::read(file(&t.v, n)).unwrap() == pattern(n, FILE_BYTES),
                "file {n}"
            );
        }
        t.v.shale(&["scrub", t.v.place()]).ok();
        t.v.umount();
        t.v.fsck();
    }
}

#[test]
fn a_device_that_is_gone_for_good_is_removed() {
    if !can_mount() {
        return;
    }
    let t = Two::new("forgotten");
    fs::remove_file(&t.b).unwrap();
    t.mount_without();
    for path in t.lost() {
        fs::remove_file(path).unwrap();
    }
    t.v.shale(&["digest", t.v.place()]).ok();
    let b = t.b.to_str().unwrap();
    t.v.shale(&["device", "remove", t.v.place(), b]).ok();
    t.v.umount();
    t.v.fsck();
    assert!(!fs::read_to_string(t.v.file()).unwrap().contains("b.img"));
    t.v.mount();
    fill(&t.v, 0..8);
    move_down(&t.v);
    assert!(live(&t.v, &t.a) > 8 << 20);
    t.v.shale(&["scrub", t.v.place()]).ok();
    t.v.umount();
    t.v.fsck();
}

#[test]
fn a_mount_whose_device_goes_outlives_its_daemon() {
    if !can_mount() {
        return;
    }
    let t = Two::new("vanished");
    t.v.mount();
    fs::rename(&t.b, t.aside()).unwrap();
    t.v.kill_daemon();
    assert_eq!(device(&t.v, &t.b)["state"], "missing");
    t.lost();
    t.v.umount();
    fs::rename(t.aside(), &t.b).unwrap();
    t.v.mount();
    for n in 0..FILES {
        assert!(fs::read(file(&t.v, n)).unwrap() == pattern(n, FILE_BYTES));
    }
    t.v.umount();
    t.v.fsck();
}

/// Devices are found by their labels where one is not there.
#[test]
fn devices_that_have_changed_names_are_found_without_the_one_that_is_gone() {
    if !can_mount() {
        return;
    }
    let t = Two::new("renamed");
    // As after a boot without the first disk: the second has its name.
    fs::remove_file(&t.a).unwrap();
    fs::rename(&t.b, &t.a).unwrap();
    let said = shale(&["mount", "--degraded", t.v.file(), t.v.place()]).ok();
    assert!(said.contains("without"), "{said}");
    assert!(live(&t.v, Path::new(&t.a)) > 0);
    assert_eq!(device(&t.v, &t.a)["state"], "in use");
    let read = (0..FILES).filter(|n| fs::read(file(&t.v, *n)).is_ok());
    let read = read.count();
    assert!(read > 0 && read < FILES, "{read}");
    t.v.umount();
}
