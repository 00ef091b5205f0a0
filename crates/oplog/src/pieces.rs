//! The pieces of an overlay, sorted by first byte: an array of small arrays.
//!
//! Most pieces come at the end (appends) or replace one that is there; both touch one
//! small array. Invariants: no chunk is empty or longer than [`CHUNK`]; `heads` holds
//! the first byte of each chunk's first piece, ascending; pieces never overlap.

use crate::overlay::Source;
use shale_format::LogPos;

/// Most pieces in one chunk.
const CHUNK: usize = 64;
/// Chunks that are kept for use after a purge.
const SPARE: usize = 256;

/// What is known of the bytes from `start` up to `end`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) source: Source,
    pub(crate) record: LogPos,
}

/// Sorted pieces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    heads: Vec<u64>,
    chunks: Vec<Vec<Piece>>,
    spare: Vec<Vec<Piece>>,
}

/// A place among the pieces: chunk, and index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At(usize, usize);

impl Pieces {
    /// Number of pieces.
    pub(crate) fn len(&self) -> usize {
        self.chunks.iter().map(Vec::len).sum()
    }

    /// The last piece.
    #[inline]
    pub(crate) fn last(&self) -> Option<&Piece> {
        self.chunks.last().and_then(|c| c.last())
    }

    /// The chunk in which a piece that begins at `start` is or would be.
    #[inline]
    fn chunk_of(&self, start: u64) -> usize {
        match self.heads.last() {
            Some(&head) if head <= start => self.heads.len() - 1,
            _ => self
                .heads
                .partition_point(|&h| h <= start)
                .saturating_sub(1),
        }
    }

    /// Place of the first piece that begins at or behind `start`.
    fn lower_bound(&self, start: u64) -> At {
        let chunk = self.chunk_of(start);
        let index = self
            .chunks
            .get(chunk)
            .map_or(0, |c| c.partition_point(|p| p.start < start));
        At(chunk, index)
    }

    /// The piece that begins at `start`.
    pub(crate) fn get_mut(&mut self, start: u64) -> Option<&mut Piece> {
        let At(chunk, index) = self.lower_bound(start);
        let piece = self.chunks.get_mut(chunk)?.get_mut(index)?;
        (piece.start == start).then_some(piece)
    }

    /// The last piece that begins before `end`.
    pub(crate) fn before(&self, end: u64) -> Option<&Piece> {
        let At(chunk, index) = self.lower_bound(end);
        match index {
            0 => self.chunks.get(chunk.checked_sub(1)?)?.last(),
            n => self.chunks.get(chunk)?.get(n - 1),
        }
    }

    /// Pieces that begin at or behind `start`, in order.
    pub(crate) fn from(&self, start: u64) -> impl Iterator<Item = &Piece> {
        let At(chunk, index) = self.lower_bound(start);
        let first = self.chunks.get(chunk).map_or(&[][..], |c| &c[index..]);
        let rest = self.chunks.get(chunk + 1..).unwrap_or(&[]);
        first.iter().chain(rest.iter().flatten())
    }

    /// Adds a piece behind all others.
    #[inline]
    pub(crate) fn push(&mut self, piece: Piece) {
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push(piece),
            _ => self.push_chunk(piece),
        }
    }

    /// Adds a piece; none begins there.
    pub(crate) fn insert(&mut self, piece: Piece) {
        let At(mut chunk, mut index) = self.lower_bound(piece.start);
        let Some(full) = self.chunks.get(chunk).map(|c| c.len() == CHUNK) else {
            self.push_chunk(piece);
            return;
        };
        if full && chunk + 1 == self.chunks.len() && index == CHUNK {
            self.push_chunk(piece);
            return;
        }
        if full {
            let upper = self.chunks[chunk].split_off(CHUNK / 2);
            self.heads.insert(chunk + 1, upper[0].start);
            self.chunks.insert(chunk + 1, upper);
            if index > CHUNK / 2 {
                chunk += 1;
                index -= CHUNK / 2;
            }
        }
        self.chunks[chunk].insert(index, piece);
        if index == 0 {
            self.heads[chunk] = piece.start;
        }
    }

    fn push_chunk(&mut self, piece: Piece) {
        let mut chunk = self
            .spare
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(CHUNK));
        chunk.push(piece);
        self.heads.push(piece.start);
        self.chunks.push(chunk);
    }

    /// Takes the piece that begins at `start` away.
    pub(crate) fn remove(&mut self, start: u64) {
        let At(chunk, index) = self.lower_bound(start);
        let Some(pieces) = self.chunks.get_mut(chunk) else {
            return;
        };
        if pieces.get(index).is_some_and(|p| p.start == start) {
            pieces.remove(index);
            match pieces.first() {
                Some(first) => self.heads[chunk] = first.start,
                None => {
                    self.heads.remove(chunk);
                    self.chunks.remove(chunk);
                }
            }
        }
    }

    /// Takes everything from `start` on away, in order.
    pub(crate) fn split_off(&mut self, start: u64) -> Vec<Piece> {
        let taken: Vec<Piece> = self.from(start).copied().collect();
        self.retain(|p| p.start < start);
        taken
    }

    /// Keeps the pieces for which `keep` holds.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Piece) -> bool) {
        for chunk in &mut self.chunks {
            chunk.retain(&keep);
        }
        let spare = &mut self.spare;
        self.chunks.retain_mut(|chunk| {
            if chunk.is_empty() && spare.len() < SPARE && chunk.capacity() >= CHUNK {
                spare.push(std::mem::take(chunk));
            }
            !chunk.is_empty()
        });
        self.heads.clear();
        self.heads.extend(self.chunks.iter().map(|c| c[0].start));
    }

    /// Takes everything away.
    pub(crate) fn clear(&mut self) {
        self.retain(|_| false);
    }
}
