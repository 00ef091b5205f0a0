//! The program's stray stores do not reach what LibFS writes: log, control page and granted
//! segments are open to a thread only while it is inside a served call.
//!
//! The key is made before the program runs, so that every call finds it in place. A signal
//! handler runs with all keys closed, and calls that it makes open this one as others do; the
//! interrupted call has it open again when the handler returns. Threads and children begin
//! outside of calls, so they begin closed. Between two instructions of
//! [`crate::thread::Thread::begin`] nothing of LibFS runs.

use core::sync::atomic::{AtomicU32, Ordering};
use shale_device::ProtectionKey;

/// Number of the key; 0: none.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Takes the setting from the environment: `SHALE_PROTECT=on` (or `1`), where the processor has
/// keys. Off otherwise: two changes of the register cost a call some 25 ns.
#[cfg(not(test))]
pub fn configure() {
    let wanted = std::env::var("SHALE_PROTECT").is_ok_and(|v| v == "on" || v == "1");
    if let Some(key) = wanted.then(ProtectionKey::alloc).flatten() {
        key.close();
        KEY.store(key.number(), Ordering::Release);
    }
}

/// The key, if there is one.
#[inline(always)]
pub fn key() -> Option<ProtectionKey> {
    match KEY.load(Ordering::Relaxed) {
        0 => None,
        number => Some(ProtectionKey::of(number)),
    }
}

/// The thread goes into LibFS.
#[inline(always)]
pub fn open() {
    if let Some(key) = key() {
        key.open();
    }
}

/// It comes out.
#[inline(always)]
pub fn close() {
    if let Some(key) = key() {
        key.close();
    }
}
