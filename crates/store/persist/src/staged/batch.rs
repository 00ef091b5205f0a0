//! Batches: what is appended to the staging ring at once, and how it looks there.

use super::PAGE_BYTES;
use shale_format::staged::{BATCH_PIECES_MAX, BatchHeader, PieceEntry};
use shale_format::{FormatError, LogPos};
use zerocopy::IntoBytes;

/// Which log a piece is of: all that is needed to make its slot again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogIdentity {
    /// Number of the slot in the log table.
    pub slot: u32,
    /// User that the log was granted to.
    pub uid: u32,
    /// Salt of the log.
    pub salt: u64,
    /// Bytes of its ring.
    pub ring_bytes: u64,
    /// FUSE connection that its requests came from; 0: none.
    pub connection: u64,
}

/// Bytes of a log's ring that are to be staged: positions `from` to `from + bytes.len()`. At least one.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The log.
    pub log: LogIdentity,
    /// Position of the first byte.
    pub from: LogPos,
    /// The bytes, as they stand in the ring.
    pub bytes: &'a [u8],
}

/// Bytes of a log's ring that were staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedPiece {
    /// The log.
    pub log: LogIdentity,
    /// Position of the first byte.
    pub from: LogPos,
    /// The bytes, as they stood in the ring.
    pub bytes: Vec<u8>,
}

/// Counts batches, from 1, in the order in which they were staged. A number is given a second time only where its
/// batch was not whole after a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchNumber(pub(super) u64);

impl BatchNumber {
    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// A batch that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its number.
    pub number: BatchNumber,
    /// Its pieces in the order in which they were appended.
    pub pieces: Vec<StagedPiece>,
}

fn head_bytes(pieces: usize) -> usize {
    BatchHeader::BYTES + pieces * PieceEntry::BYTES
}

/// Most bytes that headers and padding take of a batch.
pub(super) const OVERHEAD_BYTES_MAX: usize = (BatchHeader::BYTES
    + BATCH_PIECES_MAX as usize * PieceEntry::BYTES)
    .next_multiple_of(PAGE_BYTES)
    + PAGE_BYTES;

/// Bytes of a batch of these pieces in the ring.
pub(super) fn batch_bytes(pieces: &[Piece<'_>]) -> usize {
    let bytes: usize = pieces.iter().map(|p| p.bytes.len()).sum();
    (head_bytes(pieces.len()) + bytes).next_multiple_of(PAGE_BYTES)
}

/// Writes a batch into the whole of `into`.
pub(super) fn encode(header: &BatchHeader, pieces: &[Piece<'_>], into: &mut [u8]) {
    let mut at = BatchHeader::BYTES;
    let mut put = |bytes: &[u8]| {
        into[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    for piece in pieces {
        let entry = PieceEntry {
            slot: piece.log.slot,
            uid: piece.log.uid,
            salt: piece.log.salt,
            ring_bytes: piece.log.ring_bytes,
            connection: piece.log.connection,
            from: piece.from.0,
            bytes: piece.bytes.len() as u64,
            reserved: [0; 16],
        };
        put(entry.as_bytes());
    }
    pieces.iter().for_each(|piece| put(piece.bytes));
    into[at..].fill(0);
    let (head, rest) = into.split_at_mut(BatchHeader::BYTES);
    head.copy_from_slice(&header.encode(rest));
}

/// Reads the pieces of the batch at byte `at` of the ring; `header`: its header, whose checksum fits.
pub(super) fn decode(header: &BatchHeader, bytes: &[u8], at: u64) -> Result<Batch, FormatError> {
    let short = |expected| FormatError::Short {
        what: "staged batch",
        expected,
        found: bytes.len(),
    };
    let mut from = head_bytes(header.pieces as usize);
    let entries = bytes.get(BatchHeader::BYTES..from).ok_or(short(from))?;
    let mut pieces = Vec::with_capacity(header.pieces as usize);
    for (n, entry) in (0..header.pieces).zip(entries.chunks(PieceEntry::BYTES)) {
        let entry = PieceEntry::decode(entry, n)?;
        let end = from.saturating_add(entry.bytes as usize);
        let data = bytes.get(from..end).ok_or(short(end))?;
        from = end;
        pieces.push(StagedPiece {
            log: LogIdentity {
                slot: entry.slot,
                uid: entry.uid,
                salt: entry.salt,
                ring_bytes: entry.ring_bytes,
                connection: entry.connection,
            },
            from: LogPos(entry.from),
            bytes: data.to_vec(),
        });
    }
    if from.next_multiple_of(PAGE_BYTES) != bytes.len() || bytes[from..].iter().any(|&b| b != 0) {
        return Err(FormatError::Field {
            what: "staged batch",
            at,
            field: "bytes",
            found: header.bytes.into(),
        });
    }
    Ok(Batch {
        number: BatchNumber(header.number),
        pieces,
    })
}
