//! Every byte of a Shale volume that outlives a process.
//!
//! Layouts are structs with asserted sizes; `docs/SPEC.md` is generated from
//! them (see [`layout`]). There is no I/O and no unsafe code here, and decoding
//! trusts nothing: each block that can be damaged carries a magic number, its
//! own address and a checksum.
#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("the media format is little-endian and is read in place");

pub mod acl;
pub mod address;
pub mod bitmap;
pub mod checksum;
mod checksummed;
pub mod device_table;
pub mod dirent;
pub mod error;
pub mod extent;
pub mod inode;
pub mod journal;
pub mod layout;
pub mod limits;
pub mod log;
pub mod policy;
pub mod record;
pub mod superblock;
pub mod tree;
pub mod version;
pub mod xattr;
pub mod zone;

pub use address::{BlockAddr, DirKey, FileBlock, Ino, LogPos, TierId, TxId};
pub use error::FormatError;
pub use policy::Durability;
