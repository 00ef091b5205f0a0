//! How fast migration may be: what moves is owed, and is paid off at the rate of the limit.

use super::move_request::BLOCK;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Blocks that are moved at once at least, however low the limit is.
const FEW_BLOCKS: u64 = 16;

/// How fast migration may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Speed {
    /// Nothing moves unless somebody waits for space.
    pub paused: bool,
    /// Bytes a second; 0: no limit.
    pub limit: u64,
}

impl Speed {
    /// Blocks that may move at once: those of a second, if that is no more than `most`.
    pub(super) fn at_once(self, most: u64) -> u64 {
        match self.limit {
            0 => most,
            limit => (limit / BLOCK).max(FEW_BLOCKS).min(most),
        }
    }
}

/// What has moved and is not paid off.
pub(super) struct Debt(Mutex<(f64, Instant)>);

impl Default for Debt {
    fn default() -> Self {
        Debt(Mutex::new((0.0, Instant::now())))
    }
}

impl Debt {
    /// Bytes more are owed, and time has passed at a limit. Gives the time that the rest takes.
    pub(super) fn add(&self, bytes: u64, limit: u64) -> Duration {
        let mut debt = self.0.lock();
        let (owed, since) = *debt;
        let now = Instant::now();
        let rate = limit as f64;
        let paid = now.duration_since(since).as_secs_f64() * rate;
        let owed = match limit {
            0 => 0.0,
            _ => (owed - paid).max(0.0) + bytes as f64,
        };
        *debt = (owed, now);
        match owed > 0.0 {
            true => Duration::try_from_secs_f64(owed / rate).unwrap_or(Duration::MAX),
            false => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moved_is_paid_off_at_the_limit() {
        let debt = Debt::default();
        assert_eq!(debt.add(1 << 20, 0), Duration::ZERO, "no limit");
        let left = debt.add(1 << 20, 100 << 10).as_secs_f64();
        assert!((10.0..10.3).contains(&left), "{left}");
        let left = debt.add(1 << 20, 1 << 20).as_secs_f64();
        assert!((1.8..2.1).contains(&left), "{left}");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(
            debt.add(0, 1 << 30),
            Duration::ZERO,
            "idle time saves nothing"
        );
        let left = debt.add(1 << 30, 1 << 30).as_secs_f64();
        assert!((0.99..1.01).contains(&left), "{left}");
        assert_eq!(debt.add(1, 0), Duration::ZERO, "the limit is taken away");
    }

    #[test]
    fn batches_are_a_second_long_at_most() {
        let of = |limit| {
            let paused = false;
            Speed { paused, limit }.at_once(1024)
        };
        assert_eq!([0, 1, 1 << 20, 1 << 40].map(of), [1024, 16, 256, 1024]);
        let slow = Speed {
            limit: 1,
            ..Speed::default()
        };
        assert_eq!(slow.at_once(1), 1, "no more than there is");
    }
}
