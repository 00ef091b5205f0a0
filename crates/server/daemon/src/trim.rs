//! When entries of leases are removed that nobody uses: a thread of its own, since it may have to wait for
//! calls of clients. What it does is in [`crate::idle`].

use crate::shared::Shared;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

#[derive(Default)]
struct State {
    wanted: bool,
    stop: bool,
}

/// Whether there is something to do.
#[derive(Default)]
pub(crate) struct Trim {
    state: Mutex<State>,
    changed: Condvar,
}

impl Trim {
    /// There may be too many entries.
    pub(crate) fn ask(&self) {
        self.state.lock().wanted = true;
        self.changed.notify_all();
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// Waits until there is something to do; `false`: stop.
    fn next(&self) -> bool {
        let mut state = self.state.lock();
        self.changed
            .wait_while(&mut state, |s| !s.wanted && !s.stop);
        state.wanted = false;
        !state.stop
    }
}

impl Shared {
    /// The thread.
    pub(crate) fn trim_loop(self: &Arc<Self>) {
        while self.trim.next() {
            let mut known = self.leases.known();
            while self.trim_leases() > 0 {
                let before = std::mem::replace(&mut known, self.leases.known());
                // Those that are left are in use. It is looked again soon.
                if known >= before {
                    break;
                }
            }
        }
    }
}
