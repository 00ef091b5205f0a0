use super::*;
use crate::zoned::Behaviour;
use shale_block::{BlockDevice, TierDevice};

/// Zones of 2 erase blocks, of 4 pages of 2 blocks.
const SMALL: Geometry = Geometry {
    units: 4,
    blocks_per_unit: 3,
    pages_per_block: 4,
    page_bytes: 8192,
};
const LABEL_BYTES: u64 = 1 << 20;
const ZONE_BYTES: u64 = 64 << 10;
const BLOCK: u64 = IO_BYTES as u64;

fn flash() -> Arc<Zoned> {
    let cuts = Behaviour {
        cuts: true,
        ..Behaviour::default()
    };
    Arc::new(Zoned::memory(SMALL, cuts).unwrap())
}

fn open(flash: &Arc<Zoned>) -> FlashBlocks {
    FlashZones::open("flash", Arc::clone(flash), LABEL_BYTES, ZONE_BYTES).unwrap()
}

fn at(zone: u64, block: u64) -> u64 {
    LABEL_BYTES + zone * ZONE_BYTES + block * BLOCK
}

fn write(device: &FlashBlocks, zone: u64, block: u64, blocks: u64, byte: u8) -> bool {
    let data = vec![byte; (blocks * BLOCK) as usize];
    device.write(at(zone, block), &data).is_ok()
}

fn read(device: &FlashBlocks, zone: u64, block: u64) -> Result<u8, BlockError> {
    let mut data = [0; IO_BYTES];
    device.read(at(zone, block), &mut data)?;
    assert!(data.iter().all(|byte| *byte == data[0]));
    Ok(data[0])
}

fn written(device: &FlashBlocks, zone: u64) -> u64 {
    device.zone_written(at(zone, 0), ZONE_BYTES).unwrap() / BLOCK
}

#[test]
fn zones_are_whole_erase_blocks_behind_those_of_the_labels() {
    assert_eq!(FlashZones::zoned_bytes(SMALL, ZONE_BYTES), 5 * ZONE_BYTES);
    assert_eq!(FlashZones::zoned_bytes(SMALL, ZONE_BYTES * 3 / 4), 0);
    assert_eq!(open(&flash()).bytes(), at(5, 0));
}

#[test]
fn blocks_wait_for_their_page_and_a_flush_ends_it() {
    let device = open(&flash());
    let programmed = || device.medium().flash.counts().pages_programmed;
    assert!(write(&device, 1, 0, 3, 7));
    assert_eq!((programmed(), written(&device, 1)), (1, 3));
    assert_eq!(read(&device, 1, 2).unwrap(), 7, "what waits is read");
    device.flush().unwrap();
    assert_eq!((programmed(), written(&device, 1)), (2, 4));
    assert!(!write(&device, 1, 3, 1, 8), "its page is written");
    assert!(!write(&device, 1, 5, 1, 8), "block 4 comes first");
    assert!(
        !write(&device, 1, 6, 2, 8),
        "also if it is of another erase block"
    );
    assert!(write(&device, 1, 4, 12, 8));
    assert_eq!(device.medium().flash.counts().out_of_order, 3);
    assert_eq!(
        (read(&device, 1, 2).unwrap(), read(&device, 1, 3).unwrap()),
        (7, 0)
    );
    assert_eq!(written(&device, 1), 16);
    assert!(!write(&device, 1, 0, 1, 9), "it is full");
    device.discard(at(1, 0), ZONE_BYTES).unwrap();
    assert_eq!(device.medium().flash.counts().blocks_erased, 2);
    assert_eq!(
        (written(&device, 1), read(&device, 1, 2).unwrap()),
        (0, 0xff)
    );
    device.discard(at(1, 0), ZONE_BYTES).unwrap();
    assert_eq!(
        device.medium().flash.counts().blocks_erased,
        2,
        "it is erased"
    );
    assert!(write(&device, 1, 0, 1, 9));
}

#[test]
fn labels_are_written_again_for_ever() {
    let flash = flash();
    let label = |device: &FlashBlocks, n: u64| {
        let mut block = [0; IO_BYTES];
        device.read(n * BLOCK, &mut block).unwrap();
        block[0]
    };
    for n in 1..=50 {
        let device = open(&flash);
        assert_eq!((label(&device, 0), label(&device, 1)), (n - 1, n - 1));
        for copy in [0, BLOCK] {
            device.write(copy, &[n; IO_BYTES]).unwrap();
            device.flush().unwrap();
            flash.cut_power(u64::from(n)).unwrap();
        }
    }
    assert!(flash.counts().blocks_erased > 20);
    assert_eq!(label(&open(&flash), 2), 0);
}

#[test]
fn a_label_is_the_old_one_or_the_new_one_after_a_cut() {
    for seed in 0..200 {
        let flash = flash();
        let device = open(&flash);
        let times = 1 + seed % 11;
        for n in 1..times {
            device.write(0, &[n as u8; IO_BYTES]).unwrap();
            device.flush().unwrap();
        }
        device.write(0, &[times as u8; IO_BYTES]).unwrap();
        flash.cut_power(seed).unwrap();
        let device = open(&flash);
        let mut block = [0; IO_BYTES];
        device.read(0, &mut block).unwrap();
        let found = u64::from(block[0]);
        assert!(found == times || found == times - 1, "{found} of {times}");
        for n in [77, 78] {
            device.write(0, &[n; IO_BYTES]).unwrap();
            device.flush().unwrap();
        }
        let device = open(&flash);
        device.read(0, &mut block).unwrap();
        assert_eq!(block[0], 78);
    }
}

#[test]
fn a_zone_goes_on_behind_what_a_cut_left() {
    let mut uneven = 0;
    for seed in 0..200 {
        let flash = flash();
        let device = open(&flash);
        assert!(write(&device, 0, 0, 3, 1));
        device.flush().unwrap();
        assert!(write(&device, 0, 4, 9, 2));
        flash.cut_power(seed).unwrap();
        let device = open(&flash);
        uneven += device.medium().state.lock().uneven.len();
        assert_eq!(read(&device, 0, 2).unwrap(), 1);
        let on = written(&device, 0);
        assert!((4..=12).contains(&on), "{on}");
        assert!(write(&device, 0, on, 16 - on, 3), "seed {seed}: from {on}");
        device.flush().unwrap();
        let device = open(&flash);
        assert_eq!(written(&device, 0), 16);
        (on..16).for_each(|b| assert_eq!(read(&device, 0, b).unwrap(), 3));
        assert_eq!(flash.counts().out_of_order, 0);
    }
    assert!(uneven > 20, "{uneven} zones were uneven");
}

#[test]
fn a_zone_half_erased_is_full_until_it_is_erased() {
    let mut full = 0;
    for seed in 0..100 {
        let flash = flash();
        let device = open(&flash);
        assert!(write(&device, 2, 0, 7, 1));
        device.flush().unwrap();
        device.discard(at(2, 0), ZONE_BYTES).unwrap();
        flash.cut_power(seed).unwrap();
        let device = open(&flash);
        full += u64::from(written(&device, 2) == 16);
        device.discard(at(2, 0), ZONE_BYTES).unwrap();
        assert_eq!(written(&device, 2), 0);
        assert!(write(&device, 2, 0, 16, 4));
    }
    assert!(full > 10, "{full} were half erased");
}

#[test]
fn an_image_is_used_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flash.img");
    let flash = Zoned::create(&path, SMALL, Behaviour::default()).unwrap();
    let device = FlashZones::open("x", Arc::new(flash), LABEL_BYTES, ZONE_BYTES).unwrap();
    assert!(device.trouble().is_none());
    assert!(write(&device, 0, 0, 4, 5));
    device.flush().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(device.trouble().unwrap().contains("leads nowhere"));
}

/// Of erase block 1 of a zone, and of what waits for one of its pages.
#[test]
fn a_zone_that_wears_out_is_read_and_left_alone() {
    let flash = flash();
    let device = open(&flash);
    let wear_out = |zone: u32| flash.wear_out(SMALL.block(2 + 2 * zone + 1)).unwrap();
    let worn = |device: &FlashBlocks, zone| device.zone_worn(at(zone, 0), ZONE_BYTES);
    let error = |zone, block: u64, blocks: u64| {
        let data = vec![9; (blocks * BLOCK) as usize];
        device.write(at(zone, block), &data).unwrap_err()
    };
    // While it is written: the page of block 0 is programmed, that of block 1 is not.
    assert!(write(&device, 1, 0, 4, 7));
    device.flush().unwrap();
    wear_out(1);
    assert!(!worn(&device, 1), "nobody has met it");
    assert!(error(1, 4, 4).is_worn_out());
    assert!(worn(&device, 1) && !worn(&device, 0));
    assert_eq!(written(&device, 1), 16);
    assert!(error(1, 4, 1).is_worn_out(), "so is the next one");
    // When what waits is flushed; what waits for another zone is durable.
    assert!(write(&device, 2, 0, 3, 6) && write(&device, 3, 0, 3, 5));
    wear_out(2);
    assert!(device.flush().unwrap_err().is_worn_out());
    assert!(worn(&device, 2) && !worn(&device, 3));
    device.flush().unwrap();
    flash.cut_power(1).unwrap();
    // When it is erased.
    assert!(write(&device, 4, 0, 4, 4));
    wear_out(4);
    device.discard(at(4, 0), ZONE_BYTES).unwrap();
    assert!(worn(&device, 4) && written(&device, 4) == 16);
    drop(device);
    let device = open(&flash);
    for zone in [1, 2, 4] {
        assert!(worn(&device, zone), "{zone}");
        assert_eq!(written(&device, zone), 16, "{zone}");
        device.discard(at(zone, 0), ZONE_BYTES).unwrap();
    }
    assert_eq!(read(&device, 1, 3).unwrap(), 7);
    assert_eq!(read(&device, 3, 2).unwrap(), 5);
    assert!(write(&device, 3, 4, 12, 5) && write(&device, 0, 0, 16, 3));
    assert_eq!(flash.counts().out_of_order, 0);
}
