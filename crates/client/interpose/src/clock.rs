//! Time for deadlines, and for what calls take.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine started, exactly. Costs more.
pub fn exact_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds since the machine started, to a few milliseconds.
pub fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
