//! Devices of lower tiers on the real programs: several in a tier, loop devices, coming and going.

use crate::volume::{StopOnDrop, Volume, can_mount, pattern, wait_until};
use serde_json::Value;
use shale_format::superblock::Superblock;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

pub const FILE_BYTES: usize = 4 << 20;

pub fn below() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn devices(v: &Volume) -> Vec<Value> {
    let text = v.shale(&["device", "list", v.place(), "--json"]).ok();
    serde_json::from_str(&text).unwrap()
}

pub fn device(v: &Volume, path: &Path) -> Value {
    let all = devices(v);
    let found = all.iter().find(|d| d["path"] == path.to_str().unwrap());
    found.unwrap_or_else(|| panic!("{path:?}: {all:?}")).clone()
}

pub fn live(v: &Volume, path: &Path) -> u64 {
    device(v, path)["live_bytes"].as_u64().unwrap()
}

pub fn file(v: &Volume, n: usize) -> PathBuf {
    v.mountpoint().join(format!("file-{n:03}"))
}

pub fn fill(v: &Volume, files: std::ops::Range<usize>) {
    for n in files {
        fs::write(file(v, n), pattern(n, FILE_BYTES)).unwrap();
    }
}

fn compare(v: &Volume, files: std::ops::Range<usize>) {
    for n in files {
        let there = fs::read(file(v, n)).unwrap();
        assert!(there == pattern(n, FILE_BYTES), "file {n}");
    }
}

pub fn move_down(v: &Volume) {
    v.shale(&["migrate", v.place()]).ok();
}

/// Mounted again, scrubbed and checked, it holds what it held.
fn again(v: &Volume, files: std::ops::Range<usize>) {
    v.umount();
    v.fsck();
    v.mount();
    compare(v, files);
    v.shale(&["scrub", v.place()]).ok();
    v.umount();
    v.fsck();
}

#[test]
fn several_devices_make_a_tier() {
    if !can_mount() {
        return;
    }
    let dir = below();
    let path = |name: &str| dir.path().join(name);
    let (a, b, c) = (path("a.img"), path("b.img"), path("c.img"));
    let all = [
        ("--ssd", a.as_path(), "40M"),
        ("--ssd", b.as_path(), "60M"),
        ("--hdd", c.as_path(), "100M"),
    ];
    let v = Volume::with_devices("joined", "64M", dir, &all);
    v.mount();
    fill(&v, 0..30);
    move_down(&v);
    compare(&v, 0..30);
    assert!(live(&v, &a) > 20 << 20 && live(&v, &b) > 20 << 20 && live(&v, &c) > 0);
    let text = v.shale(&["device", "list", v.place()]).ok();
    assert!(text.contains("in use") && text.contains("b.img"), "{text}");
    again(&v, 0..30);
}

/// A loop device, taken away when it is dropped.
struct Loop(PathBuf);

impl Loop {
    /// `None`: this machine gives none.
    fn new(image: &Path, bytes: u64) -> Option<Loop> {
        fs::File::create(image).unwrap().set_len(bytes).unwrap();
        let said = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(image)
            .output()
            .ok()?;
        let name = String::from_utf8(said.stdout).ok()?;
        let there = said.status.success() && Path::new(name.trim()).exists();
        if !there {
            eprintln!("SKIPPED: needs loop devices");
        }
        there.then(|| Loop(name.trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.0)
            .status();
    }
}

#[test]
fn a_block_device_is_a_tier() {
    if !can_mount() {
        return;
    }
    let dir = below();
    let Some(disk) = Loop::new(&dir.path().join("disk"), 128 << 20) else {
        return;
    };
    let all = [("--hdd", disk.0.as_path(), "128M")];
    let v = Volume::with_devices("loop", "64M", dir, &all);
    v.mount();
    fill(&v, 0..20);
    move_down(&v);
    assert!(live(&v, &disk.0) > 40 << 20);
    again(&v, 0..20);
}

#[test]
fn a_device_comes_and_another_is_emptied_and_goes() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("change", "64M", "64M", "64M");
    v.mount();
    fill(&v, 0..20);
    move_down(&v);
    let list = devices(&v);
    let path = |n: usize| PathBuf::from(list[n]["path"].as_str().unwrap());
    let (old, full) = (path(0), path(1));
    // Nowhere else is space for it: said, and nothing is begun.
    fill(&v, 20..30);
    move_down(&v);
    let text = v.shale(&["device", "evacuate", v.place(), old.to_str().unwrap()]);
    let text = text.failed(1);
    assert!(text.contains("are missing"), "{text}");
    assert_eq!(device(&v, &old)["state"], "in use");
    let text = v.shale(&["device", "remove", v.place(), old.to_str().unwrap()]);
    let text = text.failed(1);
    assert!(text.contains("evacuate"), "{text}");
    let new = old.with_file_name("new.img");
    let wanted = format!("{}:96M", new.display());
    let text = v
        .shale(&["device", "add", v.place(), "--ssd", &wanted])
        .ok();
    assert!(text.contains("new.img"), "{text}");
    let text = v.shale(&["device", "add", v.place(), "--ssd", &wanted]);
    assert!(text.failed(1).contains("already"));
    v.shale(&["device", "evacuate", v.place(), old.to_str().unwrap()])
        .ok();
    assert_eq!(
        (live(&v, &old), device(&v, &old)["state"].clone()),
        (0, "empty".into())
    );
    compare(&v, 0..30);
    let said = v.shale(&[
        "device",
        "remove",
        v.place(),
        old.to_str().unwrap(),
        "--json",
    ]);
    let said: Value = serde_json::from_str(&said.ok()).unwrap();
    assert_eq!(said["removed"], old.to_str().unwrap());
    assert_eq!(said["devices"].as_array().unwrap().len(), 2);
    assert_eq!(devices(&v).len(), 2);
    let text = fs::read_to_string(v.file()).unwrap();
    assert!(
        !text.contains("ssd.img") && text.contains("new.img"),
        "{text}"
    );
    assert!(
        fs::read(&old).unwrap()[..8192].iter().all(|&b| b == 0),
        "its label is gone"
    );
    fs::remove_file(&old).unwrap();
    v.kill_daemon();
    compare(&v, 0..30);
    assert!(live(&v, &new) > 0 && live(&v, &full) > 0);
    again(&v, 0..30);
}

#[test]
fn a_device_is_emptied_under_load_over_a_kill() {
    if !can_mount() {
        return;
    }
    let dir = below();
    let path = |name: &str| dir.path().join(name);
    let (a, b, c) = (path("a.img"), path("b.img"), path("c.img"));
    let all = [
        ("--ssd", a.as_path(), "128M"),
        ("--ssd", b.as_path(), "128M"),
        ("--hdd", c.as_path(), "256M"),
    ];
    let v = Volume::with_devices("emptied", "96M", dir, &all);
    v.mount();
    fill(&v, 0..24);
    fill(&v, 100..103);
    move_down(&v);
    assert!(live(&v, &a) > 60 << 20);
    // Slow enough to be killed in the midst of it.
    v.shale(&["migrate", v.place(), "--limit", "32M"]).ok();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let (v, stop) = (&v, &stop);
        let writer = scope.spawn(move || {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                let n = 100 + rounds % 3;
                fs::write(file(v, n), pattern(n, FILE_BYTES)).expect("a write saw the kill");
                rounds += 1;
            }
            rounds
        });
        let reader = scope.spawn(move || {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                compare(v, n % 24..n % 24 + 1);
                n += 1;
            }
        });
        let order = ["device", "evacuate", v.place(), a.to_str().unwrap()];
        v.shale(&[&order[..], &["--background"]].concat()).ok();
        let begun = live(v, &a);
        wait_until("some of it has moved", || live(v, &a) < begun * 3 / 4);
        v.kill_daemon();
        assert!(live(v, &a) > 0, "it was killed before the end");
        assert_eq!(device(v, &a)["state"], "emptying");
        // By itself.
        wait_until("it is empty", || live(v, &a) == 0);
        thread::sleep(Duration::from_millis(300));
        assert_eq!(live(v, &a), 0, "nothing new comes");
        stop.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap() > 1);
        reader.join().unwrap();
    });
    compare(&v, 0..24);
    compare(&v, 100..103);
    v.shale(&["device", "remove", v.place(), a.to_str().unwrap()])
        .ok();
    fs::remove_file(&a).unwrap();
    compare(&v, 0..24);
    again(&v, 0..24);
}

#[test]
fn what_is_cut_short_is_put_right_at_the_next_mount() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("strangers", "64M", "64M", "64M");
    v.mount();
    fill(&v, 0..10);
    move_down(&v);
    v.umount();
    // As a crash leaves it that came between the volume file and the device table.
    let text = fs::read_to_string(v.file()).unwrap();
    let stranger = v.dir().join("stranger.img");
    fs::File::create(&stranger)
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    let more = format!(
        "\n[[ssd]]\npath = \"{}\"\nsize_bytes = 67108864\n",
        stranger.display()
    );
    fs::write(v.file(), text.clone() + &more).unwrap();
    v.mount();
    compare(&v, 0..10);
    assert_eq!(devices(&v).len(), 2);
    assert!(
        !fs::read_to_string(v.file())
            .unwrap()
            .contains("stranger.img")
    );
    v.umount();
    // A device that is really missing is named.
    let ssd = PathBuf::from(
        text.lines()
            .find_map(|l| l.strip_prefix("path = \""))
            .unwrap(),
    );
    let ssd = PathBuf::from(ssd.to_str().unwrap().trim_end_matches('"'));
    let aside = ssd.with_extension("aside");
    fs::rename(&ssd, &aside).unwrap();
    let text = v.shale(&["mount", v.file(), v.place()]).failed(1);
    assert!(text.contains("ssd.img"), "{text}");
    let text = v.shale(&["fsck", v.file()]).failed(3);
    assert!(text.contains("1 warning"), "{text}");
    fs::rename(&aside, &ssd).unwrap();
    again_mounted(&v);
}

fn again_mounted(v: &Volume) {
    v.mount();
    compare(v, 0..10);
    v.umount();
    v.fsck();
}

/// The NVM directory comes from a backup, the devices do not.
#[test]
fn an_old_nvm_directory_is_named() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("old-nvm", "64M", "64M", "128M");
    let (nvm, old, new) = (
        v.dir().join("nvm"),
        v.dir().join("old"),
        v.dir().join("new"),
    );
    v.mount();
    v.umount();
    let copied = Command::new("cp").arg("-a").args([&nvm, &old]).status();
    assert!(copied.unwrap().success());
    v.mount();
    fill(&v, 0..10);
    move_down(&v);
    v.umount();
    fs::rename(&nvm, &new).unwrap();
    fs::rename(&old, &nvm).unwrap();
    let text = v.shale(&["mount", v.file(), v.place()]).failed(1);
    assert!(
        text.contains("older than") && text.contains("nvm"),
        "{text}"
    );
    fs::rename(&nvm, &old).unwrap();
    fs::rename(&new, &nvm).unwrap();
    again_mounted(&v);
}

#[test]
fn a_device_that_goes_away_is_named_and_the_rest_goes_on() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("gone", "64M", "64M", "128M");
    v.mount();
    fill(&v, 0..6);
    move_down(&v);
    let ssd = PathBuf::from(devices(&v)[0]["path"].as_str().unwrap());
    // Cut to its label: what lay there cannot be read, and nothing new may go there.
    let image = fs::OpenOptions::new().write(true).open(&ssd).unwrap();
    image.set_len(1 << 20).unwrap();
    let report = device(&v, &ssd);
    assert_eq!(report["state"], "failing", "{report}");
    assert!(
        report["trouble"].as_str().unwrap().contains("cut"),
        "{report}"
    );
    fill(&v, 10..30);
    move_down(&v);
    compare(&v, 10..30);
    assert_eq!(
        image.metadata().unwrap().len(),
        1 << 20,
        "nobody wrote to it"
    );
    // What lay there is gone, where no cache has it, and no zeros.
    for n in 0..6 {
        if let Ok(there) = fs::read(file(&v, n)) {
            assert!(there == pattern(n, FILE_BYTES), "file {n}");
        }
    }
    let text = v.shale(&["status", v.place()]).ok();
    assert!(text.contains("ssd.img"), "{text}");
    for n in 0..6 {
        fs::remove_file(file(&v, n)).unwrap();
    }
    v.shale(&["digest", v.place()]).ok();
    let list = devices(&v);
    assert_eq!(list[0]["live_bytes"], 0, "{list:?}");
    v.shale(&["device", "remove", v.place(), ssd.to_str().unwrap()])
        .ok();
    again(&v, 10..30);
}

fn tiers_of(v: &Volume, path: &Path) -> Vec<String> {
    let text = v.shale(&["where", path.to_str().unwrap(), "--json"]).ok();
    let parts: Vec<Value> = serde_json::from_str(&text).unwrap();
    let mut tiers: Vec<String> = parts
        .iter()
        .map(|p| p["tier"].as_str().unwrap().to_owned())
        .collect();
    tiers.dedup();
    tiers
}

#[test]
fn pinned_files_stay_or_come_back() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("pinned", "96M", "96M", "256M");
    v.mount();
    let dir = v.mountpoint().join("dir");
    fs::create_dir(&dir).unwrap();
    fill(&v, 0..20);
    move_down(&v);
    let one = file(&v, 3);
    assert!(!tiers_of(&v, &one).contains(&"nvm".to_owned()));
    // Up, and it stays.
    let said = v.shale(&["pin", one.to_str().unwrap()]).ok();
    assert!(said.contains("pinned to nvm"), "{said}");
    move_down(&v);
    assert_eq!(tiers_of(&v, &one), ["nvm"]);
    let text = v.shale(&["where", one.to_str().unwrap()]).ok();
    assert!(text.contains("pinned to nvm"), "{text}");
    // A tree, and what is made in it later.
    let hdd = ["pin", dir.to_str().unwrap(), "--tier", "hdd"];
    v.shale(&hdd).ok();
    fs::write(dir.join("new"), pattern(77, FILE_BYTES)).unwrap();
    move_down(&v);
    assert_eq!(tiers_of(&v, &dir.join("new")), ["hdd"]);
    // More than there is space for: refused, and nothing is pinned.
    fill(&v, 20..40);
    move_down(&v);
    let all: Vec<String> = (0..40).map(|n| file(&v, n).display().to_string()).collect();
    let args: Vec<&str> = ["pin"]
        .into_iter()
        .chain(all.iter().map(String::as_str))
        .collect();
    let text = v.shale(&args).failed(1);
    assert!(text.contains("are missing"), "{text}");
    v.kill_daemon();
    fill(&v, 40..60);
    move_down(&v);
    assert_eq!(tiers_of(&v, &one), ["nvm"]);
    v.shale(&["pin", one.to_str().unwrap(), "--unpin"]).ok();
    move_down(&v);
    assert!(!tiers_of(&v, &one).contains(&"nvm".to_owned()));
    assert!(fs::read(dir.join("new")).unwrap() == pattern(77, FILE_BYTES));
    again(&v, 0..60);
}

#[test]
fn a_copy_of_the_device_table_that_rots_is_made_again() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("table", "64M", "64M", "64M");
    v.mount();
    fill(&v, 0..10);
    move_down(&v);
    v.umount();
    let segment = v.dir().join("nvm/seg-0000");
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(segment)
        .unwrap();
    let mut bytes = [0; Superblock::BYTES];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let (sb, _) = Superblock::decode(&bytes, 0).unwrap();
    let at = sb.device_table_block() * 4096;
    file.write_all_at(&[0x55; 64], at + 40).unwrap();
    let text = v.shale(&["fsck", v.file()]).failed(3);
    assert!(text.contains("device table"), "{text}");
    // The other copy serves.
    v.mount();
    compare(&v, 0..10);
    let text = v.shale(&["scrub", v.place()]).failed(3);
    assert!(text.contains("device table"), "{text}");
    v.umount();
    v.shale(&["fsck", v.file(), "--repair"]);
    v.fsck();
    again_mounted(&v);
}

#[test]
fn what_cannot_be_ordered_is_said() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("alone");
    let list = ["device", "list", v.place()];
    v.shale(&list).failed(4);
    v.mount();
    assert!(v.shale(&list).ok().contains("NVM alone"));
    v.shale(&["device", "add", v.place()]).failed(2);
    let text = v
        .shale(&["device", "remove", v.place(), "/nowhere"])
        .failed(1);
    assert!(text.contains("no device of the volume"), "{text}");
    fs::write(v.mountpoint().join("f"), b"x").unwrap();
    let file = v.mountpoint().join("f").display().to_string();
    let text = v.shale(&["pin", &file, "--tier", "ssd"]).failed(1);
    assert!(text.contains("no tier"), "{text}");
    v.umount();
}
