//! Being inside the library: signals wait, calls that it makes itself pass, and a fork of another thread waits.

use crate::outcome::PANICKED;
use crate::protect;
use crate::stack;
use crate::thread::Thread;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use std::panic::catch_unwind;

/// Set at the end of the constructor; unset when nothing is served any more.
pub static READY: AtomicBool = AtomicBool::new(false);

/// The result of `f`; [`PANICKED`]: it panicked.
pub fn caught(f: impl FnOnce() -> i64) -> i64 {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(PANICKED)
}

/// Runs `f` with the thread marked inside and busy, on a stack of the library's. After a panic:
/// [`PANICKED`].
#[inline]
pub fn with_signals_blocked(thread: &Thread, mut f: impl FnMut() -> i64) -> i64 {
    with_signals_blocked_raw(thread, || {
        thread.begin();
        protect::open();
        // By reference, as all on this way: what is moved is loaded before it is stored.
        let f = &mut f;
        let top = thread.stack.load(Ordering::Relaxed);
        let work = || {
            let result = catch_unwind(AssertUnwindSafe(&mut *f));
            result.unwrap_or(PANICKED)
        };
        // SAFETY: the stack goes with this thread's slot, and is used here only: calls from inside do not come here.
        let result = unsafe { stack::call(top, work) };
        protect::close();
        thread.end();
        result
    })
}

/// Runs `f` with the thread marked inside only.
#[inline]
pub fn with_signals_blocked_raw(thread: &Thread, f: impl FnOnce() -> i64) -> i64 {
    thread.inside.store(1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    let result = f();
    compiler_fence(Ordering::SeqCst);
    thread.inside.store(0, Ordering::Relaxed);
    result
}
