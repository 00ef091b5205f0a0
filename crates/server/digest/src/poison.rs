//! Blocks below NVM that cannot be read, and of which a record changes a part.
//!
//! The block that there should be cannot be made, and what is behind that record in the log must not wait for
//! it. So the change is lost, and so is the block: its checksum becomes one that fits nothing
//! ([`Volume::lose_lower`]), so that a device which can be read again does not bring back what was before.
//! Who reads it gets EIO, until it is written as a whole, cut off, or its file is removed.

use super::DigestError;
use super::content::BLOCK;
use super::layout::{CopyRun, Fill, From};
use super::plan::Plan;
use crate::tail_block_cache::{TailBlockCache, tail_block};
use parking_lot::Mutex;
use shale_format::inode::Inode;
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_volume::{Mapping, View, Volume, VolumeError};
use std::collections::BTreeMap;
use std::time::Duration;

/// How often a block is read before it is given up.
const READS: u32 = 4;
/// Between these.
const PAUSE: Duration = Duration::from_millis(20);

/// Blocks of files that are given up, until what changes them is digested: where they lie, by inode and
/// block.
#[derive(Default)]
pub(super) struct AbandonedBlocks(Mutex<BTreeMap<(u64, u64), BlockAddr>>);

impl AbandonedBlocks {
    /// Gives a block up. `false`: it was, or this is another error.
    pub(super) fn add(&self, error: &DigestError) -> bool {
        match error {
            DigestError::Poisoned { ino, at, addr, .. } => {
                self.0.lock().insert((ino.0, at.0), *addr).is_none()
            }
            _ => false,
        }
    }

    /// Takes what is given up out of a plan. Gives the blocks, which are lost if the plan is carried out.
    pub(super) fn take(
        &self,
        view: &View,
        plan: &mut Plan,
    ) -> Result<Vec<PoisonedBlock>, VolumeError> {
        let mut lost = Vec::new();
        let mut given_up = self.0.lock();
        if given_up.is_empty() {
            return Ok(lost);
        }
        for inode in &mut plan.inodes {
            let ino = inode.ino.0;
            let mine = given_up.range((ino, 0)..=(ino, u64::MAX));
            let mine: Vec<PoisonedBlock> = mine
                .map(|(&(_, at), &addr)| PoisonedBlock { ino, at, addr })
                .collect();
            for block in mine {
                if !block.is_there(view)? {
                    given_up.remove(&(ino, block.at));
                } else if block.leave_out(&mut inode.file.copies) {
                    lost.push(block);
                }
            }
        }
        Ok(lost)
    }

    /// Makes what was taken out of a plan unreadable for good.
    pub(super) fn lose(
        &self,
        volume: &Volume,
        tail_blocks: &TailBlockCache,
        lost: &[PoisonedBlock],
    ) -> Result<(), VolumeError> {
        lost.iter().try_for_each(|l| {
            tail_blocks.forget(l.addr);
            volume.lose_lower(l.addr)
        })
    }

    /// The plan that these were taken out of is part of the volume.
    pub(super) fn done(&self, lost: &[PoisonedBlock]) {
        for l in lost {
            self.0.lock().remove(&(l.ino, l.at));
        }
    }
}

/// A block of a file that is lost.
pub(super) struct PoisonedBlock {
    ino: u64,
    at: u64,
    addr: BlockAddr,
}

impl PoisonedBlock {
    /// Whether the file has it there still.
    fn is_there(&self, view: &View) -> Result<bool, VolumeError> {
        let Some(inode) = view.inode(Ino(self.ino))? else {
            return Ok(false);
        };
        let found = view.map_block(&inode, FileBlock(self.at))?;
        Ok(matches!(found, Mapping::Data { addr, .. } if addr == self.addr))
    }

    /// Leaves it out of what is written. `false`: that does not need the old block.
    fn leave_out(&self, copies: &mut Vec<CopyRun>) -> bool {
        let found = copies.iter().enumerate();
        let mut found = found.filter_map(|(n, copy)| Some((n, split(copy, self.at)?)));
        let Some((n, parts)) = found.next() else {
            return false;
        };
        copies.splice(n..=n, parts);
        true
    }
}

/// What is left of a run without block `at`; `None`: the run has it not, or does not need the old one.
fn split(copy: &CopyRun, at: u64) -> Option<Vec<CopyRun>> {
    let blocks = at.checked_sub(copy.at).filter(|&n| n < copy.blocks)?;
    let (before, rest) = cut(copy.clone(), blocks);
    let (it, behind) = cut(rest, 1);
    let needs_old = it.fills.iter().any(|f| matches!(f.from, From::Old(_)));
    needs_old.then(|| {
        let parts = [before, behind].into_iter();
        parts.filter(|c| c.blocks > 0).collect()
    })
}

/// Cuts a run behind `blocks` blocks.
fn cut(mut copy: CopyRun, blocks: u64) -> (CopyRun, CopyRun) {
    let mut behind = CopyRun {
        at: copy.at + blocks,
        blocks: copy.blocks - blocks,
        fills: Vec::new(),
        hint: None,
    };
    let mut left = blocks * BLOCK;
    for fill in std::mem::take(&mut copy.fills) {
        let here = fill.bytes.min(left);
        left -= here;
        let (from, bytes) = (fill.from, here);
        copy.fills
            .extend((here > 0).then_some(Fill { bytes, from }));
        let (from, bytes) = (fill.from.advance(here), fill.bytes - here);
        behind
            .fills
            .extend((bytes > 0).then_some(Fill { bytes, from }));
    }
    copy.blocks = blocks;
    (copy, behind)
}

/// Reads a file's bytes from byte `byte` behind the start of block `at` on, which lies at `addr`. What lies
/// below NVM and cannot be read is tried again, block by block.
pub(super) fn read(
    (view, tail_blocks): (&View, &TailBlockCache),
    inode: &Inode,
    (at, addr): (FileBlock, BlockAddr),
    byte: u64,
    into: &mut [u8],
) -> Result<(), DigestError> {
    if addr.tier() != Some(TierId::Nvm) && tail_block(inode) == Some(at.0) {
        let place = (addr, view.generation(addr)?);
        if tail_blocks.read_to_append(inode.ino, place, byte as usize, into) {
            return Ok(());
        }
    }
    let read = view.read_at(addr, byte, into);
    if read.is_ok() || addr.tier() == Some(TierId::Nvm) {
        return Ok(read?);
    }
    let mut done = 0;
    while done < into.len() {
        let from = byte + done as u64;
        let n = (into.len() - done).min((BLOCK - from % BLOCK) as usize);
        let part = &mut into[done..done + n];
        let read = try_again(|| view.read_at(addr, from, part));
        read.map_err(|why| match why {
            VolumeError::BadBlock { .. } | VolumeError::Lower(_) => DigestError::Poisoned {
                ino: Ino(inode.ino),
                at: FileBlock(at.0 + from / BLOCK),
                addr: addr.plus(from / BLOCK),
                why,
            },
            other => DigestError::Volume(other),
        })?;
        done += n;
    }
    Ok(())
}

fn try_again(mut read: impl FnMut() -> Result<(), VolumeError>) -> Result<(), VolumeError> {
    for _ in 1..READS {
        if read().is_ok() {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    read()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Source;

    #[test]
    fn one_block_is_taken_out_of_a_run_and_no_byte_of_the_others() {
        let fill = |bytes, from| Fill { bytes, from };
        let zeros = From::New(Source::Zero);
        let copy = |at, blocks, fills| CopyRun {
            at,
            blocks,
            fills,
            hint: None,
        };
        let old = |byte| From::Old(byte);
        let fills = vec![
            fill(BLOCK + 5, zeros),
            fill(3 * BLOCK - 5, old(11 * BLOCK + 5)),
        ];
        let run = copy(10, 4, fills);
        let before = copy(10, 1, vec![fill(BLOCK, zeros)]);
        let behind = copy(12, 2, vec![fill(2 * BLOCK, old(12 * BLOCK))]);
        assert_eq!(split(&run, 11), Some(vec![before, behind]));
        let first = vec![
            fill(BLOCK + 5, zeros),
            fill(2 * BLOCK - 5, old(11 * BLOCK + 5)),
        ];
        assert_eq!(split(&run, 13), Some(vec![copy(10, 3, first)]));
        // Not in it, or written as a whole.
        for at in [9, 10, 14] {
            assert_eq!(split(&run, at), None);
        }
    }
}
