//! The staged persistence area of a device: its headers, and the batches of its staging ring.
//!
//! A volume without NVM keeps its memory tier in memory that a power cut loses. What a restore needs lies
//! in a range of a device: two blocks for headers, the staging ring, and two images of the memory tier, each behind a
//! table of the checksums of its pages.

use crate::checksum::{crc32c, crc32c_parts};
use crate::checksummed::{self, Sealed, seal, sealed};
use crate::layout::layout;
use crate::limits::{BLOCK_BYTES, LOG_SLOTS};
use crate::log::is_ring;
use crate::{BlockAddr, FormatError, TierId};
use zerocopy::{FromBytes, IntoBytes};

/// First bytes of a header of the area: "SHALESTG".
pub const AREA_MAGIC: u64 = u64::from_le_bytes(*b"SHALESTG");
/// First bytes of a batch: "SHALEBAT".
pub const BATCH_MAGIC: u64 = u64::from_le_bytes(*b"SHALEBAT");
/// What this program writes and reads.
pub const AREA_VERSION: u32 = 1;
/// Most pieces of one batch: two for every log, and more for those that wrap.
pub const BATCH_PIECES_MAX: u32 = 1024;
/// Highest number of a batch and of a checkpoint: none is ever reached.
pub const NUMBER_MAX: u64 = 1 << 62;
/// Bytes of a checksum in the table of an image.
pub const SUM_BYTES: usize = 4;

/// Which image of the area a checkpoint is in: [`AreaHeader::image`].
pub mod image {
    /// There is no checkpoint yet.
    pub const NONE: u32 = 0;
    /// The image behind the staging ring.
    pub const FIRST: u32 = 1;
    /// The image behind the first one.
    pub const SECOND: u32 = 2;
}

layout! {
    /// Header of the staged area; that of checkpoint n stands in block n % 2
    pub struct AreaHeader: 136 {
        /// "SHALESTG"
        pub magic: u64,
        /// identity of the volume
        pub uuid: [u8; 16],
        /// random number of the area: a batch of another one never fits
        pub salt: u64,
        /// byte of the device at which the area begins
        pub at: u64,
        /// bytes of the memory tier, and of the pages of each image
        pub memory_bytes: u64,
        /// bytes of the staging ring
        pub staging_bytes: u64,
        /// number of the checkpoint; 0: the area was made and there is none
        pub checkpoint: u64,
        /// last transaction of the volume that is in the image
        pub txid: u64,
        /// number of the first batch that is not in the image; it may not have been written yet
        pub replay_number: u64,
        /// byte of the ring at which that batch lies, or else at 0
        pub replay_at: u64,
        /// session that this batch names as its own, or as that of the batch before it
        pub replay_session: u64,
        /// 0 none, 1 the first image, 2 the second one
        pub image: u32,
        /// 1: the volume was stopped and every log was empty; else 0
        pub clean: u32,
        /// version of the area, 1
        pub version: u32,
        /// CRC-32C of the image's table
        pub table_crc: u32,
        /// 0
        pub reserved: [u8; 20],
        /// CRC-32C of the header with this field 0
        pub crc: u32,
    }
}

layout! {
    /// Header of a batch; the entries of its pieces follow, the entries of what lies elsewhere, the pieces' other bytes, then zeros up to a multiple of 4096
    pub struct BatchHeader: 64 {
        /// "SHALEBAT"
        pub magic: u64,
        /// salt of the area
        pub salt: u64,
        /// number of the batch, from 1: one more than that of the batch before
        pub number: u64,
        /// random number, drawn when the area was opened by who wrote it
        pub session: u64,
        /// session of the batch before
        pub previous: u64,
        /// newest checkpoint when it was written
        pub checkpoint: u64,
        /// bytes of the batch with all that follows the header, a multiple of 4096
        pub bytes: u32,
        /// number of pieces, 1 to 1024
        pub pieces: u32,
        /// 0
        pub reserved: u32,
        /// CRC-32C of the batch with this field 0
        pub crc: u32,
    }
}

layout! {
    /// A piece of a batch: a range of an update log, as it stands in the log's ring
    pub struct PieceEntry: 64 {
        /// number of the slot in the log table
        pub slot: u32,
        /// user that the log was granted to
        pub uid: u32,
        /// salt of the log
        pub salt: u64,
        /// bytes of the log's ring
        pub ring_bytes: u64,
        /// FUSE connection that the log's requests came from; 0: none
        pub connection: u64,
        /// position in the log of the first byte
        pub from: u64,
        /// number of bytes, at most the ring's
        pub bytes: u64,
        /// number of its entries of what lies elsewhere
        pub placed: u32,
        /// 0
        pub reserved: [u8; 12],
    }
}

layout! {
    /// A range of a piece whose bytes are not in the batch: they were written to their place in a zone before it
    pub struct PlacedEntry: 32 {
        /// position in the log of the first byte, at or behind the end of the entry before
        pub from: u64,
        /// number of bytes, at least one, all in the piece
        pub bytes: u64,
        /// address of the block in which the first byte lies, in a tier below NVM
        pub addr: u64,
        /// byte of that block
        pub byte: u32,
        /// CRC-32C of these bytes
        pub crc: u32,
    }
}

sealed!(AreaHeader, "header of the staged area", AREA_MAGIC);
sealed!(BatchHeader, "staged batch", BATCH_MAGIC);

/// A field that is not what it may be.
fn field<T: Sealed>(at: u64, field: &'static str, found: u64) -> FormatError {
    FormatError::Field {
        what: T::WHAT,
        at,
        field,
        found,
    }
}

/// Reads an entry of a batch.
fn entry<T: FromBytes>(bytes: &[u8], what: &'static str) -> Result<T, FormatError> {
    match T::read_from_prefix(bytes) {
        Ok((entry, _)) => Ok(entry),
        Err(_) => Err(FormatError::Short {
            what,
            expected: size_of::<T>(),
            found: bytes.len(),
        }),
    }
}

impl AreaHeader {
    /// Bytes with the checksum set.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(seal(*self))
    }

    /// Reads and checks the header in block `block` (0 or 1) of an area.
    ///
    /// # Errors
    /// It is none, it is damaged, or it says what cannot be.
    pub fn decode(bytes: &[u8], block: u64) -> Result<Self, FormatError> {
        let (h, _) = checksummed::read::<Self>(bytes, block)?;
        checksummed::verify(&h, &[], block)?;
        let wrong = |name, found| Err(field::<Self>(block, name, found));
        let pages = BLOCK_BYTES as u64;
        if h.version != AREA_VERSION {
            return wrong("version", h.version.into());
        }
        if !h.at.is_multiple_of(pages) {
            return wrong("at", h.at);
        }
        if h.memory_bytes == 0 || !h.memory_bytes.is_multiple_of(pages) {
            return wrong("memory_bytes", h.memory_bytes);
        }
        if h.staging_bytes == 0 || !h.staging_bytes.is_multiple_of(pages) {
            return wrong("staging_bytes", h.staging_bytes);
        }
        if h.checkpoint % 2 != block {
            return Err(FormatError::Misplaced {
                what: Self::WHAT,
                at: block,
                found: h.checkpoint % 2,
            });
        }
        if h.checkpoint > NUMBER_MAX {
            return wrong("checkpoint", h.checkpoint);
        }
        if !(1..=NUMBER_MAX).contains(&h.replay_number) {
            return wrong("replay_number", h.replay_number);
        }
        if h.replay_at >= h.staging_bytes || !h.replay_at.is_multiple_of(pages) {
            return wrong("replay_at", h.replay_at);
        }
        let expected = match h.checkpoint {
            0 => image::NONE,
            n if n % 2 == 1 => image::FIRST,
            _ => image::SECOND,
        };
        if h.image != expected {
            return wrong("image", h.image.into());
        }
        if h.clean > 1 {
            return wrong("clean", h.clean.into());
        }
        match h.reserved == [0; 20] {
            true => Ok(h),
            false => wrong("reserved", 1),
        }
    }
}

impl BatchHeader {
    /// Bytes with the checksum set, of a batch in which `rest` follows.
    pub fn encode(&self, rest: &[u8]) -> [u8; Self::BYTES] {
        let mut h = Self { crc: 0, ..*self };
        h.crc = crc32c_parts(&[h.as_bytes(), rest]);
        zerocopy::transmute!(h)
    }

    /// Reads the header of the batch at byte `at` of the ring and checks what it says of itself; whether the batch is whole
    /// [`Self::verify`] finds.
    ///
    /// # Errors
    /// There is none, or it says what cannot be.
    pub fn decode(bytes: &[u8], at: u64) -> Result<Self, FormatError> {
        let (h, _) = checksummed::read::<Self>(bytes, at)?;
        let wrong = |name, found| Err(field::<Self>(at, name, found));
        if !(1..=NUMBER_MAX).contains(&h.number) {
            return wrong("number", h.number);
        }
        if !(1..=BATCH_PIECES_MAX).contains(&h.pieces) {
            return wrong("pieces", h.pieces.into());
        }
        let least = Self::BYTES + h.pieces as usize * PieceEntry::BYTES;
        if (h.bytes as usize) < least || !h.bytes.is_multiple_of(BLOCK_BYTES as u32) {
            return wrong("bytes", h.bytes.into());
        }
        match h.reserved {
            0 => Ok(h),
            found => wrong("reserved", found.into()),
        }
    }

    /// Checks the checksum of the batch whose bytes after the header are `rest`.
    ///
    /// # Errors
    /// It does not fit: the batch is torn or damaged.
    pub fn verify(&self, rest: &[u8], at: u64) -> Result<(), FormatError> {
        checksummed::verify(self, rest, at)
    }
}

impl PieceEntry {
    /// Reads and checks piece `n` of a batch whose checksum fits.
    ///
    /// # Errors
    /// Too few bytes, or it says what cannot be.
    pub fn decode(bytes: &[u8], n: u32) -> Result<Self, FormatError> {
        const WHAT: &str = "piece of a staged batch";
        let p: Self = entry(bytes, WHAT)?;
        let wrong = |field, found| {
            Err(FormatError::Field {
                what: WHAT,
                at: n.into(),
                field,
                found,
            })
        };
        if p.slot >= LOG_SLOTS {
            return wrong("slot", p.slot.into());
        }
        if !is_ring(p.ring_bytes) {
            return wrong("ring_bytes", p.ring_bytes);
        }
        if p.bytes == 0 || p.bytes > p.ring_bytes {
            return wrong("bytes", p.bytes);
        }
        if p.from.checked_add(p.bytes).is_none() {
            return wrong("from", p.from);
        }
        if u64::from(p.placed) > p.bytes {
            return wrong("placed", p.placed.into());
        }
        match p.reserved == [0; 12] {
            true => Ok(p),
            false => wrong("reserved", 1),
        }
    }
}

impl PlacedEntry {
    /// Bytes `bytes` of a log from `from` on with checksum `crc`, which lie from byte `byte` of block `addr` on.
    pub fn new(from: u64, bytes: u64, (addr, byte): (BlockAddr, u32), crc: u32) -> Self {
        Self {
            from,
            bytes,
            addr: addr.raw(),
            byte,
            crc,
        }
    }

    /// Position in the log behind the last byte.
    pub fn end(&self) -> u64 {
        self.from + self.bytes
    }

    /// The blocks that it lies in: address of the first, and how many.
    pub fn blocks(&self) -> (BlockAddr, u64) {
        let bytes = u64::from(self.byte) + self.bytes;
        let addr = BlockAddr::from_raw(self.addr);
        (addr, bytes.div_ceil(BLOCK_BYTES as u64))
    }

    /// Reads and checks an entry of `piece`, of a batch whose checksum fits. `after`: the end of the entry before it, or the
    /// beginning of the piece.
    ///
    /// # Errors
    /// Too few bytes, or it says what cannot be.
    pub fn decode(bytes: &[u8], piece: &PieceEntry, after: u64) -> Result<Self, FormatError> {
        const WHAT: &str = "placed bytes of a staged batch";
        let p: Self = entry(bytes, WHAT)?;
        let wrong = |field, found| {
            Err(FormatError::Field {
                what: WHAT,
                at: piece.from,
                field,
                found,
            })
        };
        if p.from < after {
            return wrong("from", p.from);
        }
        let end = p.from.checked_add(p.bytes).filter(|_| p.bytes > 0);
        if end.is_none_or(|end| end > piece.from + piece.bytes) {
            return wrong("bytes", p.bytes);
        }
        let tier = BlockAddr::from_raw(p.addr).tier();
        if tier.is_none_or(|tier| tier == TierId::Nvm) {
            return wrong("addr", p.addr);
        }
        match (p.byte as usize) < BLOCK_BYTES {
            true => Ok(p),
            false => wrong("byte", p.byte.into()),
        }
    }
}

/// The checksum of a page that was written, as the table of an image has it: its CRC-32C, and 1 where that is 0. 0 in
/// the table: the page was never written and is zeros.
pub fn page_sum(page: &[u8]) -> u32 {
    crc32c(page).max(1)
}
