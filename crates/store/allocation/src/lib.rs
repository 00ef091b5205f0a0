//! Which blocks of NVM and which inode numbers are free, in memory (DESIGN §7, §16, §18, Strata §3.1).
//!
//! * [`Allocator`] gives out blocks, takes over what commits used and freed, and holds freed blocks back until readers
//!   have left and programs have unmapped them.
//! * [`InodeNumbers`] grants numbers to clients.
//!
//! No I/O: what is free after a restart is what the persistent bitmap and the inode file of `volume` say; what was given
//! out and not committed is free again. Each type has one lock, a leaf.
#![forbid(unsafe_code)]

mod allocator;
mod bitmap_runs;
mod error;
mod inode_numbers;
mod pinned_blocks;
mod run;

pub use allocator::{Allocator, SEGMENT_BLOCKS, Space, WordChange};
pub use bitmap_runs::{for_words, runs_of};
pub use error::{AllocationError, Result};
pub use inode_numbers::{BlockSlots, InodeNumbers};
pub use run::Run;
