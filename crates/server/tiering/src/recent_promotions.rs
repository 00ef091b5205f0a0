//! What has come back to NVM for a lease stays there for a while.
//!
//! A call may need several leases at a time, and where NVM is full something has to go down for each: what came
//! back for the first must not go down for the second, or the call never ends. How long a client takes from a lease
//! to the call that it is for nobody knows; so what has to come back again soon stays twice as long each time.

use parking_lot::Mutex;
use shale_volume::Result;
use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

/// So long the first time.
const FIRST: Duration = Duration::from_millis(100);
/// Never longer.
const MOST: Duration = Duration::from_secs(5);
/// What comes back no later than this after it could go has come back soon.
const SOON: Duration = Duration::from_secs(10);
/// Who needs a lease, and finds no space because others have to stay, waits no longer.
pub(super) const LEASE_WAIT: Duration = Duration::from_secs(10);
/// Who needs space for new things does not wait longer: where nothing can go but what is needed again at once, the
/// volume is full.
pub const SPACE_WAIT: Duration = Duration::from_millis(250);
/// More are not remembered without looking which are over.
const KEPT: usize = 4096;

struct Stay {
    until: Instant,
    time: Duration,
}

/// What has come back recently, by number.
#[derive(Default)]
pub(super) struct RecentPromotions {
    of: Mutex<HashMap<u64, Stay>>,
}

impl RecentPromotions {
    /// One has come back now.
    pub(super) fn note(&self, number: u64) {
        let now = Instant::now();
        let mut of = self.of.lock();
        if of.len() >= KEPT {
            of.retain(|_, stay| now < stay.until + SOON);
        }
        let again = of.get(&number).filter(|stay| now < stay.until + SOON);
        let time = again.map_or(FIRST, |stay| (stay.time * 2).min(MOST));
        let until = now + time;
        of.insert(number, Stay { until, time });
    }

    /// Whether one has to stay now.
    pub(super) fn stays(&self, number: u64) -> bool {
        let of = self.of.lock();
        of.get(&number).is_some_and(|s| Instant::now() < s.until)
    }

    /// When the next may go of those that have to stay.
    pub(super) fn next_end(&self) -> Option<Instant> {
        let now = Instant::now();
        let of = self.of.lock();
        of.values().map(|s| s.until).filter(|end| now < *end).min()
    }

    /// Has more and more go, until nothing goes and nothing has to stay. Gives how much.
    pub(super) fn until_all_may_go(&self, go: impl Fn() -> Result<u64>) -> Result<u64> {
        let mut gone = 0;
        loop {
            let end = self.next_end();
            match (go()?, end) {
                (0, None) => return Ok(gone),
                (0, Some(end)) => thread::sleep(end.saturating_duration_since(Instant::now())),
                (more, _) => gone += more,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_again_stays_longer() {
        let promoted = RecentPromotions::default();
        assert!(!promoted.stays(7));
        assert_eq!(promoted.next_end(), None);
        let begun = Instant::now();
        promoted.note(7);
        assert!(promoted.stays(7) && !promoted.stays(8));
        let first = promoted.next_end().unwrap();
        assert!(first >= begun + FIRST);
        thread::sleep(first - begun + Duration::from_millis(5));
        assert!(!promoted.stays(7));
        promoted.note(7);
        let again = Instant::now();
        assert!(promoted.next_end().unwrap() > again + FIRST);
        for _ in 0..10 {
            promoted.note(7);
        }
        assert!(promoted.next_end().unwrap() <= Instant::now() + MOST);
    }

    #[test]
    fn not_all_are_remembered() {
        let promoted = RecentPromotions::default();
        let over = Instant::now().checked_sub(SOON + MOST);
        let stay = |until| Stay { until, time: FIRST };
        let mut of = promoted.of.lock();
        of.extend((0..KEPT as u64).map(|n| (n, stay(over.unwrap()))));
        drop(of);
        promoted.note(1 << 40);
        assert_eq!(promoted.of.lock().len(), 1);
    }
}
