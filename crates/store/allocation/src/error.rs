//! What can go wrong with an allocation.

/// Result with [`AllocationError`].
pub type Result<T> = std::result::Result<T, AllocationError>;

/// Blocks could not be had. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// Not enough free blocks.
    #[error("no space: {wanted} blocks wanted, {free} free")]
    NoSpace {
        /// Blocks wanted.
        wanted: u64,
        /// Blocks free.
        free: u64,
    },
    /// A run of blocks that is outside the tier, or not in the state the call needs.
    #[error("blocks {first} to {last} (exclusive): {why}")]
    BadRun {
        /// First block, with its tier in the top byte.
        first: u64,
        /// Block behind the last one.
        last: u64,
        /// What is wrong with it.
        why: &'static str,
    },
}
