//! What the kernel caches of files that direct clients use too, and how it is invalidated (DESIGN §9, §31).
//!
//! Owns what is known of the kernel's names, attributes, sizes and pages, and of the processes that use a file through
//! the mount: one state for each inode ([`cache`]). Called by `adapter` and `backend` around requests, and by the daemon before it revokes a lease of the
//! FUSE server; calls the notifier of `serving`.
//!
//! A notification can wait for requests in progress. So it comes from threads that serve no request and hold no lock
//! that a request needs; answers that have to follow one are sent by those threads. Locks are leaves.
//!
//! In memory only: after a restart every inode counts as cached by the kernel, and every size as possibly old.

pub(crate) mod cache;
pub(crate) mod deferred_writes;
pub(crate) mod delayed_replies;
pub(crate) mod invalidate;
mod names;
pub(crate) mod page_dropper;
mod pages;
pub(crate) mod peek;
pub(crate) mod size;
pub(crate) mod users;
