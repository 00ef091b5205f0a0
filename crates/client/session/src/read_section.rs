//! Read-side critical sections of calls, as of RCU: how the daemon knows that nobody is inside a call (DESIGN §9).
//!
//! A thread makes the sequence number of its reader slot odd when it enters a call and
//! even when it leaves. Entering costs a store and leaving another; the daemon
//! pays for the ordering with a `membarrier`. A thread inside waits for no one
//! who waits for the daemon, so the daemon's wait for it is short.

use super::reader_slot::{Overflow, number, overflow};
use super::sync::{Ordering, SharedWords, compiler_fence};
use shale_proto::shared_pages::client_page::reader_slot;

/// The daemon's barriers have to reach this process: its reader slots are plain stores.
pub(crate) fn register_barriers() {
    let register = rustix::thread::MembarrierCommand::RegisterGlobalExpedited;
    if rustix::thread::membarrier(register).is_err() {
        tracing::debug!("no expedited barriers: the daemon uses slower ones");
    }
}

/// A thread inside a call; leaving on drop.
pub struct ReadSection<'a> {
    page: &'a SharedWords,
    at: usize,
    sequence: u64,
    _shared: Option<Overflow>,
}

impl<'a> ReadSection<'a> {
    /// Enters. One call at a time per thread.
    #[inline]
    pub fn enter(page: &'a SharedWords) -> Self {
        Self::enter_as(page, number())
    }

    /// As [`Self::enter`]; `n` is the calling thread's number.
    #[inline(always)]
    pub fn enter_as(page: &'a SharedWords, n: usize) -> Self {
        let shared = overflow(n);
        let at = reader_slot(n);
        let sequence = page.load_u64(at) | 1;
        page.store_u64(at, sequence);
        compiler_fence(Ordering::SeqCst);
        Self {
            page,
            at,
            sequence,
            _shared: shared,
        }
    }
}

impl Drop for ReadSection<'_> {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.page.store_u64(self.at, self.sequence.wrapping_add(1));
    }
}
