//! Reading what changes in place: its writer may be between two stores.
//!
//! A writer is there again within nanoseconds, but for one that was not given a processor: on a machine that does much
//! else, or whose daemon is stopped or was killed, it may take a second until it, or the next daemon, has stored the rest. So a
//! reader waits that long before it calls what it sees damaged. Once one has waited for nothing, nobody waits any more:
//! what is damaged stays so.

use crate::error::{Result, VolumeError};
use shale_format::FormatError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Reads one after the other at first.
const SPINS: u32 = 50;
/// Then so many with other threads in between.
const YIELDS: u32 = 1000;
/// Then one each time of this,
const PAUSE: Duration = Duration::from_micros(500);
/// for so long in all. Less than a client may stay inside of a call.
const LONGEST: Duration = Duration::from_secs(1);

/// What all readers of one view of a volume know.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    exhausted: AtomicBool,
}

impl Patience {
    /// Nobody waits from now on: no writer is there.
    pub(crate) fn end(&self) {
        self.exhausted.store(true, Ordering::Relaxed);
    }

    /// Reads something until its checksum fits.
    ///
    /// # Errors
    /// Those of `read`; what never fits is damaged.
    pub(crate) fn until_whole<T>(&self, mut read: impl FnMut() -> Result<T>) -> Result<T> {
        for n in 0..SPINS + YIELDS {
            match read() {
                Err(e) if may_be_half(&e) && n < SPINS => std::hint::spin_loop(),
                Err(e) if may_be_half(&e) => std::thread::yield_now(),
                done => return done,
            }
        }
        self.wait_until_whole(&mut read)
    }

    #[cold]
    fn wait_until_whole<T>(&self, read: &mut dyn FnMut() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        loop {
            let waits = !self.exhausted.load(Ordering::Relaxed) && begun.elapsed() < LONGEST;
            match read() {
                Err(e) if may_be_half(&e) && waits => std::thread::sleep(PAUSE),
                Err(e) if may_be_half(&e) => {
                    self.end();
                    return Err(e);
                }
                done => return done,
            }
        }
    }
}

fn may_be_half(error: &VolumeError) -> bool {
    use FormatError::{Checksum, Magic};
    matches!(error, VolumeError::Format(Checksum { .. } | Magic { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half() -> VolumeError {
        VolumeError::Format(FormatError::Checksum {
            what: "a block",
            at: 1,
            expected: 2,
            found: 3,
        })
    }

    #[test]
    fn a_writer_that_was_held_up_is_waited_for() {
        let patience = Patience::default();
        let begun = Instant::now();
        let held_up = || match begun.elapsed() < LONGEST / 2 {
            true => Err(half()),
            false => Ok(7),
        };
        assert_eq!(patience.until_whole(held_up).unwrap(), 7);
    }

    #[test]
    fn what_is_damaged_is_waited_for_once() {
        let patience = Patience::default();
        // Counted, not timed: on a busy machine each `yield_now` may take long.
        let reads = || {
            let mut reads = 0;
            let read = patience.until_whole(|| {
                reads += 1;
                Err::<(), _>(half())
            });
            assert!(may_be_half(&read.unwrap_err()));
            reads
        };
        let begun = Instant::now();
        assert!(reads() > SPINS + YIELDS + 1 && begun.elapsed() >= LONGEST);
        assert_eq!(reads(), SPINS + YIELDS + 1, "nobody sleeps any more");
    }
}
