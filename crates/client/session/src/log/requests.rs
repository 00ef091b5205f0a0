//! Requests of the kernel that are not answered yet.
//!
//! Until the answer has gone out, the log keeps the request's records: a daemon
//! that takes over after a crash finds in them what was done, and answers the
//! request, when the kernel sends it again, without doing it twice (DESIGN §12).

use crate::caller::Caller;
use parking_lot::Mutex;
use shale_format::LogPos;
use shale_oplog::{Done, Recent};
use shale_sys::mutants;
use std::collections::HashMap;

/// The requests in progress and the log position at which each began, and what those did that were in progress when the
/// daemon died.
#[derive(Default)]
pub struct Requests {
    began: Mutex<HashMap<u64, LogPos>>,
    recent: Recent,
}

impl Requests {
    /// `recent`: what was done before a crash.
    pub(crate) fn new(recent: Recent) -> Self {
        Self {
            began: Mutex::default(),
            recent,
        }
    }

    /// What the caller's request did before a crash, if it did something.
    #[inline]
    pub fn done_before(&self, caller: &Caller) -> Option<Done> {
        if caller.request == 0 || self.recent.is_empty() {
            return None;
        }
        self.recent.get(caller.request)
    }

    /// Where the caller's request began to write before a crash, and how many bytes it
    /// wrote, if it did.
    #[inline]
    pub fn written_before(&self, caller: &Caller) -> Option<(u64, u64)> {
        self.done_before(caller)
            .map(|done| (done.offset, done.bytes))
    }

    /// Request `request` may append records from `reserved()` on, which is asked
    /// under the lock. Beginning twice keeps the first position.
    pub(crate) fn begin(&self, request: u64, reserved: impl FnOnce() -> LogPos) {
        self.began.lock().entry(request).or_insert_with(reserved);
    }

    /// All requests that are sent again after a crash have been read.
    pub fn resent_are_read(&self) {
        self.recent.resent_are_read();
    }

    /// The answer to `request` has gone out.
    pub fn answered(&self, request: u64) {
        self.began.lock().remove(&request);
    }

    /// How far the log's tail may go when everything before `limit` is in the volume.
    pub(crate) fn tail_limit(&self, limit: LogPos) -> LogPos {
        if mutants::is_on("requests-tail") {
            return limit;
        }
        self.began.lock().values().copied().fold(limit, LogPos::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_unanswered_request_holds_the_tail() {
        let r = Requests::default();
        r.begin(7, || LogPos(100));
        r.begin(9, || LogPos(200));
        r.begin(7, || LogPos(300));
        assert_eq!(r.tail_limit(LogPos(500)), LogPos(100));
        r.answered(7);
        assert_eq!(r.tail_limit(LogPos(500)), LogPos(200));
        r.answered(9);
        assert_eq!(r.tail_limit(LogPos(500)), LogPos(500));
    }
}
