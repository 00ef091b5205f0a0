//! Clients of the daemon: who they are, what they may do, what they wrote.
//!
//! Owns one thread a connection (and the FUSE server in this process, which calls without a socket): attach and
//! detach, answers to requests, the log file and control pages of each client, its grants, the queue of logs to
//! digest, write accounting, rate limits, direct mappings. It calls `coherence`, `tiering`, `space` and
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
pub(crate) mod bucket;
pub(crate) mod client;
pub(crate) mod clients;
pub(crate) mod connection;
pub(crate) mod credentials;
pub(crate) mod digest_queue;
pub(crate) mod direct_mappings;
pub(crate) mod grants;
pub(crate) mod limits;
pub(crate) mod listen;
pub(crate) mod log_pool;
pub(crate) mod log_reader;
pub(crate) mod message_rate;
pub(crate) mod permissions;
pub(crate) mod tally;
pub(crate) mod write_accounting;

// Under these names the model checker has its own.
use crate::coherence::{barrier, sync};
