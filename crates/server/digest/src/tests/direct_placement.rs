//! Large runs of new data that are placed directly on a lower tier.

use super::world::{FILE, Place, World};
use crate::{Bounds, ChunkDone, DigestError, Mode, Placement};
use shale_block::{ManagedBlocks, MemoryBlocks, TierDevice};
use shale_emulate::host_managed::{EmulatedZones, ZoneShape};
use shale_format::limits::{BLOCK_BYTES, LABEL_AREA_BYTES, NVM_BYTES_MIN};
use shale_format::superblock::{DeviceEntry, TierTable};
use shale_format::{FileBlock, Ino, TierId};
use shale_nvm::Map;
use shale_volume::{LowerDevices, Mapping, MkfsOptions, Volume, VolumeError, WriteStream};
use std::sync::Arc;
use zerocopy::FromZeros;

const ZONE: u64 = 64;
const ZONES: u64 = 4;
const ZONE_BYTES: u64 = ZONE * BLOCK_BYTES as u64;
const FILE_INO: u64 = 100;

/// A volume with flash of four zones, one of which is kept.
fn world() -> (World, Arc<MemoryBlocks>) {
    let bytes = LABEL_AREA_BYTES + ZONES * ZONE_BYTES;
    let flash = Arc::new(MemoryBlocks::new("ssd", bytes));
    (world_on(flash.clone()), flash)
}

fn world_on(flash: Arc<dyn TierDevice>) -> World {
    let blocks = ZONES * ZONE;
    let mut ssd = TierTable::new_zeroed();
    (ssd.blocks, ssd.devices) = (blocks, 1);
    ssd.device[0] = DeviceEntry {
        uuid: [1; 16],
        blocks,
        zone_blocks: ZONE as u32,
        kind: 0,
    };
    let options = MkfsOptions {
        ssd,
        ..MkfsOptions::default()
    };
    let lower = LowerDevices {
        ssd: vec![flash],
        hdd: vec![],
    };
    let map = Arc::new(Map::anonymous(NVM_BYTES_MIN as usize).unwrap());
    let volume = Volume::create_with(map, &options, &lower).unwrap();
    let mut w = World::on(volume, Bounds::default());
    w.create(1, FILE_INO, "f", FILE);
    w.digest();
    w
}

/// Runs of so many blocks go to flash, if there are so many in a chunk and their file is not pinned elsewhere.
fn rule(run_blocks: u64, chunk_blocks: u64) -> Option<Place> {
    Some(Box::new(move |run| {
        let may = run.pin.is_none_or(|pin| pin == TierId::Ssd);
        match may && run.blocks >= run_blocks {
            true => Placement::Lower {
                tier: TierId::Ssd,
                stream: WriteStream::Cold,
                chunk_blocks,
            },
            false => Placement::Nvm,
        }
    }))
}

/// Bytes that differ from block to block.
fn data(seed: u8, bytes: usize) -> Vec<u8> {
    let byte = |n: usize| seed.wrapping_add((n / 1000) as u8);
    (0..bytes).map(byte).collect()
}

/// The tier of each block of the file.
fn tiers(w: &World, blocks: u64) -> Vec<Option<TierId>> {
    let inode = w.inode(FILE_INO).unwrap();
    let tier = |fb| match w.view().map_block(&inode, FileBlock(fb)).unwrap() {
        Mapping::Data { addr, .. } => addr.tier(),
        _ => None,
    };
    (0..blocks).map(tier).collect()
}

fn below(done: &ChunkDone) -> u64 {
    assert!(done.below.iter().all(|(ino, _)| *ino == Ino(FILE_INO)));
    done.below.iter().map(|(_, run)| run.len).sum()
}

#[test]
fn large_runs_go_below_and_small_ones_to_nvm() {
    let (mut w, _) = world();
    w.rules.placement = rule(16, 16);
    let mut expected = data(1, 20 * BLOCK_BYTES + 77);
    w.write(FILE_INO, 0, &expected);
    assert_eq!(below(&w.digest_once()), 21);
    assert_eq!(tiers(&w, 21), [Some(TierId::Ssd); 21]);
    assert_eq!(w.content(FILE_INO), expected);
    // A block in the midst is rewritten, from what is below.
    let used = w.volume().space().used;
    w.write(FILE_INO, 5 * 4096 + 10, &[7; 100]);
    expected[5 * 4096 + 10..][..100].fill(7);
    assert_eq!(below(&w.digest_once()), 0);
    assert_eq!(tiers(&w, 6)[4..], [Some(TierId::Ssd), Some(TierId::Nvm)]);
    assert!(w.volume().space().used > used);
    assert_eq!(w.content(FILE_INO), expected);
    // And goes below again with all the others.
    let again = data(9, 21 * BLOCK_BYTES);
    w.write(FILE_INO, 0, &again);
    assert_eq!(below(&w.digest_once()), 21);
    assert_eq!(tiers(&w, 21), [Some(TierId::Ssd); 21]);
    assert_eq!(w.content(FILE_INO), again);
    let space = w.volume().lower_space(TierId::Ssd).unwrap();
    assert_eq!((space.live, space.dead, space.out_of_order), (21, 21, 0));
}

#[test]
fn each_run_is_asked_for_and_streams_are_kept_apart() {
    let (mut w, _) = world();
    let lower = |stream| Placement::Lower {
        tier: TierId::Ssd,
        stream,
        chunk_blocks: 1,
    };
    w.rules.placement = Some(Box::new(move |run| match run.blocks {
        5 => lower(WriteStream::Hot),
        7 => lower(WriteStream::Cold),
        _ => Placement::Nvm,
    }));
    for (at, blocks) in [(0, 5), (10, 7), (20, 9)] {
        w.write(FILE_INO, at * 4096, &data(at as u8, blocks * BLOCK_BYTES));
    }
    assert_eq!(below(&w.digest_once()), 12);
    let (inode, view) = (w.inode(FILE_INO).unwrap(), w.view());
    let address = |fb| match view.map_block(&inode, FileBlock(fb)).unwrap() {
        Mapping::Data { addr, .. } => addr,
        other => panic!("{other:?}"),
    };
    let [hot, cold, nvm] = [0, 10, 20].map(address);
    let tiers = [hot, cold, nvm].map(|addr| addr.tier());
    assert_eq!(tiers, [TierId::Ssd, TierId::Ssd, TierId::Nvm].map(Some));
    let zone = |addr| view.zone(addr).unwrap().first;
    assert_ne!(zone(hot), zone(cold));
    assert_eq!(
        w.content(FILE_INO)[10 * 4096..][..7 * 4096],
        data(10, 7 * BLOCK_BYTES)
    );
}

#[test]
fn a_chunk_with_little_and_a_file_pinned_elsewhere_stay_in_nvm() {
    let (mut w, _) = world();
    w.rules.placement = rule(4, 16);
    let expected = data(2, 15 * BLOCK_BYTES);
    w.write(FILE_INO, 0, &expected);
    assert_eq!(below(&w.digest_once()), 0);
    let mut txn = w.volume().begin();
    let mut inode = txn.inode(Ino(FILE_INO)).unwrap().unwrap();
    inode.set_pin(Some(TierId::Nvm));
    txn.put_inode(&inode).unwrap();
    txn.commit().unwrap();
    let expected = data(3, 40 * BLOCK_BYTES);
    w.write(FILE_INO, 0, &expected);
    assert_eq!(below(&w.digest_once()), 0);
    assert_eq!(tiers(&w, 40), [Some(TierId::Nvm); 40]);
    assert_eq!(w.content(FILE_INO), expected);
}

#[test]
fn what_the_tier_has_no_space_for_goes_to_nvm() {
    let (mut w, _) = world();
    w.rules.placement = rule(16, 16);
    let (capacity, blocks) = ((ZONES - 1) * ZONE, 250);
    let expected = data(4, blocks as usize * BLOCK_BYTES);
    w.write(FILE_INO, 0, &expected);
    let all: u64 = w.digest().iter().map(below).sum();
    assert_eq!(all, capacity);
    let tiers = tiers(&w, blocks);
    let split = tiers.partition_point(|t| *t == Some(TierId::Ssd));
    assert_eq!(split as u64, capacity);
    assert!(tiers[split..].iter().all(|t| *t == Some(TierId::Nvm)));
    assert_eq!(w.content(FILE_INO), expected);
    assert_eq!(w.volume().space().taken, 0);
}

#[test]
fn a_device_that_fails_leaves_all_as_it_was_and_nvm_takes_it() {
    let (mut w, flash) = world();
    let old = data(5, 30 * BLOCK_BYTES);
    w.write(FILE_INO, 0, &old);
    w.digest();
    let taken = w.volume().space().taken;
    w.rules.placement = rule(16, 16);
    flash.fail_writes();
    let expected = data(6, 30 * BLOCK_BYTES);
    w.write(FILE_INO, 0, &expected);
    let error = w.chunk(Mode::Live).unwrap_err();
    let lower = matches!(error, DigestError::Volume(VolumeError::Lower(_)));
    assert!(lower, "{error}");
    assert_eq!(w.content(FILE_INO), old);
    assert_eq!(w.volume().space().taken, taken);
    // Nothing new goes to it any more, whatever the rule says.
    assert_eq!(below(&w.digest_once()), 0);
    assert_eq!(w.content(FILE_INO), expected);
}

#[test]
fn the_last_block_of_what_went_below_is_not_read_for_an_append() {
    let (mut w, flash) = world();
    w.rules.placement = rule(16, 16);
    let mut expected = data(10, 30 * BLOCK_BYTES + 100);
    w.write(FILE_INO, 0, &expected);
    assert_eq!(below(&w.digest_once()), 31);
    // Nothing of the device can be had.
    flash.fail(true);
    let more = data(11, 5000);
    w.write(FILE_INO, expected.len() as u64, &more);
    assert_eq!(below(&w.digest_once()), 0);
    expected.extend(more);
    // Another block is nowhere else.
    w.write(FILE_INO, 7 * BLOCK_BYTES as u64 + 9, &[9; 5]);
    let error = w.chunk(Mode::Live).unwrap_err();
    assert!(matches!(error, DigestError::Poisoned { .. }), "{error}");
    flash.fail(false);
    w.digest();
    expected[7 * BLOCK_BYTES + 9..][..5].fill(9);
    assert_eq!(w.content(FILE_INO), expected);
    assert_eq!(w.digester.tail_blocks().reads(), 1);
}

#[test]
fn what_a_zone_that_wears_out_does_not_take_goes_to_another_one() {
    let shape = ZoneShape {
        zones: 2 + ZONES,
        conventional: 0,
        zone_bytes: ZONE_BYTES,
        capacity: ZONE_BYTES,
        max_active: 0,
    };
    let zones = Arc::new(EmulatedZones::memory(shape).unwrap());
    let each = (ZONE_BYTES, ZONE_BYTES);
    let flash = ManagedBlocks::open("zones", zones.clone(), LABEL_AREA_BYTES, each);
    let mut w = world_on(Arc::new(flash.unwrap()));
    w.rules.placement = rule(16, 16);
    let mut expected = data(7, 30 * BLOCK_BYTES);
    w.write(FILE_INO, 0, &expected);
    assert_eq!(below(&w.digest_once()), 30);
    // Behind two zones for labels.
    zones.wear_out(2, false).unwrap();
    let more = data(8, 20 * BLOCK_BYTES);
    w.write(FILE_INO, 30 * 4096, &more);
    expected.extend(more);
    let error = w.chunk(Mode::Live).unwrap_err();
    let worn = matches!(error, DigestError::Volume(VolumeError::WornZone(_)));
    assert!(worn, "{error}");
    assert_eq!(below(&w.digest_once()), 20);
    assert_eq!(tiers(&w, 50), [Some(TierId::Ssd); 50]);
    assert_eq!(w.content(FILE_INO), expected);
    let space = w.volume().lower_space(TierId::Ssd).unwrap();
    assert_eq!((space.total, space.live), (3 * ZONE + 30, 50));
}
