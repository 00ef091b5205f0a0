//! What is cold: when pieces of files were last written or read, and which zones to empty.
//!
//! Digests and clients' reports of reads tell of pieces of 1 MiB. A piece of which nothing is
//! known since the start is colder than all others; among those the file that changed longest ago
//! comes first.

use super::Tiering;
use super::mover::MoveRequest;
use parking_lot::Mutex;
use shale_format::inode::time;
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_volume::{Result, VolumeError, ZoneInfo};
use std::collections::{HashMap, VecDeque};
use std::ops::{ControlFlow, Range, RangeInclusive};

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
pub(crate) struct Recency {
    state: Mutex<AccessHistory>,
}

impl Recency {
    /// Blocks of a file are written.
    pub(crate) fn touch(&self, ino: u64, blocks: &Range<u64>) {
        let last = blocks.end.saturating_sub(1).max(blocks.start);
        let pieces = blocks.start / PIECE_BLOCKS..=last / PIECE_BLOCKS;
        self.state.lock().note(ino, pieces, true);
    }

    /// Files are no more. Of a large one the pieces behind the first are forgotten with time.
    pub(crate) fn forget(&self, inos: impl Iterator<Item = u64>) {
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
    link: bool,
    stamp: u64,
    changed_s: i64,
    ino: u64,
    piece: u64,
}

impl Tiering {
    /// The next pieces of NVM to move down, coldest first, about `blocks` blocks.
    pub(super) fn coldest(&self, blocks: u64) -> Result<Vec<MoveRequest>> {
        let mut listed = self.coldest.lock();
        let wanted = self.take_coldest(&mut listed, blocks, false)?;
        if !wanted.is_empty() {
            return Ok(wanted);
        }
        *listed = self.list_coldest()?;
        match self.take_coldest(&mut listed, blocks, false)? {
            none if none.is_empty() => self.take_coldest(&mut listed, blocks, true),
            wanted => Ok(wanted),
        }
    }

    /// For how many uses of pieces the coldest piece in NVM has not been used.
    pub(super) fn coldest_age(&self) -> Result<u64> {
        let mut listed = self.coldest.lock();
        for again in [true, false] {
            while let Some(piece) = listed.front().filter(|piece| !piece.link) {
                let place = (piece.ino, piece.piece);
                let used = self.recency.of(place.0, place.1) > piece.stamp;
                let in_nvm: fn(TierId) -> bool = |tier| tier == TierId::Nvm;
                if !used && self.data_of(place, (in_nvm, false), &mut Vec::new())? > 0 {
                    return Ok(self.recency.uses() - piece.stamp);
                }
                listed.pop_front();
            }
            if again {
                *listed = self.list_coldest()?;
            }
        }
        // Nothing would be demoted for it.
        Ok(0)
    }

    /// `links`: also targets of symbolic links.
    fn take_coldest(
        &self,
        listed: &mut VecDeque<HeatRegion>,
        blocks: u64,
        links: bool,
    ) -> Result<Vec<MoveRequest>> {
        let (mut wanted, mut sum) = (Vec::new(), 0);
        while sum < blocks
            && let Some(piece) = listed.pop_front_if(|next| links || !next.link)
        {
            // It has been used since.
            if self.recency.of(piece.ino, piece.piece) > piece.stamp {
                continue;
            }
            let in_nvm: fn(TierId) -> bool = |tier| tier == TierId::Nvm;
            let hot = self.recency.is_hot(piece.ino, piece.piece * PIECE_BLOCKS);
            sum += self.data_of((piece.ino, piece.piece), (in_nvm, hot), &mut wanted)?;
        }
        Ok(wanted)
    }

    /// Adds what lies of a piece in the tiers that `from` takes; of the inode file of a block. Gives the
    /// blocks.
    pub(super) fn data_of(
        &self,
        (ino, piece): (u64, u64),
        (from, hot): (fn(TierId) -> bool, bool),
        wanted: &mut Vec<MoveRequest>,
    ) -> Result<u64> {
        let _reader = self.reclaimer.read();
        let view = self.volume.view();
        let inode = match self.inode_or_file(Ino(ino))? {
            Some(inode) if inode.has_content() => inode,
            Some(dir) if dir.is_dir() && piece == 0 && !from(TierId::Nvm) => {
                let before = wanted.len();
                self.lies_of(Ino(ino), None, &mut |dir, leaf| {
                    wanted.push(MoveRequest::leaf(
                        dir,
                        BlockAddr::from_raw(leaf.extent.addr),
                    ));
                })?;
                return Ok((wanted.len() - before) as u64);
            }
            _ => return Ok(0),
        };
        let unit = if Ino(ino) == Ino::NONE {
            1
        } else {
            PIECE_BLOCKS
        };
        if inode.pin().is_some_and(from) {
            return Ok(0);
        }
        let range = piece * unit..(piece + 1) * unit;
        let mut blocks = 0;
        view.extents_there(&inode, FileBlock(range.start), &mut |e| {
            if e.file_block >= range.end {
                return ControlFlow::Break(());
            }
            let addr = BlockAddr::from_raw(e.addr);
            // What was never written has no reason to come up.
            let wants = !e.is_unwritten() || addr.tier() == Some(TierId::Nvm);
            if addr.tier().is_some_and(from) && wants {
                let len = e.end().0.min(range.end) - e.file_block;
                blocks += len;
                wanted.push(MoveRequest {
                    ino,
                    at: e.file_block,
                    from: addr,
                    blocks: len,
                    hot,
                    unwritten: e.is_unwritten(),
                    pin: inode.pin(),
                    leaf: false,
                });
            }
            ControlFlow::Continue(())
        })?;
        Ok(blocks)
    }

    fn list_coldest(&self) -> Result<VecDeque<HeatRegion>> {
        let mut pieces: Vec<HeatRegion> = Vec::new();
        self.each_lying(Some(TierId::Nvm), &mut |inode, lies| {
            let e = &lies.extent;
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
                pieces.push(HeatRegion {
                    link: inode.is_symlink(),
                    stamp: self.recency.of(inode.ino, piece),
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
/// (cost-benefit of log-structured file systems). Of ages counts whether they are below or above
/// the mean: else the age of a zone that is all but live outweighs what another one would give, and a disk
/// that begins to be cleaned copies its old zones for next to nothing. `pays`: those that may be cleaned at all.
pub(super) fn to_clean(
    zones: &[ZoneInfo],
    newest: u64,
    pays: impl Fn(&ZoneInfo) -> bool,
) -> Option<ZoneInfo> {
    let may = |z: &&ZoneInfo| !z.open && z.live > 0 && z.live < z.written && pays(z);
    let victims: Vec<&ZoneInfo> = zones.iter().filter(may).collect();
    let age = |z: &ZoneInfo| newest.saturating_sub(z.txid.0) as f64 + 1.0;
    let mean = victims.iter().map(|z| age(z)).sum::<f64>() / victims.len().max(1) as f64;
    let rated = victims.into_iter().map(|z| {
        let live = z.live as f64 / z.place.blocks as f64;
        let settled = age(z) / (age(z) + mean);
        ((1.0 - live) * settled / (1.0 + live), *z)
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

/// Nothing below has space.
pub(super) fn no_space(wanted: u64) -> VolumeError {
    VolumeError::NoSpace { wanted, free: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_format::TxId;
    use shale_volume::{Heat, ZonePlace};

    #[test]
    fn an_old_zone_that_is_nearly_all_live_is_not_cleaned_before_one_that_frees_space() {
        let zone = |zone: u64, live: u64, txid: u64| ZoneInfo {
            place: ZonePlace {
                zone,
                device: 0,
                first: zone * 100,
                blocks: 100,
            },
            written: 100,
            live,
            heat: Heat::Cold,
            txid: TxId(txid),
            open: false,
            worn: false,
        };
        let victim = |zones: &[ZoneInfo]| to_clean(zones, 10_000, |_| true).map(|z| z.place.zone);
        assert_eq!(victim(&[zone(0, 98, 1), zone(1, 70, 9_000)]), Some(1));
        // Of those that give about as much the one in which nothing dies any more.
        assert_eq!(victim(&[zone(0, 72, 1), zone(1, 70, 9_990)]), Some(0));
        assert_eq!(victim(&[zone(0, 100, 1), zone(1, 0, 1)]), None);
    }

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
