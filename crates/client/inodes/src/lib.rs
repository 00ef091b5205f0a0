//! Inodes in memory: the state that log and volume give together (DESIGN §3).
//!
//! | Module | What it owns |
//! | --- | --- |
//! | [`node`] | what is known of one inode, with its lease word; the cache of them, 65,536 at most |
//! | [`attr`] | nothing: attributes and times as POSIX has them, and what a change of them makes of an inode |
//! | [`dir`], [`dirents`] | entries of a directory that are newer in the log; entries as they are now |
//! | [`unwritten_ranges`] | blocks without data that the volume does not know of yet |
//! | `extent_hint` | the run of blocks that was looked up last |
//!
//! It knows nothing of calls: what they lock, check and log is in `shale_libfs`, which calls it. It reads the volume through the session
//! (`shale_session`), and writes nothing.
//!
//! A node is valid while its lease word stands; it is loaded again when its lease or the epoch has changed. Its
//! pointers into the log are dropped before the log reuses the space.
//!
//! Lock order: nodes by ascending inode number, then a node's leaves, then the shards of the cache. Nothing here
//! survives a power cut, and nothing has to.
#![forbid(unsafe_code)]

pub mod attr;
pub mod dir;
pub mod dirents;
mod extent_hint;
pub mod node;
pub mod unwritten_ranges;
