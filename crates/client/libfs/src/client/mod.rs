//! What a client of a volume is made of, and the frame that every call runs in.
//!
//! | Module | What it owns |
//! | --- | --- |
//! | `daemon_link` | nothing: messages to the daemon, and the words that it publishes |
//! | `connection_state` | whether the daemon still serves this client |
//! | `log` | the update log: its writer, permits of threads, requests in progress, what slows a writer |
//! | `space` | what the daemon granted: bytes, blocks, inode numbers |
//! | `volume_reader` | the view of the volume, the cache of lower tiers, notes of what is read |
//! | `lease` | which leases are asked for; the words of those that stand are in the inodes |
//! | `services` | all of these, to be seen from this folder only |
//! | `call` | one run of a call: what an operation may touch within it |
//! | `call_runner` | running calls: gets what they lack and runs them again |
//! | `session` | the surface: puts the services together, hands each operation what it may touch |
//!
//! A service knows only those above it. Called by `namespace` and `io`; calls `inodes`, `oplog`, `volume` (to read) and
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
pub(crate) mod call_runner;
pub(crate) mod connection_state;
pub(crate) mod daemon_link;
pub(crate) mod lease;
#[cfg(test)]
mod lease_tests;
pub(crate) mod lease_word;
pub(crate) mod log;
pub(crate) mod options;
pub(crate) mod read_section;
pub(crate) mod reader_slot;
pub(crate) mod retry;
pub(crate) mod services;
pub(crate) mod session;
pub(crate) mod space;
pub(crate) mod sync;
pub(crate) mod volume_reader;

// Under these names the model checker has its own.
use crate::errno;
use crate::inodes::node;
