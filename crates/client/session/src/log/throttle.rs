//! Waiting outside of the read section and locks: where a limit is set on what this client writes, and where it
//! logs faster than its log is digested.
//!
//! A log that is full stops its writer until a chunk is digested, which can take a tenth of a second. So a writer is
//! slowed before: from some part on ([`FillMarks`]) it pauses for each so many bytes, and for twice as long with each step more.
//! So its speed converges where it logs as fast as is digested, whatever that is, and what a chunk gives back
//! and takes until the next moves it by a few steps. While digest keeps up, a log is not that full.

use crate::sync::sleep;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How full a log may become, in thousandths of its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FillMarks {
    /// From here on the daemon is asked to digest.
    pub digest_from: u64,
    /// From here on a writer is slowed.
    slow_from: u64,
    /// With so many more it pauses twice as long.
    double: u64,
}

impl FillMarks {
    /// Of a log whose records are durable: a chunk is a quarter of the ring at most, and the log is short when a lease moves.
    pub const STRICT: Self = Self {
        digest_from: 300,
        slow_from: 600,
        double: 40,
    };
    /// Of a log that is a write buffer: what is overwritten or removed in it is not written back, so it is left to fill, and is
    /// written back in chunks of half a ring (HiNFS §4.1 writes back when 5% are free, in single blocks).
    pub const BUFFERED: Self = Self {
        digest_from: 700,
        slow_from: 750,
        double: 25,
    };
}

/// Pause for [`UNIT_BYTES`] where a writer begins to be slowed.
const UNIT_NS: u64 = 20_000;
const UNIT_BYTES: u64 = 16 << 10;
/// Shorter pauses are saved up: to sleep takes longer.
const PAUSE_MIN_NS: u64 = 100_000;
/// Longest pause of one call.
const PAUSE_MAX_NS: u64 = 5_000_000;

/// How a client was slowed because its log filled, or space in the volume went, or by its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Pauses.
    pub pauses: u64,
    /// Nanoseconds of them.
    pub paused_ns: u64,
    /// Calls that found the log full and waited for a digest.
    pub stops: u64,
}

/// What is counted for [`Waits`], and where the log was when somebody paused last.
pub(crate) struct Pauses {
    marks: FillMarks,
    last: AtomicU64,
    count: AtomicU64,
    ns: AtomicU64,
    stops: AtomicU64,
}

impl Pauses {
    /// Of a log with these marks.
    pub(crate) fn new(marks: FillMarks) -> Self {
        Self {
            marks,
            last: AtomicU64::new(0),
            count: AtomicU64::new(0),
            ns: AtomicU64::new(0),
            stops: AtomicU64::new(0),
        }
    }

    /// How this client was slowed.
    pub(crate) fn waits(&self) -> Waits {
        Waits {
            pauses: self.count.load(Ordering::Relaxed),
            paused_ns: self.ns.load(Ordering::Relaxed),
            stops: self.stops.load(Ordering::Relaxed),
        }
    }

    /// Pauses if so much of a ring of `ring` bytes is in use, after `published`, that its digest does not keep up.
    #[cold]
    pub(crate) fn slow_down(&self, in_use: u64, published: u64, ring: u64) {
        let ns = self.due(in_use, published, ring);
        if ns > 0 {
            self.pause(ns);
        }
    }

    /// Waits for so long, and counts it. Outside of the read section and locks, so nobody waits for who waits here; and
    /// in this process, so that other threads may ask the daemon meanwhile.
    pub(crate) fn pause(&self, ns: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.ns.fetch_add(ns, Ordering::Relaxed);
        sleep(Duration::from_nanos(ns));
    }

    /// Counts a call that found the log full.
    pub(crate) fn count_stop(&self) {
        self.stops.fetch_add(1, Ordering::Relaxed);
    }

    /// A caller that finds that so much of a ring of `ring` bytes is in use, after `published`, has to
    /// pause so long, in nanoseconds; 0: not now. Of several threads one pauses for what all have logged.
    fn due(&self, in_use: u64, published: u64, ring: u64) -> u64 {
        let last = self.last.load(Ordering::Relaxed);
        // What was logged before it was so full is not paid for.
        let since = published.saturating_sub(last).min(ring / 64);
        let ns = self.marks.pause_ns(in_use, since, ring);
        if ns < PAUSE_MIN_NS {
            return 0;
        }
        let mine =
            self.last
                .compare_exchange(last, published, Ordering::Relaxed, Ordering::Relaxed);
        mine.map_or(0, |_| ns)
    }
}

impl FillMarks {
    /// How long to pause for `bytes` that were logged while `in_use` bytes of the ring are.
    fn pause_ns(&self, in_use: u64, bytes: u64, ring: u64) -> u64 {
        let full = (in_use.min(ring) * 1000 / ring).saturating_sub(self.slow_from);
        if full == 0 {
            return 0;
        }
        let (steps, rest) = (full / self.double, full % self.double);
        let unit = (UNIT_NS << steps) + (UNIT_NS << steps) * rest / self.double;
        (unit.saturating_mul(bytes) / UNIT_BYTES).min(PAUSE_MAX_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: u64 = 16 << 20;
    /// The marks of logs, with the largest chunk of their digest.
    const LOGS: [(FillMarks, u64); 2] = [
        (FillMarks::STRICT, RING / 4),
        (FillMarks::BUFFERED, RING / 2),
    ];

    #[test]
    fn a_pause_grows_with_the_log_and_has_a_bound() {
        let marks = FillMarks::STRICT;
        let at = |percent: u64| marks.pause_ns(RING / 100 * percent, UNIT_BYTES, RING);
        assert_eq!(at(0), 0);
        assert_eq!(at(60), 0, "while digest keeps up nobody pauses");
        assert!((61..=100).all(|p| at(p - 1) < at(p) || at(p) == PAUSE_MAX_NS));
        assert!((UNIT_NS..2 * UNIT_NS).contains(&at(62)));
        assert!(at(97) >= 2_000_000, "nearly full: nearly as slow as a stop");
        for marks in [FillMarks::STRICT, FillMarks::BUFFERED] {
            assert_eq!(marks.pause_ns(u64::MAX, u64::MAX, RING), PAUSE_MAX_NS);
            assert_eq!(marks.pause_ns(1 << 50, 1 << 30, 1 << 50), PAUSE_MAX_NS);
        }
    }

    /// A writer and a digest at these speeds, in bytes a millisecond, chunks of a part of the ring:
    /// the highest that the log gets, the longest pause and all pauses.
    fn run((marks, chunk): (FillMarks, u64), written: u64, digested: u64) -> (u64, u64, u64) {
        let pauses = Pauses::new(marks);
        let (mut now, mut published, mut reclaimed, mut upto) = (0u64, 0u64, 0u64, 0u64);
        let (mut done_at, mut most, mut longest, mut all) = (None::<u64>, 0, 0, 0);
        while now < 2_000_000_000 {
            // 128 bytes at a time.
            now += 128 * 1_000_000 / written;
            published += 128;
            let ns = pauses.due(published - reclaimed, published, RING);
            (longest, all, now) = (longest.max(ns), all + ns, now + ns);
            most = most.max(published - reclaimed);
            if done_at.is_some_and(|at| at <= now) {
                (reclaimed, done_at) = (upto, None);
            }
            if done_at.is_none() && published - reclaimed > RING / 1000 * marks.digest_from {
                upto = published.min(reclaimed + chunk);
                done_at = Some(now + (upto - reclaimed) * 1_000_000 / digested);
            }
        }
        (most, longest, all)
    }

    #[test]
    fn a_writer_converges_to_the_speed_of_digest_and_is_never_stopped() {
        for (written, digested) in [
            (200_000, 150_000),
            (200_000, 50_000),
            (400_000, 20_000),
            (1_000_000, 100_000),
        ] {
            for log in LOGS {
                let (most, longest, all) = run(log, written, digested);
                assert!(all > 0);
                assert!(most < RING, "{written} against {digested}: it was stopped");
                assert!(
                    longest <= PAUSE_MAX_NS,
                    "{written} against {digested}: {longest} ns"
                );
            }
        }
    }

    #[test]
    fn nobody_pauses_while_digest_keeps_up() {
        for (written, digested) in [(100_000, 110_000), (200_000, 400_000), (1000, 1200)] {
            assert_eq!(
                run(LOGS[0], written, digested).2,
                0,
                "{written} against {digested}"
            );
        }
        // More of it is digested at once.
        for (written, digested) in [(100_000, 1_200_000), (1000, 12_000)] {
            assert_eq!(
                run(LOGS[1], written, digested).2,
                0,
                "{written} against {digested}"
            );
        }
    }

    #[test]
    fn of_several_threads_one_pays() {
        let pauses = Pauses::new(FillMarks::STRICT);
        let in_use = RING / 10 * 9;
        assert!(pauses.due(in_use, RING, RING) > 0);
        assert_eq!(pauses.due(in_use, RING, RING), 0);
        assert_eq!(pauses.due(in_use, RING + 64, RING), 0, "saved up");
        assert!(pauses.due(in_use, RING + UNIT_BYTES, RING) > 0);
    }
}
