//! How fast a client may go on (`connections::limits` of the daemon sets it): its bucket, and the word on its page.

use super::Client;
use crate::bucket::{Bucket, PART};
use shale_format::limits::BLOCK_BYTES;

/// Shortest pause that a client gets.
pub const HOLD_MIN_NS: u64 = 50_000;

impl Client {
    fn with_bucket<T>(&self, f: impl FnOnce(&mut Bucket) -> T) -> T {
        let mut bucket = self.bucket.lock();
        let out = f(&mut bucket);
        self.daemon_page.set_allowed(bucket.allowed());
        out
    }

    /// Bytes a second that it may write; 0: no limit.
    pub fn rate(&self) -> u64 {
        self.bucket.lock().rate
    }

    /// Nanoseconds that it had to wait, in all.
    pub fn waited_ns(&self) -> u64 {
        self.bucket.lock().waited_ns
    }

    /// Sets how many bytes a second it may write; 0: no limit.
    pub fn set_rate(&self, rate: u64, now_ns: u64) {
        let published = self.published().pos().0;
        let granted = self.grants.lock().blocks.blocks();
        self.with_bucket(|b| {
            if b.rate == 0 {
                (b.uncounted, b.give_back) = (granted, granted > 0);
            }
            if b.rate != rate {
                (b.rate, b.tokens) = (rate, 0);
                (b.at_ns, b.seen) = (now_ns, published);
            }
        });
    }

    /// How long it has to wait before it asks again, 0: it may go on; and whether it is to return
    /// what it was granted.
    pub fn pace(&self, now_ns: u64) -> (u64, bool) {
        let published = self.published().pos().0;
        self.with_bucket(|b| {
            b.fill(now_ns, published);
            (b.wait_ns(), std::mem::take(&mut b.give_back))
        })
    }

    /// Has it pause before its next call that writes, if that comes within the pause. Shorter than it takes to ask: not
    /// at all.
    pub fn hold_back(&self, now_ns: u64, ns: u64) {
        if ns >= HOLD_MIN_NS {
            self.with_bucket(|b| b.hold_until_ns = now_ns + ns);
        }
    }

    /// Most blocks that one grant may have.
    pub fn grant_max(&self) -> u64 {
        let bucket = self.bucket.lock();
        match bucket.rate {
            0 => u64::MAX,
            _ => bucket.burst() / BLOCK_BYTES as u64,
        }
    }

    /// Blocks are granted, or come back.
    pub fn charge_blocks(&self, granted: u64, returned: u64) {
        self.with_bucket(|b| {
            let free = returned.min(b.uncounted);
            b.uncounted -= free;
            let blocks = i128::from(granted) - i128::from(returned - free);
            if b.rate > 0 {
                b.tokens -= blocks * BLOCK_BYTES as i128 * PART;
            }
        });
    }
}
