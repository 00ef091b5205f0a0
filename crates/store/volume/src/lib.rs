//! The digested state of a volume: inodes, extents, directories, space
//! (DESIGN §7, Strata §3.1).
//!
//! * [`View`] reads. Any process with a mapping of the NVM tier may have one; it
//!   takes no lock and works while another process commits.
//! * [`Volume`] and [`Txn`] write. Only the daemon has them. A transaction is
//!   copy-on-write for trees and journalled for what changes in place: a power
//!   cut leaves the state before it or after it.
//!
//! Lock order: transaction, then inode numbers, then space, then zones. No lock is ever
//! held across a call into another crate but those of the floor `base`.
#![forbid(unsafe_code)]

mod bitmap;
mod error;
mod lower_tiers;
mod media;
mod mkfs;
mod reading;
mod rebuild;
mod transaction;
mod trees;
mod volume;

pub use error::{Result, VolumeError};
pub use lower_tiers::lower::{DeviceBlock, LowerDevices, ZonePlace};
pub use lower_tiers::zones::{LowerSpace, WriteStream, ZoneInfo};
pub use mkfs::MkfsOptions;
pub use reading::block_reader::BlockSource;
pub use reading::view::lookup::{FoundInode, check_target};
pub use reading::view::walk::NodeAt;
pub use reading::view::{KeptLeaf, LeafCover, Mapping, View};
pub use rebuild::{Free, Rebuild};
pub use shale_allocation::{Run, Space};
pub use shale_format::extent::Extent;
pub use shale_format::inode::Inode;
pub use shale_format::version::Access;
pub use shale_format::xattr::Xattrs;
pub use transaction::txn::{Committed, Txn};
pub use trees::node::{Dirent, DirentRef};
pub use trees::roots::{LEAVES_AT_ONCE, leaves_below};
pub use volume::Volume;
pub use volume::devices::LowerDeviceInfo;

#[cfg(test)]
mod tests;
