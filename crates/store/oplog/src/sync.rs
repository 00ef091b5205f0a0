//! Atomics and locks of the ring's protocol, in one place so that the model check
//! (`tests/protocol.rs`) can compile [`crate::ring`] against its own.

pub(crate) use shale_sys::biased_rwlock::barrier;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};
pub(crate) use std::sync::{Condvar, Mutex};

/// Turns of the waiting loop with a pause instruction: some microseconds, longer than
/// another thread needs to fill a small record.
pub(crate) const SPINS: u32 = 100;
/// Turns after that which give the processor away; then the thread sleeps.
pub(crate) const YIELDS: u32 = 16;

/// One pause of a waiting loop.
pub(crate) fn spin() {
    std::hint::spin_loop();
}

/// Lets another thread run.
pub(crate) fn yield_now() {
    std::thread::yield_now();
}
