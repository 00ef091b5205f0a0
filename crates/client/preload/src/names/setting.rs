//! Whether names are to be served in this process, and from when on: as the environment says.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Calls about paths of a mount after which all names are served; or [`NEVER`], [`BY_TIME`].
static AFTER: AtomicU32 = AtomicU32::new(BY_TIME);
/// Names are the kernel's.
const NEVER: u32 = u32::MAX;
/// Those of a directory are served when that pays ([`super::worth`]).
const BY_TIME: u32 = u32::MAX - 1;

/// Names are served in this process, or about to be.
static SERVED: AtomicBool = AtomicBool::new(false);

/// Takes settings from the environment.
pub fn configure() {
    let Ok(text) = std::env::var("SHALE_NAMES") else {
        return;
    };
    match (text.as_str(), text.parse::<u32>()) {
        ("auto", _) => AFTER.store(BY_TIME, Ordering::Relaxed),
        ("off", _) => AFTER.store(NEVER, Ordering::Relaxed),
        (_, Ok(calls)) => AFTER.store(calls.min(BY_TIME - 1), Ordering::Relaxed),
        _ => shale_fd::warning::warn(&format!(
            "SHALE_NAMES={text} is neither auto, nor off, nor a number of calls: names are served by the mount"
        )),
    }
}

/// Names are the kernel's, whatever the environment says.
pub fn set_never() {
    AFTER.store(NEVER, Ordering::Relaxed);
}

/// Whether names are to be served in this process at all.
#[inline]
pub fn are_wanted() -> bool {
    AFTER.load(Ordering::Relaxed) != NEVER
}

/// Whether they are served where that pays. Else: all of them, after some calls.
#[inline]
pub fn is_by_time() -> bool {
    AFTER.load(Ordering::Relaxed) == BY_TIME
}

/// Calls about paths of a mount after which names are served, where it is not [by time](is_by_time).
pub fn after() -> u32 {
    AFTER.load(Ordering::Relaxed)
}

/// Names are about to be served in this process: who looks at what is done beside that (a child that is made) sees it.
#[inline]
pub fn begin_serving() {
    if !SERVED.load(Ordering::Relaxed) {
        // Locked, so before all that comes after.
        SERVED.swap(true, Ordering::SeqCst);
    }
}

/// In a child: none are.
pub fn begin_again() {
    SERVED.store(false, Ordering::Relaxed);
}

/// Whether names were served in this process: it stays a client for them, and may have placeholders.
pub fn have_served() -> bool {
    SERVED.load(Ordering::SeqCst)
}

/// As with `SHALE_NAMES=auto`.
#[cfg(test)]
pub fn set_by_time() {
    AFTER.store(BY_TIME, Ordering::Relaxed);
}
