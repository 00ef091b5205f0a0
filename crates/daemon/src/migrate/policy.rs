//! What is cold: when pieces of files were last written or read, and which zones to empty.
//!
//! Digests and clients' reports of reads tell of pieces of 1 MiB. A piece of which nothing is
//! known since the start is colder than all others; among those the file that changed longest ago
//! comes first.

use super::mover::Wanted;
use crate::shared::Shared;
use parking_lot::Mutex;
use shale_format::inode::{Inode, time};
use shale_format::limits::INODES_PER_BLOCK;
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_volume::{Extent, Result, VolumeError, ZoneInfo};
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
    /// Calls `f` with every extent of every file in one tier.
    pub(crate) fn each_extent(
        &self,
        tier: TierId,
        f: &mut dyn FnMut(&Inode, &Extent),
    ) -> Result<()> {
        let view = self.volume.view();
        let (mut at, mut next) = (0, Some(0));
        while next.is_some() {
            // Freed blocks wait for one block of the inode file at a time, and not for all.
            let _reader = self.readers.enter();
            let file = view.root()?.inode_file;
            next = None;
            view.extents(&file, FileBlock(at), &mut |e| {
                next = Some(e.file_block);
                ControlFlow::Break(())
            })?;
            let Some(block) = next else { break };
            for n in 0..INODES_PER_BLOCK {
                let ino = Ino(block * INODES_PER_BLOCK + n);
                let Some(inode) = view.inode(ino)? else {
                    continue;
                };
                if !inode.is_file() || !ino.is_user() {
                    continue;
                }
                if inode.root[tier as usize].kind == 0 {
                    continue;
                }
                view.extents(&inode, FileBlock(0), &mut |e| {
                    if BlockAddr::from_raw(e.addr).tier() == Some(tier) {
                        f(&inode, &e);
                    }
                    ControlFlow::Continue(())
                })?;
            }
            at = block + 1;
        }
        Ok(())
    }

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
        self.each_extent(TierId::Nvm, &mut |inode, e| {
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

    /// Everything that lies in these zones of a tier.
    pub(super) fn in_zones(&self, tier: TierId, zones: &[ZoneInfo]) -> Result<Vec<Wanted>> {
        let mut wanted = Vec::new();
        self.each_extent(tier, &mut |inode, e| {
            let first = BlockAddr::from_raw(e.addr).index();
            for zone in zones {
                let (from, to) = (zone.place.first, zone.place.first + zone.place.blocks);
                let (start, end) = (first.max(from), (first + u64::from(e.len)).min(to));
                if start < end {
                    wanted.push(Wanted {
                        ino: inode.ino,
                        at: e.file_block + (start - first),
                        from: BlockAddr::new(tier, start),
                        blocks: end - start,
                        hot: false,
                        unwritten: e.is_unwritten(),
                        pin: inode.pin(),
                    });
                }
            }
        })?;
        Ok(wanted)
    }
}

/// The zones that pay most to clean: much is dead in them, and they have been so for long
/// (cost-benefit of log-structured file systems). Those that are nearly all live do not pay.
pub(super) fn to_clean(zones: &[ZoneInfo], newest: u64, most: usize) -> Vec<ZoneInfo> {
    let mut rated: Vec<(f64, ZoneInfo)> = zones
        .iter()
        .filter(|z| !z.open && z.written > 0 && z.live > 0 && z.live < z.written)
        .map(|z| {
            let live = z.live as f64 / z.place.blocks as f64;
            let age = newest.saturating_sub(z.txid.0) as f64 + 1.0;
            ((1.0 - live) * age / (1.0 + live), *z)
        })
        .collect();
    rated.sort_by(|a, b| b.0.total_cmp(&a.0));
    rated.into_iter().take(most).map(|(_, z)| z).collect()
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
