//! Moving blocks between tiers, in batches.
//!
//! A batch, and what a power cut after each step leaves:
//! 1. the blocks are read, and written to the tier that they go to, beside everything else: the
//!    state before;
//! 2. that tier is flushed (NVM: fenced by the commit): the state before;
//! 3. one transaction maps each block that is still where it was read to its new place and frees
//!    the old one: the state before, or after;
//! 4. the new epoch is published; the old blocks are given out again after a grace period.
//!
//! No digest is between its plan and its commit while a batch commits, so none finds that the
//! inode it planned for has changed; and none changes what is copied where it is ([`shale_digest::Digester::keep_stable`]): it
//! writes new blocks, and the commit of the batch finds them.

use super::Tiering;
use super::copy::{Copied, Copies, LastOf};
use crate::move_request::{
    BATCH_BLOCKS, BLOCK, DISK_BATCH_BLOCKS, MoveRequest, Target, unless_below,
};
use shale_digest::RunSet;
use shale_digest::tail_block_cache::tail_block;
use shale_format::extent::UNWRITTEN;
use shale_format::inode::{Inode, slot_of};
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_sys::{failpoints, mutants};
use shale_volume::{Extent, Mapping, Result, Run, Txn, VolumeError};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering;

/// Runs of one batch, most: what its transaction changes is bounded.
const BATCH_RUNS: usize = BATCH_BLOCKS as usize;

/// A batch, when it was looked at once more.
#[derive(Default)]
struct ValidatedBatch {
    /// What is still where it was listed.
    blocks: Vec<MoveRequest>,
    /// What has to wait for the next batch.
    later: Vec<MoveRequest>,
    /// The last blocks of its files.
    last: LastOf,
}

/// What became of a batch.
struct Done {
    /// Blocks moved.
    moved: u64,
    /// The target is full.
    full: bool,
    /// What has to wait for the next batch.
    later: Vec<MoveRequest>,
}

impl Tiering {
    /// Moves blocks; fewer where the target has no more space or something changed meanwhile.
    /// Gives the blocks moved. The caller holds the migration lock.
    pub(super) fn move_blocks(&self, wanted: &[MoveRequest], target: Target) -> Result<u64> {
        assert!(
            self.mover_lock.is_locked(),
            "the caller holds the migration lock"
        );
        let of_inodes = |w: &&MoveRequest| w.ino == Ino::NONE.0;
        let inodes: Vec<MoveRequest> = wanted.iter().filter(of_inodes).copied().collect();
        let mut moved = self.move_inode_runs(&inodes, target)?;
        let leaves: Vec<MoveRequest> = wanted.iter().filter(|w| w.leaf).copied().collect();
        moved += self.move_leaves(&leaves, target)?;
        let rest = wanted.iter().filter(|w| !of_inodes(w) && !w.leaf).copied();
        let mut rest: VecDeque<MoveRequest> = rest.collect();
        loop {
            let mut batch = Vec::new();
            let mut left = most_of_batch(rest.front(), target.tier);
            while left > 0
                && batch.len() < BATCH_RUNS
                && let Some(w) = rest.pop_front()
            {
                let n = w.blocks.min(left);
                assert!(n > 0, "a request to move nothing: {w:?}");
                batch.push(MoveRequest { blocks: n, ..w });
                left -= n;
                if n < w.blocks {
                    rest.push_front(MoveRequest {
                        at: w.at + n,
                        from: w.from.plus(n),
                        blocks: w.blocks - n,
                        ..w
                    });
                }
            }
            if batch.is_empty() {
                return Ok(moved);
            }
            let done = self.somewhere(target.tier, || self.move_batch(&batch, target))?;
            moved += done.moved;
            if done.full || (done.moved == 0 && !done.later.is_empty()) {
                return Ok(moved);
            }
            done.later
                .into_iter()
                .rev()
                .for_each(|w| rest.push_front(w));
        }
    }

    /// Moves something to a tier; again where a device or a zone of it failed, which gets nothing more.
    pub(super) fn somewhere<T>(
        &self,
        tier: TierId,
        mut move_it: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let usable = || {
            let infos = self.volume.lower_device_infos(tier);
            infos.iter().filter(|d| !d.closed).count()
        };
        loop {
            let before = usable();
            match move_it() {
                Err(e @ VolumeError::WornZone(_)) => self.migration_failed(&e),
                Err(e) if usable() < before => self.migration_failed(&e),
                done => return done,
            }
        }
    }

    /// What of a batch is still where it was listed, and what has to wait for the next one: a batch brings so much back
    /// to NVM and no more. From here on none of these blocks is given out again: who finds it there at the commit finds
    /// what was copied.
    fn still_there(&self, batch: &[MoveRequest], to: TierId) -> Result<ValidatedBatch> {
        let view = self.volume.view();
        let mut all = ValidatedBatch::default();
        let mut returns = self.returns();
        for w in batch {
            // One that cannot be read where it lies below NVM is named by the caller that asks for it.
            let inode = view.inode(Ino(w.ino)).or_else(unless_below)?;
            let Some(inode) = inode.filter(|i| i.has_content()) else {
                continue;
            };
            let last = tail_block(&inode).map(|block| (w.ino, block));
            all.last.extend(last);
            let place = (&inode, w);
            match self.in_place(place).and_then(|found| {
                let fits = found.is_empty() || returns.take(self, place, to)?;
                Ok((found, fits))
            }) {
                Ok((found, true)) => all.blocks.extend(found),
                Ok((_, false)) => all.later.push(*w),
                Err(e) => self.leaf_is_bad(e)?,
            }
        }
        Ok(all)
    }

    /// What is still where it was listed, of one run.
    fn in_place(&self, (inode, w): (&Inode, &MoveRequest)) -> Result<Vec<MoveRequest>> {
        let view = self.volume.view();
        let (mut there, mut n) = (Vec::new(), 0);
        while n < w.blocks {
            let mapped = view.map_block(inode, FileBlock(w.at + n))?;
            let (found, len) = is_at(mapped, w.from.plus(n), w.unwritten);
            let blocks = len.clamp(1, w.blocks - n);
            if found {
                let (at, from) = (w.at + n, w.from.plus(n));
                there.push(MoveRequest {
                    at,
                    from,
                    blocks,
                    ..*w
                });
            }
            n += blocks;
        }
        Ok(there)
    }

    /// Passes over what a leaf below NVM tells of that cannot be read.
    fn leaf_is_bad(&self, e: VolumeError) -> Result<()> {
        if let VolumeError::BadBlock { addr, .. } = e {
            self.bad_blocks
                .note_of(&self.volume, BlockAddr::from_raw(addr), &e);
        }
        let unreadable = &self.counts.unreadable;
        unreadable.fetch_add(1, Ordering::Relaxed);
        unless_below(e)
    }

    /// Moves one batch.
    fn move_batch(&self, batch: &[MoveRequest], target: Target) -> Result<Done> {
        let reader = self.grace.read();
        let there = self.still_there(batch, target.tier)?;
        let stable = self.digester.keep_stable(in_nvm(&there.blocks));
        let (copied, full) = self.copy(there.blocks, &there.last, target)?;
        let mut done = Done {
            moved: 0,
            full,
            later: there.later,
        };
        failpoints::reach("migrate-copied");
        if target.tier != TierId::Nvm {
            self.volume.flush_lower(target.tier)?;
        }
        failpoints::reach("migrate-flushed");
        let all: u64 = copied.values().flatten().map(|c| c.blocks).sum();
        if all == 0 {
            return Ok(done);
        }
        let result = self
            .digester
            .between_chunks(|| self.remap(&copied, target.tier));
        drop((stable, reader));
        done.moved = match result {
            Ok(moved) => moved,
            Err(e) => {
                self.give_back_copies(&copied, target.tier);
                return Err(e);
            }
        };
        let from = batch.first().and_then(|w| w.from.tier());
        self.batch_is_done((from, target.tier), all, done.moved);
        Ok(done)
    }

    /// A batch is committed: counts it, and has what it freed given out again. It moved `moved` of `copied`
    /// blocks from one tier to another.
    pub(super) fn batch_is_done(
        &self,
        (from, to): (Option<TierId>, TierId),
        copied: u64,
        moved: u64,
    ) {
        let counts = &self.counts;
        let counter = match from {
            Some(from) if from == to => &counts.cleaned,
            Some(from) if from > to => &counts.up,
            _ => &counts.down,
        };
        assert!(moved <= copied, "{moved} blocks moved of {copied} copied");
        let aborted = (copied - moved) * BLOCK;
        counter.fetch_add(moved * BLOCK, Ordering::Relaxed);
        counts.aborted.fetch_add(aborted, Ordering::Relaxed);
        counts.batches.fetch_add(1, Ordering::Relaxed);
        self.grace.request();
        failpoints::reach("migrate-committed");
    }

    fn give_back_copies(&self, copied: &Copies, tier: TierId) {
        // Below, blocks that nothing refers to are dead until their zone is erased.
        for c in copied.values().flatten().filter(|_| tier == TierId::Nvm) {
            self.volume.give_back(Run {
                addr: c.to,
                len: c.blocks,
            });
        }
    }

    /// Maps what was copied, as far as it is still where it was read. Gives the blocks.
    fn remap(&self, copied: &Copies, to: TierId) -> Result<u64> {
        if mutants::is_on("migrate-freed-early") {
            self.free_early(copied)?;
        }
        let mut txn = self.volume.begin();
        let (mut moved, mut unused, mut files) = (0, Vec::new(), Vec::new());
        let (mut returning, returns_max) = (BTreeSet::new(), self.batch_returns());
        for (&ino, parts) in copied {
            let (fb, _) = slot_of(Ino(ino));
            let below = |addr: &BlockAddr| addr.tier() != Some(TierId::Nvm);
            let returns = txn.inode_block(fb)?.is_some_and(|addr| below(&addr));
            // An inode that changes comes back to NVM.
            let fits = !returns
                || returning.contains(&fb)
                || (returning.len() as u64) < returns_max && returning.insert(fb);
            let inode = if fits { txn.inode(Ino(ino))? } else { None };
            let Some(mut inode) = inode.filter(|i| i.has_content()) else {
                unused.extend(parts.iter().map(|c| (c.to, c.blocks)));
                continue;
            };
            let (before, mut written) = (moved, 0);
            for c in parts {
                let blocks = remap_one(&mut txn, &mut inode, c, to, &mut unused)?;
                moved += blocks;
                written += u64::from(!c.unwritten) * blocks;
            }
            if moved > before {
                txn.put_inode(&inode)?;
                files.push((ino, written));
            }
        }
        if moved > 0 {
            let committed = txn.commit()?;
            self.clients.publish(committed.txid);
            self.accounts.add_moved(&files, to);
        } else {
            drop(txn);
        }
        for (addr, len) in unused.into_iter().filter(|_| to == TierId::Nvm) {
            self.volume.give_back(Run { addr, len });
        }
        Ok(moved)
    }

    /// The mistake of freeing old blocks before the new ones are linked.
    fn free_early(&self, copied: &Copies) -> Result<()> {
        let mut txn = self.volume.begin();
        for (&ino, parts) in copied {
            if let Some(mut inode) = txn.inode(Ino(ino))? {
                for c in parts {
                    let range = FileBlock(c.at)..FileBlock(c.at + c.blocks);
                    let tier = c.from.tier().unwrap_or(TierId::Nvm);
                    txn.extent_remove(&mut inode, tier, range)?;
                }
                txn.put_inode(&inode)?;
            }
        }
        txn.commit().map(drop)
    }
}

/// Blocks of a batch that begins with this, most.
fn most_of_batch(first: Option<&MoveRequest>, to: TierId) -> u64 {
    let from = first.and_then(|w| w.from.tier());
    match to == TierId::Hdd || from == Some(TierId::Hdd) {
        true => DISK_BATCH_BLOCKS,
        false => BATCH_BLOCKS,
    }
}

/// Blocks of a batch that lie in NVM.
fn in_nvm(batch: &[MoveRequest]) -> RunSet {
    let data = batch
        .iter()
        .filter(|w| w.from.tier() == Some(TierId::Nvm) && !w.unwritten);
    data.map(|w| Run {
        addr: w.from,
        len: w.blocks,
    })
    .collect()
}

/// Whether what is mapped somewhere is block `from`, written or not as is said; and for how many
/// blocks the answer holds.
fn is_at(mapped: Mapping, from: BlockAddr, unwritten: bool) -> (bool, u64) {
    match mapped {
        Mapping::Data { addr, len } => (addr == from && !unwritten, len),
        Mapping::Unwritten { addr, len } => (addr == from && unwritten, len),
        Mapping::Hole { len } => (false, len),
    }
}

/// Maps one run, block by block as far as it is still there. Gives the blocks mapped.
fn remap_one(
    txn: &mut Txn<'_>,
    inode: &mut shale_volume::Inode,
    c: &Copied,
    to: TierId,
    unused: &mut Vec<(BlockAddr, u64)>,
) -> Result<u64> {
    let (mut n, mut moved) = (0, 0);
    while n < c.blocks {
        let at = FileBlock(c.at + n);
        let (there, len) = is_at(txn.map_block(inode, at)?, c.from.plus(n), c.unwritten);
        let len = len.clamp(1, c.blocks - n).min(u32::MAX.into());
        if there || mutants::is_on("migrate-unchecked") {
            let range = at..FileBlock(at.0 + len);
            let from = c.from.tier().unwrap_or(TierId::Nvm);
            txn.extent_remove(inode, from, range)?;
            let extent = Extent {
                file_block: at.0,
                addr: c.to.plus(n).raw(),
                len: len as u32,
                flags: u32::from(c.unwritten) * UNWRITTEN,
            };
            txn.extent_insert(inode, to, extent)?;
            moved += len;
        } else {
            unused.push((c.to.plus(n), len));
        }
        n += len;
    }
    Ok(moved)
}
