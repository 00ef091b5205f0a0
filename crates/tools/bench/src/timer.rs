//! Times of single operations, less what taking the time costs.
//!
//! A full barrier comes before each reading, so that stores which are still on their
//! way belong to the operation that made them. The reading is the standard library's,
//! because the kernel's clock behind it lets no earlier load be unfinished when it reads
//! the counter: a bare reading overtakes loads that miss the caches, and then a read of
//! 64 bytes seems to cost nothing. It is the same for every target; its cost is
//! measured and taken off.
//!
//! The counter of some processors moves in steps (10 ns on AMD). Readings then tell the
//! step that a value falls into, and where in it is found from how many fall into
//! each: the median of grouped values. Such a median is good to about a nanosecond.

use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use hdrhistogram::Histogram;

/// Readings of the empty interval.
const OVERHEAD_SAMPLES: usize = 50_000;

/// Significant digits of the histograms.
const DIGITS: u8 = 3;

/// Longest interval that is distinguished from longer ones: ten minutes.
const LONGEST_NS: u64 = 600_000_000_000;

/// An empty histogram of nanoseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("bounds are legal")
}

/// Times single operations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timer {
    begin: Instant,
    step_ns: u64,
    overhead_ns: f64,
}

impl Timer {
    /// Measures the empty interval: some milliseconds.
    pub(crate) fn new() -> Self {
        let mut timer = Timer {
            begin: Instant::now(),
            step_ns: 1,
            overhead_ns: 0.0,
        };
        let mut empty = histogram();
        let mut last_ns = timer.now_ns();
        for _ in 0..OVERHEAD_SAMPLES {
            let now_ns = timer.now_ns();
            empty.saturating_record(now_ns - last_ns);
            last_ns = now_ns;
        }
        timer.step_ns = step(&empty);
        timer.overhead_ns = grouped_median(&empty, timer.step_ns);
        timer
    }

    /// Nanoseconds since some fixed moment.
    #[inline(always)]
    pub(crate) fn now_ns(&self) -> u64 {
        fence(Ordering::SeqCst);
        (Instant::now() - self.begin).as_nanos() as u64
    }

    /// The median of raw intervals, less the overhead, not below 0.
    pub(crate) fn median_ns(&self, raw: &Histogram<u64>) -> f64 {
        self.net_ns(grouped_median(raw, self.step_ns))
    }

    /// A raw interval, or a mean of some, less the overhead, not below 0.
    pub(crate) fn net_ns(&self, raw_ns: f64) -> f64 {
        (raw_ns - self.overhead_ns).max(0.0)
    }

    /// What an empty interval reads, in nanoseconds.
    pub(crate) fn overhead_ns(&self) -> f64 {
        self.overhead_ns
    }

    /// The steps in which the counter moves, in nanoseconds; 1 if finer.
    pub(crate) fn step_ns(&self) -> u64 {
        self.step_ns
    }
}

/// The steps in which intervals differ: the least distance between two that are frequent.
/// Conversion to nanoseconds makes a step one longer or shorter now and then, so
/// neighbours count as one value.
fn step(values: &Histogram<u64>) -> u64 {
    let frequent = values.len() / 200;
    let mut seen: Vec<u64> = values
        .iter_recorded()
        .filter(|entry| entry.count_at_value() > frequent)
        .map(|entry| entry.value_iterated_to())
        .collect();
    seen.dedup_by(|next, last| *next - *last <= 1);
    let gaps = seen.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.min().unwrap_or(1)
}

/// The median of values that are known to a step: as if those of each step lay
/// evenly around it.
fn grouped_median(values: &Histogram<u64>, step: u64) -> f64 {
    let rank = values.len() as f64 / 2.0;
    let step = step.max(1) as f64;
    let mut groups: Vec<(f64, f64)> = Vec::new();
    for entry in values.iter_recorded() {
        // Conversion to nanoseconds makes a step one longer or shorter now and then.
        let group = (entry.value_iterated_to() as f64 / step).round();
        let count = entry.count_at_value() as f64;
        match groups.last_mut() {
            Some((last, sum)) if *last == group => *sum += count,
            _ => groups.push((group, count)),
        }
    }
    let mut below = 0.0;
    for (group, count) in groups {
        if below + count >= rank {
            return (group - 0.5 + (rank - below) / count) * step;
        }
        below += count;
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_what_was_spent_in_it() {
        let timer = Timer::new();
        assert!(timer.overhead_ns() < 10_000.0, "{timer:?}");
        assert!((1..10_000).contains(&timer.step_ns()), "{timer:?}");
        let start = timer.now_ns();
        let spin = Instant::now();
        while spin.elapsed().as_nanos() < 300_000 {
            std::hint::spin_loop();
        }
        let spent = timer.net_ns((timer.now_ns() - start) as f64);
        assert!((280_000.0..100_000_000.0).contains(&spent), "{spent}");
    }

    #[test]
    fn a_median_is_found_within_a_step() {
        // True value 57, seen through a counter that moves by 10 from any phase.
        let mut seen = histogram();
        for phase in 0..10_000 {
            let start = phase % 10;
            seen.record((start + 57) / 10 * 10 - start / 10 * 10)
                .unwrap();
        }
        let median = grouped_median(&seen, 10);
        assert!((55.0..59.0).contains(&median), "{median}");
        assert_eq!(grouped_median(&histogram(), 10), 0.0);
        assert_eq!(step(&seen), 10);
        let mut long = histogram();
        long.saturating_record(5_000_000);
        assert!((4_990_000.0..5_010_000.0).contains(&grouped_median(&long, 10)));
        let mut exact = histogram();
        for value in [100, 200, 300] {
            exact.record(value).unwrap();
        }
        assert!((199.0..=201.0).contains(&grouped_median(&exact, 1)));
    }
}
