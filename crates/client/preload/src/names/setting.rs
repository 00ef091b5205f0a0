//! Whether names are to be served in this process, and from when on: as the environment says.

use core::sync::atomic::{AtomicU32, Ordering};

/// Calls about paths of a mount after which they are served; [`NEVER`]: names are the kernel's.
static AFTER: AtomicU32 = AtomicU32::new(NEVER);
const NEVER: u32 = u32::MAX;

/// Takes settings from the environment.
pub fn configure() {
    let Ok(text) = std::env::var("SHALE_NAMES") else {
        return;
    };
    match text.parse::<u32>() {
        Ok(calls) => AFTER.store(calls.min(NEVER - 1), Ordering::Relaxed),
        Err(_) => crate::warning::warn(&format!(
            "SHALE_NAMES={text} is no number of calls: names are served by the mount"
        )),
    }
}

/// Whether names are to be served in this process at all.
#[inline]
pub fn are_wanted() -> bool {
    AFTER.load(Ordering::Relaxed) != NEVER
}

/// Calls about paths of a mount after which names are served.
pub fn after() -> u32 {
    AFTER.load(Ordering::Relaxed)
}
