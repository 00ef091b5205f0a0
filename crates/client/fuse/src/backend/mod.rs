//! [`node::NodeFs`], the file system that the adapter calls, and its implementation by LibFS.
//!
//! Owns the conversion of words (attributes, errors, flags) and what a request lacks of its caller: further groups and
//! capabilities, which are read from `/proc` for the few files where they matter (DESIGN §36). Called by `adapter`;
//! calls `libfs`, and `kernel_cache` before and after calls that change what the kernel caches. No locks of its own.
//!
//! Durable when the answer is sent: libfs returns after the fence. A record carries the number of the request, so a
//! request that the kernel resends after a crash is answered and not done twice.

pub(crate) mod caller;
pub(crate) mod convert;
pub(crate) mod groups;
pub(crate) mod inode_flags;
pub(crate) mod libfs_backend;
pub mod node;
pub(crate) mod sweeper;
