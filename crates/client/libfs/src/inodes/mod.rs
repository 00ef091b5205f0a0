//! Inodes as calls use them, on the inodes in memory of `shale_inodes`: locked, checked, by a handle.
//!
//! Called by `client`, `namespace` and `io`. Lock order: nodes by ascending inode number. Nothing here survives a power cut, and
//! nothing has to.

pub(crate) mod flags;
pub(crate) mod inode_handle;
pub(crate) mod inode_locks;
pub(crate) mod xattr_cache;
