//! Recovery: what a crash left is brought into the volume before any client is served (DESIGN §12, §19).
//!
//! Owns the logs of the last daemon until they are digested, and inodes without a name; collects what was done for requests that
//! the kernel may send again. `daemon` calls it once at each start, before it has any client; it calls `digest` with the same code as for a
//! live log.
//!
//! No client is attached while it runs. Each step can be cut off by the next crash, and is then done again from the
//! start: a record counts once, since its log's digested position is part of the batch that applies it.
#![forbid(unsafe_code)]

pub mod error;
mod orphans;
mod permissions;
pub mod recover;
mod recovered_log;
mod replay;
pub use recovered_log::empty as empty_log;
