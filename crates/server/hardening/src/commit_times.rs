//! How long commits of batches take: from the moment when a thread takes the logs of those who wait until the device has said
//! that the batch is durable.

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::Serialize;

/// A time above this counts as this, in microseconds.
const US_MAX: u64 = 60_000_000;
/// Digits that are kept of a time: 1%, in about 35 KiB.
const DIGITS: u8 = 2;
/// Upper bounds of the buckets that `status` and metrics have, in microseconds.
const BOUNDS_US: [u64; 12] = [
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 50_000, 100_000, 1_000_000, US_MAX,
];

/// Times of all commits since the start of the daemon.
pub(crate) struct CommitTimes(Mutex<Histogram<u64>>);

/// How long commits took, for `status`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CommitTimesStatus {
    /// Half of them took less, in microseconds.
    pub p50_us: u64,
    /// 99 of 100 took less.
    pub p99_us: u64,
    /// The longest one.
    pub max_us: u64,
    /// The sum of all.
    pub total_us: u64,
    /// Numbers of commits by time; bounds rise, each commit is in one bucket.
    pub buckets: Vec<CommitBucket>,
}

/// Commits that took longer than the bucket before has, and at most so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CommitBucket {
    /// Longest time, in microseconds.
    pub to_us: u64,
    /// How many.
    pub commits: u64,
}

impl CommitTimes {
    pub(crate) fn new() -> Self {
        let bounded = Histogram::new_with_max(US_MAX, DIGITS);
        Self(Mutex::new(bounded.expect("these bounds are valid")))
    }

    pub(crate) fn note(&self, ns: u64) {
        self.0.lock().saturating_record((ns / 1000).max(1));
    }

    pub(crate) fn status(&self) -> CommitTimesStatus {
        let times = self.0.lock();
        let mut from = 0;
        let bucket = |to_us| {
            let commits = times.count_between(from, to_us);
            from = times.highest_equivalent(to_us) + 1;
            CommitBucket { to_us, commits }
        };
        let buckets = BOUNDS_US.map(bucket).to_vec();
        CommitTimesStatus {
            p50_us: times.value_at_quantile(0.5),
            p99_us: times.value_at_quantile(0.99),
            max_us: times.max(),
            total_us: (times.mean() * times.len() as f64) as u64,
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_commit_is_in_one_bucket() {
        let times = CommitTimes::new();
        assert_eq!(times.status().max_us, 0);
        for us in 1..=1000 {
            times.note(us * 1000);
        }
        times.note(u64::MAX);
        let status = times.status();
        let all: u64 = status.buckets.iter().map(|b| b.commits).sum();
        assert_eq!(all, 1001);
        let first = status.buckets[0].commits;
        assert!((48..=52).contains(&first), "{first}");
        assert!((495..=505).contains(&status.p50_us), "{}", status.p50_us);
        assert!((985..=1000).contains(&status.p99_us), "{}", status.p99_us);
        assert!(status.max_us >= US_MAX);
        let last = status.buckets.last().unwrap();
        assert_eq!(last.commits, 1, "what is longer counts as the longest");
    }
}
