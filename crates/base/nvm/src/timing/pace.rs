//! How the time of a model passes: on a virtual clock, or by waiting.
//!
//! Invariant: time never goes back.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shale_sys::clock::{Clock, calibrate};

/// Below this a timer is too coarse, and the rest is spun.
const SPIN_NS: u64 = 100_000;

/// A clock, and what it means to wait for it.
#[derive(Clone)]
pub struct Pace {
    /// Virtual time, unless there is a real clock.
    now_ns: Arc<AtomicU64>,
    real: Option<(Arc<dyn Clock>, u64)>,
}

impl Pace {
    /// Time that passes only by waiting, and costs nothing. Starts at 0.
    pub fn of_virtual_time() -> Self {
        Pace {
            now_ns: Arc::default(),
            real: None,
        }
    }

    /// The time of `clock` from now on: who waits sleeps.
    pub fn of_real_time(clock: Arc<dyn Clock>) -> Self {
        let start_ns = clock.monotonic_ns();
        Pace {
            now_ns: Arc::default(),
            real: Some((clock, start_ns)),
        }
    }

    /// Nanoseconds since the start.
    pub fn now_ns(&self) -> u64 {
        match &self.real {
            Some((clock, start_ns)) => clock.monotonic_ns() - start_ns,
            None => self.now_ns.load(Ordering::Acquire),
        }
    }

    /// Returns when `until_ns` has come. Virtual time is then not before it.
    pub fn wait_until_ns(&self, until_ns: u64) {
        if self.real.is_none() {
            self.now_ns.fetch_max(until_ns, Ordering::AcqRel);
            return;
        }
        loop {
            let left_ns = until_ns.saturating_sub(self.now_ns());
            match left_ns {
                0 => return,
                1..=SPIN_NS => calibrate().spin_ns(left_ns),
                _ => std::thread::sleep(Duration::from_nanos(left_ns - SPIN_NS / 2)),
            }
        }
    }
}

impl fmt::Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pace")
            .field("real", &self.real.is_some())
            .field("now_ns", &self.now_ns())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_sys::clock::SystemClock;

    #[test]
    fn virtual_time_is_moved_and_never_back() {
        let pace = Pace::of_virtual_time();
        pace.wait_until_ns(70);
        pace.wait_until_ns(50);
        assert_eq!(pace.now_ns(), 70);
    }

    #[test]
    fn real_time_is_waited_for() {
        let pace = Pace::of_real_time(Arc::new(SystemClock::new()));
        pace.wait_until_ns(300_000);
        assert!(pace.now_ns() >= 300_000);
    }
}
