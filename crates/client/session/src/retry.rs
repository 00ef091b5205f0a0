//! What a call meets with while it restarts, and when it gives up.
//!
//! Who finds that something has changed since it was looked up looks once more. That may be so for
//! as long as another thread is held up, of this process or of the daemon: so a call gives up
//! by time, not by count. Only in a volume that is damaged does it never end.

use crate::errno::{Errno, Result};
use crate::sync::sleep;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A call that had to stop for so many leases loses them again and again.
const PATIENCE: u32 = 8;
/// Times that one inode is asked for that does not exist.
const MISSING_MAX: u32 = 8;
/// Runs that restart at once. Most need one.
const AT_ONCE: u32 = 100;
/// Time between later ones: the first, and the longest.
const BACKOFF_MIN: Duration = Duration::from_micros(20);
const BACKOFF_MAX: Duration = Duration::from_millis(2);
/// For so long at least a call restarts: as long as the daemon waits for who is held up inside
/// a call. Sleeps are counted as they were asked for: on a busy machine it takes longer.
const AGAIN_MAX: Duration = Duration::from_secs(5);

/// What a call has met with on its way to what it needs.
#[derive(Default)]
pub struct RetryPolicy {
    leases: u32,
    /// There was no space, with everything digested.
    pub last_try: bool,
    /// The inode that did not exist, and how often it was asked for.
    missing: (u64, u32),
    /// Runs that found something changed since it was looked up.
    again: u32,
    backoff: Duration,
    slept: Duration,
}

impl RetryPolicy {
    /// A lease is asked for; whether others have taken it from the call too often.
    pub fn has_to_hold(&mut self) -> bool {
        self.leases += 1;
        self.leases > PATIENCE
    }

    /// Whether to look once more what leads to an inode that does not exist: a name may
    /// lead elsewhere by now, or to a new inode that has the number.
    pub fn may_retry_missing(&mut self, ino: u64) -> bool {
        self.missing = match self.missing {
            (known, times) if known == ino => (ino, times + 1),
            _ => (ino, 1),
        };
        self.missing.1 < MISSING_MAX
    }

    /// Something has changed since it was looked up. Where that is so for [`AGAIN_MAX`] nobody
    /// changes it: what a name leads to is not what the name says. `damaged`: that was seen before,
    /// so that nobody waits for it.
    pub fn retry_changed(&mut self, damaged: &AtomicBool) -> Result<()> {
        self.again += 1;
        if self.again <= AT_ONCE {
            std::thread::yield_now();
            return Ok(());
        }
        if self.slept >= AGAIN_MAX || damaged.load(Ordering::Relaxed) && self.backoff == BACKOFF_MAX
        {
            damaged.store(true, Ordering::Relaxed);
            tracing::error!("a name does not lead to what it says: the volume needs fsck");
            return Err(Errno::IO);
        }
        self.backoff = (self.backoff * 2).clamp(BACKOFF_MIN, BACKOFF_MAX);
        sleep(self.backoff);
        self.slept += self.backoff;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that gives up.
    fn give_up(damaged: &AtomicBool) -> RetryPolicy {
        let mut search = RetryPolicy::default();
        while search.retry_changed(damaged).is_ok() {}
        search
    }

    #[test]
    fn a_call_begins_again_for_a_time_and_not_so_often() {
        let (damaged, begun) = (AtomicBool::new(false), std::time::Instant::now());
        let search = give_up(&damaged);
        assert!(begun.elapsed() >= AGAIN_MAX && search.slept >= AGAIN_MAX);
        assert!(search.again < AT_ONCE + 5_000, "{} runs", search.again);
        let known = give_up(&damaged);
        assert!(known.slept < AGAIN_MAX / 100, "known, {:?}", known.slept);
    }

    #[test]
    fn a_lookup_of_a_missing_inode_ends() {
        let mut search = RetryPolicy::default();
        for ino in [5, 6, 5, 6, 5, 6, 5, 6, 5] {
            assert!(search.may_retry_missing(ino), "another one each time");
        }
        let asked = (1..100).find(|_| !search.may_retry_missing(5));
        assert_eq!(asked, Some(MISSING_MAX - 1));
    }
}
