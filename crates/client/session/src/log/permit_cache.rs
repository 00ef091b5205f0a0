//! What each thread keeps of its last permit for the log, so that most calls get theirs
//! without an atomic step that other threads could contend for.
//!
//! Invariant: the entry of a reader slot is touched by the thread that has the slot
//! only, so plain loads and stores suffice. The number that threads share has none.

use crate::log::prefault::Prefault;
use crate::reader_slot::SHARED;
use shale_oplog::{LogReservation, ParkedPermit, Writer};
use std::sync::atomic::{AtomicU64, Ordering};

/// Asked for at once, in bytes of records; twice as much of the ring is held. With all
/// numbers in use that is a quarter of the smallest log.
const AHEAD_BYTES: u64 = 16 << 10;

#[derive(Default)]
#[repr(align(64))]
struct Slot {
    left: AtomicU64,
    held: AtomicU64,
}

impl Slot {
    #[inline(always)]
    fn take(&self) -> ParkedPermit {
        let kept = ParkedPermit {
            left: self.left.load(Ordering::Relaxed),
            held: self.held.load(Ordering::Relaxed),
        };
        self.put(ParkedPermit::default());
        kept
    }

    #[inline(always)]
    fn put(&self, kept: ParkedPermit) {
        self.left.store(kept.left, Ordering::Relaxed);
        self.held.store(kept.held, Ordering::Relaxed);
    }
}

/// The permits that threads keep, by reader slot.
pub(crate) struct Permits {
    slots: Box<[Slot]>,
    /// Looked after whenever a thread gets a new permit.
    present: Prefault,
}

impl Permits {
    pub(crate) fn new(present: Prefault) -> Self {
        Self {
            slots: (0..SHARED).map(|_| Slot::default()).collect(),
            present,
        }
    }

    /// A permit for `bytes` bytes of records, if the ring has space: to be resumed. `thread` is
    /// the calling thread's reader slot. As numbers, so that they stay in registers.
    #[inline(always)]
    pub(crate) fn take(&self, log: &Writer, thread: usize, bytes: u64) -> Option<ParkedPermit> {
        let Some(slot) = self.slots.get(thread) else {
            return log.try_reserve(bytes).map(LogReservation::keep);
        };
        // The slot is empty while its permit is in use: a signal handler's call gets its own.
        let kept = slot.take();
        if kept.left >= bytes {
            return Some(kept);
        }
        self.more(log, slot, kept, bytes).then(|| slot.take())
    }

    /// Gives what is left of a permit back and puts a new one in its place; `false`: there
    /// is no space.
    #[cold]
    fn more(&self, log: &Writer, slot: &Slot, left: ParkedPermit, bytes: u64) -> bool {
        drop(log.resume(left));
        self.present.look_ahead(log.reserved().0);
        let ahead = log.try_reserve(bytes.max(AHEAD_BYTES));
        match ahead.or_else(|| log.try_reserve(bytes)) {
            Some(permit) => {
                slot.put(permit.keep());
                true
            }
            None => false,
        }
    }

    /// Keeps what is left of a permit for the thread's next call.
    #[inline(always)]
    pub(crate) fn put(&self, thread: usize, permit: &mut LogReservation<'_>) {
        let slot = self.slots.get(thread);
        if let Some(slot) = slot.filter(|_| (1..=AHEAD_BYTES).contains(&permit.left())) {
            // What a signal handler's call has put there meanwhile goes back.
            if slot.held.load(Ordering::Relaxed) == 0 {
                slot.put(permit.put_aside());
            }
        }
    }
}
