//! ext4 on emulated flash, whose process ends and starts again between.

use std::path::Path;
use std::process::Command;

use shale_bench::flash::Counters;
use shale_bench::flash::compare::{Kind, Mounted, Served};
use shale_bench::flash::load::{Load, Options};

fn served(image: &Path) -> Served {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shale-harness"));
    command.args([
        "flash",
        "serve",
        "--mib",
        "192",
        "--cache-mib",
        "1",
        "--image",
    ]);
    Served::start(command.arg(image)).unwrap()
}

#[test]
fn ext4_is_as_it_was_when_the_flash_comes_back() {
    if !Served::can_start() {
        eprintln!("SKIPPED: needs root, /dev/fuse and /dev/loop-control");
        return;
    }
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let image = place.path().join("image");
    let options = Options {
        full_percent: 80,
        files_max: usize::MAX,
        file_bytes: 1 << 20,
        fill_passes: 1,
        sync_every: 64,
        seed: 7,
    };
    let mut flash = served(&image);
    let device = flash.ready.device.clone();
    Kind::Ext4.make(&device).unwrap();
    let mounted = Mounted::new(&device, Kind::Ext4).unwrap();
    let mut load = Load::fill(mounted.path(), options).unwrap();
    let blocks = load.bytes() / 4_096;
    load.overwrite(blocks).unwrap();
    let expected = load.close();
    let counters: Counters = flash.counters().unwrap();
    assert!(
        counters.pages_moved > 0 && counters.blocks_erased > 0,
        "{counters:?}"
    );
    assert!(counters.blocks_written >= 2 * blocks, "{counters:?}");
    assert_eq!(counters.out_of_order, 0);
    drop(mounted);
    drop(flash);
    let flash = served(&image);
    let mounted = Mounted::new(&flash.ready.device, Kind::Ext4).unwrap();
    expected.check(mounted.path()).unwrap();
    drop(mounted);
    let device = flash.ready.device.clone();
    drop(flash);
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let left = |line: &str| line.starts_with(&*device.to_string_lossy());
    assert!(!mounts.lines().any(left), "{mounts}");
}
