//! A device as slow as a model, with ext4 on it.

use std::fs;
use std::process::Command;
use std::time::Instant;

use shale_bench::flash::compare::{Kind, Mounted, Served};
use shale_bench::tiers::device::Counters;

#[test]
fn no_page_cache_is_below_ext4_on_a_slow_device() {
    const BYTES: usize = 10_000_000;
    if !Served::can_start() {
        eprintln!("SKIPPED: needs root, /dev/fuse and /dev/loop-control");
        return;
    }
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_shale-harness"));
    command.args(["tiers", "device", "--mib", "64", "--model", "disk"]);
    let mut disk = Served::start(command.arg(place.path().join("image"))).unwrap();
    let device = disk.ready.device.clone();
    Kind::Ext4.make(&device).unwrap();
    let bytes: Vec<u8> = (0..BYTES).map(|n| (n / 4_096) as u8).collect();
    let mounted = Mounted::new(&device, Kind::Ext4).unwrap();
    fs::write(mounted.path().join("file"), &bytes).unwrap();
    drop(mounted);
    let before: Counters = disk.counters().unwrap();
    assert!(before.written_bytes > BYTES as u64, "{before:?}");
    assert_eq!(before.model, "disk");
    // Mounted again: what is not in ext4's cache is read from the disk, at 0.1 GB/s.
    let mounted = Mounted::new(&device, Kind::Ext4).unwrap();
    let begun = Instant::now();
    assert!(fs::read(mounted.path().join("file")).unwrap() == bytes);
    let took = begun.elapsed();
    let after: Counters = disk.counters().unwrap();
    let read = after.read_bytes - before.read_bytes;
    assert!(read >= BYTES as u64, "{before:?} {after:?}");
    assert!(took.as_nanos() >= 100_000_000, "{took:?}");
    assert!(after.delayed_ns > before.delayed_ns, "{after:?}");
}
