//! Leaves of directories below NVM.
//!
//! They go down when neither data nor inodes make the room that is wanted: those of the directory first that was
//! changed or read longest ago, all of them. They come back, all of them, before a client gets the lease
//! under which it may change the directory, and stay as long as that is held: no record of a log is about a
//! directory with leaves below. Those of a directory that is read again and again come back as data does
//! (`rise`).
//!
//! Nodes never change in place: the transaction links a copy where the tree names what was copied.
//!
//! Not moved: the root directory, one pinned to NVM, one that is open, has more than [`LEAVES_AT_ONCE`] leaves,
//! and, unless somebody waits for room, one that changed within [`LATELY`].

use super::blocks::Copied;
use super::inodes::{LIST_EVERY, NONE_LEFT, RETURNS_MAX, TRIES};
use super::mover::{BATCH_BLOCKS, BLOCK, Target, Wanted};
use super::raised::{LEASE_WAIT, Raised};
use crate::client::Client;
use crate::daemon::Daemon;
use crate::shared::Shared;
use parking_lot::Mutex;
use shale_device::mutants;
use shale_format::extent::root_kind;
use shale_format::inode::{Inode, flag, slot_of, time};
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_volume::{LEAVES_AT_ONCE, Result, Run, VolumeError};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A directory that changed no longer ago than this stays, unless somebody waits for room.
const LATELY: Duration = Duration::from_secs(5);

/// A directory, and how cold it was when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cold {
    /// When it was last read, in uses of all pieces.
    stamp: u64,
    changed_s: i64,
    ino: u64,
    /// Its leaves in NVM.
    blocks: u64,
}

/// What is known about cold directories.
#[derive(Default)]
pub(super) struct Directories {
    /// The next to move down.
    coldest: Mutex<VecDeque<Cold>>,
    /// When none could move.
    none_at: Mutex<Option<Instant>>,
    /// Those that have come back for a lease.
    pub(super) raised: Raised,
}

impl Directories {
    /// The next directories to move down, with about `most` leaves.
    fn next(&self, most: u64) -> Vec<u64> {
        let mut listed = self.coldest.lock();
        let (mut taken, mut sum) = (Vec::new(), 0);
        while sum < most
            && let Some(cold) = listed.pop_front()
        {
            if !self.raised.stays(cold.ino) {
                sum += cold.blocks;
                taken.push(cold.ino);
            }
        }
        taken
    }
}

/// Whether the leaves of an inode may lie below NVM.
fn may_sink(inode: &Inode) -> bool {
    let ino = Ino(inode.ino);
    let here = inode.flags & flag::ORPHAN == 0 && inode.pin() != Some(TierId::Nvm);
    inode.is_dir() && ino.is_user() && ino != Ino::ROOT && here
}

impl Shared {
    /// Brings the leaves of a directory to NVM that lie below. Nothing sinks meanwhile: its block of inodes stays.
    pub(super) fn raise_leaves(self: &Arc<Self>, ino: Ino) -> Result<()> {
        let below = |tier| self.volume.leaves_below(tier) > 0;
        while [TierId::Ssd, TierId::Hdd].into_iter().any(below) {
            let lie = self.leaves_to_raise(ino)?;
            if lie.is_empty() {
                break;
            }
            self.raise_some(ino, &lie)?;
        }
        Ok(())
    }

    fn leaves_to_raise(&self, ino: Ino) -> Result<Vec<BlockAddr>> {
        let _reader = self.readers.enter();
        let view = self.volume.view();
        let inode = view.inode(ino)?.filter(|i| i.is_dir() && i.root[0].len > 0);
        let Some(inode) = inode else {
            return Ok(Vec::new());
        };
        let mut leaves = view.leaves(&inode)?;
        leaves.retain(|addr| addr.tier() != Some(TierId::Nvm));
        leaves.truncate(LEAVES_AT_ONCE as usize);
        Ok(leaves)
    }

    /// Brings some leaves of a directory up, those that are still where they were.
    fn raise_some(self: &Arc<Self>, ino: Ino, lie: &[BlockAddr]) -> Result<()> {
        let blocks = lie.len() as u64;
        let runs = self.once_others_went(LEASE_WAIT, || self.blocks_for_return(blocks))?;
        let reader = self.readers.enter();
        let copied = self.copy_up(ino, lie, &runs);
        let nothing = copied.as_ref().map_or(true, Vec::is_empty);
        if nothing {
            runs.iter().for_each(|run| self.volume.give_back(*run));
        }
        let (copied, tier) = (copied?, TierId::Nvm);
        let relink = || self.relink_leaves(&copied);
        let target = (Target { tier, last: false }, true);
        if self.move_copied(reader, &copied, target, relink)? > 0 {
            self.migration.directories.raised.note(ino.0);
        }
        Ok(())
    }

    /// Copies leaves to these blocks of NVM: nothing, if they are not all there any more. The caller is a reader.
    fn copy_up(&self, ino: Ino, lie: &[BlockAddr], runs: &[Run]) -> Result<Vec<Copied>> {
        let mut copied = Vec::with_capacity(lie.len());
        if self.leaves_to_raise(ino)? == lie {
            for &from in lie {
                let bytes = self.volume.view().leaf(ino, from);
                let bytes = bytes.inspect_err(|e| {
                    self.bad_blocks.note(from, e);
                });
                copied.push(Copied::of((ino, 0), from, bytes?));
            }
            self.write_on(runs, &mut copied)?;
        }
        Ok(copied)
    }

    /// Blocks of NVM for leaves that come back: made by moving others down; what is left of the fixed
    /// reserve, where that is enough.
    fn blocks_for_return(self: &Arc<Self>, blocks: u64) -> Result<Vec<Run>> {
        let above = || self.allocate_above(blocks).ok();
        if let Some(runs) = above().or_else(|| self.once_room(blocks * BLOCK, above)) {
            return Ok(runs);
        }
        let _reserve = self.migration.inodes.reserve.lock();
        match self.returns_left() >= RETURNS_MAX + blocks {
            true => self.volume.allocate(blocks, None),
            false => Err(NONE_LEFT),
        }
    }

    /// Moves leaves of directories out of NVM, of the coldest first: of directories with about `blocks` leaves.
    /// Gives how many moved. `asked`: somebody waits for the room.
    pub(super) fn sink_directories(self: &Arc<Self>, blocks: u64, asked: bool) -> Result<u64> {
        let tiers = self.volume.lower_tiers();
        let lately = |at: &Instant| at.elapsed() < LIST_EVERY;
        let known = &self.migration.directories;
        if tiers.is_empty() || (!asked && known.none_at.lock().as_ref().is_some_and(lately)) {
            return Ok(0);
        }
        let _turn = self.migration.turn();
        let mut listed = false;
        // What is coldest may be in use.
        for _ in 0..TRIES {
            let mut cold = known.next(blocks.min(BATCH_BLOCKS));
            if cold.is_empty() && !std::mem::replace(&mut listed, true) {
                *known.coldest.lock() = self.list_coldest_directories(asked)?;
                cold = known.next(blocks.min(BATCH_BLOCKS));
            }
            if cold.is_empty() {
                break;
            }
            self.volume.let_directories_sink()?;
            self.weaken_leases(cold.iter().copied());
            let wanted = self.leaves_to_sink(&cold)?;
            for (n, &tier) in tiers.iter().enumerate() {
                let wanted: Vec<Wanted> =
                    wanted.iter().filter(|w| w.may_go(tier)).copied().collect();
                let below = tiers.get(n + 1).copied();
                if let Err(e) = self.make_room_on(tier, below, wanted.len() as u64) {
                    tracing::debug!(?tier, "no room is made: {e}");
                }
                let moved = self.move_leaves(&wanted, Target { tier, last: false })?;
                if moved > 0 {
                    return Ok(moved);
                }
            }
        }
        *known.none_at.lock() = Some(Instant::now());
        Ok(0)
    }

    /// The leaves of directories that lie in NVM.
    fn leaves_to_sink(&self, dirs: &[u64]) -> Result<Vec<Wanted>> {
        let mut wanted = Vec::new();
        for &ino in dirs {
            let _reader = self.readers.enter();
            let inode = self.volume.view().inode(Ino(ino))?;
            if let Some(dir) = inode.filter(may_sink) {
                let here = self.leaves_here(&dir).into_iter();
                wanted.extend(here.map(|from| Wanted::leaf(&dir, from)));
            }
        }
        Ok(wanted)
    }

    /// The leaves of a directory that lie in NVM; none, if it has too many, or is damaged. The caller is a reader.
    fn leaves_here(&self, dir: &Inode) -> Vec<BlockAddr> {
        let root = &dir.root[0];
        if root.kind != root_kind::TREE || root.file_block > 2 * LEAVES_AT_ONCE {
            return Vec::new();
        }
        let mut leaves = self.volume.view().leaves(dir).unwrap_or_default();
        if leaves.len() as u64 > LEAVES_AT_ONCE {
            return Vec::new();
        }
        leaves.retain(|addr| addr.tier() == Some(TierId::Nvm));
        leaves
    }

    fn list_coldest_directories(&self, asked: bool) -> Result<VecDeque<Cold>> {
        let clients = self.clients();
        let now_s = self.clock.realtime_ns() / 1_000_000_000;
        let lately = now_s - LATELY.as_secs() as i64;
        let open = |i: &Inode, c: &Arc<Client>| c.client_page.uses(i.ino);
        let mut cold = Vec::new();
        self.each_inode_block(&mut |fb, in_nvm| {
            let inodes = match in_nvm {
                true => self.volume.view().inodes_of(FileBlock(fb)),
                // No directory's.
                false => return Ok(()),
            };
            for dir in inodes.unwrap_or_default().iter().filter(|i| may_sink(i)) {
                let changed_s = dir.time_s[time::CHANGE].max(dir.time_s[time::ACCESS]);
                let used = !asked && changed_s > lately;
                if used || clients.iter().any(|c| open(dir, c)) {
                    continue;
                }
                let blocks = self.leaves_here(dir).len() as u64;
                cold.extend((blocks > 0).then(|| Cold {
                    stamp: self.migration.recency.of(dir.ino, 0),
                    changed_s,
                    ino: dir.ino,
                    blocks,
                }));
            }
            Ok(())
        })?;
        cold.sort_unstable();
        Ok(cold.into())
    }

    /// Moves leaves of directories. Gives how many. The caller has the turn.
    pub(super) fn move_leaves(self: &Arc<Self>, wanted: &[Wanted], target: Target) -> Result<u64> {
        let mut moved = 0;
        for batch in wanted.chunks(BATCH_BLOCKS as usize) {
            moved += self.somewhere(target.tier, || {
                let reader = self.readers.enter();
                let copied = self.copy_leaves(batch, target)?;
                let flushes = !mutants::is_on("directories-flush");
                let relink = || self.relink_leaves(&copied);
                self.move_copied(reader, &copied, (target, flushes), relink)
            })?;
        }
        Ok(moved)
    }

    /// Copies those leaves that are there, as many as the target takes.
    fn copy_leaves(&self, batch: &[Wanted], target: Target) -> Result<Vec<Copied>> {
        let view = self.volume.view();
        let mut copied = Vec::with_capacity(batch.len());
        for w in batch {
            match view.leaf(Ino(w.ino), w.from) {
                Ok(bytes) => copied.push(Copied::of((Ino(w.ino), 0), w.from, bytes)),
                // It is another one's by now.
                Err(VolumeError::Format(_)) => {}
                Err(e) => {
                    self.bad_blocks.note(w.from, &e);
                    let unreadable = &self.migration.counts.unreadable;
                    unreadable.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        self.write_copies(&mut copied, target)?;
        Ok(copied)
    }

    /// Links what was copied, as far as the tree still names it; none goes down of a directory that
    /// somebody may change. Gives the blocks.
    fn relink_leaves(&self, copied: &[Copied]) -> Result<u64> {
        // Whoever gets a lease to change from here on finds what is done here.
        let staying = self.migration.inodes.staying.lock();
        let mut txn = self.volume.begin();
        let (mut moved, mut unused) = (0, Vec::new());
        for of_dir in copied.chunk_by(|a, b| a.owner == b.owner) {
            let owner = of_dir[0].owner;
            let down = |c: &Copied| c.from.tier() == Some(TierId::Nvm);
            let held = || {
                let stays = staying.contains_key(&slot_of(owner).0.0);
                stays || self.leases.any_exclusive(owner.0..owner.0 + 1)
            };
            let used = of_dir.iter().any(down) && held();
            let moves: HashMap<BlockAddr, BlockAddr> =
                of_dir.iter().map(|c| (c.from, c.to)).collect();
            let done = match used {
                true => Vec::new(),
                false => txn.move_leaves(owner, &moves)?,
            };
            moved += done.len() as u64;
            let rest = moves.iter().filter(|(from, _)| !done.contains(from));
            unused.extend(rest.map(|(_, &to)| to));
        }
        if moved > 0 {
            let committed = txn.commit()?;
            self.publish(committed.txid);
        } else {
            drop(txn);
        }
        drop(staying);
        self.give_back_copies_at(unused);
        Ok(moved)
    }
}

impl Daemon {
    /// Moves leaves of directories that nobody uses below NVM, as migration does by itself where neither data nor
    /// inodes make room. Gives the blocks.
    ///
    /// # Errors
    /// A device fails.
    pub fn sink_directories(&self) -> crate::error::Result<u64> {
        let shared = self.shared();
        let raised = &shared.migration.directories.raised;
        raised.until_all_may_go(|| shared.sink_directories(u64::MAX, true))
    }
}
