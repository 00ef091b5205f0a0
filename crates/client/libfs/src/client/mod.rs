//! A session with the daemon, and the frame that every call runs in.
//!
//! Owns the log and its reservations, the control pages, grants of numbers and blocks, lease words, and whether the
//! daemon still serves this client. Called by `namespace` and `io`; calls `inodes`, `oplog`, `volume` (to read) and
//! the daemon by `proto`.
//!
//! A call gets what it may wait for (log space, leases, grants, credit) outside of locks, enters a read section, locks
//! inodes, appends at most one transaction, and leaves. If it lacks something on the way it leaves, having changed
//! nothing, gets it, and is tried again. No lock is held while the daemon is asked, but the one that lets a single
//! thread acquire an inode's lease.
//!
//! What a call returned is durable: its transaction is complete in the log and fenced. What it did not return may be
//! there or not, never in part.

pub(crate) mod access_sampling;
pub(crate) mod call;
pub(crate) mod connection_state;
pub(crate) mod grants;
pub(crate) mod lease;
#[cfg(test)]
mod lease_tests;
pub(crate) mod options;
pub(crate) mod permit_cache;
pub(crate) mod prefault;
pub(crate) mod read_section;
pub(crate) mod reader_slot;
pub(crate) mod requests;
pub(crate) mod reservation;
pub(crate) mod retry;
pub(crate) mod session;
pub(crate) mod sync;
pub(crate) mod throttle;

// Under these names the model checker has its own.
use crate::errno;
use crate::inodes::node;
