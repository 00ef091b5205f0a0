//! Whether threads of this process may be cancelled (pthread_cancel(3)).
//!
//! Of a thread that is cancelled in the middle of the library locks would stay held, and libc ends the program where the unwinding meets
//! code that catches panics. Where libc cancels a thread at once, while it makes a system call, it sends a signal,
//! which waits until the call is served ([`crate::signals`]).
//!
//! A call that is served is the cancellation point that it is in libc, at its begin: by way of a call site libc itself looks,
//! by way of an exported symbol the trampoline, once there can be something to be seen.

use core::sync::atomic::{AtomicU32, Ordering};

/// The signal by which glibc cancels a thread.
pub(crate) const SIGCANCEL: usize = 32;

/// Not 0 when a thread of this process may have been cancelled.
pub(crate) static CANCELS: AtomicU32 = AtomicU32::new(0);

/// A handler for `signal` is about to be set: glibc sets the one for its own signal before the first thread is cancelled.
pub(crate) fn note_handler(signal: usize) {
    if signal == SIGCANCEL {
        CANCELS.store(1, Ordering::Relaxed);
    }
}
