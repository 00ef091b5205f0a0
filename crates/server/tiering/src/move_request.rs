//! Blocks that are to move, and where to: what those who decide hand to the mover.

use shale_format::inode::Inode;
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, TierId};
use shale_volume::{Result, VolumeError};

/// Bytes of a block.
pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks of one batch: 4 MiB.
pub(crate) const BATCH_BLOCKS: u64 = 1024;
/// The same from or to a disk, whose arm goes elsewhere between two batches: 16 MiB, so that going there takes a
/// small part of the time.
pub(crate) const DISK_BATCH_BLOCKS: u64 = 4 * BATCH_BLOCKS;

/// Blocks that are to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveRequest {
    /// Their inode.
    pub ino: u64,
    /// First file block.
    pub at: u64,
    /// Where it is.
    pub from: BlockAddr,
    /// Blocks.
    pub blocks: u64,
    /// Used recently.
    pub hot: bool,
    /// Set aside by `fallocate` and never written: they have a place and nothing to copy.
    pub unwritten: bool,
    /// The tier that its file is pinned to.
    pub pin: Option<TierId>,
    /// It is a leaf of a tree.
    pub leaf: bool,
}

impl MoveRequest {
    /// A leaf of a tree.
    pub(crate) fn leaf(inode: &Inode, from: BlockAddr) -> MoveRequest {
        MoveRequest {
            ino: inode.ino,
            at: 0,
            from,
            blocks: 1,
            hot: false,
            unwritten: false,
            pin: inode.pin(),
            leaf: true,
        }
    }

    /// Whether it may go to a tier to free space for others.
    pub(crate) fn may_go(&self, to: TierId) -> bool {
        self.pin.is_none_or(|pin| pin >= to)
    }
}

/// Where blocks go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) tier: TierId,
    /// What is kept for cleaning may be used.
    pub(crate) last: bool,
}

/// What is to move in parts, each for one hold of the migration lock.
pub(crate) fn parts(wanted: Vec<MoveRequest>) -> Vec<Vec<MoveRequest>> {
    let (mut parts, mut part, mut left) = (Vec::new(), Vec::new(), BATCH_BLOCKS);
    for mut w in wanted {
        while w.blocks > 0 {
            let blocks = w.blocks.min(left);
            part.push(MoveRequest { blocks, ..w });
            (w.at, w.from, w.blocks) = (w.at + blocks, w.from.plus(blocks), w.blocks - blocks);
            left -= blocks;
            if left == 0 {
                parts.push(std::mem::take(&mut part));
                left = BATCH_BLOCKS;
            }
        }
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

/// Nothing, where a block below NVM cannot be read.
pub(crate) fn unless_below<T: Default>(e: VolumeError) -> Result<T> {
    match e {
        VolumeError::BadBlock { .. } | VolumeError::Lower(_) => Ok(T::default()),
        other => Err(other),
    }
}

/// Nothing below has space.
pub(crate) fn no_space(wanted: u64) -> VolumeError {
    VolumeError::NoSpace { wanted, free: 0 }
}
