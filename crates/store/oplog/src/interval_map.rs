//! The pieces of an overlay, sorted by first byte: an array of small sorted chunks.
//!
//! Most pieces come at the end (appends), replace one that is there, or come somewhere in
//! a large file. So within a chunk only the first bytes and one-byte slot numbers are kept
//! in order; what else is known of a piece stays in its slot. A search touches few cache
//! lines, and an insertion moves little.
//!
//! Invariants: no chunk is empty; `heads` holds the first byte of each chunk's first
//! piece, ascending; pieces never overlap.

use crate::overlay::Source;
use shale_format::{BlockAddr, LogPos};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most pieces in one chunk.
const CHUNK: usize = 64;
/// Of these there is memory for so many at first.
const FEW: usize = 4;
/// Chunks that are kept for use after a purge.
const SPARE: usize = 256;

/// A [`Source`] in two words. Two words are passed in registers, so that a new piece is stored word
/// by word where it stays. (A value that goes by way of the stack is stored there in words and loaded
/// again in vectors, which waits until all stores before it are in the cache: some 17 to 60 ns.)
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Position in the log, or the first block's address.
    word: u64,
    /// Bytes in the block, or one of the numbers below.
    skip: u64,
}

impl Place {
    /// No file is so long that it comes this far into a block.
    const IN_LOG: u64 = u64::MAX;
    const ZERO: u64 = u64::MAX - 1;

    #[inline(always)]
    pub(crate) fn of(source: Source) -> Self {
        let (word, skip) = match source {
            Source::Log { at } => (at.0, Self::IN_LOG),
            Source::Zero => (0, Self::ZERO),
            Source::Block { addr, skip } => (addr.raw(), skip),
        };
        Self { word, skip }
    }

    #[inline(always)]
    fn source(self) -> Source {
        match self.skip {
            Self::IN_LOG => Source::Log {
                at: LogPos(self.word),
            },
            Self::ZERO => Source::Zero,
            skip => Source::Block {
                addr: BlockAddr::from_raw(self.word),
                skip,
            },
        }
    }
}

/// What is known of the bytes from `start` up to `end`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interval {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) place: Place,
    pub(crate) record: LogPos,
}

impl Interval {
    /// Where its bytes are.
    #[inline(always)]
    pub(crate) fn source(&self) -> Source {
        self.place.source()
    }
}

/// What is in a slot that was never used.
const NOTHING: Interval = Interval {
    start: 0,
    end: 0,
    place: Place {
        word: 0,
        skip: Place::ZERO,
    },
    record: LogPos(0),
};

/// Up to [`CHUNK`] pieces. `slots[n]` is where the piece is that begins at `starts[n]`;
/// behind the `len`-th come the free slots. There are [`CHUNK`] slots, in the end: most files have a piece or
/// two, and there may be many files, so there is memory for a few at first. Slots that were never
/// used are used in order.
#[derive(Clone, Debug)]
struct Chunk {
    len: usize,
    starts: [u64; CHUNK],
    slots: [u8; CHUNK],
    pieces: Vec<Interval>,
}

impl Chunk {
    fn new() -> Box<Self> {
        Box::new(Self {
            len: 0,
            starts: [0; CHUNK],
            slots: std::array::from_fn(|n| n as u8),
            pieces: vec![NOTHING; FEW],
        })
    }

    /// Memory for all slots.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.pieces.reserve_exact(CHUNK - self.pieces.len());
        self.pieces.resize(CHUNK, NOTHING);
    }

    fn is_full(&self) -> bool {
        self.len == CHUNK
    }

    #[inline]
    fn get(&self, index: usize) -> Option<&Interval> {
        let slot = self.slots[..self.len].get(index)?;
        self.pieces.get(usize::from(*slot))
    }

    #[inline]
    fn last(&self) -> Option<&Interval> {
        self.get(self.len.checked_sub(1)?)
    }

    fn iter(&self) -> impl Iterator<Item = &Interval> {
        self.slots[..self.len]
            .iter()
            .map(|&slot| &self.pieces[usize::from(slot)])
    }

    /// Number of pieces that begin before `start`.
    #[inline]
    fn before(&self, start: u64) -> usize {
        self.starts[..self.len].partition_point(|&s| s < start)
    }

    /// Puts a piece into a free slot; there is one.
    #[inline(always)]
    fn insert(&mut self, index: usize, piece: Interval) {
        let slot = self.slots[self.len];
        self.starts.copy_within(index..self.len, index + 1);
        self.slots.copy_within(index..self.len, index + 1);
        self.starts[index] = piece.start;
        self.slots[index] = slot;
        self.len += 1;
        if usize::from(slot) >= self.pieces.len() {
            self.grow();
        }
        self.pieces[usize::from(slot)] = piece;
    }

    fn remove(&mut self, index: usize) {
        let slot = self.slots[index];
        self.starts.copy_within(index + 1..self.len, index);
        self.slots.copy_within(index + 1..self.len, index);
        self.len -= 1;
        self.slots[self.len] = slot;
    }

    fn retain(&mut self, keep: &impl Fn(&Interval) -> bool) {
        let mut index = 0;
        while let Some(piece) = self.get(index) {
            if keep(piece) {
                index += 1;
            } else {
                self.remove(index);
            }
        }
    }

    fn clear(&mut self) {
        self.len = 0;
        self.slots = std::array::from_fn(|n| n as u8);
    }

    /// Moves the upper half out.
    fn split(&mut self, upper: &mut Chunk) {
        let middle = self.len / 2;
        for index in middle..self.len {
            if let Some(&piece) = self.get(index) {
                upper.insert(index - middle, piece);
            }
        }
        self.len = middle;
    }
}

/// Sorted pieces.
#[derive(Clone, Debug, Default)]
#[expect(clippy::vec_box, reason = "a chunk is large and its place changes")]
pub(crate) struct IntervalMap {
    heads: Vec<u64>,
    chunks: Vec<Box<Chunk>>,
    spare: Vec<Box<Chunk>>,
    hint: Hint,
}

/// A place among the pieces: chunk, and index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At(usize, usize);

/// Where the last search ended: the next one mostly goes on from there, and need not look
/// through everything. It may be wrong, also because others search at the same time.
#[derive(Debug, Default)]
struct Hint(AtomicUsize);

impl Hint {
    #[inline]
    fn get(&self) -> At {
        let word = self.0.load(Ordering::Relaxed);
        At(word / (CHUNK + 1), word % (CHUNK + 1))
    }

    #[inline]
    fn set(&self, At(chunk, index): At) {
        self.0.store(chunk * (CHUNK + 1) + index, Ordering::Relaxed);
    }
}

impl Clone for Hint {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl IntervalMap {
    /// Number of pieces.
    pub(crate) fn len(&self) -> usize {
        self.chunks.iter().map(|c| c.len).sum()
    }

    /// The last piece.
    #[inline]
    pub(crate) fn last(&self) -> Option<&Interval> {
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
    #[inline]
    fn lower_bound(&self, start: u64) -> At {
        let hint = self.hint.get();
        for at in [hint, At(hint.0, hint.1 + 1)] {
            if self.is_lower_bound(at, start) {
                if at != hint {
                    self.hint.set(at);
                }
                return at;
            }
        }
        let at = self.search(start);
        self.hint.set(at);
        at
    }

    fn search(&self, start: u64) -> At {
        let chunk = self.chunk_of(start);
        At(chunk, self.chunks.get(chunk).map_or(0, |c| c.before(start)))
    }

    /// Whether [`Self::search`] would come to this place.
    #[inline]
    fn is_lower_bound(&self, At(chunk, index): At, start: u64) -> bool {
        let Some(c) = self.chunks.get(chunk).filter(|c| index <= c.len) else {
            return false;
        };
        let behind_last = index == 0 || c.starts[index - 1] < start;
        let before_next = index == c.len || start <= c.starts[index];
        // Only at its ends can another chunk be the right one.
        let first = index > 0 || chunk == 0 || self.heads[chunk] <= start;
        let last = index < c.len || self.heads.get(chunk + 1).is_none_or(|&h| start < h);
        behind_last && before_next && first && last
    }

    /// The piece that begins at `start`. Its first byte must stay what it is.
    pub(crate) fn get_mut(&mut self, start: u64) -> Option<&mut Interval> {
        let At(chunk, index) = self.lower_bound(start);
        let chunk = self.chunks.get_mut(chunk)?;
        if index >= chunk.len || chunk.starts[index] != start {
            return None;
        }
        chunk.pieces.get_mut(usize::from(chunk.slots[index]))
    }

    /// The last piece that begins before `end`.
    pub(crate) fn before(&self, end: u64) -> Option<&Interval> {
        let At(chunk, index) = self.lower_bound(end);
        match index {
            0 => self.chunks.get(chunk.checked_sub(1)?)?.last(),
            n => self.chunks.get(chunk)?.get(n - 1),
        }
    }

    /// The last piece that begins at `start` or before.
    #[inline]
    pub(crate) fn at_or_before(&self, start: u64) -> Option<&Interval> {
        self.before(start.checked_add(1)?)
    }

    /// The last piece that begins at `start` or before, and where the one after it begins.
    #[inline]
    pub(crate) fn around(&self, start: u64) -> (Option<&Interval>, Option<u64>) {
        let At(chunk, index) = self.lower_bound(start.saturating_add(1));
        let Some(here) = self.chunks.get(chunk) else {
            return (None, None);
        };
        let before = match index {
            0 => chunk
                .checked_sub(1)
                .and_then(|c| self.chunks.get(c)?.last()),
            n => here.get(n - 1),
        };
        let next = match index < here.len {
            true => Some(here.starts[index]),
            false => self.heads.get(chunk + 1).copied(),
        };
        (before, next)
    }

    /// Pieces that begin at or behind `start`, in order.
    pub(crate) fn from(&self, start: u64) -> impl Iterator<Item = &Interval> {
        let At(chunk, index) = self.lower_bound(start);
        let rest = self.chunks.get(chunk..).unwrap_or(&[]);
        rest.iter().flat_map(|c| c.iter()).skip(index)
    }

    /// Adds a piece behind all others.
    #[inline(always)]
    pub(crate) fn push(&mut self, piece: Interval) {
        match self.chunks.last_mut() {
            Some(chunk) if !chunk.is_full() => chunk.insert(chunk.len, piece),
            _ => self.push_chunk(piece.start, piece.end, piece.place, piece.record),
        }
    }

    /// Adds a piece; none begins there.
    pub(crate) fn insert(&mut self, piece: Interval) {
        let At(mut chunk, mut index) = self.lower_bound(piece.start);
        let Some(full) = self.chunks.get(chunk).map(|c| c.is_full()) else {
            self.push_chunk(piece.start, piece.end, piece.place, piece.record);
            return;
        };
        if full && chunk + 1 == self.chunks.len() && index == CHUNK {
            self.push_chunk(piece.start, piece.end, piece.place, piece.record);
            return;
        }
        if full {
            let mut upper = self.empty_chunk();
            self.chunks[chunk].split(&mut upper);
            self.heads.insert(chunk + 1, upper.starts[0]);
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

    fn empty_chunk(&mut self) -> Box<Chunk> {
        self.spare.pop().unwrap_or_else(Chunk::new)
    }

    /// The parts of a piece, not the piece: see [`Place`].
    #[cold]
    fn push_chunk(&mut self, start: u64, end: u64, place: Place, record: LogPos) {
        let piece = Interval {
            start,
            end,
            place,
            record,
        };
        let mut chunk = self.empty_chunk();
        chunk.insert(0, piece);
        self.heads.push(start);
        self.chunks.push(chunk);
    }

    /// Takes the piece that begins at `start` away.
    pub(crate) fn remove(&mut self, start: u64) {
        let At(chunk, index) = self.lower_bound(start);
        let Some(pieces) = self.chunks.get_mut(chunk) else {
            return;
        };
        if index < pieces.len && pieces.starts[index] == start {
            pieces.remove(index);
            if pieces.len > 0 {
                self.heads[chunk] = pieces.starts[0];
            } else {
                self.heads.remove(chunk);
                let emptied = self.chunks.remove(chunk);
                self.put_by(emptied);
            }
        }
    }

    /// Keeps an empty chunk for later.
    fn put_by(&mut self, mut chunk: Box<Chunk>) {
        if self.spare.len() < SPARE {
            chunk.clear();
            self.spare.push(chunk);
        }
    }

    /// Takes everything from `start` on away, in order.
    pub(crate) fn split_off(&mut self, start: u64) -> Vec<Interval> {
        let taken: Vec<Interval> = self.from(start).copied().collect();
        self.retain(|p| p.start < start);
        taken
    }

    /// Keeps the pieces for which `keep` holds.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Interval) -> bool) {
        self.heads.clear();
        for mut chunk in std::mem::take(&mut self.chunks) {
            chunk.retain(&keep);
            if chunk.len > 0 {
                self.heads.push(chunk.starts[0]);
                self.chunks.push(chunk);
            } else {
                self.put_by(chunk);
            }
        }
        self.forget_spare();
    }

    /// Takes everything away.
    pub(crate) fn clear(&mut self) {
        self.heads.clear();
        for chunk in std::mem::take(&mut self.chunks) {
            self.put_by(chunk);
        }
        self.forget_spare();
    }

    /// Of a file that had a chunk and has none now no memory is kept: there may be many such.
    fn forget_spare(&mut self) {
        if self.chunks.is_empty() && self.spare.len() <= 1 {
            *self = Self::default();
        }
    }

    /// Bytes of memory behind these pieces.
    #[cfg(test)]
    fn memory_bytes(&self) -> usize {
        let of = |c: &Chunk| size_of::<Chunk>() + c.pieces.capacity() * size_of::<Interval>();
        let chunks = self.chunks.iter().chain(&self.spare);
        let lists = self.heads.capacity() + self.chunks.capacity() + self.spare.capacity();
        chunks.map(|c| of(c)).sum::<usize>() + lists * size_of::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(start: u64) -> Interval {
        Interval {
            start,
            end: start + 1,
            place: Place::of(Source::Zero),
            record: LogPos(start * 3),
        }
    }

    #[test]
    fn a_file_of_a_piece_costs_little_and_nothing_when_that_is_digested() {
        let mut pieces = IntervalMap::default();
        pieces.push(piece(5));
        assert!(pieces.memory_bytes() < 900, "{}", pieces.memory_bytes());
        pieces.clear();
        assert_eq!(pieces.memory_bytes(), 0);
        pieces.push(piece(5));
        pieces.retain(|_| false);
        assert_eq!(pieces.memory_bytes(), 0);
        (0..1000).for_each(|n| pieces.push(piece(n)));
        pieces.clear();
        assert!(pieces.memory_bytes() > 0, "a large file is written on");
    }

    /// Pieces against a sorted map, by a random walk of all changes.
    #[test]
    fn pieces_are_a_sorted_map() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        let (mut pieces, mut model) = (IntervalMap::default(), std::collections::BTreeMap::new());
        for step in 0..60_000_u64 {
            let start = random(3_000);
            match random(10) {
                0..=5 if !model.contains_key(&start) => {
                    pieces.insert(piece(start));
                    model.insert(start, start * 3);
                }
                6..=8 => {
                    pieces.remove(start);
                    model.remove(&start);
                }
                _ if step % 4_000 == 0 => {
                    pieces.retain(|p| p.record.0 % 2 == 0);
                    model.retain(|_, record| *record % 2 == 0);
                }
                _ => {
                    let behind = model.last_key_value().map_or(0, |(last, _)| last + 1);
                    pieces.push(piece(behind));
                    model.insert(behind, behind * 3);
                }
            }
            let at = random(3_000);
            assert_eq!(
                pieces.before(at).map(|p| p.start),
                model.range(..at).next_back().map(|(s, _)| *s)
            );
            assert_eq!(
                pieces.at_or_before(at).map(|p| p.start),
                model.range(..=at).next_back().map(|(s, _)| *s)
            );
            assert_eq!(pieces.get_mut(at).is_some(), model.contains_key(&at));
            // Near what was found last, where the hint may hold.
            for near in [at, at + 1, at + 2, at.saturating_sub(1), start, start + 1] {
                assert_eq!(pieces.lower_bound(near), pieces.search(near), "{near}");
            }
        }
        assert_eq!(pieces.len(), model.len());
        let found: Vec<_> = pieces.from(17).map(|p| (p.start, p.record.0)).collect();
        let expected: Vec<_> = model.range(17..).map(|(s, r)| (*s, *r)).collect();
        assert_eq!(found, expected);
    }
}
