//! Locks, atomics and waiting of the lease protocol, in one place so that the model check
//! (`crates/proof/harness/tests/leases`) can compile its files against its own: the table of leases,
//! taking them, waiting for readers, cutting off.

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
pub use shale_sys::{failpoints, mutants};
pub use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Steps of waiting for a reader with a pause instruction: most calls last microseconds.
pub const SPINS: u32 = 200;

/// One pause of a waiting loop.
pub fn pause() {
    std::hint::spin_loop();
}

/// A sleep counts as long as it took, but no longer than this: a thread that was not run for that time
/// was held up as much as those it waits for.
const SLEEP_COUNTED_MAX: Duration = Duration::from_millis(20);

/// Sleeps; how long that counts.
pub fn backoff_sleep(time: Duration) -> Duration {
    let begun = Instant::now();
    std::thread::sleep(time);
    begun.elapsed().clamp(time, SLEEP_COUNTED_MAX.max(time))
}

/// Lets a thread that waits for a lock have it first, if somebody does; then it is held again.
pub fn let_pass<T>(held: &mut MutexGuard<'_, T>) {
    MutexGuard::bump(held);
}
