//! Free space of a tier.

use shale_format::BlockAddr;

/// Consecutive blocks of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// First block.
    pub addr: BlockAddr,
    /// Blocks.
    pub len: u64,
}

/// How the blocks of a tier are used. `total` = free + taken + pending + used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Space {
    /// Blocks that can be allocated at all: superblocks, journal and so on left out.
    pub total: u64,
    /// Blocks that can be allocated now.
    pub free: u64,
    /// Blocks given out in memory and not part of the volume yet.
    pub taken: u64,
    /// Blocks freed by commits and not released yet.
    pub pending: u64,
    /// Blocks in use by the volume as last committed.
    pub used: u64,
    /// Part of `free` that the caller should keep for transient copies.
    pub reserved_fixed: u64,
}
