//! POSIX semantics in the caller's process (DESIGN §3).
//!
//! A [`Session`] is a client of a volume: it logs every change to its own update
//! log, answers reads from log, overlays and volume, and asks the daemon only for
//! leases, numbers and space. The calls come in two shapes: by inode number, for
//! adapters such as FUSE, and by path and handle.
#![forbid(unsafe_code)]

mod client;
mod errno;
mod inodes;
mod io;
mod lower_tiers;
mod namespace;

pub use client::op::{panicked_after_append, stop_appending};
pub use client::pace::Waits;
pub use client::reader_slot::{begin_anew_in_child, prepare_thread};
pub use client::session::{Session, SessionMaps, SessionOptions};
pub use errno::{BY_KERNEL, ELSEWHERE, Errno, Result};
pub use inodes::attr::{Attr, Caller, SetAttr, SetTime, Timestamp};
pub use inodes::found::Found;
pub use io::direct::{DirectMap, Piece};
pub use io::handle::{File, SEEK_CUR, SEEK_END, SEEK_SET};
pub use io::ranges::{SEEK_DATA, SEEK_HOLE};
pub use io::write::WriteFlags;
pub use namespace::list::DirEntry;
pub use namespace::meta::StatFs;
pub use namespace::path::{ListedEntry, ReadDir, Tree};
pub use namespace::rename::{RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT};
pub use namespace::xattrs::{XATTR_CREATE, XATTR_REPLACE};
pub use rustix::fs::OFlags;
pub use shale_format::acl::AclKind;
pub use shale_format::inode::flag as inode_flag;
pub use shale_oplog::Recent;
pub use shale_proto::LeaseMode;
