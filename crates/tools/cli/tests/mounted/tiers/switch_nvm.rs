//! A volume without NVM gets NVM between two mounts, and loses it again, and has all that it had.

use crate::volume::{Volume, can_mount, pattern, shale};
use serde_json::Value;
use std::fs;
use std::ops::Range;
use std::path::Path;

const MIB: usize = 1 << 20;

fn write(place: &Path, files: Range<usize>, bytes: usize) {
    for n in files {
        fs::write(place.join(format!("f{n}")), pattern(n, bytes)).unwrap();
    }
}

fn is_whole(v: &Volume, files: Range<usize>, bytes: usize) {
    for n in files {
        let found = fs::read(v.mountpoint().join(format!("f{n}"))).unwrap();
        assert!(found == pattern(n, bytes), "file {n}");
    }
}

fn add(v: &Volume, size: &str) -> [String; 5] {
    let nvm = format!("{}:{size}", v.dir().join("nvm").display());
    ["device", "add", v.file(), "--nvm", &nvm].map(str::to_owned)
}

fn said(args: &[String]) -> String {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    shale(&args).ok()
}

/// Nobody unmounted it before either, and what lies at the end of the SSD has to move.
#[test]
fn a_volume_gets_nvm_and_loses_it() {
    if !can_mount() {
        return;
    }
    let v = Volume::of_ssd("switch-nvm", "640M");
    let remove = ["device", "remove", v.file(), "--nvm"];
    v.mount();
    write(v.mountpoint(), 0..10, MIB);
    let args = add(&v, "96M");
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let busy = shale(&words).failed(1);
    assert!(busy.contains("in use by another daemon"), "{busy}");
    shale(&["sync", v.place()]).ok();
    v.cut_power();
    let text = said(&args);
    assert!(text.contains("it was not unmounted"), "{text}");
    assert!(text.contains("NVM of 96 MiB added"), "{text}");
    assert!(text.contains("the SSD tier has"), "{text}");
    let file = fs::read_to_string(v.file()).unwrap();
    assert!(
        file.contains("[[nvm]]") && !file.contains("[staged]"),
        "{file}"
    );
    v.fsck();
    v.mount();
    is_whole(&v, 0..10, MIB);
    let busy = shale(&remove).failed(1);
    assert!(busy.contains("in use by another daemon"), "{busy}");
    // They pass where the area was.
    write(v.mountpoint(), 10..55, 10 * MIB);
    shale(&["migrate", v.place()]).ok();
    for n in 10..45 {
        fs::remove_file(v.mountpoint().join(format!("f{n}"))).unwrap();
    }
    fs::write(v.mountpoint().join("late"), pattern(99, MIB)).unwrap();
    v.kill_all();
    let text = shale(&remove).ok();
    for part in ["it was not unmounted", "its end is emptied", "removed"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!v.dir().join("nvm").exists());
    v.fsck();
    let all = |v: &Volume| {
        is_whole(v, 0..10, MIB);
        is_whole(v, 45..55, 10 * MIB);
        assert!(fs::read(v.mountpoint().join("late")).unwrap() == pattern(99, MIB));
    };
    v.mount();
    all(&v);
    shale(&["scrub", v.place()]).ok();
    write(v.mountpoint(), 60..65, MIB);
    shale(&["sync", v.place()]).ok();
    v.cut_power();
    v.mount();
    all(&v);
    is_whole(&v, 60..65, MIB);
    v.umount();
    v.fsck();
    let json = [&add(&v, "200M")[..], &["--json".to_owned()]].concat();
    let added: Value = serde_json::from_str(&said(&json)).unwrap();
    assert_eq!(added["memory_bytes"], 96 << 20);
    assert_eq!(added["durability"], "buffered");
    v.fsck();
    v.mount();
    all(&v);
    is_whole(&v, 60..65, MIB);
    shale(&["scrub", v.place()]).ok();
    v.umount();
    v.fsck();
}

/// Without space there it says how much there is, and how much is needed.
#[test]
fn an_ssd_that_is_full_takes_no_staging_area() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("switch-full", "64M", "256M", "64M");
    v.mount();
    write(v.mountpoint(), 0..20, 10 * MIB);
    shale(&["migrate", v.place()]).ok();
    v.umount();
    let before = fs::read_to_string(v.file()).unwrap();
    let remove = ["device", "remove", v.file(), "--nvm"];
    let why = shale(&remove).failed(1);
    assert!(
        why.contains("ssd.img: without NVM the volume needs"),
        "{why}"
    );
    assert!(
        why.contains("bytes of it") && why.contains("are free there"),
        "{why}"
    );
    assert_eq!(fs::read_to_string(v.file()).unwrap(), before);
    let none = shale(&["device", "remove", v.file()]).failed(2);
    assert!(none.contains("DEVICE"), "{none}");
    v.fsck();
    v.mount();
    is_whole(&v, 0..20, 10 * MIB);
    for n in 1..20 {
        fs::remove_file(v.mountpoint().join(format!("f{n}"))).unwrap();
    }
    v.umount();
    let text = shale(&[&remove[..], &["--staging", "32M", "--json"]].concat()).ok();
    let end = text.find('{').unwrap();
    let removed: Value = serde_json::from_str(&text[end..]).unwrap();
    assert_eq!(removed["staging_bytes"], 32 << 20);
    v.fsck();
    v.mount();
    is_whole(&v, 0..1, 10 * MIB);
    v.umount();
    v.fsck();
}
