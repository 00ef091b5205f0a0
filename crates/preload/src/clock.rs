//! Time for deadlines.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine started, to a few milliseconds.
pub fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
