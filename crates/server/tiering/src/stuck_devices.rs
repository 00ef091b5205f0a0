//! Devices that could not be emptied: why, and when each is tried again.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// A device that cannot be emptied now, and why.
struct Stuck {
    uuid: [u8; 16],
    why: String,
    since: Instant,
}

/// Devices that cannot be emptied now, by identity.
#[derive(Default)]
pub(super) struct StuckDevices(Mutex<Vec<Stuck>>);

impl StuckDevices {
    /// Why a device cannot be emptied, if it cannot.
    pub(super) fn why(&self, uuid: &[u8; 16]) -> Option<String> {
        let stuck = self.0.lock();
        let found = stuck.iter().find(|s| s.uuid == *uuid);
        found.map(|s| s.why.clone())
    }

    /// It is tried again at once.
    pub(super) fn forget(&self, uuid: &[u8; 16]) {
        self.0.lock().retain(|s| s.uuid != *uuid);
    }

    /// A device could not be emptied.
    pub(super) fn note(&self, uuid: [u8; 16], why: String) {
        let mut stuck = self.0.lock();
        if !stuck.iter().any(|s| s.uuid == uuid && s.why == why) {
            tracing::warn!("a device cannot be emptied: {why}");
        }
        stuck.retain(|s| s.uuid != uuid);
        stuck.push(Stuck {
            uuid,
            why,
            since: Instant::now(),
        });
    }

    /// Whether it is to be tried: it never failed, or longer ago than `wait`.
    pub(super) fn may_try(&self, uuid: &[u8; 16], wait: Duration) -> bool {
        let stuck = self.0.lock();
        let found = stuck.iter().find(|s| s.uuid == *uuid);
        found.is_none_or(|s| s.since.elapsed() > wait)
    }
}
