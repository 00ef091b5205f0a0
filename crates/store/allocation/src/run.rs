//! A run of blocks.

use crate::error::AllocationError;
use shale_format::BlockAddr;

/// Consecutive blocks of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// First block.
    pub addr: BlockAddr,
    /// Blocks.
    pub len: u64,
}

impl Run {
    /// `len` blocks of NVM from block `first` on.
    pub fn nvm(first: u64, len: u64) -> Run {
        Run {
            addr: BlockAddr::nvm(first),
            len,
        }
    }

    /// The error that this run is not what a call needs.
    pub fn bad(self, why: &'static str) -> AllocationError {
        AllocationError::BadRun {
            first: self.addr.raw(),
            last: self.addr.raw().saturating_add(self.len),
            why,
        }
    }
}
