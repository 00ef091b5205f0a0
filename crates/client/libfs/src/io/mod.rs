//! Content of files: reading, writing, truncating, ranges, mappings, open files.
//!
//! Called by front ends (by inode number, or by [`crate::File`]); calls `client` for the frame of a call, `inodes` for
//! what is locked, and `lower_tiers` for blocks that are not in NVM. No locks of its own but a file handle's offset.
//!
//! A write is one transaction (SPEC, *What is atomic*). Full blocks are written to granted blocks and fenced before
//! the record that names them; a power cut in between leaves blocks that nothing refers to. A read returns nothing
//! if this client was cut off meanwhile.

pub(crate) mod access_time;
pub(crate) mod content;
pub(crate) mod direct;
pub(crate) mod handle;
pub(crate) mod read;
pub(crate) mod read_fast;
pub(crate) mod truncate_fallocate;
pub(crate) mod whole;
pub(crate) mod write;
