//! A page-mapped flash translation layer over [`crate::zoned`], as StageFS has one for the file
//! systems it compares with (§5.1.1, PFTL): they run on the same flash, with the same counters.
//!
//! * Logical blocks of 4 KiB, two to a page. A mapping of whole pages would read and write
//!   again the other half at each random 4 KiB write, and double what is compared.
//! * The mapping is in memory. It is never written: each page's metadata says what it holds
//!   and in which order it was programmed, and all of that is read at the start.
//! * 10% of the device is over-provisioned. Cleaning begins below 10% of free blocks with
//!   blocks that are at most half valid, and takes any when only a reserve is free.
//! * Dynamic wear levelling, and a static one by a threshold.
//! * 64 MiB of cache for writes; it is lost at a power cut.
//!
//! # What survives a power cut
//!
//! After a [`Ftl::flush`] that returned: every block as it was written or trimmed before. Of what
//! came later each block has, by itself, any of its contents since; a trimmed block may be
//! back with what it held.
//!
//! Lock order: `state`, then the flash's own.

mod cache;
mod device;
mod map;
mod oob;
mod place;
mod recover;
mod settings;
mod state;

pub use device::Ftl;
pub use oob::BLOCK_BYTES;
pub use settings::{FtlCounts, Settings, Victims};
