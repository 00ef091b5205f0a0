//! The superblock, the root block, and how the NVM tier is divided.
//!
//! NVM tier, in blocks: 0 superblock · 1 root block · log table · journal ·
//! bitmap · data … · last: second superblock. Where the tier has grown: data … · bitmap · device table · second superblock. A superblock is written only by
//! mkfs, by repair, and when a feature comes into use; the root block changes with
//! every batch, through the journal (Strata §3.1, DESIGN §7).

use crate::checksummed::{self, seal, sealed};
use crate::files::inode::{Inode, flag};
use crate::layout::layout;
use crate::limits::*;
use crate::log::LogSlot;
use crate::version::{self, Access};
use crate::volume::device_table::{DEVICE_TABLE_COPIES, DevicePlace, DeviceTable};
use crate::{Durability, FormatError};
use std::ops::Range;

/// First bytes of a superblock: "SHALE\0SB".
pub const SUPER_MAGIC: u64 = u64::from_le_bytes(*b"SHALE\0SB");
/// First bytes of a root block: "SHALE\0RT".
pub const ROOT_MAGIC: u64 = u64::from_le_bytes(*b"SHALE\0RT");
/// Block of the first superblock.
pub const SUPER_BLOCK: u64 = 0;
/// Block of the root block.
pub const ROOT_BLOCK: u64 = 1;
/// First block of the log table.
pub const LOG_TABLE_BLOCK: u64 = 2;
/// Blocks of the log table.
pub const LOG_TABLE_BLOCKS: u64 =
    (LOG_SLOTS as u64 * LogSlot::BYTES as u64).div_ceil(BLOCK_BYTES as u64);

layout! {
    /// One device of a tier
    pub struct DeviceEntry: 32 {
        /// identity, also in the device's own label
        pub uuid: [u8; 16],
        /// size in 4 KiB blocks; 0: no device
        pub blocks: u64,
        /// unit of writing and erasing in 4 KiB blocks; 1 on NVM
        pub zone_blocks: u32,
        /// 0 conventional, 1 host-managed zones, 2 open-channel emulator
        pub kind: u32,
    }
}

layout! {
    /// One tier: its devices joined end to end
    pub struct TierTable: 272 {
        /// size of all devices in 4 KiB blocks
        pub blocks: u64,
        /// number of devices in use
        pub devices: u32,
        /// 0
        pub reserved: u32,
        /// the devices in order
        pub device: [DeviceEntry; DEVICES_MAX],
    }
}

layout! {
    /// Where the tables of a tier's one device lie in NVM
    pub struct LowerTables: 32 {
        /// first block of the zone table
        pub zone_block: u64,
        /// first block of the bitmap
        pub bitmap_block: u64,
        /// first block of the checksums: 4 bytes for each block of the tier
        pub sums_block: u64,
        /// behind the last block of the three
        pub end_block: u64,
    }
}

layout! {
    /// The superblock: two copies, the newest valid one counts
    ///
    /// Survives a power cut because only one copy is written at a time.
    pub struct Superblock: 1024 {
        /// "SHALE\0SB"
        pub magic: u64,
        /// CRC-32C of the 1024 bytes with this field 0
        pub crc: u32,
        /// format version
        pub version: u32,
        /// compatible features
        pub compatible: u64,
        /// read-only-compatible features
        pub ro_compatible: u64,
        /// incompatible features
        pub incompatible: u64,
        /// counts the writes of this block; the higher copy is newer
        pub generation: u64,
        /// identity of the volume
        pub uuid: [u8; 16],
        /// time of mkfs, ns since 1970
        pub created_ns: i64,
        /// keys of the name hash
        pub hash_seed: [u64; 2],
        /// first block of the journal
        pub journal_block: u64,
        /// blocks of the journal, header block included
        pub journal_blocks: u64,
        /// first block of the NVM bitmap
        pub bitmap_block: u64,
        /// blocks of the NVM bitmap
        pub bitmap_blocks: u64,
        /// first block that can be allocated
        pub data_block: u64,
        /// durability policy of the volume: 1 strict, 2 buffered, 3 ordered
        pub durability: u8,
        /// number of tiers in use
        pub tier_count: u8,
        /// 0
        pub reserved0: [u8; 2],
        /// owner of the volume (may map it directly)
        pub owner_uid: u32,
        /// bytes of a client's update log unless it asks otherwise
        pub log_bytes: u64,
        /// nvm, ssd, hdd; with a device table: as mkfs made them
        pub tier: [TierTable; TIERS_MAX],
        /// where the tables of ssd and hdd lie in NVM; zeros: no such tier, or a device table says it
        pub lower: [LowerTables; TIERS_MAX - 1],
    }
}

sealed!(Superblock, "superblock", SUPER_MAGIC);

/// Whether a tier and its tables are what a program can work with. `first`: where tables can begin;
/// `None`: they stand in the device table.
fn lower_in_order(table: &TierTable, lower: &LowerTables, first: Option<u64>, nvm: u64) -> bool {
    if table.blocks == 0 {
        return table.devices == 0 && lower.end_block == 0;
    }
    let devices = table.device.get(..table.devices as usize);
    let sound = |d: &DeviceEntry| {
        d.blocks > 0
            && d.kind <= DEVICE_KIND_MAX
            && ZONE_BLOCKS.contains(&d.zone_blocks)
            && d.zone_blocks.is_multiple_of(64)
            && d.blocks.is_multiple_of(d.zone_blocks.into())
            && d.blocks <= TIER_BLOCKS_MAX
    };
    let Some(devices) = devices.filter(|d| d.iter().all(sound)) else {
        return false;
    };
    table.blocks == devices.iter().map(|d| d.blocks).sum::<u64>()
        && table.blocks <= TIER_BLOCKS_MAX
        && match first {
            Some(first) => {
                // What only development versions made had several devices without a device table.
                table.devices == 1
                    && (first..1 << 52).contains(&lower.zone_block)
                    && *lower == DevicePlace::new(&table.device[0], 0, lower.zone_block).tables()
                    && lower.end_block < nvm
            }
            None => lower.end_block == 0,
        }
}

impl DeviceEntry {
    /// Zones of the device.
    pub fn zones(&self) -> u64 {
        self.blocks / u64::from(self.zone_blocks.max(1))
    }
}

impl Superblock {
    /// Bytes with the checksum set.
    pub fn encode(&self) -> [u8; 1024] {
        zerocopy::transmute!(seal(*self))
    }

    /// Reads a superblock found at block `at` and tells what may be done with it.
    pub fn decode(bytes: &[u8], at: u64) -> Result<(Self, Access), FormatError> {
        let (s, _) = checksummed::read::<Self>(bytes, at)?;
        checksummed::verify(&s, &[], at)?;
        let access = version::access(s.version, s.ro_compatible, s.incompatible)
            .map_err(FormatError::Version)?;
        s.check(at)?;
        Ok((s, access))
    }

    fn check(&self, at: u64) -> Result<(), FormatError> {
        let nvm = self.tier[0].blocks;
        let field = |field, found| FormatError::Field {
            what: "superblock",
            at,
            field,
            found,
        };
        let in_order = LOG_TABLE_BLOCK + LOG_TABLE_BLOCKS <= self.journal_block
            && self.journal_blocks >= 2
            && self
                .journal_block
                .checked_add(self.journal_blocks)
                .is_some_and(|e| e <= self.bitmap_block && e <= self.data_block)
            && self.tables_in_order()
            && self.data_block < nvm;
        if !in_order {
            return Err(field("data_block", self.data_block));
        }
        if self.bitmap_blocks != crate::volume::bitmap::blocks_for(nvm) {
            return Err(field("bitmap_blocks", self.bitmap_blocks));
        }
        let first = self.bitmap_block + self.bitmap_blocks;
        let first = (!self.has_device_table()).then_some(first);
        for (n, (table, lower)) in self.tier[1..].iter().zip(&self.lower).enumerate() {
            if !lower_in_order(table, lower, first, nvm) {
                return Err(field("lower", n as u64 + 1));
            }
        }
        if Durability::from_number(self.durability).is_none() {
            return Err(field("durability", self.durability.into()));
        }
        if self.tier_count == 0 || self.tier_count as usize > TIERS_MAX {
            return Err(field("tier_count", self.tier_count.into()));
        }
        if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&self.log_bytes) {
            return Err(field("log_bytes", self.log_bytes));
        }
        Ok(())
    }

    /// Whether bitmap and device table lie where they can: before the data, or, where NVM has grown, between it and the second
    /// superblock.
    fn tables_in_order(&self) -> bool {
        let Some(end) = self.bitmap_block.checked_add(self.bitmap_blocks) else {
            return false;
        };
        match self.has_grown() {
            false => end <= self.data_block,
            true => {
                let end = end.checked_add(DEVICE_TABLE_COPIES);
                self.has_device_table()
                    && self.data_block < self.bitmap_block
                    && self.tier[0].blocks > 0
                    && end == Some(self.second_block())
            }
        }
    }

    /// Whether NVM is larger than mkfs made it.
    pub fn has_grown(&self) -> bool {
        self.incompatible & version::NVM_GROWN != 0
    }

    /// Blocks of NVM that can be allocated.
    pub fn data(&self) -> Range<u64> {
        let end = match self.has_grown() {
            true => self.bitmap_block,
            false => self.second_block(),
        };
        self.data_block..end
    }

    /// Blocks of NVM that are of no use to files, trees and tables of added devices: first blocks and lengths.
    pub fn fixed(&self) -> [(u64, u64); 2] {
        let data = self.data();
        [
            (0, data.start),
            (data.end, self.tier[0].blocks.saturating_sub(data.end)),
        ]
    }

    /// Blocks behind the journal that a batch may change.
    pub fn changeable(&self) -> Range<u64> {
        let first = match self.has_grown() {
            true => self.journal_block + self.journal_blocks,
            false => self.bitmap_block,
        };
        first..self.second_block()
    }

    /// Where in NVM tables of devices can lie.
    pub fn tables(&self) -> Range<u64> {
        match self.has_grown() {
            true => self.journal_block + self.journal_blocks..self.bitmap_block,
            false => self.device_table_block() + DEVICE_TABLE_COPIES..self.second_block(),
        }
    }

    /// Whether the devices stand in a device table, and not in the superblock alone.
    pub fn has_device_table(&self) -> bool {
        self.incompatible & version::DEVICE_TABLE != 0
    }

    /// Block of the device table's first copy, where there is one.
    pub fn device_table_block(&self) -> u64 {
        self.bitmap_block + self.bitmap_blocks
    }

    /// The devices of a volume without a device table: one for each tier, for good.
    pub fn fixed_devices(&self) -> DeviceTable {
        let mut table = DeviceTable::empty();
        for (n, (tier, lower)) in self.tier[1..].iter().zip(&self.lower).enumerate() {
            if tier.blocks > 0 {
                table.add(n, &tier.device[0], (0, lower.zone_block));
            }
        }
        table
    }

    /// Whether the volume can have lower tiers: it was made with some, or with a device table.
    pub fn can_have_tiers(&self) -> bool {
        self.has_device_table() || self.tier[1..].iter().any(|t| t.blocks > 0)
    }

    /// Whether blocks of the inode file may lie below NVM.
    pub fn has_inodes_below(&self) -> bool {
        self.incompatible & version::INODES_BELOW != 0
    }

    /// Whether leaves of directories may lie below NVM.
    pub fn has_directories_below(&self) -> bool {
        self.incompatible & version::DIRECTORIES_BELOW != 0
    }

    /// Whether leaves of files' extents may lie below NVM.
    pub fn has_extents_below(&self) -> bool {
        self.incompatible & version::EXTENTS_BELOW != 0
    }

    /// Whether zones of a device may begin elsewhere than at 1 MiB.
    pub fn has_zones_start(&self) -> bool {
        self.incompatible & version::ZONES_START != 0
    }

    /// The flags that users change which inodes may have.
    pub fn inode_flags(&self) -> u32 {
        let of = |feature, flags| match self.incompatible & feature {
            0 => 0,
            _ => flags,
        };
        of(version::INODE_FLAGS, flag::CHANGEABLE & !flag::SYNCS)
            | of(version::SYNC_FLAGS, flag::SYNCS)
    }

    /// Whether inodes may have access control lists.
    pub fn has_posix_acls(&self) -> bool {
        self.incompatible & version::POSIX_ACLS != 0
    }

    /// The volume's policy.
    pub fn policy(&self) -> Durability {
        Durability::from_number(self.durability).unwrap_or_default()
    }

    /// Blocks of the two copies.
    pub fn copies(&self) -> [u64; 2] {
        [SUPER_BLOCK, self.second_block()]
    }

    /// Block of the second superblock.
    pub fn second_block(&self) -> u64 {
        self.tier[0].blocks - 1
    }
}

layout! {
    /// The root block: what every batch changes, journalled
    pub struct RootBlock: 512 {
        /// "SHALE\0RT"
        pub magic: u64,
        /// CRC-32C of the 512 bytes with this field 0
        pub crc: u32,
        /// 0
        pub reserved0: u32,
        /// number of the last batch
        pub txid: u64,
        /// blocks in use by files, directories and trees, per tier
        pub used_blocks: [u64; TIERS_MAX],
        /// inodes in use
        pub inodes: u64,
        /// leaves of directories that lie in ssd and hdd
        pub leaves_below: [u64; TIERS_MAX - 1],
        /// leaves of files' extents that lie in ssd and hdd
        pub extent_leaves_below: [u64; TIERS_MAX - 1],
        /// 0
        pub reserved1: [u8; 168],
        /// inode of the hidden inode file (number 0)
        pub inode_file: Inode,
    }
}

sealed!(RootBlock, "root block", ROOT_MAGIC);

impl RootBlock {
    /// Bytes with the checksum set.
    pub fn encode(&self) -> [u8; 512] {
        zerocopy::transmute!(seal(*self))
    }

    /// Reads and checks a root block.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (s, _) = checksummed::read::<Self>(bytes, ROOT_BLOCK)?;
        checksummed::verify(&s, &[], ROOT_BLOCK)?;
        Ok(s)
    }
}
