//! Which gate a thread uses.

use shale_proto::control::client_page::GATES;
use std::cell::Cell;

/// The last gate is shared by all threads for which no other is left.
pub(crate) const SHARED: usize = GATES - 1;

static FREE: parking_lot::Mutex<[bool; GATES - 1]> = parking_lot::Mutex::new([true; GATES - 1]);
static OVERFLOW: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

/// Held by the one thread that is inside the shared gate.
pub(crate) type Overflow = parking_lot::MutexGuard<'static, ()>;

/// The gate number of a thread, given back when the thread ends.
struct Number(Cell<Option<usize>>);

impl Drop for Number {
    fn drop(&mut self) {
        if let Some(n) = self.0.get().filter(|&n| n != SHARED) {
            FREE.lock()[n] = true;
        }
    }
}

thread_local! {
    static NUMBER: Number = const { Number(Cell::new(None)) };
}

/// Has all that the calling thread's end runs noted now. That allocates with libc, whose locks a
/// fork of another thread may hold: not to be done first where such a fork waits for this thread.
pub fn prepare_thread() {
    number();
    shale_device::asymmetric::prepare_thread();
    // Those of a thread that has to wait for a lock.
    let lock = parking_lot::Mutex::new(());
    let never = parking_lot::Condvar::new();
    let _ = never.wait_for(&mut lock.lock(), std::time::Duration::ZERO);
}

/// Gate number of the calling thread.
#[inline(always)]
pub(crate) fn number() -> usize {
    NUMBER.with(|n| n.0.get().unwrap_or_else(|| take(n)))
}

#[cold]
fn take(number: &Number) -> usize {
    let mut free = FREE.lock();
    let found = free.iter().position(|&f| f).unwrap_or(SHARED);
    if found != SHARED {
        free[found] = false;
    }
    number.0.set(Some(found));
    found
}

/// What a thread with gate number `n` holds while it is inside.
#[inline(always)]
pub(crate) fn overflow(n: usize) -> Option<Overflow> {
    (n == SHARED).then(|| OVERFLOW.lock())
}
