//! Update logs: the file of one client, and the table of all logs.

use crate::FormatError;
use crate::checksum::crc32c;
use crate::checksummed::{self, Sealed, seal, sealed};
use crate::layout::layout;
use crate::limits::{BLOCK_BYTES, LOG_BYTES_MAX, LOG_BYTES_MIN, RECORD_ALIGN};
use zerocopy::{FromBytes, IntoBytes};

/// First bytes of a log file: "SHALELOG".
pub const LOG_MAGIC: u64 = u64::from_le_bytes(*b"SHALELOG");
/// Byte of a log file at which the ring begins. Before it: the header.
pub const RING_AT: usize = BLOCK_BYTES;
/// Byte of the log file at which the client stores its `tail`: the position of the
/// oldest record that it still keeps. Alone in its cache line, stored as 8 atomic bytes.
pub const TAIL_AT: usize = 256;

/// Byte of the log file at which the daemon stores where the log ends, once nothing that
/// its client appends counts any more; see [`end`]. Alone in its cache line, 8 atomic bytes.
pub const END_AT: usize = 320;

/// Values of the word at [`END_AT`].
pub mod end {
    /// The log goes on.
    pub const NONE: u64 = 0;
    /// It ends, and the daemon is finding out where.
    pub const SOUGHT: u64 = u64::MAX;

    /// It ends at position `pos`, a multiple of a record's unit: records before it count,
    /// others do not.
    pub const fn at(pos: u64) -> u64 {
        pos | 1
    }

    /// Whether a record that ends at position `record_end` counts in a log that ends at
    /// `word`, which is neither [`NONE`] nor [`SOUGHT`].
    pub const fn covers(word: u64, record_end: u64) -> bool {
        record_end <= word & !1
    }
}

/// States of a [`LogSlot`].
pub mod slot_state {
    /// No log.
    pub const FREE: u32 = 0;
    /// A log which may hold records that are not digested.
    pub const LIVE: u32 = 1;
}

layout! {
    /// Header of a log file, written once when the log is made
    pub struct LogHeader: 128 {
        /// "SHALELOG"
        pub magic: u64,
        /// identity of the volume
        pub uuid: [u8; 16],
        /// salt of every checksum in this log: a record of another log never fits
        pub salt: u64,
        /// bytes of the ring
        pub ring_bytes: u64,
        /// user that the log was granted to
        pub uid: u32,
        /// number of the slot in the log table
        pub slot: u32,
        /// time of its making, ns since 1970
        pub created_ns: i64,
        /// 0
        pub reserved: [u8; 64],
        /// 0
        pub reserved1: u32,
        /// CRC-32C of the header with this field 0
        pub crc: u32,
    }
}

layout! {
    /// One slot of the log table; changed only through the journal
    pub struct LogSlot: 64 {
        /// 0 free, 1 live
        pub state: u32,
        /// user that the log was granted to
        pub uid: u32,
        /// salt, as in the log's header
        pub salt: u64,
        /// bytes of the ring
        pub ring_bytes: u64,
        /// records before this position are in the volume
        pub digested: u64,
        /// FUSE connection that the log's requests came from; 0: none
        pub connection: u64,
        /// 0
        pub reserved: [u8; 16],
        /// 0
        pub reserved1: u32,
        /// CRC-32C of the slot with this field 0
        pub crc: u32,
    }
}

sealed!(LogHeader, "log header", LOG_MAGIC);

impl LogHeader {
    /// Bytes with the checksum set.
    pub fn encode(&self) -> [u8; 128] {
        zerocopy::transmute!(seal(*self))
    }

    /// Reads and checks the header of a log file.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (h, _) = checksummed::read::<Self>(bytes, 0)?;
        checksummed::verify(&h, &[], 0)?;
        if !is_ring(h.ring_bytes) {
            return Err(FormatError::Field {
                what: Self::WHAT,
                at: 0,
                field: "ring_bytes",
                found: h.ring_bytes,
            });
        }
        Ok(h)
    }
}

/// Last position of a log: none comes near it, and those above would overflow.
pub const POS_MAX: u64 = 1 << 62;

/// Whether a ring can have so many bytes: whole blocks, from [`LOG_BYTES_MIN`] to [`LOG_BYTES_MAX`].
pub fn is_ring(bytes: u64) -> bool {
    (LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(BLOCK_BYTES as u64)
}

/// Whether a record can begin there.
pub fn is_position(pos: u64) -> bool {
    pos.is_multiple_of(RECORD_ALIGN as u64) && pos <= POS_MAX
}

impl LogSlot {
    /// Whether the log of a live slot can be read: [`Self::decode`] looks at the checksum only, since who repairs a volume
    /// has to see what is there.
    pub fn is_sound(&self) -> bool {
        is_ring(self.ring_bytes) && is_position(self.digested)
    }

    /// Bytes with the checksum set.
    pub fn encode(&self) -> [u8; 64] {
        let mut h = *self;
        h.crc = 0;
        h.crc = crc32c(h.as_bytes());
        zerocopy::transmute!(h)
    }

    /// Reads slot `n` of the table. Zeros are a free slot.
    pub fn decode(bytes: &[u8], n: u32) -> Result<Self, FormatError> {
        const WHAT: &str = "log slot";
        let (h, _) = Self::read_from_prefix(bytes).map_err(|_| FormatError::Short {
            what: WHAT,
            expected: Self::BYTES,
            found: bytes.len(),
        })?;
        if h.as_bytes().iter().all(|&b| b == 0) {
            return Ok(h);
        }
        let zeroed = Self { crc: 0, ..h };
        let crc = crc32c(zeroed.as_bytes());
        if crc != h.crc {
            return Err(FormatError::Checksum {
                what: WHAT,
                at: n.into(),
                expected: crc,
                found: h.crc,
            });
        }
        Ok(h)
    }
}

/// Name of a file beside the logs that was the log of a client which has left, kept for the next one. It is of no slot,
/// nothing in it counts, and it is removed at the next start.
pub const LEFT_FILE: &str = "log-999";

/// Name of the file of log `slot` in the NVM directory.
pub fn file_name(slot: u32) -> String {
    format!("log-{slot:03}")
}
