//! `scrub`: verifies every checksum of the NVM tier's structure while the volume is in use.
//!
//! Superblocks, root block, log table, bitmap, every inode, every tree node, every run of
//! extended attributes, data on lower tiers. Data on NVM has no checksum. A block of data of which there is a copy in
//! memory (`tail_blocks`) is rewritten elsewhere. All else that is found is reported by path and not
//! changed: `fsck --repair` does that when the volume is not mounted.
//!
//! One inode is read at a time, as a reader of the daemon's own: freed blocks wait for that
//! one and not for all. Its data is read in runs, and of a run that is damaged each block. An inode that is made or changed meanwhile is looked at as it
//! was or as it is.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | `scrubber` | the walk over a volume: it owns nothing, and changes blocks by [`shale_tiering`] only |
//! | `report` | what it found, how far it is |
//!
//! Called by `daemon` for `shale scrub`. Nothing of it survives the process.
#![forbid(unsafe_code)]

mod report;
mod scrubber;

pub use report::{Damage, ScrubProgress, ScrubReport};
pub use scrubber::Scrubber;
