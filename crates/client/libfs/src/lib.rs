//! POSIX semantics in the caller's process (DESIGN §3).
//!
//! A [`Session`] is a client of a volume: it logs every change to its own update
//! log, answers reads from log, overlays and volume, and asks the daemon only for
//! leases, numbers and room. The calls come in two shapes: by inode number, for
//! adapters such as FUSE, and by path and handle.
#![forbid(unsafe_code)]

mod access;
mod acl;
mod allocated;
mod attr;
mod dir;
mod direct;
mod entries;
mod errno;
mod flags;
mod flash;
mod found;
mod gate;
mod gate_number;
mod grants;
mod handle;
mod kept;
mod kernel;
mod lately;
mod lease;
#[cfg(test)]
mod lease_tests;
mod links;
mod list;
mod locked;
mod lower;
mod meta;
mod names;
mod node;
mod op;
mod options;
mod pace;
mod path;
mod path_cache;
mod path_xattrs;
mod present;
mod quick;
mod ranges;
mod read;
mod rename;
mod reports;
mod requests;
mod rights;
mod room;
mod search;
mod served;
mod session;
mod sync;
mod walk;
mod whole;
mod write;
mod xattrs;

pub use attr::{Attr, Caller, SetAttr, SetTime, Timestamp};
pub use direct::{DirectMap, Piece};
pub use errno::{BY_KERNEL, ELSEWHERE, Errno, Result};
pub use found::Found;
pub use gate_number::{begin_anew_in_child, prepare_thread};
pub use handle::{File, SEEK_CUR, SEEK_END, SEEK_SET};
pub use list::DirEntry;
pub use meta::StatFs;
pub use op::{panicked_after_append, stop_appending};
pub use pace::Waits;
pub use path::{ListedEntry, ReadDir, Tree};
pub use ranges::{SEEK_DATA, SEEK_HOLE};
pub use rename::{RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT};
pub use rustix::fs::OFlags;
pub use session::{Session, SessionMaps, SessionOptions};
pub use shale_format::acl::AclKind;
pub use shale_format::inode::flag as inode_flag;
pub use shale_oplog::Recent;
pub use shale_proto::LeaseMode;
pub use write::WriteFlags;
pub use xattrs::{XATTR_CREATE, XATTR_REPLACE};
