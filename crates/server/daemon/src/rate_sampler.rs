//! How fast bytes move recently: counters are noted about once a second, for ten seconds.

use parking_lot::Mutex;
use serde::Serialize;
use std::collections::VecDeque;

/// Least time between two samples.
const EVERY_NS: u64 = 1_000_000_000;
/// Samples that are kept.
const SAMPLES: usize = 10;

/// Counters since the start, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) ns: u64,
    pub(crate) logged: u64,
    pub(crate) digested: u64,
    pub(crate) moved: u64,
}

/// Bytes a second, over the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RateStatus {
    /// Seconds that it is about: up to ten.
    pub seconds: f64,
    /// Of logs that were digested.
    pub logged_bytes_per_s: u64,
    /// Of data that digests brought into the volume.
    pub digested_bytes_per_s: u64,
    /// Moved between tiers, or to clean zones.
    pub moved_bytes_per_s: u64,
}

/// The last samples; the first of all is the start.
pub(crate) struct Sampler {
    samples: Mutex<VecDeque<Sample>>,
}

impl Default for Sampler {
    fn default() -> Self {
        let start = VecDeque::from([Sample::default()]);
        let samples = Mutex::new(start);
        Self { samples }
    }
}

impl Sampler {
    pub(crate) fn add(&self, now: Sample) {
        let mut samples = self.samples.lock();
        let last = samples.back();
        if last.is_some_and(|last| now.ns.saturating_sub(last.ns) < EVERY_NS) {
            return;
        }
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back(now);
    }

    /// From the oldest sample until now.
    pub(crate) fn until(&self, now: Sample) -> RateStatus {
        let first = self.samples.lock().front().copied().unwrap_or_default();
        let ns = now.ns.saturating_sub(first.ns).max(1);
        let rate = |now: u64, first: u64| {
            let bytes = u128::from(now.saturating_sub(first));
            (bytes * 1_000_000_000 / u128::from(ns)) as u64
        };
        RateStatus {
            seconds: (ns / 1_000_000) as f64 / 1000.0,
            logged_bytes_per_s: rate(now.logged, first.logged),
            digested_bytes_per_s: rate(now.digested, first.digested),
            moved_bytes_per_s: rate(now.moved, first.moved),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_seconds() {
        let sampler = Sampler::default();
        let at = |s: u64, moved| Sample {
            ns: s * EVERY_NS,
            moved,
            ..Sample::default()
        };
        // What moved before the first look counts, too.
        sampler.add(Sample { ns: 5, ..at(0, 10) });
        assert_eq!(sampler.until(at(2, 10)).moved_bytes_per_s, 5);
        for s in 1..=30 {
            sampler.add(at(s, 100 * s));
            sampler.add(Sample {
                ns: s * EVERY_NS + 5,
                ..at(0, 1 << 40)
            });
        }
        let rate = sampler.until(at(30, 3000));
        assert_eq!((rate.seconds, rate.moved_bytes_per_s), (9.0, 100));
        assert_eq!(sampler.until(at(60, 3000)).moved_bytes_per_s, 900 / 39);
        assert_eq!(sampler.samples.lock().len(), SAMPLES);
    }
}
