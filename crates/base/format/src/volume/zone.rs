//! Lower tiers: zones, checksums of blocks, labels of devices.
//!
//! A zone is written from its first block to its last and erased whole. Its entry says how far it
//! is written and how often it was erased; it changes in place, through the journal. The
//! checksum of a block is written before the batch that makes the block part of the volume, so it
//! needs no journal.

use crate::FormatError;
use crate::address::BlockAddr;
use crate::checksum::crc32c_parts;
use crate::checksummed::{self, seal, sealed};
use crate::layout::layout;
use crate::limits::BLOCK_BYTES;

/// First bytes of a zone's entry: "ZONE".
pub const ZONE_MAGIC: u32 = u32::from_le_bytes(*b"ZONE");
/// First bytes of a device's label: "SHALEDEV".
pub const LABEL_MAGIC: u64 = u64::from_le_bytes(*b"SHALEDEV");
/// Checksums in one block.
pub const SUMS_PER_BLOCK: u64 = (BLOCK_BYTES / 4) as u64;

layout! {
    /// One zone of a lower tier
    pub struct ZoneEntry: 32 {
        /// "ZONE"
        pub magic: u32,
        /// CRC-32C of the 32 bytes with this field 0
        pub crc: u32,
        /// blocks written since it was erased
        pub written: u32,
        /// counts erasures
        pub generation: u32,
        /// last batch that linked blocks of it
        pub txid: u64,
        /// 0 hot, 1 cold
        pub stream: u8,
        /// 0
        pub reserved: [u8; 7],
    }
}

layout! {
    /// Label of a device of a lower tier, in its first block and in its second
    pub struct DeviceLabel: 128 {
        /// "SHALEDEV"
        pub magic: u64,
        /// CRC-32C of the 128 bytes with this field 0
        pub crc: u32,
        /// format version
        pub version: u32,
        /// identity of the volume
        pub volume: [u8; 16],
        /// identity of the device
        pub uuid: [u8; 16],
        /// 1 ssd, 2 hdd
        pub tier: u32,
        /// its place among the devices of the tier
        pub place: u32,
        /// blocks in zones
        pub blocks: u64,
        /// blocks of a zone
        pub zone_blocks: u32,
        /// kind, as in its entry
        pub kind: u32,
        /// counts the starts of the volume
        pub count: u64,
        /// 0
        pub reserved: [u8; 48],
    }
}

sealed!(ZoneEntry, "zone", ZONE_MAGIC);
sealed!(DeviceLabel, "device label", LABEL_MAGIC);

/// Entries in one block.
pub const ZONES_PER_BLOCK: u64 = (BLOCK_BYTES / ZoneEntry::BYTES) as u64;

/// Blocks of a table of so many zones.
pub fn blocks_for(zones: u64) -> u64 {
    zones.div_ceil(ZONES_PER_BLOCK)
}

impl ZoneEntry {
    /// A zone that was never written.
    pub fn empty() -> ZoneEntry {
        ZoneEntry {
            magic: ZONE_MAGIC,
            crc: 0,
            written: 0,
            generation: 1,
            txid: 0,
            stream: 0,
            reserved: [0; 7],
        }
    }

    /// Bytes with the checksum set.
    pub fn encode(&self) -> [u8; 32] {
        zerocopy::transmute!(seal(*self))
    }

    /// Reads the entry of zone `n`.
    ///
    /// # Errors
    /// Damaged.
    pub fn decode(bytes: &[u8], n: u64) -> Result<ZoneEntry, FormatError> {
        let (entry, _) = checksummed::read::<Self>(bytes, n)?;
        checksummed::verify(&entry, &[], n)?;
        Ok(entry)
    }
}

impl DeviceLabel {
    /// Bytes with the checksum set.
    pub fn encode(&self) -> [u8; 128] {
        zerocopy::transmute!(seal(*self))
    }

    /// Reads a label found at block `at` of a device.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn decode(bytes: &[u8], at: u64) -> Result<DeviceLabel, FormatError> {
        let (label, _) = checksummed::read::<Self>(bytes, at)?;
        checksummed::verify(&label, &[], at)?;
        Ok(label)
    }
}

/// Checksum of a block on a lower tier. Its address and the zone's generation are part of it: a
/// block that was written elsewhere, or not at all, does not fit.
pub fn block_sum(addr: BlockAddr, generation: u32, block: &[u8]) -> u32 {
    crc32c_parts(&[&addr.raw().to_le_bytes(), &generation.to_le_bytes(), block])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TierId;

    #[test]
    fn entries_and_labels_are_checked() {
        let zone = ZoneEntry {
            written: 7,
            ..ZoneEntry::empty()
        };
        let mut bytes = zone.encode();
        assert_eq!(ZoneEntry::decode(&bytes, 3).unwrap().written, 7);
        bytes[8] ^= 1;
        assert!(ZoneEntry::decode(&bytes, 3).is_err());
        assert!(DeviceLabel::decode(&[0; 128], 0).is_err());
    }

    #[test]
    fn a_sum_knows_place_and_generation() {
        let at = |n| BlockAddr::new(TierId::Ssd, n);
        let block = [5; BLOCK_BYTES];
        let sum = block_sum(at(1), 1, &block);
        assert_ne!(sum, block_sum(at(2), 1, &block));
        assert_ne!(sum, block_sum(at(1), 2, &block));
    }
}
