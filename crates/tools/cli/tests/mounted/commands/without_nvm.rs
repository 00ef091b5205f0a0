//! Volumes without NVM: made and checked, mounted, and what a power cut leaves of them.

mod once;
mod sync;

use crate::commands::watch::{get, value, well_formed};
use crate::volume::{can_mount, chattr, detach, kill, lives, pattern, shale, wait_until};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_volume_without_nvm_is_made_and_checked() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (file, image) = (at("V.toml"), at("ssd.img"));
    let ssd = format!("{image}:256M");
    let said = shale(&["mkfs", &file]).failed(2);
    assert!(said.contains("--ssd /dev/nvme0n1p3:200G"), "{said}");
    let args = ["mkfs", &file, "--ssd", &ssd, "--staging", "32M", "--json"];
    let made: Value = serde_json::from_str(&shale(&args).ok()).unwrap();
    assert_eq!(made["durability"], "buffered");
    assert_eq!(made["persistence"], "staged");
    let lost = made["power_cut"].as_str().unwrap();
    assert!(lost.contains("not followed by fsync"), "{lost}");
    let staged = &made["staged"];
    assert_eq!(staged["memory_bytes"], 64 << 20);
    assert_eq!(staged["staging_bytes"], 32 << 20);
    assert_eq!(staged["device"], image);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 256 << 20);
    let memory_dir = staged["memory_dir"].as_str().unwrap();

    let said = shale(&["fsck", &file]).ok();
    assert!(said.contains("volume is clean"), "{said}");
    shale(&["fsck", &file, "--repair"]).ok();
    let said = shale(&["log", "show", &file]).failed(1);
    assert!(said.contains("shale mount"), "{said}");
    assert!(!Path::new(memory_dir).exists(), "nothing is left in memory");
    // Both header blocks of the area are gone: that is damage, and is named.
    let at_byte = staged["at_byte"].as_u64().unwrap();
    let image = std::fs::OpenOptions::new().write(true).open(&image);
    std::os::unix::fs::FileExt::write_all_at(&image.unwrap(), &[0; 8192], at_byte).unwrap();
    let said = shale(&["fsck", &file]).failed(3);
    assert!(said.contains("ssd.img: no staging area"), "{said}");
    assert!(!Path::new(memory_dir).exists());
}

/// A volume on one SSD, with a mount point. What is left of it goes when it is dropped.
pub struct Ssd {
    dir: tempfile::TempDir,
    pub file: String,
    pub place: String,
    memory_dir: PathBuf,
}

impl Ssd {
    pub fn new(durability: &str) -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let (file, place) = (at("V.toml"), at("m"));
        fs::create_dir(&place).unwrap();
        let ssd = format!("{}:384M", at("ssd.img"));
        let args = [
            "mkfs",
            &file,
            "--ssd",
            &ssd,
            "--durability",
            durability,
            "--json",
        ];
        let made: Value = serde_json::from_str(&shale(&args).ok()).unwrap();
        let memory_dir = made["staged"]["memory_dir"].as_str().unwrap().into();
        Self {
            dir,
            file,
            place,
            memory_dir,
        }
    }

    fn mount(&self) {
        shale(&["mount", &self.file, &self.place]).ok();
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&shale(&["status", &self.place, "--json"]).ok()).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.place).join(name)
    }

    /// A path beside the mount point.
    fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Kills the daemon and what would start another one.
    fn kill(&self) {
        let status = self.status();
        for who in ["supervisor_pid", "daemon_pid"] {
            let pid = status[who].as_u64().unwrap();
            kill(pid);
            wait_until("the process has ended", || !lives(pid));
        }
        detach(Path::new(&self.place));
    }

    /// As a power cut: processes and memory are gone.
    fn cut_power(&self) {
        self.kill();
        fs::remove_dir_all(&self.memory_dir).unwrap();
    }
}

impl Drop for Ssd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let status = shale(&["status", &self.place, "--json"]);
            let status: Value = serde_json::from_str(&status.text).unwrap_or_default();
            for who in ["supervisor_pid", "daemon_pid"] {
                status[who].as_u64().into_iter().for_each(kill);
            }
            detach(Path::new(&self.place));
            let _ = fs::remove_dir_all(&self.memory_dir);
        }
    }
}

#[test]
fn what_fsync_returned_from_survives_a_power_cut() {
    if !can_mount() {
        return;
    }
    let volume = Ssd::new("buffered");
    volume.mount();
    let status = volume.status();
    assert_eq!(
        (&status["persistence"], &status["durability"]),
        (&"staged".into(), &"buffered".into())
    );
    fs::create_dir(volume.path("d")).unwrap();
    for n in 0..40 {
        let mut file = fs::File::create(volume.path(&format!("d/{n}"))).unwrap();
        file.write_all(&pattern(n, 10_000 * n)).unwrap();
        file.sync_all().unwrap();
    }
    let staged = volume.status()["staged"].clone();
    assert!(staged["commits"].as_u64() >= Some(40), "{staged}");
    volume.cut_power();
    let said = shale(&["fsck", &volume.file]).ok();
    assert!(said.contains("volume is clean"), "{said}");
    volume.mount();
    for n in 0..40 {
        let found = fs::read(volume.path(&format!("d/{n}"))).unwrap();
        assert!(found == pattern(n, 10_000 * n), "file {n}");
    }
    let recovery = volume.status()["recovery"].clone();
    assert_eq!(recovery["problems"], serde_json::json!([]), "{recovery}");
    let is_counted = |key: &str| recovery[key].as_u64() > Some(0);
    assert!(
        ["batches", "records", "bytes"]
            .iter()
            .all(|key| is_counted(key)),
        "{recovery}"
    );
    // Unmounted, all of it lies on the SSD.
    fs::remove_file(volume.path("d/7")).unwrap();
    shale(&["umount", &volume.place]).ok();
    assert!(!volume.memory_dir.exists());
    volume.mount();
    assert_eq!(fs::read_dir(volume.path("d")).unwrap().count(), 39);
    // A daemon that was killed finds its memory tier, and loses nothing that a call returned from.
    fs::write(volume.path("e"), b"not synced").unwrap();
    volume.kill();
    volume.mount();
    assert_eq!(fs::read(volume.path("e")).unwrap(), b"not synced");
    shale(&["umount", &volume.place]).ok();
    let said = shale(&["fsck", &volume.file]).ok();
    assert!(said.contains("volume is clean"), "{said}");
}

#[test]
fn what_a_power_cut_would_lose_is_seen_by_every_verb() {
    if !can_mount() {
        return;
    }
    let volume = Ssd::new("buffered");
    let socket = volume.path("").with_file_name("metrics");
    let metrics = socket.to_str().unwrap();
    shale(&["mount", &volume.file, &volume.place, "--metrics", metrics]).ok();
    let mut file = fs::File::create(volume.path("f")).unwrap();
    for _ in 0..20 {
        file.write_all(&pattern(1, 4096)).unwrap();
        file.sync_all().unwrap();
    }
    let mut staged = Value::Null;
    // Every 5 s everything is hardened, perhaps just now.
    wait_until("something is not hardened", || {
        file.write_all(&pattern(1, 100_000)).unwrap();
        staged = volume.status()["staged"].clone();
        staged["unhardened_bytes"].as_u64() > Some(90_000)
    });
    let times = &staged["commit_times"];
    let (half, most, longest) = (&times["p50_us"], &times["p99_us"], &times["max_us"]);
    assert!(
        half.as_u64() > Some(0) && half.as_u64() <= most.as_u64(),
        "{times}"
    );
    assert!(most.as_u64() <= longest.as_u64(), "{times}");
    let said = shale(&["status", &volume.place]).ok();
    assert!(
        said.contains("  memory ") && said.contains("µs (half)"),
        "{said}"
    );
    let scraped = get(&mut UnixStream::connect(&socket).unwrap());
    well_formed(&scraped);
    let commits = value(&scraped, "shale_commit_time_seconds_count");
    let bucket = "shale_commit_time_seconds_bucket{le=\"+Inf\"}";
    assert!(commits >= 20.0, "{scraped}");
    assert_eq!(value(&scraped, bucket), commits);
    let written = value(&scraped, "shale_tier_area_written_bytes_total");
    assert!(written >= value(&scraped, "shale_commit_bytes_total"));
    let space = shale(&["df", &volume.place]).ok();
    assert!(
        space.contains("\nmemory ") && space.contains("\nstaging "),
        "{space}"
    );
    let all: Value = serde_json::from_str(&shale(&["df", &volume.place, "--json"]).ok()).unwrap();
    assert_eq!(
        (&all[0]["tier"], &all[1]["tier"]),
        (&"memory".into(), &"staging".into())
    );
    let top = shale(&["top", &volume.place, "--once"]).ok();
    assert!(
        top.contains("\nmemory") && top.contains("\nstaging "),
        "{top}"
    );
    // Once it is synced nothing would be lost any more.
    file.sync_all().unwrap();
    let said = shale(&["status", &volume.place]).ok();
    assert!(
        said.contains("a power cut would lose nothing now"),
        "{said}"
    );
    drop(file);
    // Each commit has a header, and ends with its page.
    shale(&["digest", &volume.place]).ok();
    let amplified = volume.status()["tiers"][0]["write_amplification"].as_f64();
    assert!(amplified > Some(1.0), "{amplified:?}");
    shale(&["umount", &volume.place]).ok();
}

#[test]
fn the_device_with_the_staging_area_stays() {
    if !can_mount() {
        return;
    }
    let volume = Ssd::new("buffered");
    volume.mount();
    let place = &volume.place;
    let devices: Value =
        serde_json::from_str(&shale(&["device", "list", place, "--json"]).ok()).unwrap();
    let [path, uuid] = ["path", "uuid"].map(|key| devices[0][key].as_str().unwrap().to_owned());
    let link = format!("{path}.link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for name in [path, uuid, link] {
        let said = shale(&["device", "remove", place, &name]).failed(1);
        assert!(
            said.contains("it has the staging area of the volume"),
            "{name}: {said}"
        );
    }
    // It is used as before, and what is not on it yet lies in memory.
    fs::write(volume.path("f"), pattern(1, 20_000)).unwrap();
    let file = volume.path("f");
    let lies: Value =
        serde_json::from_str(&shale(&["where", file.to_str().unwrap(), "--json"]).ok()).unwrap();
    assert_eq!(lies[0]["tier"], "memory", "{lies}");
    shale(&["migrate", place]).ok();
    let lies: Value =
        serde_json::from_str(&shale(&["where", file.to_str().unwrap(), "--json"]).ok()).unwrap();
    assert_eq!(lies[0]["tier"], "ssd", "{lies}");
    shale(&["umount", place]).ok();
}

#[test]
fn every_call_of_a_strict_volume_survives_a_power_cut() {
    if !can_mount() {
        return;
    }
    let volume = Ssd::new("strict");
    volume.mount();
    for n in 0..60 {
        fs::write(volume.path(&format!("f{n}")), pattern(n, 5000)).unwrap();
    }
    fs::rename(volume.path("f0"), volume.path("g")).unwrap();
    volume.cut_power();
    volume.mount();
    assert!(!volume.path("f0").exists());
    assert!(fs::read(volume.path("g")).unwrap() == pattern(0, 5000));
    for n in 1..60 {
        assert!(fs::read(volume.path(&format!("f{n}"))).unwrap() == pattern(n, 5000));
    }
    shale(&["umount", &volume.place]).ok();
}

/// Appends one number after the other until that fails, or for a minute. `returned`: how many have to be there after a power cut.
fn append_numbers(volume: &Ssd, program: usize, syncs: bool, returned: &AtomicU64) {
    let mut file = fs::File::create(volume.path(&format!("p{program}"))).unwrap();
    let begun = Instant::now();
    for number in 0_u64.. {
        if begun.elapsed() > Duration::from_secs(60) {
            return;
        }
        if file.write_all(&number.to_le_bytes()).is_err() || syncs && file.sync_data().is_err() {
            return;
        }
        returned.store(number + 1, Ordering::SeqCst);
    }
}

#[test]
fn what_many_programs_at_once_were_answered_survives_a_power_cut() {
    if !can_mount() {
        return;
    }
    for (durability, syncs) in [("buffered", true), ("strict", false)] {
        let volume = Ssd::new(durability);
        volume.mount();
        let returned = [const { AtomicU64::new(0) }; 12];
        let all_have = |least| returned.iter().all(|n| n.load(Ordering::SeqCst) > least);
        std::thread::scope(|scope| {
            for (program, returned) in returned.iter().enumerate() {
                let volume = &volume;
                scope.spawn(move || append_numbers(volume, program, syncs, returned));
            }
            wait_until("all have begun", || all_have(50));
            // Answers that were held back are asked for again of the next one.
            kill(volume.status()["daemon_pid"].as_u64().unwrap());
            let now = returned
                .iter()
                .map(|n| n.load(Ordering::SeqCst))
                .max()
                .unwrap();
            wait_until("all go on with the next daemon", || all_have(now + 50));
            volume.cut_power();
        });
        volume.mount();
        for (program, returned) in returned.iter().enumerate() {
            let found = fs::read(volume.path(&format!("p{program}"))).unwrap();
            let returned = returned.load(Ordering::SeqCst) as usize;
            assert!(
                found.len() >= returned * 8,
                "{durability}: {returned} numbers, {} bytes",
                found.len()
            );
            let numbers: Vec<u64> = found
                .chunks_exact(8)
                .map(|n| u64::from_le_bytes(n.try_into().unwrap()))
                .collect();
            assert!(
                numbers.iter().copied().eq(0..numbers.len() as u64),
                "{durability}: program {program}"
            );
        }
        shale(&["umount", &volume.place]).ok();
        let said = shale(&["fsck", &volume.file]).ok();
        assert!(said.contains("volume is clean"), "{said}");
    }
}

#[test]
fn data_moves_down_from_a_memory_tier_that_is_half_full() {
    if !can_mount() {
        return;
    }
    let volume = Ssd::new("buffered");
    volume.mount();
    let memory = |status: &Value| {
        let used = status["space"]["used_bytes"].as_u64().unwrap();
        used as f64 / status["space"]["total_bytes"].as_u64().unwrap() as f64
    };
    let moved = |status: &Value| status["migration"]["down_bytes"].as_u64().unwrap();
    let before = volume.status();
    assert_eq!(
        (&before["migration"]["at_percent"], moved(&before)),
        (&50.into(), 0)
    );
    // Runs below 64 KiB go to the memory tier first.
    let count = before["space"]["total_bytes"].as_u64().unwrap() as usize * 6 / 10 / 48_000;
    for n in 0..count {
        fs::write(volume.path(&format!("f{n}")), pattern(n, 48_000)).unwrap();
    }
    shale(&["digest", &volume.place]).ok();
    wait_until("less than half is in use", || {
        let status = volume.status();
        memory(&status) < 0.5 && moved(&status) > 0
    });
    for n in 0..count {
        assert!(
            fs::read(volume.path(&format!("f{n}"))).unwrap() == pattern(n, 48_000),
            "file {n}"
        );
    }
    shale(&["umount", &volume.place]).ok();
    let said = shale(&["fsck", &volume.file]).ok();
    assert!(said.contains("volume is clean"), "{said}");
}

#[test]
fn an_ordered_volume_is_hardened_within_seconds() {
    if !can_mount() {
        return;
    }
    let volume = Ssd::new("ordered");
    volume.mount();
    fs::write(volume.path("f"), pattern(1, 50_000)).unwrap();
    wait_until("nothing is left to harden", || {
        volume.status()["staged"]["unhardened_bytes"] == 0
    });
    volume.cut_power();
    volume.mount();
    assert!(fs::read(volume.path("f")).unwrap() == pattern(1, 50_000));
    shale(&["umount", &volume.place]).ok();
}

/// `chattr +S`: what is answered by the mount later than it was done, too.
#[test]
fn a_tree_that_is_synced_is_hardened_at_return() {
    if !can_mount() {
        return;
    }
    let volume = Ssd::new("buffered");
    volume.mount();
    fs::create_dir(volume.path("d")).unwrap();
    assert!(chattr("+S", &volume.path("d")));
    for n in 0..10 {
        fs::write(volume.path(&format!("d/{n}")), pattern(n, 20_000)).unwrap();
        let lost = &volume.status()["staged"]["unhardened_bytes"];
        assert_eq!(*lost, 0, "file {n}");
    }
    fs::rename(volume.path("d/0"), volume.path("d/zero")).unwrap();
    volume.cut_power();
    volume.mount();
    for n in 0..10 {
        let name = if n == 0 {
            "zero".to_owned()
        } else {
            n.to_string()
        };
        let found = fs::read(volume.path(&format!("d/{name}"))).unwrap();
        assert!(found == pattern(n, 20_000), "file {name}");
    }
    shale(&["umount", &volume.place]).ok();
    let said = shale(&["fsck", &volume.file]).ok();
    assert!(said.contains("volume is clean"), "{said}");
}
