//! Requests of the kernel that are in progress hold back the tail: until the answer
//! is sent, the log keeps what was done for them, so that a request that is sent
//! again after a crash is not done again.
//!
//! A request begins without a hold. It takes one after it has its permit and before
//! it reserves: a request that waits for space therefore holds nothing, or a full ring
//! would never get a new tail. For the same reason a request takes one permit for
//! everything it will append.

use parking_lot::Mutex;
use shale_format::LogPos;
use std::collections::BTreeSet;

/// The holds of one log. Its lock is a leaf.
#[derive(Default)]
pub struct InFlight {
    holds: Mutex<Holds>,
}

#[derive(Default)]
struct Holds {
    /// Position and number of each hold; the number tells equal positions apart.
    all: BTreeSet<(LogPos, u64)>,
    next: u64,
}

/// The hold of one request; dropped when its answer has been sent.
#[must_use = "the hold ends when it is dropped"]
pub struct TailPin<'a> {
    of: &'a InFlight,
    key: (LogPos, u64),
}

impl InFlight {
    /// Holds back the tail at `from()`, which says the writer's `reserved` position. It
    /// is asked under the lock, so a tail computed before cannot be above a record
    /// that is reserved afterwards.
    pub fn hold(&self, from: impl FnOnce() -> LogPos) -> TailPin<'_> {
        let mut holds = self.holds.lock();
        let key = (from(), holds.next);
        holds.next += 1;
        holds.all.insert(key);
        TailPin { of: self, key }
    }

    /// Position of the oldest hold.
    pub fn oldest(&self) -> Option<LogPos> {
        self.holds.lock().all.first().map(|&(pos, _)| pos)
    }

    /// How far the tail may go when everything before `digested` is in the volume.
    pub fn tail_limit(&self, digested: LogPos) -> LogPos {
        self.oldest()
            .map_or(digested, |oldest| oldest.min(digested))
    }
}

impl TailPin<'_> {
    /// The position that is held: not above the request's first record.
    pub fn pos(&self) -> LogPos {
        self.key.0
    }
}

impl Drop for TailPin<'_> {
    fn drop(&mut self) {
        self.of.holds.lock().all.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_hold_limits_the_tail() {
        let inflight = InFlight::default();
        assert_eq!(inflight.tail_limit(LogPos(900)), LogPos(900));
        let late = inflight.hold(|| LogPos(640));
        let early = inflight.hold(|| LogPos(128));
        let same = inflight.hold(|| LogPos(128));
        assert_eq!(inflight.tail_limit(LogPos(900)), LogPos(128));
        assert_eq!(inflight.tail_limit(LogPos(64)), LogPos(64));
        drop(early);
        assert_eq!(inflight.oldest(), Some(LogPos(128)), "its twin still holds");
        drop(same);
        assert_eq!(inflight.oldest(), Some(LogPos(640)));
        drop(late);
        assert_eq!(inflight.oldest(), None);
    }
}
