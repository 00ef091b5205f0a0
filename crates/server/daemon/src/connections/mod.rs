//! Clients of the daemon come and go, and ask.
//!
//! Owns one thread a connection (and the FUSE server in this process, which calls without a socket): attach and
//! detach, answers to requests, the making of log files, what was done for requests that the kernel sends again, write
//! accounting, rate limits, direct mappings. A client itself is data of the crate `clients`. It calls `coherence`, `tiering`, `space` and
//! `digest_scheduler`; these get an attached client as data, not this module.
//!
//! A client of another process is trusted with nothing (DESIGN §25): its records are judged at digest by what is
//! noted here of its leases, grants and user. Its log is read by `pread`, since it can cut the file short.
//!
//! Lock order: the log table, a client's work, the volume's transaction, the list of clients, a client's grants, its
//! state.
//!
//! After a power cut only the log table and the log files are left; `recovery` digests them. A slot is durable before
//! its client is answered, and its log file before the slot.

pub(crate) mod attach;
pub(crate) mod completed_requests;
pub(crate) mod connection;
pub(crate) mod direct_mappings;
pub(crate) mod limits;
pub(crate) mod listen;
pub(crate) mod log_pool;
pub(crate) mod message_rate;
pub(crate) mod permissions;
pub(crate) mod write_accounting;
