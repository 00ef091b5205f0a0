//! Attached clients, as the daemon sees them (DESIGN §3, §9, §25).
//!
//! | Module | What it owns |
//! | --- | --- |
//! | [`client`] | one client: its log, its two pages, its grants, how far its log is published, hardened and digested |
//! | [`clients`] | who is attached; what is published to all of them |
//! | [`page`], [`barrier`] | the two control pages, and the barrier that orders stores to one with loads of the other |
//! | [`log_reader`] | a client's log file, which it may cut short at any time |
//! | [`credentials`] | its user and groups, and what POSIX lets them do |
//! | [`grants`], [`asked`] | blocks and inode numbers that it was granted; files that it asked for last |
//! | [`space_credits`] | space that clients were given for records still to come (DESIGN §16) |
//! | [`tally`], [`bucket`] | what it wrote; how fast it may go on |
//!
//! Data and what is to be known of one client by itself; services that act on clients are above: `coherence` takes leases and waits for
//! them, `recovery` reads logs whose clients are gone, `daemon` attaches them and answers their requests.
//!
//! A client of another process is trusted with nothing: a word of its page is believed only as far as it can be true, and its log
//! is read by `pread`.
//!
//! Lock order: [`clients::Clients`], then what belongs to one client as [`client`] says. All of it is in memory, and gone after a crash; its log
//! file stays.
#![forbid(unsafe_code)]

pub mod asked;
pub mod barrier;
pub mod bucket;
pub mod client;
pub mod clients;
pub mod credentials;
pub mod error;
pub mod grants;
pub mod log_reader;
pub mod page;
pub mod space_credits;
pub mod tally;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

/// Under these names the model checker has its own.
mod sync {
    pub(crate) use shale_sys::mutants;
    pub(crate) use std::sync::atomic::Ordering;
}
