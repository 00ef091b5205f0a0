//! Lower tiers: their bitmaps and zones against what was seen. Of the devices only blocks of inodes and
//! leaves of trees are read (`below`): `scrub` and every read do the rest.

use super::media::Media;
use super::report::{Findings, Object};
use shale_format::device_table::{DEVICE_TABLE_COPIES, DevicePlace, DeviceTable};
use shale_format::limits::BLOCK_BYTES;
use shale_format::superblock::Superblock;
use shale_format::zone::{ZONES_PER_BLOCK, ZoneEntry};
use shale_format::{BlockAddr, FormatError};
use std::ops::Range;

pub(super) const TIERS: [Object; 2] = [Object::Part("ssd"), Object::Part("hdd")];

pub(super) const TABLE: Object = Object::Part("device table");

/// The devices of a volume, from the first copy of their table that is whole; `None`: none is.
pub(super) fn devices(
    media: &Media,
    sb: &Superblock,
    findings: &mut Findings,
) -> Option<DeviceTable> {
    if !sb.has_device_table() {
        return Some(sb.fixed_devices());
    }
    let mut found: Option<DeviceTable> = None;
    let mut bytes = [0; BLOCK_BYTES];
    for copy in 0..DEVICE_TABLE_COPIES {
        let block = sb.device_table_block() + copy;
        if !media.load(block, &mut bytes) {
            continue;
        }
        match DeviceTable::decode(&bytes, block, sb) {
            Ok(table) => match &found {
                Some(first) if first.encode(0) != table.encode(0) => {
                    let txids = (first.txid, table.txid);
                    findings.error(TABLE, Some(block), "copies differ", txids);
                    found = found.filter(|f| f.txid >= table.txid).or(Some(table));
                }
                Some(_) => {}
                None => found = Some(table),
            },
            Err(e) => findings.undecodable(TABLE, Some(block), &e),
        }
    }
    if found.as_ref().is_some_and(DeviceTable::has_starts) && !sb.has_zones_start() {
        let what = "zones of a device do not begin at 1 MiB, and the superblock does not say so";
        findings.error(TABLE, None, what, ("", ""));
    }
    found
}

/// Blocks of the tiers: what addresses there are.
pub(super) fn tier_blocks(sb: &Superblock, devices: &DeviceTable) -> [u64; 3] {
    [sb.tier[0].blocks, devices.end[0], devices.end[1]]
}

/// Tables that lie among the data: those of devices that were added.
pub(super) fn added_tables(sb: &Superblock, devices: &DeviceTable) -> Vec<(BlockAddr, u64)> {
    let all = devices.of(0).iter().chain(devices.of(1));
    let added = all.filter(|d| d.zone_block >= sb.data_block);
    let run = |d: &DevicePlace| {
        let len = d.tables().end_block - d.zone_block;
        (BlockAddr::nvm(d.zone_block), len)
    };
    added.map(run).collect()
}

/// A zone of a device: the block of NVM that its entry is in, its blocks of the tier, the entry.
type Zone = (u64, Range<u64>, Result<ZoneEntry, FormatError>);

/// The zones of a device whose entries can be looked at.
pub(super) fn zones(media: &Media, place: &DevicePlace) -> Vec<Zone> {
    let mut bytes = [0; BLOCK_BYTES];
    let (mut all, mut first) = (Vec::new(), place.first);
    for zone in 0..place.zones() {
        let block = place.zone_block + zone / ZONES_PER_BLOCK;
        let at = (zone % ZONES_PER_BLOCK) as usize * ZoneEntry::BYTES;
        let end = first + u64::from(place.zone_blocks);
        if media.load(block, &mut bytes) {
            let entry = ZoneEntry::decode(&bytes[at..at + ZoneEntry::BYTES], zone);
            all.push((block, first..end, entry));
        }
        first = end;
    }
    all
}

/// The entry of the zone that block `at` of the tier is in, if it is whole.
pub(super) fn zone_entry(media: &Media, place: &DevicePlace, at: u64) -> Option<ZoneEntry> {
    let zone = (at - place.first) / u64::from(place.zone_blocks);
    let mut bytes = [0; BLOCK_BYTES];
    let byte = (zone % ZONES_PER_BLOCK) as usize * ZoneEntry::BYTES;
    let there = media.load_nvm(place.zone_block + zone / ZONES_PER_BLOCK, &mut bytes);
    let entry = ZoneEntry::decode(&bytes[byte..byte + ZoneEntry::BYTES], zone);
    entry.ok().filter(|_| there)
}

/// Blocks of the zones of each lower tier whose entries cannot be read: nobody knows how often they
/// were erased, so what lies there may not be verified any more.
pub(super) fn lost_zones(media: &Media, devices: &DeviceTable) -> [Vec<Range<u64>>; 2] {
    [0, 1].map(|n| {
        let all = devices.of(n).iter().flat_map(|place| zones(media, place));
        let lost = all.filter(|zone| zone.2.is_err());
        lost.map(|zone| zone.1).collect()
    })
}
