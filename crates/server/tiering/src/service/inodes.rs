//! Blocks of the inode file below NVM.
//!
//! They go down when data alone cannot free the space that is wanted, the coldest first; a block
//! holds 16 inodes. They come back when one of their inodes is about to change: before a client gets
//! the lease under which it may change an inode, the inode's block is in NVM, and it stays there as long as
//! that lease is held. So no record of a log is about an inode that lies below, and none has to reserve
//! space for its return. Those that are read again and again come back as data does (`promotion`).
//!
//! A batch goes as one of data does (`mover`), but for one thing: slots change in place, so that
//! the transaction compares what was copied with what is there. Who holds a lease to change is asked for
//! nothing back one by one: all leases of a batch become shared at once.
//!
//! Not moved: blocks with a directory (each path walk reads them) or an orphan (it is freed without a
//! lease), with a file that has data in NVM (so a search for data there need not look at inodes below) or leaves of
//! extents that go first, with a number that is granted, or an inode that is open.

use super::Tiering;
use super::structure_blocks::Copied;
use crate::host::ReadingClient;
use crate::inode_blocks::{ColdBlock, Stays};
use crate::move_request::{BATCH_BLOCKS, BLOCK, MoveRequest, Target};
use crate::recent_promotions::LEASE_WAIT;
use shale_format::extent::root_kind;
use shale_format::inode::{Inode, flag, time};
use shale_format::limits::{BLOCK_BYTES, INODE_BYTES, INODES_PER_BLOCK};
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_sys::mutants;
use shale_volume::{Mapping, Result, Run, VolumeError};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Blocks that one batch of data may bring back, whose inodes it changes.
pub(super) const RETURNS_MAX: u64 = 64;
/// There is no block for one that has to come back.
pub(super) const NONE_LEFT: VolumeError = VolumeError::NoSpace { wanted: 1, free: 0 };
/// So many batches of which all is in use are passed over at a time.
pub(super) const TRIES: usize = 8;
/// Nobody waiting for space, they are listed again so long after none could move.
pub(super) const LIST_EVERY: Duration = Duration::from_secs(5);

fn inos_of(fb: u64) -> std::ops::Range<u64> {
    fb * INODES_PER_BLOCK..(fb + 1) * INODES_PER_BLOCK
}

/// The inodes in a block of the inode file, if all of it is whole.
fn decoded(fb: u64, block: &[u8; BLOCK_BYTES]) -> Option<Vec<Inode>> {
    let slots = block.chunks_exact(INODE_BYTES).zip(inos_of(fb));
    let all = slots.map(|(bytes, ino)| Inode::decode(bytes, Ino(ino)).ok());
    let mut inodes: Vec<Inode> = all.collect::<Option<_>>()?;
    inodes.retain(|inode| !inode.is_free());
    Some(inodes)
}

/// Whether an inode may lie below NVM.
fn may_demote(inode: &Inode) -> bool {
    let orphan = inode.flags & flag::ORPHAN != 0;
    let in_nvm = inode.has_content() && inode.root[TierId::Nvm as usize].kind != root_kind::EMPTY;
    Ino(inode.ino).is_user() && !inode.is_dir() && !orphan && !in_nvm
}

impl Tiering {
    /// Has an inode's block in NVM, and the leaves of its trees, where they stay until what is given is dropped: for
    /// who is about to get a lease to change it.
    ///
    /// # Errors
    /// A block cannot be read, or there is no space for it.
    pub fn promote_inode(&self, ino: u64) -> Result<Option<Stays<'_>>> {
        if !self.volume.superblock().can_have_tiers() {
            return Ok(None);
        }
        let fb = ino / INODES_PER_BLOCK;
        let stays = self.inodes.stay(fb);
        if self.volume.has_inodes_below() {
            while !self.promote_block(fb)? {}
        }
        self.promote_leaves(Ino(ino))?;
        Ok(Some(stays))
    }

    /// Whether [`Self::promote_inode`] has nothing to bring back, or space for it: for who would rather do without than
    /// wait until others have gone down.
    ///
    /// # Errors
    /// A block cannot be read.
    pub fn promoted_at_once(&self, ino: u64) -> Result<bool> {
        let mut blocks = 0;
        if self.volume.has_inodes_below() {
            blocks += u64::from(self.inode_block_below(ino / INODES_PER_BLOCK)?.is_some());
        }
        // What others take meanwhile may be as much.
        let fits = |blocks| blocks == 0 || 2 * blocks * BLOCK <= self.available_now();
        if !fits(blocks) {
            return Ok(false);
        }
        if self.has_leaves_below() {
            blocks += self.leaves_to_promote(Ino(ino))?.len() as u64;
        }
        Ok(fits(blocks))
    }

    /// Brings a block of the inode file to NVM if it lies below. `false`: it moved meanwhile.
    fn promote_block(&self, fb: u64) -> Result<bool> {
        let Some(from) = self.inode_block_below(fb)? else {
            return Ok(true);
        };
        let to = self.once_others_went(LEASE_WAIT, || self.block_for_return())?;
        let reader = self.grace.read();
        let mut bytes = Box::new([0; BLOCK_BYTES]);
        let view = self.volume.view();
        let promoted = view.read_at(from, 0, &mut bytes[..]).and_then(|()| {
            self.volume.write_at(to, 0, &bytes[..])?;
            let mut txn = self.volume.begin();
            if !txn.move_inode_block(FileBlock(fb), (from, to), &bytes)? {
                return Ok(None);
            }
            txn.commit().map(Some)
        });
        drop(reader);
        match promoted {
            Ok(Some(committed)) => {
                self.clients.publish(committed.txid);
                self.counts.up.fetch_add(BLOCK, Ordering::Relaxed);
                self.inodes.promoted.note(fb);
                Ok(true)
            }
            other => {
                self.volume.give_back(Run { addr: to, len: 1 });
                if let Err(e) = other
                    && self.inode_block_below(fb)? == Some(from)
                {
                    self.bad_blocks.note_of(&self.volume, from, &e);
                    return Err(e);
                }
                Ok(false)
            }
        }
    }

    /// Where a block of the inode file lies, if that is below NVM.
    pub(super) fn inode_block_below(&self, fb: u64) -> Result<Option<BlockAddr>> {
        let _reader = self.grace.read();
        let view = self.volume.view();
        let found = view.map_block(&view.root()?.inode_file, FileBlock(fb))?;
        Ok(match found {
            Mapping::Data { addr, .. } if addr.tier() != Some(TierId::Nvm) => Some(addr),
            _ => None,
        })
    }

    /// A block of NVM for inodes that are about to change. Where there is no other, part of the fixed
    /// reserve is: on a full volume that is a step to deleting.
    fn block_for_return(&self) -> Result<BlockAddr> {
        let first = |runs: Vec<Run>| runs.first().map(|run| run.addr);
        let above = || self.allocate_above(1).ok().and_then(first);
        if let Some(addr) = above().or_else(|| self.take_after_reclaim(BLOCK, above)) {
            return Ok(addr);
        }
        let _reserve = self.inodes.reserve.lock();
        // What a batch of data may bring back is left to it.
        match self.returns_left() {
            0..=RETURNS_MAX => Err(NONE_LEFT),
            _ => first(self.volume.allocate(1, None)?).ok_or(NONE_LEFT),
        }
    }

    /// Blocks of NVM that may come back although nobody has reserved space for them: what the fixed
    /// reserve has more than it is for.
    pub(super) fn returns_left(&self) -> u64 {
        let space = self.volume.space();
        let kept = space.reserved_fixed - space.spare();
        space.free.saturating_sub(kept)
    }

    /// Blocks that a batch of data may bring back.
    pub(super) fn batch_returns(&self) -> u64 {
        self.returns_left().min(RETURNS_MAX)
    }

    /// Moves all inodes that nobody uses below NVM, once what came back for others may go. Gives the blocks of 16.
    pub fn demote_all_inodes(&self) -> Result<u64> {
        let promoted = &self.inodes.promoted;
        promoted.until_all_may_go(|| self.demote_inodes(u64::MAX, true))
    }

    /// Moves blocks of inodes out of NVM, the coldest first: about `blocks` blocks, one batch at most.
    /// Gives how many moved. `asked`: somebody waits for the space.
    pub(crate) fn demote_inodes(&self, blocks: u64, asked: bool) -> Result<u64> {
        let tiers = self.volume.lower_tiers();
        let recent = |at: &Instant| at.elapsed() < LIST_EVERY;
        let inodes = &self.inodes;
        if tiers.is_empty() || (!asked && inodes.none_at.lock().as_ref().is_some_and(recent)) {
            return Ok(0);
        }
        let _guard = self.lock_mover_for(asked);
        let mut listed = false;
        // What is coldest may be in use.
        for _ in 0..TRIES {
            let mut cold = inodes.next(blocks.min(BATCH_BLOCKS));
            if cold.is_empty() && !std::mem::replace(&mut listed, true) {
                *inodes.coldest.lock() = self.list_coldest_inodes()?;
                cold = inodes.next(blocks.min(BATCH_BLOCKS));
            }
            if cold.is_empty() {
                break;
            }
            self.volume.let_inodes_demote()?;
            self.leases
                .downgrade(&mut cold.iter().flat_map(|&fb| inos_of(fb)));
            for (n, &tier) in tiers.iter().enumerate() {
                let below = tiers.get(n + 1).copied();
                if let Err(e) = self.reclaim_on(tier, below, cold.len() as u64) {
                    tracing::debug!(?tier, "no space is freed: {e}");
                }
                let last = false;
                let moved = self.move_inode_blocks(&cold, Target { tier, last })?;
                if moved > 0 {
                    return Ok(moved);
                }
            }
        }
        *inodes.none_at.lock() = Some(Instant::now());
        Ok(0)
    }

    /// Blocks of the inode file that lie in a tier.
    pub fn inode_blocks_in(&self, tier: TierId) -> u64 {
        let _reader = self.grace.read();
        let mut blocks = 0;
        // What cannot be read of the tree is reported by the call that needs it.
        let _ = self.lies_of(Ino::NONE, Some(tier), &mut |_, lies| {
            blocks += u64::from(lies.extent.len)
        });
        blocks
    }

    fn list_coldest_inodes(&self) -> Result<VecDeque<ColdBlock>> {
        let clients = self.clients.all();
        let mut cold = Vec::new();
        self.each_inode_block(&mut |fb, in_nvm| {
            // Of one that is damaged nothing moves.
            if in_nvm
                && let Ok(inodes) = self.volume.view().inodes_of(FileBlock(fb))
                && let Some(changed_s) = self.coldness(fb, &inodes, &clients)
            {
                let stamp = self.recency.of(Ino::NONE.0, fb);
                cold.push(ColdBlock {
                    stamp,
                    changed_s,
                    fb,
                });
            }
            Ok(())
        })?;
        cold.sort_unstable();
        Ok(cold.into())
    }

    /// When the inodes of a block were changed or read last; `None`: it has to stay.
    fn coldness(
        &self,
        fb: u64,
        inodes: &[Inode],
        clients: &[Arc<dyn ReadingClient>],
    ) -> Option<i64> {
        let open = |i: &Inode| clients.iter().any(|c| c.uses(i.ino));
        let free = inodes.iter().all(|i| self.may_demote(i) && !open(i));
        if !free || self.volume.has_granted_inodes(FileBlock(fb)) {
            return None;
        }
        let newest = |i: &Inode| i.time_s[time::CHANGE].max(i.time_s[time::ACCESS]);
        inodes.iter().map(newest).max()
    }

    /// Whether an inode may go below NVM: leaves of its extents that could go have to go first. The caller is a
    /// reader.
    fn may_demote(&self, inode: &Inode) -> bool {
        may_demote(inode) && !self.has_leaves_to_demote(inode)
    }

    /// Whether all inodes of a block may. The caller is a reader.
    fn all_may_demote(&self, fb: u64, block: &[u8; BLOCK_BYTES]) -> bool {
        decoded(fb, block).is_some_and(|inodes| inodes.iter().all(|i| self.may_demote(i)))
    }

    /// Tells of the blocks of the inode file, and whether each lay in NVM a moment ago. Freed blocks wait for
    /// one of them at a time, and not for all.
    pub(super) fn each_inode_block(
        &self,
        f: &mut dyn FnMut(u64, bool) -> Result<()>,
    ) -> Result<()> {
        let view = self.volume.view();
        let (mut at, most) = (0, BATCH_BLOCKS as usize);
        loop {
            let mut blocks: Vec<(u64, bool)> = Vec::with_capacity(most);
            let reader = self.grace.read();
            view.extents(&view.root()?.inode_file, FileBlock(at), &mut |e| {
                let in_nvm = BlockAddr::from_raw(e.addr).tier() == Some(TierId::Nvm);
                let left = (e.file_block..e.end().0).take(most - blocks.len());
                blocks.extend(left.map(|fb| (fb, in_nvm)));
                match blocks.len() < most {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            })?;
            drop(reader);
            let Some((last, _)) = blocks.last() else {
                return Ok(());
            };
            at = last + 1;
            for (fb, in_nvm) in blocks {
                let _reader = self.grace.read();
                f(fb, in_nvm)?;
            }
        }
    }

    /// Moves what lies of the inode file in `wanted`. Gives the blocks moved. The caller holds the migration lock.
    pub(super) fn move_inode_runs(&self, wanted: &[MoveRequest], target: Target) -> Result<u64> {
        let mut moved = 0;
        let blocks = wanted.iter().flat_map(|w| w.at..w.at + w.blocks);
        let mut blocks: Vec<u64> = blocks.collect();
        blocks.sort_unstable();
        for batch in blocks.chunks(BATCH_BLOCKS as usize) {
            moved += self.move_inode_blocks(batch, target)?;
        }
        Ok(moved)
    }

    /// Moves blocks of the inode file, one batch, to a tier that they are not in, or in it to another
    /// zone. Gives the blocks moved.
    fn move_inode_blocks(&self, blocks: &[u64], target: Target) -> Result<u64> {
        self.somewhere(target.tier, || self.move_inode_batch(blocks, target))
    }

    fn move_inode_batch(&self, blocks: &[u64], target: Target) -> Result<u64> {
        let reader = self.grace.read();
        let copied = self.copy_inodes(blocks, target)?;
        let flushes = !mutants::is_on("inodes-flush");
        self.move_copied(reader, &copied, (target, flushes), || {
            self.remap_inodes(&copied)
        })
    }

    /// Copies blocks, as many as the target takes.
    fn copy_inodes(&self, blocks: &[u64], target: Target) -> Result<Vec<Copied>> {
        let view = self.volume.view();
        let file = view.root()?.inode_file;
        let mut copied: Vec<Copied> = Vec::with_capacity(blocks.len());
        for &fb in blocks {
            let Mapping::Data { addr: from, .. } = view.map_block(&file, FileBlock(fb))? else {
                continue;
            };
            let mut bytes = Box::new([0; BLOCK_BYTES]);
            match view.read_at(from, 0, &mut bytes[..]) {
                // It may have changed since it was listed.
                Ok(()) if from.tier() == Some(TierId::Nvm) && !self.all_may_demote(fb, &bytes) => {}
                Ok(()) => copied.push(Copied::of((Ino::NONE, fb), from, bytes)),
                Err(e) => {
                    self.could_not_read(from, &e);
                }
            }
        }
        self.write_copies(&mut copied, target)?;
        Ok(copied)
    }

    /// Maps what was copied, as far as it is still where and what it was, and nobody may change it.
    /// Gives the blocks.
    fn remap_inodes(&self, copied: &[Copied]) -> Result<u64> {
        // A client that gets a lease to change from here on finds what is done here.
        let staying = self.inodes.staying.lock();
        let mut txn = self.volume.begin();
        let (mut moved, mut unused) = (0, Vec::new());
        let space = txn.journal_capacity() / 4 * 3;
        for c in copied {
            let down = c.from.tier() == Some(TierId::Nvm);
            let held = || self.leases.any_exclusive(inos_of(c.at));
            let used = down && (staying.contains_key(&c.at) || held());
            let fits = txn.journal_bytes() < space;
            if fits && !used && txn.move_inode_block(FileBlock(c.at), (c.from, c.to), &c.bytes)? {
                moved += 1;
            } else {
                unused.push(c.to);
            }
        }
        self.link(txn, moved)?;
        drop(staying);
        self.give_back_copies_at(unused);
        Ok(moved)
    }
}
