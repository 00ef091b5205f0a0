//! Leaves of trees below NVM: of files' extents, and of directories.
//!
//! Those of extents go down when data frees no space that is wanted, before inodes: a leaf is 4 KiB for one file, an
//! inode a sixteenth of that, and after its inode has gone below a file's leaves could not. Those of directories go
//! when nothing else frees space. Of the inode first that was changed or read longest ago, all of them. They come
//! back, all of them, before a client gets the lease under which it may change the inode, and stay as long as that
//! is held: no record of a log is about a file or a directory with leaves below. Those of a directory that is read
//! again and again come back as data does (`promotion`); those of a file with the data that does.
//!
//! Nodes never change in place: the transaction links a copy where the tree names what was copied.
//!
//! Not moved: those of the root directory, of an orphan (it is freed without a lease), of a file with data in NVM (which
//! goes first) or with its inode below, of what is pinned to NVM, is open, has more than [`LEAVES_AT_ONCE`] leaves, and, unless
//! somebody waits for space, of a directory that changed within [`RECENT`].

use super::Tiering;
use super::inodes::{LIST_EVERY, NONE_LEFT, RETURNS_MAX, TRIES};
use super::structure_blocks::Copied;
use crate::host::ReadingClient;
use crate::leaf_state::{ColdLeaves, Of};
use crate::move_request::{BATCH_BLOCKS, BLOCK, MoveRequest, Target};
use crate::recency::PIECE_BLOCKS;
use crate::recent_promotions::LEASE_WAIT;
use shale_format::extent::root_kind;
use shale_format::inode::{Inode, flag, slot_of, time};
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_sys::mutants;
use shale_volume::{LEAVES_AT_ONCE, Result, Run, VolumeError, leaves_below};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A directory that changed no longer ago than this stays, unless somebody waits for space.
const RECENT: Duration = Duration::from_secs(5);

/// Pieces of a file that are asked when they were used; of a larger one as many, evenly.
const PIECES_ASKED: u64 = 4096;

/// Whether the leaves of an inode may lie below NVM.
fn may_demote(of: Of, inode: &Inode) -> bool {
    let ino = Ino(inode.ino);
    let free = ino.is_user() && inode.flags & flag::ORPHAN == 0;
    let mine = match of {
        Of::Files => inode.is_file() && inode.root[TierId::Nvm as usize].kind == root_kind::EMPTY,
        Of::Directories => inode.is_dir() && ino != Ino::ROOT,
    };
    free && mine && inode.pin() != Some(TierId::Nvm)
}

/// Whose leaves an inode's are.
fn of(inode: &Inode) -> Of {
    match inode.is_dir() {
        true => Of::Directories,
        false => Of::Files,
    }
}

impl Tiering {
    /// Brings the leaves of an inode to NVM that lie below. Nothing is demoted meanwhile: its block of inodes stays.
    pub(super) fn promote_leaves(&self, ino: Ino) -> Result<()> {
        while self.has_leaves_below() {
            let lie = self.leaves_to_promote(ino)?;
            if lie.is_empty() {
                break;
            }
            self.promote_some(ino, &lie)?;
        }
        Ok(())
    }

    /// Whether any leaves lie below NVM.
    pub(super) fn has_leaves_below(&self) -> bool {
        let volume = &self.volume;
        let below = |tier| volume.leaves_below(tier) + volume.extent_leaves_below(tier) > 0;
        [TierId::Ssd, TierId::Hdd].into_iter().any(below)
    }

    /// Leaves of an inode that lie below NVM, as many as come back at once.
    pub(super) fn leaves_to_promote(&self, ino: Ino) -> Result<Vec<BlockAddr>> {
        let _reader = self.grace.read();
        let view = self.volume.view();
        let inode = view.inode(ino)?.filter(|i| leaves_below(i) > 0);
        let Some(inode) = inode else {
            return Ok(Vec::new());
        };
        let mut leaves = view.leaves(&inode)?;
        leaves.retain(|addr| addr.tier() != Some(TierId::Nvm));
        leaves.truncate(LEAVES_AT_ONCE as usize);
        Ok(leaves)
    }

    /// Brings some leaves of an inode up, those that are still where they were.
    fn promote_some(&self, ino: Ino, lie: &[BlockAddr]) -> Result<()> {
        let blocks = lie.len() as u64;
        let runs = self.once_others_went(LEASE_WAIT, || self.blocks_for_return(blocks))?;
        let reader = self.grace.read();
        let copied = self.copy_up(ino, lie, &runs);
        let nothing = copied.as_ref().map_or(true, Vec::is_empty);
        if nothing {
            runs.iter().for_each(|run| self.volume.give_back(*run));
        }
        let (copied, tier) = (copied?, TierId::Nvm);
        let remap = || self.remap_leaves(&copied);
        let target = (Target { tier, last: false }, true);
        if self.move_copied(reader, &copied, target, remap)? > 0 {
            self.leaves.promoted.note(ino.0);
        }
        Ok(())
    }

    /// Copies leaves to these blocks of NVM: nothing, if they are not all there any more. The caller is a reader.
    fn copy_up(&self, ino: Ino, lie: &[BlockAddr], runs: &[Run]) -> Result<Vec<Copied>> {
        let mut copied = Vec::with_capacity(lie.len());
        if self.leaves_to_promote(ino)? == lie {
            for &from in lie {
                let bytes = self.volume.view().leaf(ino, from);
                let bytes = bytes.inspect_err(|e| {
                    self.bad_blocks.note_of(&self.volume, from, e);
                });
                copied.push(Copied::of((ino, 0), from, bytes?));
            }
            self.write_on(runs, &mut copied)?;
        }
        Ok(copied)
    }

    /// Blocks of NVM for leaves that come back: made by moving others down; what is left of the fixed
    /// reserve, where that is enough.
    fn blocks_for_return(&self, blocks: u64) -> Result<Vec<Run>> {
        let above = || self.allocate_above(blocks).ok();
        if let Some(runs) = above().or_else(|| self.take_after_reclaim(blocks * BLOCK, above)) {
            return Ok(runs);
        }
        let _reserve = self.inodes.reserve.lock();
        match self.returns_left() >= RETURNS_MAX + blocks {
            true => self.volume.allocate(blocks, None),
            false => Err(NONE_LEFT),
        }
    }

    /// Moves all such leaves that nobody uses below NVM, once what came back for others may go. Gives the blocks.
    pub fn demote_all_leaves(&self, of: Of) -> Result<u64> {
        let promoted = &self.leaves.promoted;
        promoted.until_all_may_go(|| self.demote_leaves(of, u64::MAX, true))
    }

    /// Moves leaves out of NVM, of the coldest first: of files or directories with about `blocks` leaves.
    /// Gives how many moved. `asked`: somebody waits for the space.
    pub fn demote_leaves(&self, of: Of, blocks: u64, asked: bool) -> Result<u64> {
        let tiers = self.volume.lower_tiers();
        let recent = |at: &Instant| at.elapsed() < LIST_EVERY;
        let known = &self.leaves;
        let none_at = &known.of(of).none_at;
        if tiers.is_empty() || (!asked && none_at.lock().as_ref().is_some_and(recent)) {
            return Ok(0);
        }
        let _guard = self.lock_mover_for(asked);
        let mut listed = false;
        // What is coldest may be in use.
        for _ in 0..TRIES {
            let mut cold = known.next(of, blocks.min(BATCH_BLOCKS));
            if cold.is_empty() && !std::mem::replace(&mut listed, true) {
                *known.of(of).coldest.lock() = self.list_coldest_leaves(of, asked)?;
                cold = known.next(of, blocks.min(BATCH_BLOCKS));
            }
            if cold.is_empty() {
                break;
            }
            match of {
                Of::Files => self.volume.let_extents_demote()?,
                Of::Directories => self.volume.let_directories_demote()?,
            }
            self.leases.downgrade(&mut cold.iter().copied());
            let wanted = self.leaves_to_demote(of, &cold)?;
            for (n, &tier) in tiers.iter().enumerate() {
                let wanted: Vec<MoveRequest> =
                    wanted.iter().filter(|w| w.may_go(tier)).copied().collect();
                let below = tiers.get(n + 1).copied();
                if let Err(e) = self.reclaim_on(tier, below, wanted.len() as u64) {
                    tracing::debug!(?tier, "no space is freed: {e}");
                }
                let moved = self.move_leaves(&wanted, Target { tier, last: false })?;
                if moved > 0 {
                    return Ok(moved);
                }
            }
        }
        *none_at.lock() = Some(Instant::now());
        Ok(0)
    }

    /// The leaves of inodes that lie in NVM, as their inodes do.
    fn leaves_to_demote(&self, of: Of, inos: &[u64]) -> Result<Vec<MoveRequest>> {
        let mut wanted = Vec::new();
        for &ino in inos {
            if self.inode_block_below(slot_of(Ino(ino)).0.0)?.is_some() {
                continue;
            }
            let _reader = self.grace.read();
            let inode = self.volume.view().inode(Ino(ino))?;
            if let Some(inode) = inode.filter(|inode| may_demote(of, inode)) {
                let here = self.leaves_here(&inode).into_iter();
                wanted.extend(here.map(|from| MoveRequest::leaf(&inode, from)));
            }
        }
        Ok(wanted)
    }

    /// The leaves of an inode that lie in NVM; none, if it has too many, or is damaged. The caller is a reader.
    fn leaves_here(&self, inode: &Inode) -> Vec<BlockAddr> {
        let trees = inode.root.iter().filter(|r| r.kind == root_kind::TREE);
        let nodes = trees.map(|r| r.file_block).fold(0, u64::saturating_add);
        if nodes == 0 || nodes > 2 * LEAVES_AT_ONCE {
            return Vec::new();
        }
        let mut leaves = self.volume.view().leaves(inode).unwrap_or_default();
        if leaves.len() as u64 > LEAVES_AT_ONCE {
            return Vec::new();
        }
        leaves.retain(|addr| addr.tier() == Some(TierId::Nvm));
        leaves
    }

    /// Whether a file has leaves in NVM that may go below. The caller is a reader.
    pub(super) fn has_leaves_to_demote(&self, inode: &Inode) -> bool {
        may_demote(Of::Files, inode) && !self.leaves_here(inode).is_empty()
    }

    fn list_coldest_leaves(&self, of: Of, asked: bool) -> Result<VecDeque<ColdLeaves>> {
        let clients = self.clients.all();
        let now_s = self.clock.realtime_ns() / 1_000_000_000;
        let recent = now_s - RECENT.as_secs() as i64;
        let open = |i: &Inode, c: &Arc<dyn ReadingClient>| c.uses(i.ino);
        let mut cold = Vec::new();
        self.each_inode_block(&mut |fb, in_nvm| {
            let inodes = match in_nvm {
                true => self.volume.view().inodes_of(FileBlock(fb)),
                // No directory's; and a file's would have to come back for it.
                false => return Ok(()),
            };
            let inodes = inodes.unwrap_or_default();
            for inode in inodes.iter().filter(|i| may_demote(of, i)) {
                let changed_s = inode.time_s[time::CHANGE].max(inode.time_s[time::ACCESS]);
                let used = of == Of::Directories && !asked && changed_s > recent;
                let blocks = self.leaves_here(inode).len() as u64;
                if blocks == 0 || used || clients.iter().any(|c| open(inode, c)) {
                    continue;
                }
                let pieces = match of {
                    Of::Files => FileBlock::at_or_after(inode.size).0.div_ceil(PIECE_BLOCKS),
                    Of::Directories => 1,
                };
                let step = pieces.div_ceil(PIECES_ASKED).max(1) as usize;
                let recency = &self.recency;
                cold.push(ColdLeaves {
                    stamp: recency.newest_of(inode.ino, (0..pieces).step_by(step)),
                    changed_s,
                    ino: inode.ino,
                    blocks,
                });
            }
            Ok(())
        })?;
        cold.sort_unstable();
        Ok(cold.into())
    }

    /// Moves leaves. Gives how many. The caller holds the migration lock.
    pub(super) fn move_leaves(&self, wanted: &[MoveRequest], target: Target) -> Result<u64> {
        let mut moved = 0;
        for batch in wanted.chunks(BATCH_BLOCKS as usize) {
            moved += self.somewhere(target.tier, || {
                let reader = self.grace.read();
                let copied = self.copy_leaves(batch, target)?;
                let flushes = !mutants::is_on("directories-flush");
                let remap = || self.remap_leaves(&copied);
                self.move_copied(reader, &copied, (target, flushes), remap)
            })?;
        }
        Ok(moved)
    }

    /// Copies those leaves that are there, as many as the target takes.
    fn copy_leaves(&self, batch: &[MoveRequest], target: Target) -> Result<Vec<Copied>> {
        let view = self.volume.view();
        let mut copied = Vec::with_capacity(batch.len());
        let (mut returning, most) = (BTreeSet::new(), self.batch_returns());
        for w in batch {
            // An inode that changes comes back to NVM.
            let fb = slot_of(Ino(w.ino)).0.0;
            if self.inode_block_below(fb)?.is_some() {
                if returning.len() as u64 >= most && !returning.contains(&fb) {
                    continue;
                }
                returning.insert(fb);
            }
            match view.leaf(Ino(w.ino), w.from) {
                Ok(bytes) => copied.push(Copied::of((Ino(w.ino), 0), w.from, bytes)),
                // It is another one's by now.
                Err(VolumeError::Format(_)) => {}
                Err(e) => {
                    self.could_not_read(w.from, &e);
                }
            }
        }
        self.write_copies(&mut copied, target)?;
        Ok(copied)
    }

    /// Links what was copied, as far as the tree still names it; none goes down of an inode that
    /// somebody may change, or whose leaves have to stay by now. Gives the blocks.
    fn remap_leaves(&self, copied: &[Copied]) -> Result<u64> {
        // A client that gets a lease to change from here on finds what is done here.
        let staying = self.inodes.staying.lock();
        let mut txn = self.volume.begin();
        let (mut moved, mut unused) = (0, Vec::new());
        for of_one in copied.chunk_by(|a, b| a.owner == b.owner) {
            let owner = of_one[0].owner;
            let down = |c: &Copied| c.from.tier() == Some(TierId::Nvm);
            let held = || {
                let stays = staying.contains_key(&slot_of(owner).0.0);
                stays || self.leases.any_exclusive(owner.0..owner.0 + 1)
            };
            let stays = || {
                txn.inode(owner)
                    .map(|i| !i.is_some_and(|i| may_demote(of(&i), &i)))
            };
            let used = of_one.iter().any(down) && (held() || stays()?);
            let moves: HashMap<BlockAddr, BlockAddr> =
                of_one.iter().map(|c| (c.from, c.to)).collect();
            let done = match used {
                true => Vec::new(),
                false => txn.move_leaves(owner, &moves)?,
            };
            moved += done.len() as u64;
            let rest = moves.iter().filter(|(from, _)| !done.contains(from));
            unused.extend(rest.map(|(_, &to)| to));
        }
        self.link(txn, moved)?;
        drop(staying);
        self.give_back_copies_at(unused);
        Ok(moved)
    }
}
