//! The right to move something: who has it, and what moving under it costs of the rate limit.

use super::Tiering;
use parking_lot::MutexGuard;
use std::time::Duration;

/// A limit that changes is noticed within this.
const SLICE: Duration = Duration::from_millis(100);
/// The right to move something, or to change the devices: one at a time has it. A thread that waits for it has it next.
pub struct MoverGuard<'a> {
    tiering: &'a Tiering,
    /// Always there, but while it is given back.
    guard: Option<MutexGuard<'a, ()>>,
    /// Bytes that had moved before, if what moves is owed.
    before: Option<u64>,
}

impl Drop for MoverGuard<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let tiering = self.tiering;
            let after = tiering.counts().moved_bytes();
            assert!(after >= before, "bytes moved only rise");
            let moved = after - before;
            tiering.debt.add(moved, tiering.speed().limit);
        }
        if let Some(guard) = self.guard.take() {
            MutexGuard::unlock_fair(guard);
        }
    }
}

impl Tiering {
    /// For what somebody waits for or asked for: the limit is not for that.
    pub fn lock_mover(&self) -> MoverGuard<'_> {
        self.lock_mover_for(true)
    }

    /// For what migration does of its own accord, unless it was `asked`: all that moves by it is owed, also what moves on
    /// from a tier below, and is paid off in [`Tiering::keep_to_limit`].
    pub fn lock_mover_for(&self, asked: bool) -> MoverGuard<'_> {
        let guard = Some(self.mover_lock.lock());
        MoverGuard {
            tiering: self,
            guard,
            before: (!asked).then(|| self.counts().moved_bytes()),
        }
    }
}

impl Tiering {
    /// Blocks that migration of its own accord moves at once, of `most`.
    pub(super) fn at_once(&self, most: u64) -> u64 {
        self.speed().at_once(most)
    }

    /// Sleeps as long as the limit wants for what is owed, unless migration is paused or ends meanwhile: what is owed then
    /// is waited for after the next batch.
    pub(super) fn keep_to_limit(&self) {
        loop {
            let speed = self.speed();
            let left = self.debt.add(0, speed.limit);
            if left.is_zero() || speed.paused || !self.wakeup.sleep(left.min(SLICE)) {
                return;
            }
        }
    }
}
