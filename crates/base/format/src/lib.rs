//! Every byte of a Shale volume that outlives a process.
//!
//! What files are made of stands in `files/`, how the media of a volume are divided in `volume/`; an
//! update log ([`log`]) holds records ([`record`]).
//!
//! Layouts are structs with asserted sizes ([`layout`]); `docs/SPEC.md` is generated from
//! them ([`spec`]). There is no I/O and no unsafe code here, and decoding
//! trusts nothing: each block that can be damaged carries a magic number, its
//! own address and a checksum.
#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("the media format is little-endian and is read in place");

pub mod address;
pub mod checksum;
mod checksummed;
pub mod error;
mod files;
pub mod layout;
pub mod limits;
pub mod log;
pub mod policy;
pub mod record;
pub mod spec;
pub mod staged;
pub mod version;
mod volume;

pub use address::{BlockAddr, DirKey, FileBlock, Ino, LogPos, TierId, TxId};
pub use error::FormatError;
pub use files::{acl, dirent, extent, inode, tree, xattr};
pub use policy::{Buffering, Durability, ORDERED_AGE};
pub use volume::{bitmap, device_table, journal, superblock, zone};
