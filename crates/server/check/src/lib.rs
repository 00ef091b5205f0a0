//! `fsck`: verifies every invariant of a volume, read-only (DESIGN §12).
//!
//! | File or folder | What it checks |
//! | --- | --- |
//! | `superblocks`, `journal` | superblocks, root block; a batch that waits is laid over the media |
//! | `logs` | log files, what waits in them |
//! | `inode_table`, `inode`, `tree`, `acl` | slots, extents, trees, attributes |
//! | `lower_tiers`, `lower_metadata` | device table, zones; inodes and leaves that lie below NVM |
//! | `block_refs` | every block used once |
//! | `checker` | the walks: log table, inode file, inodes, directory entries, link counts, parents, rings, orphans, bitmaps, counts; paths |
//! | `report` | what is reported |
//! | `options`, `open_volume` | how to check; a volume in a directory |
//! | `repair` | making a damaged volume whole |
//!
//! Walks: all slots (types), all inodes (blocks, entries), all slots (links); and
//! the second once more if blocks are used twice, to name their first owners.
//!
//! **Memory**: per block of the NVM tier 2 bits (3 when blocks are used twice), per
//! inode slot 9 bytes, per extent of the inode file 24 bytes, at most 2½ times the
//! journal for a batch that waits. A tier of 1 TiB with 10 million inodes: 64 MiB +
//! 90 MiB.
//!
//! **Damage** of any kind leads to findings: no panic, no endless walk. A tree node is
//! entered once, however often it is referred to; what refers to blocks again is followed up to
//! a multiple of the tier.
#![forbid(unsafe_code)]

mod acl;
mod block_refs;
mod checker;
mod inode;
mod inode_table;
mod journal;
mod logs;
mod lower_metadata;
mod lower_tiers;
mod media;
mod open_volume;
mod options;
mod repair;
mod report;
mod superblocks;
mod tree;

pub use checker::check;
pub use lower_metadata::Below;
pub use open_volume::{CheckError, check_copy, check_volume_dir, repair_copy, repair_volume_dir};
pub use options::{CheckOptions, LogFile, Progress, Stage};
pub use repair::{Mended, RepairReport, repair};
pub use report::{Finding, Report, Severity, Totals};

#[cfg(test)]
mod tests;
