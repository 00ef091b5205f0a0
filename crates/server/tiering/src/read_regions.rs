//! Which pieces below NVM are read often: what `promotion` brings to NVM.
//!
//! A piece that is read again after a pause counts more than one that goes on
//! being read: who reads a large file once, however slowly, leaves it where it is.

use std::collections::{HashMap, HashSet, VecDeque};

/// Looks in which a piece was read and had not been in the look before count this much, others 1.
const VISIT: u32 = 4;
/// A region with this much is promoted.
const ENOUGH: u32 = 3 * VISIT;
/// After this many looks (about 13 s) everything counts half.
const HALVED_AFTER: u64 = 64;
/// Pieces that are remembered.
const PIECES_MAX: usize = 1 << 16;
/// Pieces that wait for space; those that came first are forgotten.
const READY_MAX: usize = 1 << 12;

/// How often a piece was read below NVM.
#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    count: u32,
    last_look: u64,
    /// Looks in which it was read.
    looks: u64,
    /// Uses of pieces at the first of them.
    first: u64,
}

impl Reads {
    /// Uses of pieces from one look in which it was read to the next, if it is now.
    fn interval(&self, now: u64) -> u64 {
        (now - self.first) / self.looks.saturating_sub(1).max(1)
    }
}

/// A piece that was read often enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    pub(super) key: (u64, u64),
    /// Uses of pieces from one look in which it was read to the next.
    interval: u64,
}

/// Pieces below NVM that are read.
#[derive(Default)]
pub(super) struct Promotions {
    look: u64,
    pieces: HashMap<(u64, u64), Reads>,
    /// Those that were read often enough, in that order.
    ready: VecDeque<Ready>,
    /// The same.
    waiting: HashSet<(u64, u64)>,
}

impl Promotions {
    /// A look has begun, after `now` uses of pieces.
    pub(super) fn begin(&mut self, now: u64) {
        self.look += 1;
        if self.look.is_multiple_of(HALVED_AFTER) {
            self.pieces.retain(|_, reads| {
                reads.count /= 2;
                reads.looks /= 2;
                reads.first += (now - reads.first) / 2;
                reads.count > 0
            });
        }
    }

    /// A piece was read since the look before. `now`: uses of pieces so far.
    pub(super) fn note(&mut self, key: (u64, u64), now: u64) {
        if self.pieces.len() >= PIECES_MAX && !self.pieces.contains_key(&key) {
            return;
        }
        let look = self.look;
        let reads = self.pieces.entry(key).or_insert(Reads {
            first: now,
            ..Reads::default()
        });
        if reads.last_look == look {
            return;
        }
        let goes_on = reads.last_look + 1 == look && reads.count > 0;
        reads.count += if goes_on { 1 } else { VISIT };
        reads.looks += 1;
        reads.last_look = look;
        if reads.count >= ENOUGH {
            let interval = reads.interval(now);
            self.pieces.remove(&key);
            if self.waiting.insert(key) {
                self.ready.push_back(Ready { key, interval });
            }
            if self.ready.len() > READY_MAX {
                self.next();
            }
        }
    }

    /// Whether any was read often enough.
    pub(super) fn any_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Forgets those that come back no sooner than after `age` uses.
    pub(super) fn keep_hotter(&mut self, age: u64) {
        let waiting = &mut self.waiting;
        self.ready.retain(|r| {
            let kept = r.interval < age;
            if !kept {
                waiting.remove(&r.key);
            }
            kept
        });
    }

    /// The next that was read often enough.
    pub(super) fn next(&mut self) -> Option<Ready> {
        let next = self.ready.pop_front()?;
        self.waiting.remove(&next.key);
        Some(next)
    }

    /// It does not fit yet.
    pub(super) fn put_back(&mut self, ready: Ready) {
        if self.waiting.insert(ready.key) {
            self.ready.push_front(ready);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(looks: impl IntoIterator<Item = u64>) -> Option<u64> {
        let mut promotions = Promotions::default();
        for look in looks {
            while promotions.look < look {
                promotions.begin(promotions.look * 10);
            }
            promotions.note((7, 3), look * 10);
        }
        promotions.next().map(|ready| ready.interval)
    }

    #[test]
    fn what_comes_back_is_promoted_and_what_is_read_once_is_not() {
        assert_eq!(after([1, 10, 20]), Some(95));
        assert_eq!(after([1, 2, 3, 10, 11, 12, 20]), Some(22));
        assert_eq!(after([1, 10]), None);
        assert_eq!(after([1, 2, 3, 4, 5]), None);
        assert_eq!(after([1, 1, 1]), None);
        assert_eq!(after([1, 100, 200, 300, 400]), None, "too long ago");
    }

    /// Pieces of which one is read in each look, chosen by `next`, for which space is freed by what
    /// was not used for `age` looks: how many are promoted, and how often the first is.
    fn promoted(age: u64, mut next: impl FnMut(u64) -> u64) -> (usize, usize) {
        let (mut promotions, mut all, mut first) = (Promotions::default(), 0, 0);
        for look in 0..20_000 {
            promotions.begin(look);
            promotions.note((next(look), 0), look);
            promotions.keep_hotter(age);
            while let Some(ready) = promotions.next() {
                all += 1;
                first += usize::from(ready.key.0 == 0);
            }
        }
        (all, first)
    }

    #[test]
    fn what_is_read_evenly_stays_and_what_is_read_more_is_promoted() {
        let mut state = 1_u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 33
        };
        // A hundredth of the pieces would fit NVM.
        let (even, _) = promoted(1, |_| random() % 100);
        assert_eq!(even, 0);
        let (by_age, _) = promoted(10, |_| random() % 100);
        let (by_count, _) = promoted(u64::MAX, |_| random() % 100);
        assert!(
            by_count > 1_000 && by_age * 10 < by_count,
            "{by_age} of {by_count}"
        );
        let (all, first) = promoted(10, |look| if look % 4 == 0 { 0 } else { 1 + random() % 99 });
        assert!(first > 1_000 && all - first < first / 4, "{first} of {all}");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut promotions = Promotions::default();
        promotions.begin(0);
        for n in 0..2 * PIECES_MAX as u64 {
            promotions.note((n, 0), n);
        }
        assert_eq!(promotions.pieces.len(), PIECES_MAX);
        let uses = 2 * PIECES_MAX as u64;
        for look in 0..6 * READY_MAX as u64 {
            promotions.begin(uses + look);
            for n in 0..4 {
                // Each comes to a third visit after two pauses, and some come again.
                promotions.note((look / 6 * 4 + n, 0), uses + look);
            }
            promotions.begin(uses + look);
        }
        assert!(promotions.ready.len() <= READY_MAX);
        assert_eq!(promotions.ready.len(), promotions.waiting.len());
        assert!(
            promotions.ready.len() > READY_MAX / 2,
            "{}",
            promotions.ready.len()
        );
    }
}
