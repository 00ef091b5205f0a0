//! A volume that was made with NVM alone gets tiers below it while it is mounted, and is NVM alone again.

use crate::volume::{SHALE, Volume, can_mount, library, pattern, test_named, wait_until};
use serde_json::Value;
use shale_format::superblock::Superblock;
use shale_format::version;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

const MIB: usize = 1 << 20;
/// What the client writes: twice NVM.
const FILE_MIB: usize = 128;

/// Not a test: the program that runs under `shale run` all the time. Writes more than NVM takes, again
/// and again what does not fit, and reads everything back. Notes the pieces written, and those that did
/// not fit at first.
#[test]
#[ignore = "run by another test"]
fn client() {
    let (Ok(path), Ok(notes)) = (
        std::env::var("SHALE_TEST_GROWS"),
        std::env::var("SHALE_TEST_NOTES"),
    ) else {
        return;
    };
    let mut options = fs::OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(true);
    let (file, notes) = (
        options.open(path).unwrap(),
        fs::File::create(notes).unwrap(),
    );
    let note = |word: u64, value: usize| {
        let value = value as u64;
        notes.write_all_at(&value.to_le_bytes(), word * 8).unwrap();
    };
    note(1, 0);
    for n in 0..FILE_MIB {
        let bytes = pattern(n, MIB);
        let mut done = 0;
        while done < MIB {
            match file.write_at(&bytes[done..], (n * MIB + done) as u64) {
                Ok(more) => done += more,
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::StorageFull, "{e}");
                    note(1, n + 1);
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
        note(0, n + 1);
    }
    // At once: it began with NVM alone, and more than its cache lies below now.
    let mut all = vec![0; FILE_MIB * MIB];
    file.read_exact_at(&mut all, 0).unwrap();
    for (n, found) in all.chunks(MIB).enumerate() {
        assert!(found == pattern(n, MIB), "piece {n}");
    }
}

/// The client, killed when it is dropped.
struct Running(Child);

impl Running {
    fn start(v: &Volume, file: &Path) -> Running {
        let child = Command::new(SHALE)
            .args(["run", "--"])
            .arg(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                &test_named(module_path!(), "client"),
            ])
            .env("SHALE_PRELOAD", library())
            .env("SHALE_WARM_CALLS", "0")
            .env("SHALE_TEST_GROWS", file)
            .env("SHALE_TEST_NOTES", v.dir().join("notes"))
            .stdout(Stdio::null())
            .spawn();
        Running(child.unwrap())
    }

    /// Pieces that are written, and the number of one that did not fit.
    fn noted(&self, v: &Volume) -> [u64; 2] {
        let bytes = fs::read(v.dir().join("notes")).unwrap_or_default();
        let word = |n: usize| bytes.get(n * 8..).and_then(|b| b.first_chunk().copied());
        [0, 1].map(|n| word(n).map_or(0, u64::from_le_bytes))
    }

    fn is_client(&self, v: &Volume) -> bool {
        let status = v.status();
        let mut clients = status["clients"].as_array().unwrap().iter();
        clients.any(|c| c["pid"] == self.0.id())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn compare(file: &Path) {
    let all = fs::read(file).unwrap();
    assert_eq!(all.len(), FILE_MIB * MIB);
    for (n, found) in all.chunks(MIB).enumerate() {
        assert!(found == pattern(n, MIB), "piece {n}");
    }
}

fn tiers(v: &Volume) -> Vec<String> {
    let text = v.shale(&["df", v.place(), "--json"]).ok();
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    let names = rows.iter().map(|r| r["tier"].as_str().unwrap().to_owned());
    let mut names: Vec<String> = names.collect();
    names.dedup();
    names
}

#[test]
fn a_full_volume_of_nvm_alone_goes_on_with_flash_below() {
    if !can_mount() {
        return;
    }
    let below = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = |name: &str| below.path().join(name).to_str().unwrap().to_owned();
    let (flash, disk) = (path("flash.img"), path("disk.img"));
    let (as_flash, as_disk) = (format!("{flash}:256M"), format!("{disk}:128M"));
    let v = Volume::of_nvm("grow", "64M");
    v.mount();
    let file = v.mountpoint().join("file");
    let mut client = Running::start(&v, &file);
    wait_until("NVM is full", || client.noted(&v)[1] > 0);
    assert!(client.is_client(&v) && client.noted(&v)[0] > 40);
    assert_eq!(tiers(&v), ["nvm"]);
    // To the last block.
    let rest = fs::File::create(v.mountpoint().join("rest")).unwrap();
    let filled = (0..16384).find(|n| rest.write_all_at(&[1; 4096], n * 4096).is_err());
    assert!(filled.is_some());
    drop(rest);
    // Fewer zones than a tier needs: refused, and the client waits on.
    let few = format!("{}:9M:4M", path("few.img"));
    let add = |option: &str, device: &str| v.shale(&["device", "add", v.place(), option, device]);
    assert!(add("--ssd", &few).failed(1).contains("zones"));
    assert!(!Path::new(&path("few.img")).exists() && client.0.try_wait().unwrap().is_none());
    add("--ssd", &as_flash).ok();
    assert!(fs::read_to_string(v.file()).unwrap().contains("flash.img"));
    let mut ended = None;
    wait_until("the client has read everything", || {
        ended = client.0.try_wait().unwrap();
        ended.is_some()
    });
    assert!(ended.unwrap().success(), "{:?}", client.noted(&v));
    assert_eq!(tiers(&v), ["nvm", "ssd"]);
    compare(&file);
    let text = v.shale(&["where", file.to_str().unwrap(), "--json"]).ok();
    assert!(
        text.contains("\"nvm\"") && text.contains("\"ssd\""),
        "{text}"
    );
    v.kill_daemon();
    compare(&file);
    v.umount();
    v.fsck();
    v.mount();
    compare(&file);
    v.shale(&["scrub", v.place()]).ok();
    alone_again(&v, &file, &flash);
    // And once more, with a disk. What was written before is not where it was.
    add("--hdd", &as_disk).ok();
    v.shale(&["migrate", v.place()]).ok();
    assert_eq!(tiers(&v), ["nvm", "hdd"]);
    let small = v.mountpoint().join("small");
    assert!(fs::read(&small).unwrap() == pattern(7, 20 * MIB));
    v.umount();
    v.fsck();
}

/// What does not fit NVM goes, the rest comes up, and the device leaves.
fn alone_again(v: &Volume, file: &Path, device: &str) {
    let small = v.mountpoint().join("small");
    fs::write(&small, pattern(7, 20 * MIB)).unwrap();
    v.shale(&["migrate", v.place()]).ok();
    let text = v.shale(&["device", "evacuate", v.place(), device]);
    assert!(text.failed(1).contains("are missing"));
    // A file that is removed is there until nobody uses it, and in this moment somebody does.
    let used = fs::File::open(file).unwrap();
    fs::remove_file(file).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(150));
            drop(used);
        });
        v.shale(&["device", "evacuate", v.place(), device]).ok();
    });
    v.shale(&["device", "remove", v.place(), device]).ok();
    assert!(!fs::read_to_string(v.file()).unwrap().contains("flash.img"));
    assert_eq!(tiers(v), ["nvm"]);
    // NVM alone is full again when it is full, and what is removed frees space.
    let large = v.mountpoint().join("large");
    let error = fs::write(&large, vec![1; 64 * MIB]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    fs::OpenOptions::new()
        .write(true)
        .open(&large)
        .unwrap()
        .set_len(4096)
        .unwrap();
    fs::remove_file(&large).unwrap();
    assert!(fs::read(&small).unwrap() == pattern(7, 20 * MIB));
    v.umount();
    v.fsck();
    v.mount();
}

/// As an older shale made it: nothing says that there is a device table.
#[test]
fn an_older_volume_of_nvm_alone_is_served_and_stays_as_it_is() {
    if !can_mount() {
        return;
    }
    let v = Volume::of_nvm("older", "64M");
    let mut options = fs::OpenOptions::new();
    let segment = v.dir().join("nvm/seg-0000");
    let segment = options.read(true).write(true).open(segment).unwrap();
    let mut bytes = [0; Superblock::BYTES];
    segment.read_exact_at(&mut bytes, 0).unwrap();
    let (mut sb, _) = Superblock::decode(&bytes, 0).unwrap();
    assert_eq!(
        sb.incompatible,
        version::DEVICE_TABLE | version::TIERS_LATER
    );
    sb.incompatible = 0;
    for block in [0, sb.second_block()] {
        segment.write_all_at(&sb.encode(), block * 4096).unwrap();
    }
    v.fsck();
    v.mount();
    fs::write(v.mountpoint().join("file"), pattern(1, MIB)).unwrap();
    let image = v.dir().join("flash.img");
    let device = format!("{}:64M", image.display());
    let text = v.shale(&["device", "add", v.place(), "--ssd", &device]);
    let text = text.failed(1);
    assert!(
        text.contains("older shale") && text.contains("mkfs"),
        "{text}"
    );
    assert!(!image.exists());
    assert!(fs::read(v.mountpoint().join("file")).unwrap() == pattern(1, MIB));
    v.umount();
    v.fsck();
}
