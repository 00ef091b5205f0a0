//! The requests of the kernel as calls of libfs.

pub(crate) mod caller;
pub(crate) mod convert;
pub(crate) mod groups;
pub(crate) mod inode_flags;
pub mod node;
pub(crate) mod shale;
