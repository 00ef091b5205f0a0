//! Lines about what lasts, such as a full tier, come once in a while, not with each call that meets it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Least time between two lines about the same thing.
const PAUSE_NS: u64 = 60_000_000_000;

/// When a line was written last, 0: never.
#[derive(Debug, Default)]
pub(super) struct LogPace(AtomicU64);

impl LogPace {
    /// Whether a line may be written at `now_ns`, which counts from anywhere: then it is.
    pub(super) fn may(&self, now_ns: u64) -> bool {
        let now = now_ns.max(1);
        let last = self.0.load(Ordering::Relaxed);
        let is_time = last == 0 || now.saturating_sub(last) >= PAUSE_NS;
        let order = Ordering::Relaxed;
        is_time && self.0.compare_exchange(last, now, order, order).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute() {
        let pace = LogPace::default();
        assert!(pace.may(0) && !pace.may(5) && !pace.may(PAUSE_NS));
        assert!(pace.may(PAUSE_NS + 1) && !pace.may(PAUSE_NS + 2));
    }
}
