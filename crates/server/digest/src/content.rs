//! The net effect of records on the content of one file: which bytes come from
//! where, what was cut off, which blocks have to be allocated.
//!
//! Invariants: pieces never overlap; no piece with data reaches beyond the size; what
//! no piece covers is as in the volume below `cut` and reads as zeros from there on.

use super::ranges::{Advance, Ranges};
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, LogPos};
use shale_sys::mutants;

pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;

/// Where bytes of a file come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A payload in the log, from this position on.
    Log(LogPos),
    /// A stolen block, from byte `byte` (below 4096) on; following blocks follow.
    Block {
        /// The block.
        addr: BlockAddr,
        /// Byte within it.
        byte: u64,
    },
    /// The target of the symbolic link that record `by` of the chunk makes, from byte `byte`
    /// on: the private copy that was checked, not the one that is still in the log.
    Target {
        /// Index of the record.
        by: u32,
        /// Byte within it.
        byte: u32,
    },
    /// Zeros.
    Zero,
}

/// Bytes of a file with one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where they come from.
    pub source: Source,
    /// Index in the chunk of the record that set them.
    pub by: u32,
}

impl Advance for Source {
    fn advance(&self, by: u64) -> Self {
        match *self {
            Source::Log(pos) => Source::Log(LogPos(pos.0 + by)),
            Source::Block { addr, byte } => Source::Block {
                addr: addr.plus((byte + by) / BLOCK),
                byte: (byte + by) % BLOCK,
            },
            Source::Target { by: record, byte } => Source::Target {
                by: record,
                byte: byte + by as u32,
            },
            Source::Zero => Source::Zero,
        }
    }
}

impl Advance for Piece {
    fn advance(&self, by: u64) -> Self {
        Piece {
            source: self.source.advance(by),
            by: self.by,
        }
    }
}

/// A range taken out of a file or put into it; everything behind it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// First block of the range.
    pub at: u64,
    /// Its blocks.
    pub blocks: u64,
    /// Put in (as a hole), else taken out.
    pub insert: bool,
    /// Index in the chunk of the record.
    pub by: u32,
}

/// The net effect on one file's content.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// Bytes that change, by offset.
    pub pieces: Ranges<Piece>,
    /// Blocks that have to be allocated whether they hold data or not, by block number.
    pub allocated: Ranges<u32>,
    /// Lowest size that the file was cut to, and the record that did it: the
    /// volume's bytes from there on are gone.
    pub cut: Option<(u64, u32)>,
    /// A shift; then there is nothing else.
    pub shift: Option<Shift>,
}

impl Content {
    /// Bytes from a payload in the log.
    pub fn write(&mut self, offset: u64, bytes: u64, from: LogPos, by: u32) {
        let source = Source::Log(from);
        self.pieces
            .insert(offset..offset + bytes, Piece { source, by });
    }

    /// The target of a symbolic link, of `bytes` bytes.
    pub fn target(&mut self, bytes: u64, by: u32) {
        let source = Source::Target { by, byte: 0 };
        self.pieces.insert(0..bytes, Piece { source, by });
    }

    /// Whole blocks from `addr` on; `size`: of the file afterwards. Bytes of the last
    /// block behind the size become zeros, whatever the client left there.
    pub fn steal(&mut self, offset: u64, blocks: u64, addr: BlockAddr, size: u64, by: u32) {
        let end = offset + blocks * BLOCK;
        let source = Source::Block { addr, byte: 0 };
        self.pieces.insert(offset..end, Piece { source, by });
        self.zero(size.clamp(offset, end)..end, by);
    }

    /// Cuts the file from `old` to `size` bytes. Where that cuts off nothing, nothing changes: an
    /// earlier cut to the same size has made the rest of its last block zeros.
    pub fn cut(&mut self, old: u64, size: u64, by: u32) {
        if size >= old {
            return;
        }
        let edge = size.next_multiple_of(BLOCK);
        self.pieces.remove(size..u64::MAX);
        self.allocated.remove(edge / BLOCK..u64::MAX);
        if self.cut.is_none_or(|(lowest, _)| size < lowest) {
            self.cut = Some((size, by));
        }
        if mutants::is_on("truncate-rest") {
            return;
        }
        self.zero(size..edge, by);
    }

    /// Makes bytes zeros and gives up the blocks that lie wholly inside.
    pub fn punch(&mut self, range: std::ops::Range<u64>, by: u32) {
        if mutants::is_on("punch-edges") {
            let whole = range.start.next_multiple_of(BLOCK)..range.end / BLOCK * BLOCK;
            return if whole.start < whole.end {
                self.zero(whole, by)
            };
        }
        self.zero(range.clone(), by);
        let blocks = range.start.div_ceil(BLOCK)..range.end / BLOCK;
        self.allocated.remove(blocks);
    }

    /// Makes bytes zeros.
    pub fn zero(&mut self, range: std::ops::Range<u64>, by: u32) {
        let source = Source::Zero;
        self.pieces.insert(range, Piece { source, by });
    }

    /// Demands that the blocks of a byte range be allocated.
    pub fn allocate(&mut self, range: std::ops::Range<u64>, by: u32) {
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        self.allocated.insert(blocks, by);
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
            && self.allocated.is_empty()
            && self.cut.is_none()
            && self.shift.is_none()
    }
}
