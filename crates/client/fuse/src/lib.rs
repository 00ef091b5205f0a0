//! The FUSE adapter: the mount point every program can use, and the only door
//! for programs the preload library does not reach (DESIGN §3).
//!
//! * [`NodeFs`] is what a file system has to do, in our own words.
//! * [`Session`] mounts, adopts the mount of a daemon that died, and serves it.
//! * [`Notifier`] tells the kernel to drop what it cached.
//!
//! Two properties shape the crate.
//!
//! **A daemon's death is not seen by programs.** The descriptor of `/dev/fuse` is
//! kept by a supervisor; the next daemon adopts it, asks the kernel to send
//! every unanswered request again, and never initialises twice. Every buffer
//! the kernel copies a request or a reply through is resident and locked: a
//! process killed while the kernel faults one in would end that request with
//! `EIO`. This is why the crate has a transport of its own: the published FUSE
//! crates answer from stack and heap, and cannot ask for the flags that
//! [`session`] needs.
//!
//! **The kernel does the caching and the checking.** Names, attributes and file
//! data stay cached until they are taken back with [`Notifier`]; listings of
//! directories are asked for each time; `default_permissions` has the kernel check
//! every permission of POSIX; opening and closing existing files sends no message
//! at all. So there is no state per open file anywhere in this crate.
#![deny(unsafe_code)]

mod adapter;
mod backend;
mod error;
mod kernel_cache;
mod serving;

pub use backend::node;
pub use backend::node::{Errno, NodeFs, ROOT_INO};
pub use backend::shale::ShaleFs;
pub use error::FuseError;
pub use serving::mount::{MountOptions, remount, unmount, unmount_dead};
pub use serving::negotiate::MountInfo;
pub use serving::notify::{Inval, Notifier};
pub use serving::requests::RequestCounts;
pub use serving::session;
pub use serving::session::{Ended, READERS_MAX, ServeOptions, Session, Stopper};
