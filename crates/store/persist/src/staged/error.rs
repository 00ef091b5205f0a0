//! What can go wrong with a staged area.

use shale_block::BlockError;

/// Why something was not staged, written or found. Mistakes of the caller panic instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PersistError {
    /// The device failed. After a write or a flush that did, the area is [`Self::Poisoned`].
    #[error(transparent)]
    Device(#[from] BlockError),
    /// The staging ring has no place for the batch: a checkpoint frees some.
    #[error(
        "the staging area is full: a batch of {needed} bytes, and {free} are free in one piece"
    )]
    Full {
        /// Bytes of the batch, with its headers and padding.
        needed: u64,
        /// Bytes of the largest free range.
        free: u64,
    },
    /// A write or a flush failed before: what the device holds since then nobody knows.
    #[error("the staging area takes nothing any more: a write to its device failed")]
    Poisoned,
    /// There is no staged area of this volume at this place, or none can be there.
    #[error("no staging area: {why}")]
    NoArea {
        /// What was expected and what was found.
        why: String,
    },
    /// There is one, and what it holds is not whole.
    #[error("the staging area is damaged: {why}")]
    Damaged {
        /// Which part, and what is wrong with it.
        why: String,
    },
}

/// What fails with a [`PersistError`].
pub type Result<T> = std::result::Result<T, PersistError>;

pub(super) fn no_area<T>(why: String) -> Result<T> {
    Err(PersistError::NoArea { why })
}

pub(super) fn damaged<T>(why: String) -> Result<T> {
    Err(PersistError::Damaged { why })
}
