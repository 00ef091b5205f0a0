//! Whether the daemon still serves this client, and whether what it did counts.
//!
//! A daemon may cut a client off, or die and be started again while the client goes on.
//! Either way the log ends for the client, at a position that the daemon tells in the
//! log itself: so every call finds out before it returns, without asking anybody.

use super::errno::{Errno, Stop};
use super::sync::{Ordering, SharedWords, compiler_fence, mutants, sleep};
use shale_format::LogPos;
use shale_format::log::{END_AT, end as log_end};
use shale_proto::shared_pages::{daemon_page, state};
use std::time::Duration;

/// How often it is asked, every millisecond, where a log ends: a daemon that recovers finds
/// out in the time that reading the log takes.
const END_TRIES: u32 = 60_000;

/// The words that say so: the daemon's, and the one in the log.
pub struct ConnectionState {
    daemon: SharedWords,
    log: SharedWords,
}

impl ConnectionState {
    /// `daemon`: the page that the daemon publishes; `log`: this client's log.
    pub fn new(daemon: SharedWords, log: SharedWords) -> Self {
        Self { daemon, log }
    }

    /// Whether the daemon still serves this client. What was read from the volume
    /// must not be returned otherwise: its blocks may have been used again.
    #[inline]
    pub fn still_served(&self) -> std::result::Result<(), Stop> {
        compiler_fence(Ordering::SeqCst);
        let evicted = self.daemon.load_u32(daemon_page::STATE) == state::EVICTED;
        let cut = evicted || self.log_end() != log_end::NONE;
        if cut && !mutants::is_on("read-unasked") {
            return Err(Errno::IO.into());
        }
        Ok(())
    }

    /// Where the log ends, if it does (see [`log_end`]).
    #[inline]
    fn log_end(&self) -> u64 {
        self.log.load_u64(END_AT)
    }

    /// Whether a record that was just appended, up to `end`, counts. A daemon that cuts this
    /// client off, or one that is started again and recovers, first says so in the
    /// log, then has all processors see it, then looks how far the log goes: so a record
    /// that finds the word untouched has been seen, and for another one the daemon tells.
    #[inline]
    pub fn log_goes_on(&self, end: LogPos) -> std::result::Result<(), Stop> {
        compiler_fence(Ordering::SeqCst);
        match self.log_end() {
            log_end::NONE => Ok(()),
            _ if mutants::is_on("append-unasked") => Ok(()),
            _ => self.counts_after_all(end),
        }
    }

    /// Whether a record, up to `end`, counts in a log that has ended by now.
    pub fn counts(&self, end: LogPos) -> std::result::Result<(), Stop> {
        match self.log_end() {
            log_end::NONE => Err(Errno::IO.into()),
            _ => self.counts_after_all(end),
        }
    }

    #[cold]
    fn counts_after_all(&self, end: LogPos) -> std::result::Result<(), Stop> {
        for _ in 0..END_TRIES {
            match self.log_end() {
                log_end::SOUGHT => sleep(Duration::from_millis(1)),
                word if log_end::covers(word, end.0) => return Ok(()),
                _ => break,
            }
        }
        Err(Errno::IO.into())
    }
}
