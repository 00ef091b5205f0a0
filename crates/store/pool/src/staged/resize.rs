//! A device of a lower tier that gets zones at its end, or loses them, while nobody else has the volume open.
//!
//! Where a table of a device lies follows from the sizes of those before it, so all three are written again, beside the old ones. One
//! transaction names the new ones and frees the old ones: the device is as it was, or has its new size.

use crate::error::{PoolError, Result};
use shale_format::bitmap::{self, BITS_PER_BLOCK, WORDS_PER_BLOCK};
use shale_format::device_table::{DevicePlace, DeviceTable};
use shale_format::limits::{BLOCK_BYTES, TIER_BLOCKS_MAX};
use shale_format::superblock::DeviceEntry;
use shale_format::zone::{SUMS_PER_BLOCK, ZONES_PER_BLOCK, ZoneEntry};
use shale_format::{BlockAddr, TierId};
use shale_nvm::{Map, Path as CountPath};
use shale_volume::{Volume, VolumeError, ZoneInfo};
use std::sync::Arc;

/// Blocks that a device can have where it is among the others of its tier, at most.
pub(super) fn blocks_max(table: &DeviceTable, tier: usize, at: usize) -> u64 {
    let place = table.of(tier)[at];
    let next = table.of(tier).get(at + 1);
    let end = next.map_or(TIER_BLOCKS_MAX, |next| next.first);
    let each = u64::from(place.zone_blocks);
    (end - place.first) / each * each
}

/// Gives the device of an SSD tier with this identity so many blocks, a multiple of its zones'. What would go must be empty. The volume is
/// closed: in memory it has the device as it was.
///
/// # Errors
/// There is no such device; no space for its tables; a block that would go is in use; the volume has no device table. Nothing has
/// changed then.
pub(super) fn resize_ssd(map: &Arc<Map>, uuid: &[u8; 16], blocks: u64) -> Result<()> {
    let volume = Volume::open(map.clone())?;
    let wrong = |why: String| PoolError::Volume(VolumeError::Lower(why));
    let mut table = volume.view().device_table()?;
    let at = table.of(0).iter().position(|d| d.uuid == *uuid);
    let at = at.ok_or_else(|| wrong("the volume has no such device".to_owned()))?;
    let old = table.of(0)[at];
    let most = blocks_max(&table, 0, at);
    if blocks == 0 || blocks > most || !blocks.is_multiple_of(old.zone_blocks.into()) {
        let each = old.zone_blocks;
        return Err(wrong(format!(
            "a device of {blocks} blocks, where {most} can be, in zones of {each}"
        )));
    }
    let gone =
        |z: &ZoneInfo| z.place.device == at && z.place.first >= old.first + blocks && z.live > 0;
    if let Some(zone) = volume.lower_zones(TierId::Ssd).into_iter().find(gone) {
        let (live, first) = (zone.live, zone.place.first);
        return Err(wrong(format!(
            "{live} blocks of the zone at block {first} are in use, which is to go"
        )));
    }
    let run = volume.take_tables(&DeviceEntry {
        blocks,
        ..old.entry()
    })?;
    let new = DevicePlace {
        blocks,
        zone_block: run.addr.index(),
        ..old
    };
    copy_tables(map, &old, &new)?;
    let mut txn = volume.begin();
    txn.mark_used(run.addr, run.len)?;
    let tables = old.tables();
    // Those that mkfs made lie before the data and stay where they are.
    if tables.zone_block >= volume.superblock().data_block {
        let len = tables.end_block - tables.zone_block;
        txn.free_blocks(BlockAddr::nvm(tables.zone_block), len)?;
    }
    if let Some(place) = table.find_mut(uuid) {
        *place = new;
    }
    table.end[0] = table.end[0].max(new.end());
    txn.set_devices(table);
    txn.commit()?;
    Ok(())
}

/// Writes the tables of the device as it is to be: of the zones that it has and had, as they are, of others, empty.
fn copy_tables(map: &Map, old: &DevicePlace, new: &DevicePlace) -> Result<()> {
    let view = map.on(CountPath::Structure);
    let load = |block: u64| -> [u8; BLOCK_BYTES] { view.load_array(block as usize * BLOCK_BYTES) };
    let write = |block: u64, bytes: &[u8]| view.copy_nt(block as usize * BLOCK_BYTES, bytes);
    let (from, to) = (old.tables(), new.tables());
    let zones = old.zones().min(new.zones());
    let blocks = old.blocks.min(new.blocks);
    for n in 0..to.bitmap_block - to.zone_block {
        let mut entries = ZoneEntry::empty().encode().repeat(ZONES_PER_BLOCK as usize);
        let kept = zones.saturating_sub(n * ZONES_PER_BLOCK);
        let kept = kept.min(ZONES_PER_BLOCK) as usize * ZoneEntry::BYTES;
        if kept > 0 {
            entries[..kept].copy_from_slice(&load(from.zone_block + n)[..kept]);
        }
        write(to.zone_block + n, &entries);
    }
    for n in 0..to.sums_block - to.bitmap_block {
        let mut words = [0; WORDS_PER_BLOCK];
        let first = n * BITS_PER_BLOCK;
        let (kept, there) = [blocks, new.blocks]
            .map(|end| end.saturating_sub(first).min(BITS_PER_BLOCK) as usize)
            .into();
        if kept > 0 {
            let addr = BlockAddr::nvm(from.bitmap_block + n);
            let used = bitmap::decode(&load(addr.index()), addr);
            words = *used.map_err(VolumeError::from)?;
        }
        // Bits behind the end are set, those of blocks that are new are not.
        for bit in kept..BITS_PER_BLOCK as usize {
            let mask = 1 << (bit % 64);
            match bit < there {
                true => words[bit / 64] &= !mask,
                false => words[bit / 64] |= mask,
            }
        }
        let addr = BlockAddr::nvm(to.bitmap_block + n);
        write(addr.index(), &bitmap::encode(addr, 0, &words)[..]);
    }
    for n in 0..blocks.div_ceil(SUMS_PER_BLOCK) {
        write(to.sums_block + n, &load(from.sums_block + n));
    }
    let at = to.zone_block as usize * BLOCK_BYTES;
    let bytes = (to.end_block - to.zone_block) as usize * BLOCK_BYTES;
    match map.lost(at, bytes) {
        None => Ok(()),
        Some(page) => Err(PoolError::Volume(VolumeError::Unreadable {
            block: (page / BLOCK_BYTES) as u64,
        })),
    }
}
