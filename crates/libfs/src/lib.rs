//! POSIX semantics in the caller's process (DESIGN §3).
//!
//! A [`Session`] is a client of a volume: it logs every change to its own update
//! log, answers reads from log, overlays and volume, and asks the daemon only for
//! leases, numbers and room. The calls come in two shapes: by inode number, for
//! adapters such as FUSE, and by path and handle.
#![forbid(unsafe_code)]

mod attr;
mod dir;
mod errno;
mod gate;
mod grants;
mod node;
mod op;
mod ranges;
mod read;
mod requests;
mod room;
mod session;
mod write;

pub use attr::{Attr, Caller, SetAttr, SetTime, Timestamp};
pub use errno::{Errno, Result};
pub use ranges::{SEEK_DATA, SEEK_HOLE};
pub use session::{Session, SessionOptions};
pub use shale_oplog::Recent;
pub use write::WriteFlags;
