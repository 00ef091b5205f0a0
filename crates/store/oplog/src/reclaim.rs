//! Space of digested records comes back to the ring.
//!
//! Order: the caller drops its own pointers below the new tail, the tail becomes
//! durable, and only then may new records overwrite. A power cut in between leaves a
//! tail below which records are still whole: recovery then merely looks at more.

use crate::append::Writer;
use shale_format::LogPos;

impl Writer {
    /// Raises the tail to `tail` (at or below `published`; a record's first position or
    /// the end of the last) and gives the space before it to new records. A position
    /// that is not above the present tail changes nothing.
    ///
    /// The caller has made sure that nothing points below `tail` any more: overlays
    /// purged, no request in progress with records there, and everything digested.
    pub fn set_tail(&self, tail: LogPos) {
        let guard = self.tail_lock.lock();
        if tail > self.tail() {
            assert!(
                tail <= self.published().pos(),
                "tail {tail:?} is above {:?}",
                self.published()
            );
            self.log.store_tail(tail);
            self.ring.release(tail.0);
        }
        drop(guard);
    }

    /// Copies bytes of a payload out of the ring; see [`crate::Log::read`].
    #[inline]
    pub fn read(&self, at: LogPos, skip: u64, into: &mut [u8]) {
        self.log.read(at, skip, into);
    }
}
