//! The FUSE server: the mount point that every program can use (DESIGN §3, §21).
//!
//! * `serving`: the mount, the device, and the threads that take requests. [`FuseSession`] mounts, or adopts the mount of
//!   a daemon that died.
//! * `adapter`: messages of the kernel to calls of [`NodeFs`], and answers back.
//! * `backend`: [`NodeFs`] by LibFS, as one more client of the daemon.
//! * `kernel_cache`: which names, attributes, sizes and pages the kernel caches, and invalidating them before another
//!   client changes the file (DESIGN §31). [`Notifier`] sends the invalidations.
//!
//! `cli` starts it in the daemon's process; it calls `libfs` only, and the daemon calls it through a hook when a lease
//! is about to be revoked.
//!
//! **Programs do not see a daemon die.** A supervisor keeps the descriptor of `/dev/fuse`; the next daemon adopts it,
//! asks the kernel to resend unanswered requests, and never initialises twice. Every buffer that the kernel copies
//! through is resident and locked: a process killed while the kernel faults one in would end that request with `EIO`.
//! The published FUSE crates answer from stack and heap and cannot set the flags that this needs.
//!
//! **The kernel caches and checks.** Names, attributes and data stay cached until they are invalidated;
//! `default_permissions` has the kernel check permissions; opening and closing an existing file sends no request. So
//! the crate has no state per open file.
//!
//! Locks are leaves (each file names its own). None is held while a notification is sent: that can wait for a request
//! which needs the lock.
#![deny(unsafe_code)]

mod adapter;
mod backend;
mod error;
mod kernel_cache;
mod serving;

pub use backend::libfs_backend::ShaleFs;
pub use backend::node;
pub use backend::node::{Errno, NodeFs, ROOT_INO};
pub use backend::sweeper::Sweeper;
pub use error::FuseError;
pub use serving::mount::{MountOptions, remount, unmount, unmount_dead};
pub use serving::negotiate::MountInfo;
pub use serving::notify::{Inval, Notifier};
pub use serving::requests::RequestCounts;
pub use serving::session;
pub use serving::session::{Ended, FuseSession, READERS_MAX, ServeOptions};
pub use serving::workers::Stopper;
