//! Waking the thread that moves data, and ending it.

use parking_lot::{Condvar, Mutex};
use std::time::Duration;

#[derive(Default)]
struct State {
    requested: bool,
    stop: bool,
}

/// What the thread waits for.
#[derive(Default)]
pub(super) struct Wakeup {
    state: Mutex<State>,
    woken: Condvar,
}

impl Wakeup {
    /// The mark may have been passed.
    pub fn wake(&self) {
        self.state.lock().requested = true;
        self.woken.notify_all();
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.woken.notify_all();
    }

    /// Whether it is to end.
    pub(super) fn stopped(&self) -> bool {
        self.state.lock().stop
    }

    /// Waits for a wakeup; `false`: stop.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        self.woken
            .wait_while_for(&mut state, |b| !b.requested && !b.stop, time);
        state.requested = false;
        !state.stop
    }

    /// Sleeps, woken or not; `false`: stop.
    pub(super) fn sleep(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        self.woken.wait_while_for(&mut state, |b| !b.stop, time);
        !state.stop
    }
}
