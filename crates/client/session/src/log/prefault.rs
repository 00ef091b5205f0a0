//! Pages of an update log that are present before they are stored to.
//!
//! A store to a page that is not costs a fault, a microsecond or so, and 21 records of 128 bytes
//! fill a page. So while the log is gone through for the first time, the kernel is asked for
//! the next part of it at once, which costs a third of that. A program that writes little
//! pays for little.

use shale_format::log::RING_AT;
use shale_nvm::Map;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Made present at a time.
const STEP_BYTES: u64 = 512 << 10;
/// The first time: many programs write no more.
const FIRST_BYTES: u64 = 128 << 10;
/// The next step is made when this much or less is left of the last one. It may be less than
/// what many threads write in the time that takes: then they fault, as they would.
const AHEAD_BYTES: u64 = 64 << 10;

/// How far a log is present.
pub(crate) struct Prefault {
    map: Arc<Map>,
    ring_bytes: u64,
    /// Log position up to which it was made present.
    upto: AtomicU64,
    /// Log position from which on it is so everywhere: one lap of the ring from its begin.
    all: u64,
}

impl Prefault {
    /// A log that begins at position `start` and has not been touched; `ring_bytes` 0: one that
    /// is present everywhere.
    pub(crate) fn new(map: Arc<Map>, start: u64, ring_bytes: u64) -> Self {
        Self {
            map,
            ring_bytes,
            upto: AtomicU64::new(start),
            all: start + ring_bytes,
        }
    }

    /// Somebody will soon write at position `at`.
    #[inline]
    pub(crate) fn look_ahead(&self, at: u64) {
        let upto = self.upto.load(Ordering::Relaxed);
        if upto < self.all && at + AHEAD_BYTES >= upto {
            self.step(upto);
        }
    }

    /// Positions `range` will be written now, which may be many steps. What was left out before them is not made present.
    pub(crate) fn cover(&self, range: Range<u64>) {
        let mut upto = self.upto.load(Ordering::Relaxed);
        if upto < range.start && range.start < self.all {
            let skipped =
                self.upto
                    .compare_exchange(upto, range.start, Ordering::Relaxed, Ordering::Relaxed);
            upto = skipped.map_or_else(|now| now, |_| range.start);
        }
        while upto < self.all && range.end + AHEAD_BYTES >= upto {
            self.step(upto);
            upto = self.upto.load(Ordering::Relaxed);
        }
    }

    #[cold]
    fn step(&self, from: u64) {
        let place = from % self.ring_bytes;
        let step = match from == self.all - self.ring_bytes {
            true => FIRST_BYTES,
            false => STEP_BYTES,
        };
        let bytes = step.min(self.all - from).min(self.ring_bytes - place);
        let mine =
            self.upto
                .compare_exchange(from, from + bytes, Ordering::Relaxed, Ordering::Relaxed);
        if mine.is_ok() {
            let at = RING_AT + place as usize;
            self.map.expect_stores(at, bytes as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the map that are in memory: it has none to begin with.
    fn in_memory(map: &Map) -> u64 {
        let fd = map.fds().next().unwrap();
        rustix::fs::fstat(fd).unwrap().st_blocks as u64 * 512
    }

    #[test]
    fn one_turn_is_made_present_step_by_step() {
        let ring: u64 = 4 << 20;
        let map = Arc::new(Map::anonymous(RING_AT + ring as usize).unwrap());
        let start = ring - FIRST_BYTES / 2;
        let present = Prefault::new(map.clone(), start, ring);
        assert_eq!(in_memory(&map), 0);
        present.look_ahead(start);
        assert_eq!(in_memory(&map), FIRST_BYTES / 2, "up to the ring's end");
        present.look_ahead(start + FIRST_BYTES / 2 - AHEAD_BYTES);
        let present_now = FIRST_BYTES / 2 + STEP_BYTES;
        assert_eq!(in_memory(&map), present_now);
        present.look_ahead(start + present_now - AHEAD_BYTES - 1);
        assert_eq!(in_memory(&map), present_now, "enough for now");
        present.look_ahead(start + present_now - AHEAD_BYTES);
        assert_eq!(in_memory(&map), present_now + STEP_BYTES);
        for at in (start..start + 3 * ring).step_by(4096) {
            present.look_ahead(at);
        }
        assert_eq!(in_memory(&map), ring, "and not its header");
        let whole = Arc::new(Map::anonymous(RING_AT).unwrap());
        Prefault::new(whole.clone(), 0, 0).look_ahead(5);
        assert_eq!(in_memory(&whole), 0);
    }

    #[test]
    fn a_range_is_made_present_as_a_whole_and_what_was_left_out_before_it_is_not() {
        let ring: u64 = 8 << 20;
        let map = Arc::new(Map::anonymous(RING_AT + ring as usize).unwrap());
        let present = Prefault::new(map.clone(), 0, ring);
        let upto = |at: u64| {
            FIRST_BYTES + (at + AHEAD_BYTES - FIRST_BYTES) / STEP_BYTES * STEP_BYTES + STEP_BYTES
        };
        present.cover(0..3 * STEP_BYTES);
        assert_eq!(in_memory(&map), upto(3 * STEP_BYTES));
        present.cover(STEP_BYTES..2 * STEP_BYTES);
        assert_eq!(in_memory(&map), upto(3 * STEP_BYTES), "once");
        present.cover(ring - STEP_BYTES..ring - STEP_BYTES + 64);
        let both = upto(3 * STEP_BYTES) + STEP_BYTES;
        assert_eq!(in_memory(&map), both, "not what is between");
        present.cover(ring - 64..ring + ring / 2);
        present.cover(3 * ring..4 * ring);
        assert_eq!(in_memory(&map), both, "one lap");
    }
}
