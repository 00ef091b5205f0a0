//! Blocks of structure on their way: copied, each by itself, written where they go, flushed and linked.
//!
//! A batch goes as one of data does (`mover`); what links them is for those who know what they hold.

use super::Tiering;
use crate::host::Reading;
use crate::move_request::Target;
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, Ino, TierId, tree};
use shale_sys::failpoints;
use shale_volume::{Result, Run, Txn, VolumeError};
use std::sync::atomic::Ordering;

/// A block, where it lies, and what it holds.
pub(super) struct Copied {
    /// The inode that it is a leaf of; none: it is one of the inode file.
    pub(super) owner: Ino,
    /// Of the inode file: which.
    pub(super) at: u64,
    pub(super) from: BlockAddr,
    pub(super) to: BlockAddr,
    pub(super) bytes: Box<[u8; BLOCK_BYTES]>,
}

impl Copied {
    /// It has no place yet.
    pub(super) fn of(
        (owner, at): (Ino, u64),
        from: BlockAddr,
        bytes: Box<[u8; BLOCK_BYTES]>,
    ) -> Copied {
        Copied {
            owner,
            at,
            from,
            to: BlockAddr::NONE,
            bytes,
        }
    }
}

impl Tiering {
    /// Writes blocks where they go, as many as the target takes; the others are dropped.
    pub(super) fn write_copies(&self, copied: &mut Vec<Copied>, target: Target) -> Result<()> {
        let mut done = 0;
        while done < copied.len() {
            let left = (copied.len() - done) as u64;
            match self.place(left, false, target) {
                Err(VolumeError::NoSpace { .. }) => break,
                runs => done += self.write_on(&runs?, &mut copied[done..])?,
            }
        }
        copied.truncate(done);
        Ok(())
    }

    /// Writes the first blocks to these runs. Gives how many.
    pub(super) fn write_on(&self, runs: &[Run], copied: &mut [Copied]) -> Result<usize> {
        let mut done = 0;
        for &run in runs {
            let part = &mut copied[done..done + run.len as usize];
            for (n, c) in (0..).zip(part.iter_mut()) {
                c.to = run.addr.plus(n);
                if c.owner != Ino::NONE {
                    tree::readdress(&mut c.bytes, c.to);
                }
            }
            let bytes: Vec<u8> = part.iter().flat_map(|c| &c.bytes[..]).copied().collect();
            if run.addr.tier() == Some(TierId::Nvm) {
                self.volume.write_at(run.addr, 0, &bytes)?;
            } else {
                for c in part.chunk_by(|a, b| a.owner == b.owner) {
                    let (addr, len) = (c[0].to, c.len() as u64);
                    self.note_owner(Run { addr, len }, c[0].owner.0)?;
                }
                self.volume.write_lower(run, &bytes)?;
            }
            done += run.len as usize;
        }
        Ok(done)
    }

    /// Flushes what was copied, if that is wanted, and has it linked. Gives the blocks.
    pub(super) fn move_copied(
        &self,
        reader: Reading<'_>,
        copied: &[Copied],
        (target, flushes): (Target, bool),
        remap: impl FnOnce() -> Result<u64>,
    ) -> Result<u64> {
        let Some(from) = copied.first().and_then(|c| c.from.tier()) else {
            return Ok(0);
        };
        failpoints::reach("migrate-copied");
        if target.tier != TierId::Nvm && flushes {
            self.volume.flush_lower(target.tier)?;
        }
        failpoints::reach("migrate-flushed");
        let moved = self.digester.between_chunks(remap);
        drop(reader);
        let all = || copied.iter().map(|c| c.to).collect();
        let moved = moved.inspect_err(|_| self.give_back_copies_at(all()))?;
        self.batch_is_done((Some(from), target.tier), copied.len() as u64, moved);
        Ok(moved)
    }

    /// Commits what was linked of copies, if anything was.
    pub(super) fn link(&self, txn: Txn<'_>, moved: u64) -> Result<()> {
        if moved > 0 {
            let committed = txn.commit()?;
            self.clients.publish(committed.txid);
        }
        Ok(())
    }

    /// Names a block that could not be read to be moved, and counts it. `false`: it was named before.
    pub(super) fn could_not_read(&self, addr: BlockAddr, why: &VolumeError) -> bool {
        let unreadable = &self.counts.unreadable;
        unreadable.fetch_add(1, Ordering::Relaxed);
        self.bad_blocks.note_of(&self.volume, addr, why)
    }

    /// Gives copies back that are not linked: those in NVM.
    pub(super) fn give_back_copies_at(&self, copies: Vec<BlockAddr>) {
        let in_nvm = |to: &BlockAddr| to.tier() == Some(TierId::Nvm);
        for addr in copies.into_iter().filter(in_nvm) {
            self.volume.give_back(Run { addr, len: 1 });
        }
    }
}
