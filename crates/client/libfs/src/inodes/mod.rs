//! Inodes in memory: the state that log and volume give together.
//!
//! Owns the cache of nodes (65,536 at most), each with its lease word, attributes, roots, overlay and directory
//! changes, and the kernel's references where the session serves a mount. Called by `client`, `namespace` and `io`;
//! reads the volume, writes nothing.
//!
//! A node is valid while its lease word stands; it is loaded again when its lease or the epoch has changed. Its
//! pointers into the log are dropped before the log reuses the space.
//!
//! Lock order: nodes by ascending inode number, then a node's leaves, then the shards of the cache. Nothing here
//! survives a power cut, and nothing has to.

pub(crate) mod attr;
pub(crate) mod dir;
pub(crate) mod dirents;
pub(crate) mod extent_hint;
pub(crate) mod flags;
pub(crate) mod inode_handle;
pub(crate) mod inode_locks;
pub(crate) mod node;
pub(crate) mod unwritten_ranges;
pub(crate) mod xattr_cache;
