//! Locks, atomics and waiting of the lease protocol, in one place so that the model check
//! (`crates/harness/tests/leases`) can compile its files against its own: the table of leases,
//! taking them, passing gates, cutting off.

pub(crate) use parking_lot::{Condvar, Mutex};
pub(crate) use shale_device::{failpoints, mutants};
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

/// Turns of waiting for a gate with a pause instruction: most calls last microseconds.
pub(crate) const SPINS: u32 = 200;

/// One pause of a waiting loop.
pub(crate) fn pause() {
    std::hint::spin_loop();
}

/// Sleeps.
pub(crate) fn sleep(time: std::time::Duration) {
    std::thread::sleep(time);
}
