//! Which bytes of one file are newer in the log than in the volume.
//!
//! Invariants: pieces never overlap and are never empty; each has the position of the
//! record that it came from, so that it goes when that record is digested. Pieces that
//! adjoin are not merged: their records are digested at different times.
//! Where the file was cut is kept beside the pieces, so that what is appended then is put behind
//! the last piece as ever. Later cuts are further behind: one that is not takes the earlier away.
//! The caller holds the inode's lock.

use crate::interval_map::{Interval, IntervalMap, Place};
use shale_format::{BlockAddr, LogPos};
use std::convert::Infallible;
use std::ops::Range;

/// Where the bytes of a piece are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the log.
    Log {
        /// Position of the first byte.
        at: LogPos,
    },
    /// In blocks of the volume that are stolen but not linked yet.
    Block {
        /// First block.
        addr: BlockAddr,
        /// Bytes from its start to the piece's first byte; may be more than one block.
        skip: u64,
    },
    /// Nowhere: they read as zeros (truncated, punched, zeroed).
    Zero,
}

impl Source {
    /// The source of the bytes `bytes` further on.
    fn plus(self, bytes: u64) -> Self {
        match self {
            Source::Log { at } => Source::Log {
                at: LogPos(at.0 + bytes),
            },
            Source::Block { addr, skip } => Source::Block {
                addr,
                skip: skip + bytes,
            },
            Source::Zero => Source::Zero,
        }
    }
}

/// The newer ranges of one file, by byte offset.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    pieces: IntervalMap,
    cuts: Vec<Cut>,
    newest: Option<LogPos>,
}

/// Bytes from `from` on that no piece has are zeros, whatever the volume has there.
#[derive(Clone, Copy, Debug)]
struct Cut {
    from: u64,
    record: LogPos,
}

impl Overlay {
    /// Knows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether no record is known that the volume does not have.
    pub fn is_empty(&self) -> bool {
        self.newest.is_none()
    }

    /// Position of the newest record that was put in and is not digested.
    pub fn newest_pos(&self) -> Option<LogPos> {
        self.newest
    }

    /// Number of pieces.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Bytes `range` are now in `source`, by the record at `record`. Older pieces
    /// are cut to what is left of them.
    #[inline(always)]
    pub fn insert(&mut self, range: Range<u64>, source: Source, record: LogPos) {
        self.newest = self.newest.max(Some(record));
        if range.is_empty() {
            return;
        }
        let Range { start, end } = range;
        let place = Place::of(source);
        let piece = Interval {
            start,
            end,
            place,
            record,
        };
        // The most frequent cases first: behind everything, and the same range again.
        let behind = self.pieces.last().is_none_or(|last| last.end <= start);
        if behind {
            return self.pieces.push(piece);
        }
        match self.pieces.get_mut(start) {
            Some(old) if old.end == end => *old = piece,
            _ => self.replace(start, end, place, record),
        }
    }

    /// The parts of a piece, not the piece: see [`Place`].
    #[inline(never)]
    fn replace(&mut self, start: u64, end: u64, place: Place, record: LogPos) {
        self.forget(start..end);
        self.pieces.insert(Interval {
            start,
            end,
            place,
            record,
        });
    }

    /// Bytes of `range` are zeros now.
    pub fn zero(&mut self, range: Range<u64>, record: LogPos) {
        self.insert(range, Source::Zero, record);
    }

    /// The file was cut to `size` bytes: whatever the volume still has behind reads as
    /// zeros, even when the file grows again. Not needed when a file only grows.
    pub fn truncate(&mut self, size: u64, record: LogPos) {
        self.newest = self.newest.max(Some(record));
        self.forget(size..u64::MAX);
        self.cuts.retain(|cut| cut.from < size);
        self.cuts.push(Cut { from: size, record });
    }

    /// Whether what the volume has at byte `at` is cut off. (The byte may have been written since.)
    #[inline]
    pub fn is_cut(&self, at: u64) -> bool {
        self.cuts.first().is_some_and(|cut| cut.from <= at)
    }

    /// Forgets what was written to `range`, so that what is below shows.
    fn forget(&mut self, range: Range<u64>) {
        while let Some(&old) = self.pieces.before(range.end) {
            if old.end <= range.start {
                break;
            }
            if old.start < range.start {
                if let Some(left) = self.pieces.get_mut(old.start) {
                    left.end = range.start;
                }
            } else {
                self.pieces.remove(old.start);
            }
            if old.end > range.end {
                self.pieces.insert(Interval {
                    start: range.end,
                    place: Place::of(old.source().plus(range.end - old.start)),
                    ..old
                });
            }
        }
    }

    /// Moves what is known of the bytes from `from` on by `delta`: the overlay's part in
    /// collapsing (`delta` < 0: bytes [`from + delta`, `from`) go) and inserting
    /// (`delta` > 0: bytes [`from`, `from + delta`) become unknown; make them zero).
    /// What only the volume knows does not move: digest before reading that.
    ///
    /// # Panics
    /// If `from + delta` is negative.
    pub fn shift(&mut self, from: u64, delta: i64) {
        let to = from
            .checked_add_signed(delta)
            .expect("a shift stays in the file");
        self.zeros_before(from);
        self.forget(to.min(from)..from);
        if let Some(&old) = self.pieces.before(from)
            && old.end > from
        {
            self.forget(from..old.end);
            self.pieces.insert(Interval {
                start: from,
                place: Place::of(old.source().plus(from - old.start)),
                ..old
            });
        }
        let moved = |offset: u64| match offset {
            u64::MAX => u64::MAX,
            offset => offset.saturating_add_signed(delta),
        };
        for piece in self.pieces.split_off(from) {
            self.pieces.insert(Interval {
                start: moved(piece.start),
                end: moved(piece.end),
                ..piece
            });
        }
        for cut in &mut self.cuts {
            cut.from = moved(cut.from);
        }
    }

    /// Makes pieces of the zeros before `from` behind a cut: cuts are at `from` or behind it then.
    fn zeros_before(&mut self, from: u64) {
        let before = self.cuts.partition_point(|cut| cut.from < from);
        for index in 0..before {
            let Cut { from: at, record } = self.cuts[index];
            let next = self.cuts.get(index + 1).map_or(from, |cut| cut.from);
            let mut gaps = Vec::new();
            let _ = self.walk(at..next.min(from), |gap, source| {
                gaps.extend(source.is_none().then_some(gap));
                Ok::<_, Infallible>(())
            });
            for Range { start, end } in gaps {
                self.pieces.insert(Interval {
                    start,
                    end,
                    place: Place::of(Source::Zero),
                    record,
                });
            }
        }
        if before > 0 {
            self.cuts[before - 1].from = from;
            self.cuts.drain(..before - 1);
        }
    }

    /// The source of the last piece that touches `range`: what was written there is,
    /// at least in part, not in the volume yet. Zeros behind a cut are no piece.
    #[inline]
    pub fn last_in(&self, range: Range<u64>) -> Option<Source> {
        let piece = match self.pieces.last() {
            Some(last) if last.start < range.end => last,
            _ => self.pieces.before(range.end)?,
        };
        (piece.end > range.start).then_some(piece.source())
    }

    /// Visits `range` in order, in pieces: the bytes of each are in the source, or,
    /// without one, in the volume (or the cache above it).
    ///
    /// # Errors
    /// The first one of `visit`, which ends the walk.
    pub fn segments<E>(
        &self,
        range: Range<u64>,
        mut visit: impl FnMut(Range<u64>, Option<Source>) -> Result<(), E>,
    ) -> Result<(), E> {
        let zeros = self.cuts.first().map_or(u64::MAX, |cut| cut.from);
        self.walk(range, |piece, source| {
            if source.is_some() || piece.end <= zeros {
                return visit(piece, source);
            }
            let cut = zeros.max(piece.start);
            if piece.start < cut {
                visit(piece.start..cut, None)?;
            }
            visit(cut..piece.end, Some(Source::Zero))
        })
    }

    /// Where all of `range`, which is not empty, is, if that is one place and known at once: `Some(None)`
    /// is the volume.
    #[inline]
    pub fn in_one(&self, range: Range<u64>) -> Option<Option<Source>> {
        if self.is_empty() {
            return Some(None);
        }
        let (before, next) = self.pieces.around(range.start);
        match before.filter(|piece| piece.end > range.start) {
            Some(piece) if piece.end >= range.end => {
                Some(Some(piece.source().plus(range.start - piece.start)))
            }
            Some(_) => None,
            None => {
                let zeros = self.cuts.first().map_or(u64::MAX, |cut| cut.from);
                let clear = next.is_none_or(|start| start >= range.end) && range.end <= zeros;
                clear.then_some(None)
            }
        }
    }

    /// As [`Self::segments`], without cuts: what is behind them is in no piece.
    #[inline]
    fn walk<E>(
        &self,
        range: Range<u64>,
        mut visit: impl FnMut(Range<u64>, Option<Source>) -> Result<(), E>,
    ) -> Result<(), E> {
        // Mostly one piece has it all.
        let first = self.pieces.at_or_before(range.start);
        if let Some(piece) = first.filter(|p| p.end >= range.end && !range.is_empty()) {
            let source = piece.source().plus(range.start - piece.start);
            return visit(range, Some(source));
        }
        let mut at = range.start;
        let before = self.pieces.before(range.start);
        let inside = self.pieces.from(range.start);
        for piece in before.into_iter().chain(inside) {
            if piece.end <= at {
                continue;
            }
            if piece.start >= range.end || at >= range.end {
                break;
            }
            if piece.start > at {
                visit(at..piece.start, None)?;
                at = piece.start;
            }
            let end = piece.end.min(range.end);
            visit(at..end, Some(piece.source().plus(at - piece.start)))?;
            at = end;
        }
        if at < range.end {
            visit(at..range.end, None)?;
        }
        Ok(())
    }

    /// Drops the pieces of records before `digested`: the volume has them now.
    pub fn purge_below(&mut self, digested: LogPos) {
        if self.newest.is_none_or(|newest| newest < digested) {
            self.pieces.clear();
            self.cuts.clear();
            self.newest = None;
        } else {
            self.cuts.retain(|cut| cut.record >= digested);
            self.pieces.retain(|piece| piece.record >= digested);
        }
    }
}
