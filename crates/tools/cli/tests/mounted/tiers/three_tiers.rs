//! Three tiers on the real programs.

use crate::volume::{Volume, can_mount, kill, pattern, wait_until, with_library};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;
use std::time::{Duration, Instant};

const FILES: usize = 60;
const FILE_BYTES: usize = 10 << 20;

fn bytes(n: usize) -> Vec<u8> {
    pattern(n, FILE_BYTES)
}

/// 600 MiB on 64 MiB of NVM, 256 MiB of flash and 1 GiB of disk; the daemon is killed half-way.
#[test]
fn a_volume_is_as_large_as_its_slowest_tier() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("tiers", "64M", "256M", "1G");
    v.mount();
    let file = |n: usize| v.mountpoint().join(format!("file-{n:03}"));
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 0..FILES {
                fs::write(file(n), bytes(n)).expect("the write saw the kill");
            }
        });
        while !file(FILES / 2).exists() && !writer.is_finished() {
            thread::sleep(Duration::from_millis(20));
        }
        kill(v.status()["daemon_pid"].as_u64().unwrap());
    });
    let status = v.status();
    let live = |n: usize| status["tiers"][n]["live_bytes"].as_u64().unwrap();
    assert!(live(0) + live(1) > 500 << 20, "{}", status["tiers"]);
    assert_eq!(status["tiers"][0]["out_of_order"], 0);
    assert_eq!(status["tiers"][1]["out_of_order"], 0);
    let direct = status["migration"]["direct_to_tier_bytes"].as_u64();
    assert!(direct > Some(1 << 20), "{}", status["migration"]);
    for n in 0..FILES {
        assert!(fs::read(file(n)).unwrap() == bytes(n), "file {n}");
    }
    let place = v.shale(&["where", file(0).to_str().unwrap()]).ok();
    assert!(place.contains("zone"), "{place}");
    let tree = v.shale(&["where", v.place(), "--json"]).ok();
    let tree: serde_json::Value = serde_json::from_str(&tree).unwrap();
    let held = |tier: &str| tree[tier]["bytes"].as_u64().unwrap_or(0);
    let all = held("nvm") + held("ssd") + held("hdd");
    assert_eq!(all, (FILES * FILE_BYTES) as u64, "{tree}");
    let first = file(0);
    let at = ["where", first.to_str().unwrap(), "--offset", "5M"];
    assert_eq!(v.shale(&at).ok().lines().count(), 1);
    v.umount();
    v.fsck();
    v.mount();
    for n in [0, FILES / 2, FILES - 1] {
        assert!(
            fs::read(file(n)).unwrap() == bytes(n),
            "file {n} after a new mount"
        );
        fs::remove_file(file(n)).unwrap();
    }
    v.umount();
    v.fsck();
}

/// An image gives the host back what files took that are gone, though nobody needs space.
#[test]
fn images_shrink_when_files_go() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("shrinks", "64M", "256M", "1G");
    v.mount();
    let file = |n: usize| v.mountpoint().join(format!("file-{n}"));
    for n in 0..8 {
        fs::write(file(n), bytes(n)).unwrap();
        v.shale(&["migrate", v.place()]).ok();
    }
    let image = v.below().join("ssd.img");
    let held = || fs::metadata(&image).unwrap().blocks() * 512;
    let before = held();
    assert!(before > 8 * FILE_BYTES as u64, "{before}");
    for n in 1..8 {
        fs::remove_file(file(n)).unwrap();
    }
    v.shale(&["digest", v.place()]).ok();
    // What stays, and the zones that it shares or that are being written.
    wait_until("the image has shrunk", || held() < before / 2);
    assert!(fs::read(file(0)).unwrap() == bytes(0));
    v.umount();
    v.fsck();
}

/// What is read again and again below NVM comes back to it; what is read once stays.
#[test]
fn what_is_read_often_is_promoted() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("rises", "64M", "256M", "1G");
    v.mount();
    let file = |n: usize| v.mountpoint().join(format!("file-{n}"));
    for n in 0..2 {
        fs::write(file(n), bytes(n)).unwrap();
    }
    v.shale(&["migrate", v.place()]).ok();
    // Each reader is a process of its own, so nothing comes from a cache.
    let read = |n: usize| {
        let from = format!("if={}", file(n).display());
        let dd = ["dd", &from, "of=/dev/null", "bs=4k", "status=none"];
        v.shale(&[&["run", "--"], &dd[..]].concat()).ok();
    };
    let on_nvm = |n: usize| {
        let parts = v
            .shale(&["where", file(n).to_str().unwrap(), "--json"])
            .ok();
        let parts: serde_json::Value = serde_json::from_str(&parts).unwrap();
        let tier = |p: &serde_json::Value| p["tier"] == "nvm";
        parts.as_array().unwrap().iter().all(tier)
    };
    assert!(!on_nvm(0) && !on_nvm(1));
    read(1);
    wait_until("a file that is read often is on NVM", || {
        read(0);
        thread::sleep(Duration::from_millis(500));
        on_nvm(0)
    });
    assert!(!on_nvm(1));
    assert!(v.status()["migration"]["up_bytes"].as_u64() >= Some(FILE_BYTES as u64));
    for n in 0..2 {
        assert!(fs::read(file(n)).unwrap() == bytes(n), "file {n}");
    }
    v.umount();
    v.fsck();
}

/// Set aside is what all tiers together have space for, as zeros, and refused is what they have not.
#[test]
fn more_than_nvm_holds_is_set_aside() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("aside", "64M", "256M", "512M");
    v.mount();
    let file = fs::File::create(v.mountpoint().join("aside")).unwrap();
    file.write_all_at(&[9; 5000], (90 << 20) + 100).unwrap();
    let set_aside =
        |bytes: u64| rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes);
    let before = file.metadata().unwrap();
    assert_eq!(set_aside(4 << 30), Err(rustix::io::Errno::NOSPC));
    let after = file.metadata().unwrap();
    assert_eq!(
        (before.len(), before.blocks()),
        (after.len(), after.blocks())
    );
    let size = 400 << 20;
    set_aside(size).unwrap();
    let stat = file.metadata().unwrap();
    assert_eq!((stat.len(), stat.blocks()), (size, size / 512));
    // Nothing was written to the devices for it.
    let down: u64 = v.status()["tiers"]
        .as_array()
        .unwrap()
        .iter()
        .map(written)
        .sum();
    assert!(down < 1 << 20, "{down} bytes written");
    file.write_all_at(&[7; 3000], 200 << 20).unwrap();
    v.kill_daemon();
    v.shale(&["migrate", v.place()]).ok();
    v.shale(&["scrub", v.place()]).ok();
    let mut expected = vec![0; size as usize];
    expected[(90 << 20) + 100..][..5000].fill(9);
    expected[200 << 20..][..3000].fill(7);
    assert!(fs::read(v.mountpoint().join("aside")).unwrap() == expected);
    assert_eq!(file.metadata().unwrap().blocks(), size / 512);
    drop(file);
    v.umount();
    v.fsck();
}

fn written(tier: &serde_json::Value) -> u64 {
    tier["written_bytes"].as_u64().unwrap()
}

/// A model of a disk is in front of the disk as soon as the volume file names it, and `status` says so.
#[test]
fn a_model_makes_a_device_as_slow_as_it_says() {
    const BYTES: usize = 20 << 20;
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("model", "64M", "64M", "256M");
    let to_disk = |name: &str| {
        let file = v.mountpoint().join(name);
        fs::write(&file, pattern(1, BYTES)).unwrap();
        let file = file.to_str().unwrap().to_owned();
        let begun = Instant::now();
        v.shale(&["pin", &file, "--tier", "hdd"]).ok();
        begun.elapsed()
    };
    let text = fs::read_to_string(v.file()).unwrap();
    let named = |model: &str| text.replace("[[hdd]]", &format!("[[hdd]]\nmodel = \"{model}\""));
    fs::write(v.file(), named("tape")).unwrap();
    let said = v.shale(&["mount", v.file(), v.place()]).failed(1);
    assert!(
        said.contains("hdd.model") && said.contains("flash, disk"),
        "{said}"
    );
    fs::write(v.file(), named("disk")).unwrap();
    v.mount();
    let took = to_disk("slow");
    // 0.1 GB/s.
    assert!(
        took >= Duration::from_millis(BYTES as u64 / 100_000),
        "{took:?}"
    );
    let status = v.status();
    let (ssd, hdd) = (
        &status["tiers"][0]["devices"][0],
        &status["tiers"][1]["devices"][0],
    );
    assert_eq!(
        (&ssd["model"], &hdd["model"]),
        (&Value::Null, &Value::from("disk"))
    );
    assert!(
        hdd["model_delayed_ns"].as_u64() > Some(100_000_000),
        "{hdd}"
    );
    let said = v.shale(&["status", v.place()]).ok();
    assert!(said.contains("model 'disk'"), "{said}");
    let read = fs::read(v.mountpoint().join("slow")).unwrap();
    assert!(read == pattern(1, BYTES));
    v.umount();
    v.fsck();
}

/// Pause and limit hold for the daemon that is started after a killed one, and small limits are kept.
#[test]
fn pause_and_limit_outlive_a_killed_daemon() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("speed", "64M", "256M", "1G");
    let mut output = fs::read_to_string(v.file()).unwrap();
    output.insert_str(0, "migrate_at_percent = 50\n");
    fs::write(v.file(), output).unwrap();
    v.mount();
    v.shale(&["migrate", v.place(), "--pause", "--limit", "500K"])
        .ok();
    fs::write(v.mountpoint().join("file"), pattern(1, 40 << 20)).unwrap();
    v.shale(&["digest", v.place()]).ok();
    let moved = || v.status()["migration"]["down_bytes"].as_u64().unwrap();
    thread::sleep(Duration::from_secs(1));
    assert_eq!(moved(), 0, "while it is paused");
    v.kill_daemon();
    thread::sleep(Duration::from_secs(1));
    let speed = v.status()["migration"].clone();
    assert_eq!(
        (&speed["paused"], &speed["limit_bytes_per_s"], moved()),
        (&true.into(), &(500 << 10).into(), 0)
    );
    v.shale(&["migrate", v.place(), "--resume"]).ok();
    wait_until("something moves", || moved() > 0);
    let (from, begun) = (moved(), Instant::now());
    thread::sleep(Duration::from_secs(6));
    let (bytes, seconds) = (moved() - from, begun.elapsed().as_secs_f64());
    let rate = bytes as f64 / seconds / 1024.0;
    // Pieces of 1 MiB may go as a whole.
    assert!(rate > 250.0 && rate < 750.0, "{rate} KiB/s");
    v.shale(&["migrate", v.place(), "--limit", "0"]).ok();
    wait_until("it goes on at once", || moved() > 8 << 20);
    v.shale(&["migrate", v.place(), "--limit", "1K"]).ok();
    let begun = Instant::now();
    v.umount();
    assert!(begun.elapsed() < Duration::from_secs(10));
    v.mount();
    assert_eq!(v.status()["migration"]["limit_bytes_per_s"], 0);
}

/// A model of NVM is in front of it for the mount and for programs under `shale run`, each line of 64 bytes that they write.
#[test]
fn a_model_makes_nvm_as_slow_as_it_says() {
    const NS_A_LINE: u64 = 800;
    const CALLS: u64 = 3000;
    const LINES: u64 = 65;
    let Some(v) = with_library("nvm-model") else {
        return;
    };
    assert_eq!(v.status()["nvm_model"], Value::Null);
    v.umount();
    let text = fs::read_to_string(v.file()).unwrap();
    let named = |model: &str| text.replace("[[nvm]]", &format!("[[nvm]]\nmodel = \"{model}\""));
    fs::write(v.file(), named("hinfs-9")).unwrap();
    let said = v.shale(&["mount", v.file(), v.place()]).failed(1);
    assert!(
        said.contains("nvm.model") && said.contains("hinfs-NS"),
        "{said}"
    );
    fs::write(v.file(), named(&format!("hinfs-{NS_A_LINE}"))).unwrap();
    v.mount();
    let delayed = || v.status()["nvm_model"]["delayed_ns"].as_u64().unwrap();
    let (before, file) = (
        delayed(),
        fs::File::create(v.mountpoint().join("a")).unwrap(),
    );
    for n in 0..100 {
        file.write_all_at(&pattern(n, 4096), 100 + n as u64 * 4096)
            .unwrap();
    }
    drop(file);
    let through_mount = delayed() - before;
    assert!(through_mount >= 100 * LINES * NS_A_LINE, "{through_mount}");
    let script = format!(
        "import os, time; f = os.open('{}/b', os.O_CREAT | os.O_RDWR); b = b'x' * 4096; os.pwrite(f, b, 0); t = time.perf_counter_ns()\n\
         for n in range({CALLS}): os.pwrite(f, b, 100 + n % 50 * 4096)\n\
         print(time.perf_counter_ns() - t)",
        v.place()
    );
    let said = v.shale(&["run", "--", "python3", "-c", &script]).ok();
    let took: u64 = said.trim().parse().unwrap();
    assert!(took >= CALLS * LINES * NS_A_LINE, "{took}");
    let said = v.shale(&["status", v.place()]).ok();
    assert!(said.contains("model 'hinfs-800'"), "{said}");
    v.umount();
    v.fsck();
}
