//! What is cold: when pieces of files were last written or read, and which zones to empty.
//!
//! Digests and clients' reports of reads tell of pieces of 1 MiB. A piece of which nothing is
//! known since the start is colder than all others; among those the file that changed longest ago
//! comes first.

use super::mover::Wanted;
use crate::shared::Shared;
use parking_lot::Mutex;
use shale_format::inode::{Inode, time};
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_volume::{Result, VolumeError, ZoneInfo};
use std::collections::{HashMap, VecDeque};
use std::ops::{ControlFlow, Range, RangeInclusive};

/// Blocks of a piece: 1 MiB.
pub(crate) const PIECE_BLOCKS: u64 = 256;
/// Pieces that are remembered; beyond it the older half is forgotten.
const PIECES_MAX: usize = 1 << 20;

/// When pieces were used last, by inode and piece.
type Stamps = HashMap<(u64, u64), u64>;

/// When pieces were used last.
#[derive(Default)]
pub(crate) struct Recency {
    state: Mutex<(u64, Stamps)>,
}

impl Recency {
    /// Blocks of a file are used.
    pub(crate) fn touch(&self, ino: u64, blocks: &Range<u64>) {
        let last = blocks.end.saturating_sub(1).max(blocks.start);
        self.touch_pieces(ino, blocks.start / PIECE_BLOCKS..=last / PIECE_BLOCKS);
    }

    /// Pieces of a file are used.
    pub(crate) fn touch_pieces(&self, ino: u64, used: RangeInclusive<u64>) {
        let mut state = self.state.lock();
        let (clock, pieces) = &mut *state;
        *clock += 1;
        for piece in used {
            pieces.insert((ino, piece), *clock);
        }
        if pieces.len() > PIECES_MAX {
            let middle = *clock / 2;
            pieces.retain(|_, stamp| *stamp > middle);
            if pieces.len() > PIECES_MAX {
                pieces.clear();
            }
        }
    }

    /// Uses of pieces so far.
    pub(super) fn uses(&self) -> u64 {
        self.state.lock().0
    }

    fn of(&self, ino: u64, piece: u64) -> u64 {
        let state = self.state.lock();
        state.1.get(&(ino, piece)).copied().unwrap_or(0)
    }
}

/// A piece of a file, and how cold it was when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Piece {
    stamp: u64,
    changed_s: i64,
    ino: u64,
    piece: u64,
}

impl Shared {
    /// The next pieces of NVM to move down, coldest first, about `blocks` blocks.
    pub(super) fn coldest(&self, blocks: u64) -> Result<Vec<Wanted>> {
        let mut listed = self.migration.coldest.lock();
        for _ in 0..2 {
            let wanted = self.take_coldest(&mut listed, blocks)?;
            if !wanted.is_empty() {
                return Ok(wanted);
            }
            *listed = self.list_coldest()?;
        }
        self.take_coldest(&mut listed, blocks)
    }

    /// For how many uses of pieces the coldest piece in NVM has not been used.
    pub(super) fn coldest_age(&self) -> Result<u64> {
        let mut listed = self.migration.coldest.lock();
        for again in [true, false] {
            while let Some(piece) = listed.front() {
                let place = (piece.ino, piece.piece);
                let used = self.migration.recency.of(place.0, place.1) > piece.stamp;
                let in_nvm: fn(TierId) -> bool = |tier| tier == TierId::Nvm;
                if !used && self.data_of(place, (in_nvm, false), &mut Vec::new())? > 0 {
                    return Ok(self.migration.recency.uses() - piece.stamp);
                }
                listed.pop_front();
            }
            if again {
                *listed = self.list_coldest()?;
            }
        }
        // Nothing would sink for it.
        Ok(0)
    }

    fn take_coldest(&self, listed: &mut VecDeque<Piece>, blocks: u64) -> Result<Vec<Wanted>> {
        let (mut wanted, mut sum) = (Vec::new(), 0);
        while sum < blocks
            && let Some(piece) = listed.pop_front()
        {
            // It has been used since.
            if self.migration.recency.of(piece.ino, piece.piece) > piece.stamp {
                continue;
            }
            let in_nvm: fn(TierId) -> bool = |tier| tier == TierId::Nvm;
            let (place, hot) = ((piece.ino, piece.piece), piece.stamp > 0);
            sum += self.data_of(place, (in_nvm, hot), &mut wanted)?;
        }
        Ok(wanted)
    }

    /// Adds what lies of a piece in the tiers that `from` takes. Gives the blocks.
    pub(super) fn data_of(
        &self,
        (ino, piece): (u64, u64),
        (from, hot): (fn(TierId) -> bool, bool),
        wanted: &mut Vec<Wanted>,
    ) -> Result<u64> {
        let _reader = self.readers.enter();
        let view = self.volume.view();
        let Some(inode) = view.inode(Ino(ino))?.filter(Inode::is_file) else {
            return Ok(0);
        };
        if inode.pin().is_some_and(from) {
            return Ok(0);
        }
        let range = piece * PIECE_BLOCKS..(piece + 1) * PIECE_BLOCKS;
        let mut blocks = 0;
        view.extents(&inode, FileBlock(range.start), &mut |e| {
            if e.file_block >= range.end {
                return ControlFlow::Break(());
            }
            let addr = BlockAddr::from_raw(e.addr);
            // What was never written has no reason to come up.
            let wants = !e.is_unwritten() || addr.tier() == Some(TierId::Nvm);
            if addr.tier().is_some_and(from) && wants {
                let len = e.end().0.min(range.end) - e.file_block;
                blocks += len;
                wanted.push(Wanted {
                    ino,
                    at: e.file_block,
                    from: addr,
                    blocks: len,
                    hot,
                    unwritten: e.is_unwritten(),
                    pin: inode.pin(),
                });
            }
            ControlFlow::Continue(())
        })?;
        Ok(blocks)
    }

    fn list_coldest(&self) -> Result<VecDeque<Piece>> {
        let mut pieces: Vec<Piece> = Vec::new();
        self.each_extent(Some(TierId::Nvm), &mut |inode, e| {
            if inode.pin() == Some(TierId::Nvm) {
                return;
            }
            let last = (e.end().0 - 1) / PIECE_BLOCKS;
            for piece in e.file_block / PIECE_BLOCKS..=last {
                let again = pieces
                    .last()
                    .is_some_and(|p| (p.ino, p.piece) == (inode.ino, piece));
                if again {
                    continue;
                }
                pieces.push(Piece {
                    stamp: self.migration.recency.of(inode.ino, piece),
                    changed_s: inode.time_s[time::CHANGE].max(inode.time_s[time::ACCESS]),
                    ino: inode.ino,
                    piece,
                });
            }
        })?;
        pieces.sort_unstable();
        Ok(pieces.into())
    }
}

/// The zone that pays most to clean: much is dead in it, and it has been so for long
/// (cost-benefit of log-structured file systems). `pays`: those that may be cleaned at all.
pub(super) fn to_clean(
    zones: &[ZoneInfo],
    newest: u64,
    pays: impl Fn(&ZoneInfo) -> bool,
) -> Option<ZoneInfo> {
    let rated = zones
        .iter()
        .filter(|z| !z.open && z.live > 0 && z.live < z.written && pays(z))
        .map(|z| {
            let live = z.live as f64 / z.place.blocks as f64;
            let age = newest.saturating_sub(z.txid.0) as f64 + 1.0;
            ((1.0 - live) * age / (1.0 + live), *z)
        });
    rated.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, z)| z)
}

/// The zones of a tier whose data is oldest.
pub(super) fn oldest(zones: &[ZoneInfo], most: usize) -> Vec<ZoneInfo> {
    let mut full: Vec<ZoneInfo> = zones
        .iter()
        .filter(|z| !z.open && z.live > 0)
        .copied()
        .collect();
    full.sort_by_key(|z| (z.heat as u8 == 0, z.txid));
    full.truncate(most);
    full
}

/// Nothing below has room.
pub(super) fn no_room(wanted: u64) -> VolumeError {
    VolumeError::NoSpace { wanted, free: 0 }
}
