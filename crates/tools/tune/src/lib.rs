//! Settings of a volume that may change after `mkfs`: which there are, in which range, and when a change holds.
//!
//! [`setting`] is the table of them. Most stand in VOLUME.toml, which a change rewrites; what is in the superblock waits
//! there for the next mount; three are known to the daemon of a mount alone. [`fixed`] says of the rest why it
//! stays as `mkfs` made it, and what to do instead. A change is checked as a whole before any of it is made.
#![forbid(unsafe_code)]

pub mod change;
pub mod fixed;
pub mod report;
pub mod setting;
pub mod value;

pub use change::{Change, change_file, change_mounted, check, parse};
pub use report::{Report, Row};
