//! The staged persistence area: what a volume without NVM survives a power cut by (DESIGN §3; StageFS §3).
//!
//! The memory tier and the logs of such a volume lie in shared memory. A range of a device holds a *ring of batches*, to
//! which ranges of the logs are appended before a call answers that they are durable (StageFS's staging phase), and two
//! *images* of the memory tier, which checkpoints write by turns (its patching phase). A restore reads the newest image
//! and replays the batches since.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`area`] | [`StagedArea`]: made, opened, appended to, checkpoints |
//! | [`layout`] | where its parts lie |
//! | [`batch`] | what is appended at once, and its bytes |
//! | [`ring`] | which part of the ring is in use |
//! | [`scan`] | which batches are whole and follow each other |
//! | [`images`] | the images, their tables, what each lacks |
//! | [`dirty_pages`] | which pages of a mapping were stored to |
//! | [`saved_image`] | an area that is found by its header; single pages of its newest image |
//! | [`media`] | the device, until a write fails |
//!
//! The bytes are those of [`shale_format::staged`].

mod area;
mod batch;
mod dirty_pages;
mod error;
mod images;
mod layout;
mod media;
mod page_set;
mod ring;
mod saved_image;
mod scan;
#[cfg(test)]
mod tests;
mod wipe;

pub use area::StagedArea;
pub use batch::{Batch, BatchNumber, LogIdentity, Piece, StagedPiece};
pub use dirty_pages::DirtyPages;
pub use error::{PersistError, Result};
pub use layout::{AreaLayout, MEMORY_BYTES_MAX, STAGING_BYTES_MIN};
pub use saved_image::{SavedImage, find_areas};
pub use wipe::wipe_area;

/// Bytes of a page: the unit of images and of their checksums.
pub const PAGE_BYTES: usize = 4096;

/// A checkpoint of the memory tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Counts checkpoints; 0: there is none yet.
    pub number: u64,
    /// The last transaction of the volume that is in it.
    pub txid: u64,
    /// The volume was stopped, and every log was empty.
    pub clean: bool,
}

/// What an area has done since it was made or opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagedCounts {
    /// Batches appended.
    pub batches: u64,
    /// Bytes of batches, with headers and padding.
    pub batch_bytes: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Pages that checkpoints wrote.
    pub pages_written: u64,
}
