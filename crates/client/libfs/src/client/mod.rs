//! The frame that every call runs in, and the surface of a client.
//!
//! | Module | What it owns |
//! | --- | --- |
//! | `call` | one run of a call: what an operation may touch within it |
//! | `call_runner` | running calls: gets what they lack and runs them again; the services of the session (`shale_session`) and the inodes in memory |
//! | `session` | the surface: hands each operation what it may touch |
//!
//! Called by `namespace` and `io`; calls `inodes` and `shale_session`.
//!
//! A call gets what it may wait for (log space, leases, grants, credit) outside of locks, enters a read section, locks
//! inodes, appends at most one transaction, and leaves. If it lacks something on the way it leaves, having changed
//! nothing, gets it, and is tried again. No lock is held while the daemon is asked, but the one that lets a single
//! thread acquire an inode's lease.
//!
//! What a call returned is durable: its transaction is complete in the log and fenced. What it did not return may be
//! there or not, never in part.

pub(crate) mod call;
pub(crate) mod call_runner;
pub(crate) mod session;
