//! Threads that do something now and then, and end without waiting for the next time.

use parking_lot::{Condvar, Mutex};
use std::time::Duration;

/// Ends a thread that does something now and then.
#[derive(Default)]
pub struct StopFlag {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl StopFlag {
    /// Ends the thread, at once if it waits.
    pub fn stop(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for `time`, or until it is to end; whether it is.
    fn wait(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        self.changed
            .wait_while_for(&mut stopped, |stopped| !*stopped, time);
        *stopped
    }

    /// Calls `work` every `pause` until it is to end.
    pub fn every(&self, pause: Duration, mut work: impl FnMut()) {
        while !self.wait(pause) {
            work();
        }
    }
}
