//! The gate: how the daemon knows that nobody is inside a call (DESIGN §9).
//!
//! A thread makes the sequence number of its gate odd when it enters a call and
//! even when it leaves. Entering costs a store and leaving another; the daemon
//! pays for the ordering with a `membarrier`. A thread inside waits for no one
//! who waits for the daemon, so the daemon's wait for it is short.

use shale_device::nvm::SharedWords;
use shale_proto::control::client_page::{GATES, gate};
use std::cell::Cell;
use std::sync::atomic::{Ordering, compiler_fence};

/// The last gate is shared by all threads for which no other is left.
pub(crate) const SHARED: usize = GATES - 1;

static FREE: parking_lot::Mutex<[bool; GATES - 1]> = parking_lot::Mutex::new([true; GATES - 1]);
static OVERFLOW: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

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

/// A thread inside a call; leaving on drop.
pub(crate) struct Inside<'a> {
    page: &'a SharedWords,
    at: usize,
    sequence: u64,
    _shared: Option<parking_lot::MutexGuard<'static, ()>>,
}

impl<'a> Inside<'a> {
    /// Enters. One call at a time per thread.
    #[inline]
    pub(crate) fn enter(page: &'a SharedWords) -> Self {
        Self::enter_as(page, number())
    }

    /// As [`Self::enter`]; `n` is the calling thread's number.
    #[inline(always)]
    pub(crate) fn enter_as(page: &'a SharedWords, n: usize) -> Self {
        let shared = (n == SHARED).then(|| OVERFLOW.lock());
        let at = gate(n);
        let sequence = page.load_u64(at) | 1;
        page.store_u64(at, sequence);
        compiler_fence(Ordering::SeqCst);
        Self {
            page,
            at,
            sequence,
            _shared: shared,
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.page.store_u64(self.at, self.sequence.wrapping_add(1));
    }
}
