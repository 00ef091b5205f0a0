//! Limits: on the size of files (`RLIMIT_FSIZE`), as writes obey it, and on the number of descriptors.
//!
//! The first is asked for once, and again after the program has set a limit. That another process
//! sets it is not noticed.

use core::sync::atomic::{AtomicU64, Ordering};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shale_interpose::raw;

/// Not known: no limit has this value, which is a byte below "none".
const NOT_KNOWN: u64 = u64::MAX - 1;
static FILE_BYTES: AtomicU64 = AtomicU64::new(NOT_KNOWN);

/// Most bytes that a file may have; `u64::MAX`: no limit.
#[inline]
pub fn file_bytes() -> u64 {
    let known = FILE_BYTES.load(Ordering::Relaxed);
    if known != NOT_KNOWN {
        return known;
    }
    let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    FILE_BYTES.store(limit, Ordering::Relaxed);
    limit
}

/// Ask again.
pub fn forget() {
    FILE_BYTES.store(NOT_KNOWN, Ordering::Relaxed);
}

/// What a call returns that would exceed the limit; the thread gets the signal.
pub fn exceeded() -> i64 {
    const TGKILL: u32 = 234;
    let args = [
        raw::getpid() as u64,
        raw::gettid() as u64,
        libc::SIGXFSZ as u64,
        0,
        0,
        0,
    ];
    // SAFETY: no pointers.
    unsafe { raw::syscall(TGKILL, &args) };
    raw::fail(libc::EFBIG)
}

/// Makes a descriptor beyond the limit on their numbers, as far as this process may raise that; `None`: it may not.
pub fn above_number<T>(make: impl FnOnce() -> T) -> Option<T> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if setrlimit(Resource::Nofile, raised).is_err() {
        return None;
    }
    let made = make();
    // It was the limit a moment ago, so it can be the limit again.
    let _ = setrlimit(Resource::Nofile, limit);
    Some(made)
}
