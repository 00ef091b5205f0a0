//! Small commits beside fsync(2).
//!
//! Without NVM an fsync(2) hardens the log up to what is published, and with the records of its own file all that stand before them: also
//! what other threads and, on the mount, other programs have written meanwhile and nobody waits for. So once a call has waited for
//! a commit, a thread that appends to the log has it hardened first whenever more than [`BytesBeside`] of it is not, until a whole
//! ring has gone by without another such call. A copy of a gigabyte then delays a database's commits by a few small ones and not by a
//! log's content (StageFS §3.2: fsync of one file does not wait for the data of others). Where nobody waits, nothing is written
//! earlier for it.

use shale_proto::commits::BytesBeside;
use shale_sys::mutants;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// See the module.
#[derive(Default)]
pub(crate) struct FsyncPace {
    /// Log position up to which writers keep it.
    until: AtomicU64,
    beside: BytesBeside,
}

impl FsyncPace {
    /// A call is about to wait for records before `upto`, in a log of `ring_bytes`.
    pub(crate) fn awaited(&self, upto: u64, ring_bytes: u64) {
        let until = upto.saturating_add(ring_bytes);
        self.until.fetch_max(until, Ordering::Relaxed);
    }

    /// It has waited so long.
    pub(crate) fn waited(&self, time: Duration) {
        self.beside.note(time.as_nanos() as u64);
    }

    /// Whether who is about to append to a log that is published and hardened so far has to have it hardened first.
    #[inline]
    pub(crate) fn is_due(&self, published: u64, hardened: u64) -> bool {
        published < self.until.load(Ordering::Relaxed)
            && published.saturating_sub(hardened) > self.beside.bytes()
            && !mutants::is_on("fsync-unpaced")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_are_held_back_while_calls_wait_and_for_one_ring_more() {
        const RING: u64 = 16 << 20;
        let pace = FsyncPace::default();
        assert!(!pace.is_due(RING, 0), "nobody waits");
        pace.awaited(1000, RING);
        let bytes = pace.beside.bytes();
        assert!(!pace.is_due(1000 + bytes, 1000));
        assert!(pace.is_due(1001 + bytes, 1000));
        assert!(pace.is_due(RING + 999, 1000));
        assert!(!pace.is_due(RING + 1000, 1000), "nobody has waited since");
        pace.awaited(500, RING);
        assert!(!pace.is_due(RING + 1000, 1000), "an older wait");
    }
}
