//! The devices of the lower tiers, and where the tables of each lie in NVM.
//!
//! Two copies in the two blocks behind the bitmap of NVM. They change through the journal, both in
//! one batch, so they are alike whenever nobody is in the middle of a batch; two, so that one that
//! rots does not take the tiers with it.
//!
//! A device has a range of its tier's blocks that nobody had before and nobody gets after it: an
//! address and the generation of its zone name the same bytes for ever, in every cache.

use crate::FormatError;
use crate::checksummed::{self, seal, sealed};
use crate::layout::layout;
use crate::limits::{
    BLOCK_BYTES, DEVICE_KIND_MAX, DEVICES_MAX, LABEL_AREA_BYTES, TIER_BLOCKS_MAX, TIERS_MAX,
    ZONE_BLOCKS,
};
use crate::volume::bitmap::{self, BITS_PER_BLOCK};
use crate::volume::superblock::{DeviceEntry, LowerTables, Superblock};
use crate::volume::zone;
use zerocopy::FromZeros;

/// First bytes of a device table: "SHALEDVT".
pub const DEVICE_TABLE_MAGIC: u64 = u64::from_le_bytes(*b"SHALEDVT");
/// Copies of the table, in blocks that follow one another.
pub const DEVICE_TABLE_COPIES: u64 = 2;

/// Kinds of devices below NVM.
pub mod device_kind {
    /// It can be written anywhere.
    pub const CONVENTIONAL: u32 = 0;
    /// Its zones are written in order, which the device sees to.
    pub const HOST_MANAGED: u32 = 1;
    /// Emulated raw flash.
    pub const OPEN_CHANNEL: u32 = 2;
}

/// What becomes of a device.
pub mod device_state {
    /// It is written and read.
    pub const IN_USE: u32 = 0;
    /// Nothing new is written to it; what it holds moves away.
    pub const EMPTYING: u32 = 1;
}

layout! {
    /// One device of a lower tier, and where its tables are
    pub struct DevicePlace: 64 {
        /// identity, also in the device's own label
        pub uuid: [u8; 16],
        /// size in 4 KiB blocks; 0: no device
        pub blocks: u64,
        /// unit of writing and erasing in 4 KiB blocks
        pub zone_blocks: u32,
        /// kind, as in the superblock
        pub kind: u32,
        /// its first block in the tier
        pub first: u64,
        /// block of NVM where its tables begin: zones, bitmap, checksums
        pub zone_block: u64,
        /// 0 in use, 1 being emptied
        pub state: u32,
        /// block of the device where its zones begin; 0: behind 1 MiB
        pub start: u32,
        /// 0: there at the last start; else starts when it was there last: its label has that or one less
        pub absent: u64,
    }
}

layout! {
    /// Devices of the lower tiers: two copies behind the bitmap, changed through the journal
    pub struct DeviceTable: 1080 {
        /// "SHALEDVT"
        pub magic: u64,
        /// CRC-32C of the 1080 bytes with this field 0
        pub crc: u32,
        /// 0
        pub reserved0: u32,
        /// block of this copy
        pub addr: u64,
        /// batch that wrote it
        pub txid: u64,
        /// blocks of ssd and hdd that a device has or had: the next device's begin behind them
        pub end: [u64; 2],
        /// devices of ssd and hdd in use
        pub devices: [u32; 2],
        /// ssd, hdd: the devices in the order of their blocks
        pub device: [[DevicePlace; DEVICES_MAX]; TIERS_MAX - 1],
    }
}

sealed!(DeviceTable, "device table", DEVICE_TABLE_MAGIC);

impl DevicePlace {
    /// Zones of the device.
    pub fn zones(&self) -> u64 {
        self.entry().zones()
    }

    /// Behind its last block in the tier.
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.blocks)
    }

    /// Byte of the device where its zones begin.
    pub fn zones_byte(&self) -> u64 {
        match self.start {
            0 => LABEL_AREA_BYTES,
            start => u64::from(start) * BLOCK_BYTES as u64,
        }
    }

    /// Byte of the device where block `index` of the tier is, which is one of its blocks.
    pub fn byte_of(&self, index: u64) -> u64 {
        self.zones_byte() + (index - self.first) * BLOCK_BYTES as u64
    }

    /// Bytes that the device has at least.
    pub fn device_bytes(&self) -> u64 {
        self.zones_byte() + self.blocks * BLOCK_BYTES as u64
    }

    /// Where its tables lie.
    pub fn tables(&self) -> LowerTables {
        let bitmap_block = self.zone_block + zone::blocks_for(self.zones());
        let sums_block = bitmap_block + bitmap::blocks_for(self.blocks);
        LowerTables {
            zone_block: self.zone_block,
            bitmap_block,
            sums_block,
            end_block: sums_block + self.blocks.div_ceil(zone::SUMS_PER_BLOCK),
        }
    }

    /// As the superblock has it.
    pub fn entry(&self) -> DeviceEntry {
        DeviceEntry {
            uuid: self.uuid,
            blocks: self.blocks,
            zone_blocks: self.zone_blocks,
            kind: self.kind,
        }
    }

    /// A device in use at `first`, with its tables at `zone_block`.
    pub fn new(entry: &DeviceEntry, first: u64, zone_block: u64) -> DevicePlace {
        DevicePlace {
            uuid: entry.uuid,
            blocks: entry.blocks,
            zone_blocks: entry.zone_blocks,
            kind: entry.kind,
            first,
            zone_block,
            state: device_state::IN_USE,
            start: 0,
            absent: 0,
        }
    }

    fn is_sound(&self, nvm: &std::ops::Range<u64>) -> bool {
        self.blocks > 0
            && self.blocks <= TIER_BLOCKS_MAX
            && self.first <= TIER_BLOCKS_MAX
            && self.first.is_multiple_of(BITS_PER_BLOCK)
            && self.kind <= DEVICE_KIND_MAX
            && self.state <= device_state::EMPTYING
            && self.zones_byte() >= LABEL_AREA_BYTES
            && (self.start == 0 || self.kind == device_kind::CONVENTIONAL)
            && ZONE_BLOCKS.contains(&self.zone_blocks)
            && self.zone_blocks.is_multiple_of(64)
            && self.blocks.is_multiple_of(self.zone_blocks.into())
            && nvm.contains(&self.zone_block)
            && self.tables().end_block <= nvm.end
    }
}

impl DeviceTable {
    /// No devices.
    pub fn empty() -> DeviceTable {
        DeviceTable {
            magic: DEVICE_TABLE_MAGIC,
            ..DeviceTable::new_zeroed()
        }
    }

    /// Bytes of the copy at block `addr`, with the checksum set.
    pub fn encode(&self, addr: u64) -> [u8; DeviceTable::BYTES] {
        zerocopy::transmute!(seal(DeviceTable { addr, ..*self }))
    }

    /// Reads the copy at block `at` of a volume.
    ///
    /// # Errors
    /// Damaged, or it says what cannot be.
    pub fn decode(bytes: &[u8], at: u64, sb: &Superblock) -> Result<DeviceTable, FormatError> {
        let (table, _) = checksummed::read::<Self>(bytes, at)?;
        checksummed::verify(&table, &[], at)?;
        let field = |field, found| FormatError::Field {
            what: "device table",
            at,
            field,
            found,
        };
        if table.addr != at {
            return Err(field("addr", table.addr));
        }
        for n in 0..TIERS_MAX - 1 {
            if !table.is_in_order(n, sb) {
                return Err(field("device", n as u64 + 1));
            }
        }
        Ok(table)
    }

    fn is_in_order(&self, n: usize, sb: &Superblock) -> bool {
        let nvm = sb.tables();
        let mut at = 0;
        self.devices[n] as usize <= DEVICES_MAX
            && self.end[n] <= TIER_BLOCKS_MAX
            && self.of(n).iter().all(|d| {
                let follows = d.is_sound(&nvm) && d.first >= at;
                at = d.end();
                follows
            })
            && at <= self.end[n]
    }

    /// The devices of tier `n` below NVM (0 ssd, 1 hdd), in the order of their blocks.
    pub fn of(&self, n: usize) -> &[DevicePlace] {
        let count = self.devices[n] as usize;
        &self.device[n][..count.min(DEVICES_MAX)]
    }

    /// Whether zones of a device begin elsewhere than at 1 MiB: the superblock says so, too.
    pub fn has_starts(&self) -> bool {
        let mut all = self.of(0).iter().chain(self.of(1));
        all.any(|d| d.start != 0)
    }

    /// Adds a device behind all blocks that the tier ever had. `start`, `zone_block`: as in [`DevicePlace`]. Gives its
    /// place; `None`: there are as many as there can be.
    pub fn add(
        &mut self,
        n: usize,
        entry: &DeviceEntry,
        (start, zone_block): (u32, u64),
    ) -> Option<DevicePlace> {
        let first = self.end[n].next_multiple_of(BITS_PER_BLOCK);
        let place = DevicePlace {
            start,
            ..DevicePlace::new(entry, first, zone_block)
        };
        let slot = self.device[n].get_mut(self.devices[n] as usize)?;
        if place.end() > TIER_BLOCKS_MAX {
            return None;
        }
        *slot = place;
        self.devices[n] += 1;
        self.end[n] = place.end();
        Some(place)
    }

    /// Takes a device out. `false`: it is not there.
    pub fn remove(&mut self, n: usize, uuid: &[u8; 16]) -> bool {
        let Some(at) = self.of(n).iter().position(|d| d.uuid == *uuid) else {
            return false;
        };
        self.device[n][at..].rotate_left(1);
        self.devices[n] -= 1;
        self.device[n][self.devices[n] as usize] = DevicePlace::new_zeroed();
        true
    }

    /// The device with this identity.
    pub fn find_mut(&mut self, uuid: &[u8; 16]) -> Option<&mut DevicePlace> {
        let all = self.device.iter_mut().flatten();
        all.filter(|d| d.blocks > 0).find(|d| d.uuid == *uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(uuid: u8, blocks: u64) -> DeviceEntry {
        DeviceEntry {
            uuid: [uuid; 16],
            blocks,
            zone_blocks: 64,
            kind: 0,
        }
    }

    #[test]
    fn a_device_gets_blocks_that_nobody_had() {
        let mut table = DeviceTable::empty();
        let first = table.add(0, &entry(1, 640), (0, 100)).unwrap();
        let second = table.add(0, &entry(2, 64), (0, 200)).unwrap();
        assert_eq!((first.first, second.first), (0, BITS_PER_BLOCK));
        assert!(table.remove(0, &[1; 16]) && !table.remove(0, &[1; 16]));
        assert_eq!(table.of(0), &[second]);
        let third = table.add(0, &entry(3, 64), (0, 100)).unwrap();
        assert_eq!(third.first, 2 * BITS_PER_BLOCK);
        for n in 4..10 {
            table.add(0, &entry(n, 64), (0, 100)).unwrap();
        }
        assert!(table.add(0, &entry(10, 64), (0, 100)).is_none());
    }

    #[test]
    fn zones_begin_where_the_table_says() {
        let old = DevicePlace::new(&entry(1, 640), BITS_PER_BLOCK, 1);
        assert_eq!(old.zones_byte(), 1 << 20, "as older programs wrote it");
        assert_eq!(old.byte_of(BITS_PER_BLOCK + 2), (1 << 20) + 8192);
        let new = DevicePlace { start: 512, ..old };
        assert_eq!(new.byte_of(BITS_PER_BLOCK + 2), (2 << 20) + 8192);
        assert_eq!(new.device_bytes(), (2 << 20) + 640 * 4096);
        let nvm = 0..1 << 20;
        assert!(old.is_sound(&nvm) && new.is_sound(&nvm));
        let within_labels = DevicePlace { start: 255, ..old };
        assert!(!within_labels.is_sound(&nvm));
        let kind = device_kind::OPEN_CHANNEL;
        assert!(!DevicePlace { kind, ..new }.is_sound(&nvm));
    }

    #[test]
    fn tables_of_a_device_follow_one_another() {
        let place = DevicePlace::new(&entry(1, 64 * 1000), 0, 500);
        let tables = place.tables();
        assert_eq!(tables.bitmap_block - 500, 8);
        assert_eq!(tables.sums_block - tables.bitmap_block, 2);
        assert_eq!(tables.end_block - tables.sums_block, 63);
    }
}
