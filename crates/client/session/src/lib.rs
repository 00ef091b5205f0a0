//! A client's session with the daemon: everything that a client needs to log and to read, below inodes, files and names.
//!
//! | Module | What it owns |
//! | --- | --- |
//! | `options`, `attach` | nothing: how a session is opened; maps what the daemon hands out and puts the services together |
//! | `errno`, `caller` | what callers get, why a run of a call has to stop; who a call is made for |
//! | `daemon_link` | nothing: messages to the daemon, and the words that it publishes |
//! | `connection_state` | whether the daemon still serves this client |
//! | `reader_slot`, `read_section` | the slots of threads; who is inside of a call |
//! | `log` | the update log: its writer, permits of threads, requests in progress, what slows a writer |
//! | `space` | what the daemon granted: bytes, blocks, inode numbers |
//! | `lower_tiers`, `volume_reader`, `access_sampling` | the view of the volume, the cache of blocks that are not in NVM, notes of what is read |
//! | `lease`, `lease_word` | which leases are asked for; the words of those that stand are in the inodes, which the crate above has |
//! | `kernel_refs` | which inode numbers a kernel that is served has references to |
//! | `services` | all of these |
//! | `retry`, `call_frame` | what one call meets with while it restarts; what a run of it holds of the services |
//!
//! A service owns its state, is built once, and knows only those above it in the table. The crate knows numbers of inodes and their bytes on
//! media; inodes in memory, which have the state of log and volume together, are `shale_inodes`'s, and leases reach them by two traits
//! ([`lease::LeasedInode`], [`lease::LeasedInodes`]). Called by `shale_inodes` and `shale_libfs` only.
//!
//! Lock order: a lock of `lease` (one thread at a time asks for the lease of an inode), then what the crate above locks of inodes, then
//! leaves: all other locks here are held for a few instructions, and nothing is called under them. No message is sent to the daemon
//! inside the read section or with an inode locked.
//!
//! What survives a power cut is in the log and in granted blocks; nothing else here outlives the process.
#![forbid(unsafe_code)]

pub mod access_sampling;
pub mod attach;
pub mod call_frame;
pub mod caller;
pub mod connection_state;
pub mod daemon_link;
pub mod errno;
pub mod kernel_refs;
pub mod lease;
pub mod lease_word;
pub mod log;
pub mod lower_tiers;
pub mod options;
pub mod read_section;
pub mod reader_slot;
pub mod retry;
pub mod services;
pub mod space;
mod sync;
pub mod volume_reader;

#[cfg(test)]
mod lease_tests;
