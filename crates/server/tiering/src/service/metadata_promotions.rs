//! What a batch of data brings back to NVM, as what maps its blocks changes there: blocks of inodes, and leaves of
//! extents. It is bounded before anything is copied: where NVM is full, a batch is cut to what there is space for.

use super::Tiering;
use crate::move_request::MoveRequest;
use shale_format::inode::{Inode, slot_of};
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_volume::{Result, leaves_below};
use std::collections::{BTreeSet, HashSet};

/// Blocks for each leaf that changes: one beside it may be joined with it.
const LEAF_RETURNS: usize = 2;

/// What one batch brings back.
pub(super) struct MetadataPromotions {
    most: usize,
    inodes: BTreeSet<u64>,
    leaves: HashSet<BlockAddr>,
}

impl Tiering {
    /// Nothing yet.
    pub(super) fn returns(&self) -> MetadataPromotions {
        MetadataPromotions {
            most: self.batch_returns() as usize,
            inodes: BTreeSet::new(),
            leaves: HashSet::new(),
        }
    }
}

impl MetadataPromotions {
    /// Adds what comes back when a run of a file moves to a tier; `false`: that would be too much, and nothing is
    /// added. The caller is a reader.
    pub(super) fn take(
        &mut self,
        tiering: &Tiering,
        (inode, w): (&Inode, &MoveRequest),
        to: TierId,
    ) -> Result<bool> {
        let fb = slot_of(Ino(inode.ino)).0.0;
        let mut block = None;
        if tiering.volume.has_inodes_below() && !self.inodes.contains(&fb) {
            block = tiering.inode_block_below(fb)?.map(|_| fb);
        }
        let leaves = match leaves_below(inode) {
            0 => HashSet::new(),
            _ => self.leaves_of(tiering, (inode, w), to)?,
        };
        let inodes = self.inodes.len() + usize::from(block.is_some());
        let all = inodes + (self.leaves.len() + leaves.len()) * LEAF_RETURNS;
        let fits = all <= self.most || (block.is_none() && leaves.is_empty());
        if fits {
            self.inodes.extend(block);
            self.leaves.extend(leaves);
        }
        Ok(fits)
    }

    /// Leaves below that tell of a run or of what adjoins it, where it is and where it goes; those that are new here.
    fn leaves_of(
        &self,
        tiering: &Tiering,
        (inode, w): (&Inode, &MoveRequest),
        to: TierId,
    ) -> Result<HashSet<BlockAddr>> {
        let view = tiering.volume.view();
        let mut found = HashSet::new();
        let ends = [
            w.at.saturating_sub(1),
            w.at,
            w.at + w.blocks - 1,
            w.at + w.blocks,
        ];
        for tier in w.from.tier().into_iter().chain([to]) {
            for fb in ends {
                found.extend(view.leaf_below(inode, tier, FileBlock(fb))?);
            }
        }
        found.retain(|addr| !self.leaves.contains(addr));
        Ok(found)
    }
}
