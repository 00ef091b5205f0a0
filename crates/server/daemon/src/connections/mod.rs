//! Clients: how they come, what they ask for, what they may, what they have written.

pub(crate) mod accounts;
pub(crate) mod attach;
pub(crate) mod bucket;
pub(crate) mod client;
pub(crate) mod clients;
pub(crate) mod connection;
pub(crate) mod digest_queue;
pub(crate) mod grants;
pub(crate) mod limits;
pub(crate) mod listen;
pub(crate) mod log_bytes;
pub(crate) mod mappings;
pub(crate) mod message_rate;
pub(crate) mod person;
pub(crate) mod progress;
pub(crate) mod rights;
pub(crate) mod spare;
pub(crate) mod tally;

// Under these names the model checker has its own.
use crate::coherence::{barrier, sync};
