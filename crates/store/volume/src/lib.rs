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

mod bits;
mod devices;
mod dir;
mod draft_lower;
mod error;
mod extent;
mod held;
mod inode;
mod journal;
mod leaf_cache;
mod leaves;
mod lookup;
mod lower;
mod lru;
mod media;
mod mkfs;
mod node;
mod numbers;
mod rebuild;
mod space;
mod tiers;
mod tree;
mod txn;
mod view;
mod volume;
mod walk;
mod without_devices;
mod words;
mod xattr;
mod zones;

pub use devices::LowerDeviceInfo;
pub use error::{Result, VolumeError};
pub use leaves::{Given, LEAVES_AT_ONCE, leaves_below};
pub use lookup::{FoundInode, check_target};
pub use lower::{DeviceBlock, LowerDevices, ZonePlace};
pub use lru::Lru;
pub use mkfs::MkfsOptions;
pub use node::Dirent;
pub use rebuild::{Free, Rebuild};
pub use shale_format::extent::Extent;
pub use shale_format::inode::Inode;
pub use shale_format::version::Access;
pub use shale_format::xattr::Xattrs;
pub use space::{Run, Space};
pub use txn::{Committed, Txn};
pub use view::{KeptLeaf, LeafCover, Mapping, View};
pub use volume::Volume;
pub use walk::NodeAt;
pub use zones::{Heat, LowerSpace, ZoneInfo};

#[cfg(test)]
mod tests;
