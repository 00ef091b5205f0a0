//! The program's stray stores do not reach what LibFS writes: log, control page and granted
//! segments are open to a thread only while it is inside a served call.
//!
//! The key is made before the program runs, so that every call finds it in place. A signal
//! handler runs with all keys closed, and calls that it makes open this one as others do; the
//! interrupted call has it open again when the handler returns. Threads and children begin
//! outside of calls, so they begin closed. Between two instructions of
//! [`crate::thread::Thread::begin`] nothing of LibFS runs.

use shale_sys::{LibraryKey, ProtectionKey};

static KEY: LibraryKey = LibraryKey::new();

/// Makes the key, unless the environment says not to (`SHALE_PROTECT=off`): two changes of the
/// register cost a call some 24 ns.
#[cfg(not(test))]
pub fn configure() {
    KEY.make();
}

/// The key, if there is one.
#[inline(always)]
pub fn key() -> Option<ProtectionKey> {
    KEY.get()
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
