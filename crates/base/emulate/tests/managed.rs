//! Emulated host-managed devices as devices of a tier.
#![forbid(unsafe_code)]

use shale_block::host_managed::HostManaged;
use shale_block::{BlockDevice, TierDevice};
use shale_block::{IO_BYTES, ManagedBlocks, ManagedShape};
use shale_emulate::host_managed::{EmulatedZones, ZoneShape};
use std::sync::Arc;

const BLOCK: u64 = IO_BYTES as u64;

/// One conventional zone, two for labels, five more.
const SMALL: ZoneShape = ZoneShape {
    zones: 8,
    conventional: 1,
    zone_bytes: 128 << 10,
    capacity: 72 << 10,
    max_active: 6,
};
const LABEL_BYTES: u64 = 1 << 20;
const UNIT: u64 = 64 << 10;
/// What can be used of a zone: whole units.
const ZONE_BYTES: u64 = 64 << 10;
const BLOCKS: u64 = ZONE_BYTES / BLOCK;

fn device(shape: ZoneShape) -> Arc<EmulatedZones> {
    Arc::new(EmulatedZones::memory(shape).unwrap())
}

fn open(device: &Arc<EmulatedZones>) -> ManagedBlocks {
    let same: Arc<dyn HostManaged> = device.clone();
    let opened = ManagedBlocks::open("zones", same, LABEL_BYTES, (ZONE_BYTES, UNIT));
    opened.unwrap()
}

fn at(zone: u64, block: u64) -> u64 {
    LABEL_BYTES + zone * ZONE_BYTES + block * BLOCK
}

fn write(device: &ManagedBlocks, zone: u64, block: u64, blocks: u64, byte: u8) -> bool {
    let data = vec![byte; (blocks * BLOCK) as usize];
    device.write(at(zone, block), &data).is_ok()
}

fn read(device: &ManagedBlocks, zone: u64, block: u64) -> u8 {
    let mut data = [0; IO_BYTES];
    device.read(at(zone, block), &mut data).unwrap();
    assert!(data.iter().all(|byte| *byte == data[0]));
    data[0]
}

fn written(device: &ManagedBlocks, zone: u64) -> Option<u64> {
    let bytes = device.zone_written(at(zone, 0), ZONE_BYTES);
    bytes.map(|bytes| bytes / BLOCK)
}

fn reset(device: &ManagedBlocks, zone: u64) {
    device.discard(at(zone, 0), ZONE_BYTES).unwrap();
}

#[test]
fn a_device_is_divided_into_what_all_its_zones_can_hold() {
    let shape = |device: &EmulatedZones, bytes| {
        let shape = ManagedShape::of(device, bytes, UNIT);
        shape.map_err(|e| e.to_string())
    };
    let whole = device(SMALL);
    let found = shape(&whole, u64::MAX).unwrap();
    assert_eq!(
        (found.zone_bytes, found.zones, found.labels),
        (ZONE_BYTES, 6, 1)
    );
    assert_eq!(open(&whole).bytes(), at(6, 0));
    let part = shape(&whole, 5 * SMALL.zone_bytes + 1).unwrap();
    assert_eq!(part.zones, 3);
    for (zones, word) in [(2, "no two sequential"), (1, "no two sequential")] {
        let said = shape(&whole, zones * SMALL.zone_bytes).unwrap_err();
        assert!(said.contains(word), "{said}");
    }
    let few = ZoneShape {
        max_active: 3,
        ..SMALL
    };
    assert!(
        shape(&device(few), u64::MAX)
            .unwrap_err()
            .contains("active")
    );
    whole.wear_out(2, false).unwrap();
    let said = shape(&whole, u64::MAX).unwrap_err();
    assert!(said.contains("zone 2, for labels"), "{said}");
    let whole: Arc<dyn HostManaged> = device(SMALL);
    let other = ManagedBlocks::open("zones", whole, LABEL_BYTES, (2 * ZONE_BYTES, UNIT));
    let said = other.err().unwrap().to_string();
    assert!(
        said.contains("zones of 65536 bytes, expected 131072"),
        "{said}"
    );
}

#[test]
fn a_zone_is_written_in_order_and_reset_as_a_whole() {
    let device = device(SMALL);
    let blocks = open(&device);
    assert_eq!((written(&blocks, 0), written(&blocks, 1)), (None, Some(0)));
    assert!(write(&blocks, 1, 0, 3, 7));
    assert!(!write(&blocks, 1, 4, 1, 7) && !write(&blocks, 1, 2, 1, 7));
    assert!(write(&blocks, 1, 3, 2, 8));
    assert_eq!((read(&blocks, 1, 2), read(&blocks, 1, 4)), (7, 8));
    // To its end and into the next one.
    assert!(write(&blocks, 1, 5, BLOCKS - 5 + 2, 9));
    assert_eq!(
        (written(&blocks, 1), written(&blocks, 2)),
        (Some(BLOCKS), Some(2))
    );
    assert_eq!(device.out_of_order(), 0, "the device was not asked");
    reset(&blocks, 1);
    assert_eq!(
        (written(&blocks, 1), written(&blocks, 2)),
        (Some(0), Some(2))
    );
    assert!(write(&blocks, 1, 0, 1, 5));
    reset(&blocks, 3);
    assert_eq!(device.resets(), 1, "it was empty");
    // A conventional zone is written anywhere, and there is nothing to reset.
    assert!(write(&blocks, 0, 9, 2, 1) && write(&blocks, 0, 3, 2, 2));
    reset(&blocks, 0);
    assert_eq!((read(&blocks, 0, 9), read(&blocks, 0, 3)), (1, 2));
    drop(blocks);
    let blocks = open(&device);
    assert_eq!(
        (written(&blocks, 1), written(&blocks, 2)),
        (Some(1), Some(2))
    );
    assert_eq!((device.out_of_order(), device.resets()), (0, 1));
}

/// More zones are begun than the device has active ones: some are finished, and never are too many.
#[test]
fn zones_that_were_begun_are_finished_for_others() {
    let device = device(SMALL);
    let blocks = open(&device);
    blocks.write(0, &[1; IO_BYTES]).unwrap();
    for zone in 1..6 {
        assert!(write(&blocks, zone, 0, 1 + zone, zone as u8), "{zone}");
    }
    reset(&blocks, 1);
    // Six: four data zones, one of labels, and none of them is full.
    assert!(write(&blocks, 1, 0, 1, 1));
    drop(blocks);
    let blocks = open(&device);
    // Two are kept, those that are written least; the others count as full.
    let kept: Vec<_> = (1..6).map(|zone| written(&blocks, zone)).collect();
    let full = Some(BLOCKS);
    assert_eq!(kept, [Some(1), Some(3), full, full, full]);
    for zone in [3, 4, 5] {
        reset(&blocks, zone);
        assert!(write(&blocks, zone, 0, BLOCKS, 1), "{zone}");
    }
    assert!(write(&blocks, 1, 1, 1, 1) && write(&blocks, 2, 3, 1, 2));
    assert_eq!((read(&blocks, 2, 0), read(&blocks, 5, 9)), (2, 1));
    blocks.write(BLOCK, &[1; IO_BYTES]).unwrap();
    assert_eq!(device.out_of_order(), 0);
}

#[test]
fn a_zone_that_is_worn_out_is_read_and_left_alone() {
    let device = device(SMALL);
    let blocks = open(&device);
    assert!(write(&blocks, 2, 0, 3, 7) && write(&blocks, 3, 0, 3, 7));
    drop(blocks);
    device.wear_out(4, false).unwrap();
    device.wear_out(5, true).unwrap();
    let blocks = open(&device);
    for zone in [2, 3] {
        assert_eq!(written(&blocks, zone), Some(BLOCKS), "{zone}");
        reset(&blocks, zone);
        assert_eq!(written(&blocks, zone), Some(BLOCKS), "it is not erased");
        assert!(!write(&blocks, zone, 3, 1, 8));
    }
    assert_eq!(read(&blocks, 2, 1), 7);
    assert!(blocks.read(at(3, 0), &mut [0; IO_BYTES]).is_err());
    assert!(write(&blocks, 1, 0, 1, 8));
    // While it is used.
    assert!(write(&blocks, 4, 0, 2, 9));
    device.wear_out(6, false).unwrap();
    reset(&blocks, 4);
    assert_eq!(
        (written(&blocks, 4), read(&blocks, 4, 1)),
        (Some(BLOCKS), 9)
    );
    assert!(!write(&blocks, 4, 0, 1, 9));
    assert_eq!((device.resets(), device.out_of_order()), (0, 0));
}

/// As the device reports after a write, a finish or a reset has failed.
#[test]
fn a_zone_that_wears_out_while_it_is_written_is_reported() {
    let device = device(SMALL);
    let blocks = open(&device);
    let error = |zone, block: u64| blocks.write(at(zone, block), &[9; IO_BYTES]).unwrap_err();
    let worn = |zone| blocks.zone_worn(at(zone, 0), ZONE_BYTES);
    // The conventional one, and a sequential one: 0, and 1 behind two of labels.
    assert!(write(&blocks, 0, 0, 2, 6) && write(&blocks, 1, 0, 2, 7));
    for (zone, on_device) in [(0, 0), (1, 3)] {
        device.wear_out(on_device, false).unwrap();
        assert!(!worn(zone));
        assert!(error(zone, 2).is_worn_out() && worn(zone));
        assert!(error(zone, 2).is_worn_out(), "the device is not asked");
        assert_eq!(written(&blocks, zone), Some(BLOCKS));
    }
    assert_eq!((read(&blocks, 0, 1), read(&blocks, 1, 1)), (6, 7));
    // Other errors are those of the device.
    assert!(write(&blocks, 2, 0, 1, 8) && !error(2, 3).is_worn_out() && !worn(2));
    assert!(write(&blocks, 2, 1, 1, 8));
    device.cut_power(1).unwrap();
    let blocks = open(&device);
    let worn = [0, 1, 2].map(|zone| blocks.zone_worn(at(zone, 0), ZONE_BYTES));
    assert_eq!(worn, [true, true, false]);
    assert!(write(&blocks, 3, 0, 3, 5));
    assert_eq!(device.out_of_order(), 0);
}

#[test]
fn a_zone_that_cannot_be_finished_is_no_hindrance() {
    let device = device(ZoneShape {
        max_active: 4,
        ..SMALL
    });
    let blocks = open(&device);
    // Full for us, and active for the device, which has more of each.
    for zone in 1..=4 {
        assert!(write(&blocks, zone, 0, BLOCKS, zone as u8), "{zone}");
    }
    device.wear_out(3, false).unwrap();
    assert!(write(&blocks, 5, 0, 1, 5));
    let worn = |zone| blocks.zone_worn(at(zone, 0), ZONE_BYTES);
    assert!(worn(1) && !worn(2));
    assert_eq!(read(&blocks, 1, 9), 1);
    assert_eq!(device.out_of_order(), 0);
}

#[test]
fn labels_are_written_again_for_ever() {
    let device = device(SMALL);
    let label = |blocks: &ManagedBlocks, n: u64| {
        let mut block = [0; IO_BYTES];
        blocks.read(n * BLOCK, &mut block).unwrap();
        block[0]
    };
    for n in 1..=50 {
        let blocks = open(&device);
        assert_eq!((label(&blocks, 0), label(&blocks, 1)), (n - 1, n - 1));
        for copy in [0, BLOCK] {
            blocks.write(copy, &[n; IO_BYTES]).unwrap();
            blocks.flush().unwrap();
            device.cut_power(u64::from(n)).unwrap();
        }
    }
    assert!(device.resets() > 5, "{}", device.resets());
    assert_eq!(label(&open(&device), 2), 0);
}

#[test]
fn labels_go_on_where_one_of_their_zones_is_worn_out() {
    for (worn, offline, written) in [(1, false, 9), (2, false, 9), (2, true, 5)] {
        let device = device(SMALL);
        let mut block = [0; IO_BYTES];
        // The ninth version is in the second zone.
        for n in 1..=written {
            open(&device).write(0, &[n; IO_BYTES]).unwrap();
        }
        device.wear_out(worn, offline).unwrap();
        open(&device).read(0, &mut block).unwrap();
        assert_eq!(block[0], written, "{worn}");
        for n in 10..13 {
            let blocks = open(&device);
            blocks.write(0, &[n; IO_BYTES]).unwrap();
            blocks.flush().unwrap();
            open(&device).read(0, &mut block).unwrap();
            assert_eq!(block[0], n, "{worn}");
        }
    }
}

#[test]
fn a_label_is_the_old_one_or_the_new_one_after_a_cut() {
    for seed in 0..300 {
        let device = device(SMALL);
        let blocks = open(&device);
        let times = 1 + seed % 19;
        for n in 1..times {
            blocks.write(0, &[n as u8; IO_BYTES]).unwrap();
            blocks.flush().unwrap();
        }
        blocks.write(0, &[times as u8; IO_BYTES]).unwrap();
        device.cut_power(seed).unwrap();
        let blocks = open(&device);
        let mut block = [0; IO_BYTES];
        blocks.read(0, &mut block).unwrap();
        let found = u64::from(block[0]);
        assert!(found == times || found == times - 1, "{found} of {times}");
        for n in [77, 78] {
            blocks.write(0, &[n; IO_BYTES]).unwrap();
            blocks.flush().unwrap();
        }
        open(&device).read(0, &mut block).unwrap();
        assert_eq!(block[0], 78);
        assert_eq!(device.out_of_order(), 0);
    }
}

#[test]
fn a_zone_goes_on_where_a_cut_left_its_pointer() {
    let mut ahead = 0;
    for seed in 0..200 {
        let device = device(SMALL);
        let blocks = open(&device);
        assert!(write(&blocks, 1, 0, 4, 1));
        blocks.flush().unwrap();
        assert!(write(&blocks, 1, 4, 3, 2) && write(&blocks, 1, 7, 3, 2));
        device.cut_power(seed).unwrap();
        let blocks = open(&device);
        assert_eq!(read(&blocks, 1, 3), 1);
        let on = written(&blocks, 1).unwrap();
        assert!((4..=10).contains(&on), "{on}");
        (4..on).for_each(|b| assert_eq!(read(&blocks, 1, b), 2));
        ahead += u64::from(on > 4 && on < 10);
        assert!(
            write(&blocks, 1, on, BLOCKS - on, 3),
            "seed {seed}: from {on}"
        );
        (on..BLOCKS).for_each(|b| assert_eq!(read(&blocks, 1, b), 3));
        // A reset that was not flushed is done or not.
        blocks.flush().unwrap();
        reset(&blocks, 1);
        assert!(write(&blocks, 1, 0, 2, 4));
        device.cut_power(seed).unwrap();
        let blocks = open(&device);
        match written(&blocks, 1).unwrap() {
            BLOCKS => assert_eq!(read(&blocks, 1, BLOCKS - 1), 3),
            n => (0..n).for_each(|b| assert_eq!(read(&blocks, 1, b), 4)),
        }
        assert_eq!(device.out_of_order(), 0);
    }
    assert!(ahead > 50, "{ahead} pointers were ahead");
}
