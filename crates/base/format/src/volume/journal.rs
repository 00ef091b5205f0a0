//! The structure journal: one redo batch at a time.
//!
//! A batch is a list of byte ranges of the NVM tier with their new contents.
//! The body is written and fenced, then the header (which checks the body) is
//! written and fenced: that is the commit. Then the ranges are written in place
//! and fenced. Recovery writes the ranges of a valid batch again, which changes
//! nothing if they were already there.

use crate::checksum::crc32c;
use crate::layout::layout;
use zerocopy::{FromBytes, IntoBytes};

/// First bytes of the journal: "SHALEJNL".
pub const JOURNAL_MAGIC: u64 = u64::from_le_bytes(*b"SHALEJNL");

layout! {
    /// Header of the journal, in its first block; the body begins at the second
    pub struct JournalHeader: 64 {
        /// "SHALEJNL"
        pub magic: u64,
        /// number of the batch
        pub txid: u64,
        /// bytes of the body
        pub body_bytes: u64,
        /// entries in the body
        pub entries: u32,
        /// CRC-32C of the body
        pub body_crc: u32,
        /// salt of the volume: its uuid, so that another volume's journal is not replayed
        pub uuid: [u8; 16],
        /// 0
        pub reserved: [u8; 12],
        /// CRC-32C of the header with this field 0
        pub crc: u32,
    }
}

layout! {
    /// One range of a batch; its bytes follow, padded to a multiple of 8
    pub struct JournalEntry: 16 {
        /// byte offset in the NVM tier, a multiple of 8
        pub offset: u64,
        /// bytes, a multiple of 8
        pub bytes: u32,
        /// 0
        pub reserved: u32,
    }
}

impl JournalHeader {
    /// Bytes with the checksum set.
    pub fn encode(&self) -> [u8; 64] {
        let mut h = *self;
        h.crc = 0;
        h.crc = crc32c(h.as_bytes());
        zerocopy::transmute!(h)
    }

    /// The header, or `None` where there is no whole one: then no batch waits.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (h, _) = Self::read_from_prefix(bytes).ok()?;
        let zeroed = Self { crc: 0, ..h };
        (h.magic == JOURNAL_MAGIC && crc32c(zeroed.as_bytes()) == h.crc).then_some(h)
    }
}
