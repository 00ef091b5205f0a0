//! What each thread keeps of its last permit for the log, so that most calls get theirs
//! without an atomic step that other threads could contend for.
//!
//! Invariant: the place of a gate number is touched by the thread that has the number
//! only, so plain loads and stores suffice. The number that threads share has none.

use crate::gate_number::{SHARED, number};
use shale_oplog::{Kept, Permit, Writer};
use std::sync::atomic::{AtomicU64, Ordering};

/// Asked for at once, in bytes of records; twice as much of the ring is held. With all
/// numbers in use that is a quarter of the smallest log.
const AHEAD_BYTES: u64 = 16 << 10;

#[derive(Default)]
#[repr(align(64))]
struct Place {
    left: AtomicU64,
    held: AtomicU64,
}

impl Place {
    #[inline(always)]
    fn take(&self) -> Kept {
        let kept = Kept {
            left: self.left.load(Ordering::Relaxed),
            held: self.held.load(Ordering::Relaxed),
        };
        self.put(Kept::default());
        kept
    }

    #[inline(always)]
    fn put(&self, kept: Kept) {
        self.left.store(kept.left, Ordering::Relaxed);
        self.held.store(kept.held, Ordering::Relaxed);
    }
}

/// The permits that threads keep, by gate number.
pub(crate) struct Permits(Box<[Place]>);

impl Permits {
    pub(crate) fn new() -> Self {
        Self((0..SHARED).map(|_| Place::default()).collect())
    }

    /// A permit for `bytes` bytes of records, if the ring has room.
    #[inline(always)]
    pub(crate) fn take<'w>(&self, log: &'w Writer, bytes: u64) -> Option<Permit<'w>> {
        let Some(place) = self.0.get(number()) else {
            return log.try_admit(bytes);
        };
        // The place is empty while its permit is in use: a signal handler's call gets its own.
        let permit = log.resume(place.take());
        if permit.left() >= bytes {
            return Some(permit);
        }
        drop(permit);
        more(log, bytes)
    }

    /// Keeps what is left of a permit for the thread's next call.
    #[inline(always)]
    pub(crate) fn put(&self, permit: Permit<'_>) {
        let place = self.0.get(number());
        if let Some(place) = place.filter(|_| (1..=AHEAD_BYTES).contains(&permit.left())) {
            // What a signal handler's call has put there meanwhile goes back.
            if place.held.load(Ordering::Relaxed) == 0 {
                place.put(permit.keep());
            }
        }
    }
}

#[cold]
fn more(log: &Writer, bytes: u64) -> Option<Permit<'_>> {
    log.try_admit(bytes.max(AHEAD_BYTES))
        .or_else(|| log.try_admit(bytes))
}
