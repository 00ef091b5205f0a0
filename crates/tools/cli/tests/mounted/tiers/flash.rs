//! Tiers that are only written in order, on the real programs: emulated raw flash, and an emulated
//! host-managed device.

use crate::volume::{Volume, can_mount, pattern, wait_until};
use serde_json::Value;
use shale_block::host_managed::{HostManaged, ZoneState, zones_of};
use shale_emulate::host_managed::{EmulatedZones, ZoneShape};
use shale_emulate::zoned::{Behaviour, Zoned};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const FILES: usize = 12;
const FILE_BYTES: usize = 8 << 20;

fn device(v: &Volume) -> Value {
    let text = v.shale(&["device", "list", v.place(), "--json"]).ok();
    serde_json::from_str::<Value>(&text).unwrap()[0].clone()
}

/// Each file is as it was written in the last round.
fn same(v: &Volume) {
    for n in 0..FILES {
        let found = fs::read(v.mountpoint().join(format!("file-{n:03}"))).unwrap();
        assert!(found == pattern(n + 3, FILE_BYTES), "file {n}");
    }
}

/// A zone that holds something wears out while the volume is not mounted: it is named, and emptied.
fn a_zone_wears_out(v: &Volume, wear: impl FnOnce(u64)) {
    let zones = |v: &Volume| {
        let mut all = Vec::new();
        for n in 0..FILES {
            let file = v.mountpoint().join(format!("file-{n:03}"));
            let text = v.shale(&["where", file.to_str().unwrap(), "--json"]).ok();
            let parts: Vec<Value> = serde_json::from_str(&text).unwrap();
            all.extend(parts.iter().filter_map(|p| p["zone"].as_u64()));
        }
        all
    };
    v.mount();
    let zone = zones(v)[0];
    v.umount();
    wear(zone);
    v.mount();
    let status = v.status();
    let worn = &status["tiers"][0]["devices"][0]["worn_zones"];
    assert_eq!(*worn, serde_json::json!([zone]), "{status}");
    let text = v.shale(&["status", v.place()]).ok();
    let line = format!("WORN OUT zones: {zone}");
    assert!(text.contains(&line), "{text}");
    wait_until("it is emptied", || !zones(v).contains(&zone));
    assert_eq!(device(v)["state"], "in use");
    same(v);
    v.umount();
    v.fsck();
}

/// Files are written over and over on a tier of which most is full; the daemon is killed, the volume
/// mounted again. `look`: at the device, after each round. Gives it as it was after the last one.
fn fill_again(v: &Volume, kind: &str, look: impl Fn(&Value)) -> Value {
    v.mount();
    let file = |n: usize| v.mountpoint().join(format!("file-{n:03}"));
    for round in 0..4 {
        let written = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..FILES {
                    let bytes = pattern(n + round, FILE_BYTES);
                    fs::write(file(n), bytes).expect("the write saw the kill");
                    written.store(n + 1, Ordering::Relaxed);
                }
            });
            if round == 2 {
                let third = || written.load(Ordering::Relaxed) > FILES / 3;
                wait_until("a third is written", third);
                v.kill_daemon();
            }
        });
        v.shale(&["migrate", v.place()]).ok();
        look(&device(v));
    }
    let used = device(v);
    assert_eq!(used["kind"], kind);
    assert!(used["live_bytes"].as_u64() >= Some(90 << 20), "{used}");
    assert_eq!(used["errors"], 0, "{used}");
    let status = v.status();
    assert_eq!(status["tiers"][0]["out_of_order"], 0);
    let erased = &status["tiers"][0]["zones_erased"];
    assert!(erased.as_u64() > Some(10), "{erased} zones erased");
    assert_eq!(status["tiers"][0]["devices"][0]["kind"], kind);
    same(v);
    let text = v.shale(&["device", "list", v.place()]).ok();
    assert!(text.contains(kind), "{text}");
    v.umount();
    v.fsck();
    v.mount();
    same(v);
    v.shale(&["scrub", v.place()]).ok();
    v.umount();
    v.fsck();
    used
}

/// A start with a volume file that says something else is refused, and named.
fn is_refused(v: &Volume, file: &str, words: &[&str]) {
    fs::write(v.file(), file).unwrap();
    let said = v.shale(&["mount", v.file(), v.place()]).failed(1);
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
}

#[test]
fn flash_that_is_only_written_in_order_is_a_tier() {
    if !can_mount() {
        return;
    }
    let below = tempfile::tempdir_in("/var/tmp").unwrap();
    let image: PathBuf = below.path().join("flash.img");
    let all = [("--ssd", image.as_path(), "128M:2M,kind=open-channel")];
    let v = Volume::with_devices("flash", "64M", below, &all);
    let made = fs::read_to_string(v.file()).unwrap();
    assert!(made.contains("kind = \"open-channel\""), "{made}");
    let used = fill_again(&v, "open-channel", |used| {
        let flash = &used["flash"];
        assert_eq!(flash["out_of_order"], 0, "{flash}");
        assert_eq!(flash["unreadable"], 0, "{flash}");
    });
    assert!(used["flash"]["blocks_erased"].as_u64() > Some(20), "{used}");
    a_zone_wears_out(&v, |zone| {
        let flash = Zoned::open(&image, Behaviour::default()).unwrap();
        // A zone is one erase block, behind two for labels.
        let block = flash.geometry().block(2 + zone as u32);
        flash.wear_out(block).unwrap();
    });
    let other = made.replace("open-channel", "conventional");
    is_refused(&v, &other, &["flash.img", "open-channel"]);
}

/// As many zones may be begun as a volume needs; of a zone not all can be used; some are conventional.
#[test]
fn a_host_managed_device_is_found_and_is_a_tier() {
    if !can_mount() {
        return;
    }
    let below = tempfile::tempdir_in("/var/tmp").unwrap();
    let image: PathBuf = below.path().join("zones.img");
    let shape = ZoneShape {
        zones: 40,
        conventional: 3,
        zone_bytes: 4 << 20,
        capacity: (3 << 20) + (300 << 10),
        max_active: 4,
    };
    drop(EmulatedZones::create(&image, shape).unwrap());
    let all = [("--ssd", image.as_path(), "160M")];
    let v = Volume::with_devices("zones", "64M", below, &all);
    let made = fs::read_to_string(v.file()).unwrap();
    assert!(made.contains("kind = \"host-managed\""), "{made}");
    fill_again(&v, "host-managed", |used| {
        assert_eq!(used["zone_bytes"], (3 << 20) + (256 << 10), "{used}");
        assert_eq!(used["zones"], 38, "{used}");
    });
    let device = EmulatedZones::open(&image).unwrap();
    let begun = zones_of(&device).unwrap().into_iter();
    let begun = begun.filter(|z| matches!(z.state, ZoneState::Active(_)));
    assert!((1..=device.max_active()).contains(&(begun.count() as u64)));
    drop(device);
    a_zone_wears_out(&v, |zone| {
        let device = EmulatedZones::open(&image).unwrap();
        // Those for labels are the first two that are sequential.
        let on_device = if zone < 3 { zone } else { zone + 2 };
        device.wear_out(on_device, false).unwrap();
    });
    let other = made.replace("host-managed", "conventional");
    is_refused(&v, &other, &["zones.img", "host-managed"]);
    let plain = fs::File::create(&image).unwrap();
    plain.set_len(200 << 20).unwrap();
    drop(plain);
    is_refused(
        &v,
        &made,
        &["zones.img", "a file without zones", "was host-managed"],
    );
}
