//! Recovery: what a crash left is brought into the volume before any client is served (DESIGN §12, §19).
//!
//! Owns the logs of the last daemon until they are digested, the results of requests that the kernel may send again,
//! and inodes without a name. `opening` calls it once at each start; results of requests are also used while the
//! daemon runs. It calls `digest` with the same code as for a live log.
//!
//! No client is attached while it runs. Each step can be cut off by the next crash, and is then done again from the
//! start: a record counts once, since its log's digested position is part of the batch that applies it.

pub(crate) mod completed_requests;
pub(crate) mod orphans;
pub mod recover;
pub(crate) mod recovered_log;
mod replay;
