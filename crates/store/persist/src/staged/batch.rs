//! Batches: what is appended to the staging ring at once, and how it looks there.

use super::PAGE_BYTES;
use shale_format::staged::{BATCH_PIECES_MAX, BatchHeader, PieceEntry, PlacedEntry};
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

/// Bytes of a log's ring that are to be staged, from position `from` on. At least one.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The log.
    pub log: LogIdentity,
    /// Position of the first byte.
    pub from: LogPos,
    /// The bytes, as they stand in the ring, without those that are `placed`.
    pub bytes: &'a [u8],
    /// Which bytes of this range of the log lie in a zone already, and where: ascending, none twice. They are durable.
    pub placed: &'a [PlacedEntry],
}

impl Piece<'_> {
    /// Bytes of the log that it stands for.
    pub fn log_bytes(&self) -> u64 {
        let placed: u64 = self.placed.iter().map(|p| p.bytes).sum();
        self.bytes.len() as u64 + placed
    }

    /// Bytes that it takes of a batch, beside the entry that every piece has.
    pub fn batch_bytes(&self) -> usize {
        self.bytes.len() + self.placed.len() * PlacedEntry::BYTES
    }
}

/// Bytes of a log's ring that were staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedPiece {
    /// The log.
    pub log: LogIdentity,
    /// Position of the first byte.
    pub from: LogPos,
    /// The bytes, as they stood in the ring; zeros where they are `placed`.
    pub bytes: Vec<u8>,
    /// Which of them were not staged, as they lay in a zone already.
    pub placed: Vec<PlacedEntry>,
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
    let bytes: usize = pieces.iter().map(Piece::batch_bytes).sum();
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
            bytes: piece.log_bytes(),
            placed: piece.placed.len() as u32,
            reserved: [0; 12],
        };
        put(entry.as_bytes());
    }
    pieces.iter().for_each(|piece| put(piece.placed.as_bytes()));
    pieces.iter().for_each(|piece| put(piece.bytes));
    into[at..].fill(0);
    let (head, rest) = into.split_at_mut(BatchHeader::BYTES);
    head.copy_from_slice(&header.encode(rest));
}

/// Reads the pieces of the batch at byte `at` of the ring; `header`: its header, whose checksum fits.
pub(super) fn decode(header: &BatchHeader, bytes: &[u8], at: u64) -> Result<Batch, FormatError> {
    let mut rest = Reader { bytes, at: 0 };
    rest.take(BatchHeader::BYTES)?;
    let mut entries = Vec::with_capacity(header.pieces as usize);
    for n in 0..header.pieces {
        entries.push(PieceEntry::decode(rest.take(PieceEntry::BYTES)?, n)?);
    }
    let mut placed = Vec::with_capacity(entries.len());
    for entry in &entries {
        let mut of = Vec::new();
        let mut after = entry.from;
        for _ in 0..entry.placed {
            let one = PlacedEntry::decode(rest.take(PlacedEntry::BYTES)?, entry, after)?;
            after = one.end();
            of.push(one);
        }
        placed.push(of);
    }
    let mut pieces = Vec::with_capacity(entries.len());
    for (entry, placed) in entries.iter().zip(placed) {
        pieces.push(StagedPiece {
            log: LogIdentity {
                slot: entry.slot,
                uid: entry.uid,
                salt: entry.salt,
                ring_bytes: entry.ring_bytes,
                connection: entry.connection,
            },
            from: LogPos(entry.from),
            bytes: bytes_of(entry, &placed, &mut rest)?,
            placed,
        });
    }
    let from = rest.at;
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

/// The bytes of a piece, with zeros where others lie elsewhere.
fn bytes_of(
    entry: &PieceEntry,
    placed: &[PlacedEntry],
    rest: &mut Reader<'_>,
) -> Result<Vec<u8>, FormatError> {
    let elsewhere: u64 = placed.iter().map(|p| p.bytes).sum();
    // Before there is memory for them: no entry says more than the batch has.
    let mut staged = rest.take((entry.bytes - elsewhere) as usize)?;
    let mut bytes = Vec::with_capacity(entry.bytes as usize);
    let mut at = entry.from;
    for one in placed {
        let (before, after) = staged.split_at((one.from - at) as usize);
        bytes.extend_from_slice(before);
        bytes.resize(bytes.len() + one.bytes as usize, 0);
        (staged, at) = (after, one.end());
    }
    bytes.extend_from_slice(staged);
    Ok(bytes)
}

/// Bytes of a batch, taken one after the other.
struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Reader<'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8], FormatError> {
        let end = self.at.saturating_add(count);
        let taken = self.bytes.get(self.at..end).ok_or(FormatError::Short {
            what: "staged batch",
            expected: end,
            found: self.bytes.len(),
        })?;
        self.at = end;
        Ok(taken)
    }
}
