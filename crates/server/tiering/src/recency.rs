//! What is cold: when pieces of files were last written or read.
//!
//! Digests and clients' reports of reads tell of pieces of 1 MiB. A piece of which nothing is
//! known since the start is colder than all others; among those the file that changed longest ago
//! comes first.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};

/// Blocks of a piece: 1 MiB.
pub(crate) const PIECE_BLOCKS: u64 = 256;
/// Pieces that are remembered; beyond it the older half is forgotten.
const PIECES_MAX: usize = 1 << 20;

/// Half of a piece's weight is forgotten while all pieces together are written so many times each.
const HALF_LIFE: f64 = 4.0;
/// The weight of a piece that is written as often as the others: one write in each of so many,
/// half forgotten after [`HALF_LIFE`] of them.
const USUAL_WEIGHT: f64 = HALF_LIFE / std::f64::consts::LN_2;
/// A piece is hot that is written so many times as often as the others.
const HOT_TIMES: f64 = 2.0;

/// How a piece is used.
#[derive(Clone, Copy, Default)]
struct Access {
    /// When it was last read or written, in uses of all pieces.
    stamp: u64,
    /// When it was last written, in writes of all pieces.
    written: u64,
    /// Its writes until then, the older ones forgotten.
    weight: f32,
}

#[derive(Default)]
struct AccessHistory {
    /// Uses of all pieces.
    clock: u64,
    /// Writes of all pieces.
    writes: u64,
    /// By inode and piece.
    pieces: HashMap<(u64, u64), Access>,
}

impl AccessHistory {
    /// What is left of a piece's weight.
    fn weight(&self, piece: &Access) -> f64 {
        let life = HALF_LIFE * self.pieces.len().max(1) as f64;
        let since = (self.writes - piece.written) as f64;
        f64::from(piece.weight) * (-since / life).exp2()
    }

    fn note(&mut self, ino: u64, used: RangeInclusive<u64>, is_write: bool) {
        self.clock += 1;
        self.writes += u64::from(is_write);
        for piece in used {
            let mut now = self.pieces.get(&(ino, piece)).copied().unwrap_or_default();
            now.stamp = self.clock;
            if is_write {
                now.weight = (self.weight(&now) + 1.0) as f32;
                now.written = self.writes;
            }
            self.pieces.insert((ino, piece), now);
        }
        if self.pieces.len() > PIECES_MAX {
            let middle = self.clock / 2;
            self.pieces.retain(|_, piece| piece.stamp > middle);
            if self.pieces.len() > PIECES_MAX {
                self.pieces.clear();
            }
        }
    }
}

/// When pieces were used last, and how often they are written.
#[derive(Default)]
pub struct Recency {
    state: Mutex<AccessHistory>,
}

impl Recency {
    /// Blocks of a file are written.
    pub fn touch(&self, ino: u64, blocks: &Range<u64>) {
        let last = blocks.end.saturating_sub(1).max(blocks.start);
        let pieces = blocks.start / PIECE_BLOCKS..=last / PIECE_BLOCKS;
        self.state.lock().note(ino, pieces, true);
    }

    /// Files are no more. Of a large one the pieces behind the first are forgotten with time.
    pub fn forget(&self, inos: impl Iterator<Item = u64>) {
        let mut state = self.state.lock();
        for ino in inos {
            state.pieces.remove(&(ino, 0));
        }
    }

    /// Pieces of a file are read.
    pub(crate) fn touch_pieces(&self, ino: u64, used: RangeInclusive<u64>) {
        self.state.lock().note(ino, used, false);
    }

    /// Uses of pieces so far.
    pub(super) fn uses(&self) -> u64 {
        self.state.lock().clock
    }

    pub(super) fn of(&self, ino: u64, piece: u64) -> u64 {
        let state = self.state.lock();
        state.pieces.get(&(ino, piece)).map_or(0, |p| p.stamp)
    }

    /// When the piece of these was used that was used last.
    pub(super) fn newest_of(&self, ino: u64, pieces: impl Iterator<Item = u64>) -> u64 {
        let state = self.state.lock();
        let stamp = |piece| state.pieces.get(&(ino, piece)).map_or(0, |p| p.stamp);
        pieces.map(stamp).max().unwrap_or(0)
    }

    /// Whether the piece with this block of a file is written more often than others: what lies beside
    /// it in a zone should be, too, so that it dies with it.
    pub(super) fn is_hot(&self, ino: u64, block: u64) -> bool {
        let state = self.state.lock();
        let piece = state.pieces.get(&(ino, block / PIECE_BLOCKS));
        piece.is_some_and(|p| state.weight(p) > HOT_TIMES * USUAL_WEIGHT)
    }
}

/// A piece of a file, and how cold it was when it was looked at. In the order in which they move down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HeatRegion {
    /// The target of a symbolic link, which every path walk through it needs: it goes where no data can.
    pub(super) link: bool,
    pub(super) stamp: u64,
    pub(super) changed_s: i64,
    pub(super) ino: u64,
    pub(super) piece: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_is_what_is_written_more_often_than_others() {
        let recency = Recency::default();
        let write = |ino| recency.touch(ino, &(0..1));
        // Each of 80 is written once while each of 20 is sixteen times.
        for _ in 0..10 {
            (0..80).for_each(write);
            (0..16).for_each(|_| (80..100).for_each(write));
        }
        assert!((0..80).all(|ino| !recency.is_hot(ino, 0)));
        assert!((80..100).all(|ino| recency.is_hot(ino, PIECE_BLOCKS - 1)));
        assert!(
            !recency.is_hot(80, PIECE_BLOCKS),
            "another piece of that file"
        );
        // Then the others are; reading says nothing of it.
        (0..100).for_each(|_| recency.touch_pieces(80, 0..=0));
        for _ in 0..200 {
            (0..20).for_each(write);
        }
        assert!((0..20).all(|ino| recency.is_hot(ino, 0)));
        assert!((80..100).all(|ino| !recency.is_hot(ino, 0)));
    }
}
