//! When entries of leases are removed that nobody uses: a thread of its own, since it may have to wait for
//! calls of clients. What it does is in [`super::lease_manager`].

use super::lease_manager::LeaseManager;
use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct State {
    wanted: bool,
    stop: bool,
}

/// A thread that has entries of leases removed when it is asked to.
#[derive(Default)]
pub struct LeaseTrimmer {
    state: Mutex<State>,
    changed: Condvar,
}

impl LeaseTrimmer {
    /// There may be too many entries.
    pub fn ask(&self) {
        self.state.lock().wanted = true;
        self.changed.notify_all();
    }

    /// Ends the thread.
    pub fn stop(&self) {
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

    /// The thread, until [`Self::stop`].
    pub fn run(&self, leases: &LeaseManager) {
        while self.next() {
            let mut known = leases.table().known();
            while leases.trim() > 0 {
                let before = std::mem::replace(&mut known, leases.table().known());
                // Those that are left are in use. It is looked again soon.
                if known >= before {
                    break;
                }
            }
        }
    }
}
