//! LibFS: POSIX semantics in the caller's process, as a client of the daemon (DESIGN §3).
//!
//! | Module | What it owns |
//! | --- | --- |
//! | `client` | the frame that every call runs in, and [`Session`], the surface |
//! | `inodes` | inodes as calls use them: locked, checked, by a handle |
//! | `namespace` | names, paths, listings, attributes, permissions |
//! | `io` | reading and writing, open files, mappings |
//!
//! What talks to the daemon, to the log and to the volume, and knows no inodes in memory, is `shale_session`; inodes in memory are `shale_inodes`.
//! Operations are functions: the first parameter is the frame ([`client::call_runner::CallRunner`]), the others what else they may touch.
//! [`Session`] only hands each call what it needs.
//!
//! A [`Session`] appends every change to its own update log, answers reads from overlays, log and volume, and asks the
//! daemon only for leases, inode numbers, blocks and space. The calls have two forms: by inode number (`fuse`), and by path
//! and handle (`preload`, `capi`, tests). It reads the volume and never writes it; only granted blocks and the log.
//!
//! Lock order: the rename lock of the session, nodes by ascending inode number, then leaves. No lock of a node is held while a
//! call waits for log space or for the daemon. A call that returned survives a power cut; one that did not is there as a
//! whole or not at all, but for large writes (SPEC, *What is atomic*).
#![forbid(unsafe_code)]

mod client;
mod inodes;
mod io;
mod namespace;

pub use client::session::Session;
pub use inodes::inode_handle::InodeHandle;
pub use io::direct::{DirectMap, Piece};
pub use io::handle::{File, SEEK_CUR, SEEK_END, SEEK_SET};
pub use io::truncate_fallocate::{SEEK_DATA, SEEK_HOLE};
pub use io::write::WriteFlags;
pub use namespace::attributes::StatFs;
pub use namespace::list::DirEntry;
pub use namespace::path::{ListedEntry, ReadDir, Tree};
pub use namespace::rename::{RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT};
pub use namespace::unlink_link::Swept;
pub use namespace::xattrs::{XATTR_CREATE, XATTR_REPLACE};
pub use rustix::fs::OFlags;
pub use shale_format::acl::AclKind;
pub use shale_format::inode::flag as inode_flag;
pub use shale_inodes::attr::{Attr, SetAttr, SetTime, Timestamp};
pub use shale_oplog::Recent;
pub use shale_proto::LeaseMode;
pub use shale_session::call_frame::{panicked_after_append, stop_appending};
pub use shale_session::caller::Caller;
pub use shale_session::errno::{BY_KERNEL, Errno, MEDIATED, Result};
pub use shale_session::log::benefit_model::LineCosts;
pub use shale_session::log::client_log::Promise;
pub use shale_session::log::throttle::Waits;
pub use shale_session::options::{SessionMaps, SessionOptions};
pub use shale_session::reader_slot::{prepare_thread, reset_in_child};
