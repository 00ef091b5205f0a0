//! Files whose size the kernel may know too small, and having it know it.
//!
//! While another client has the lease of a file, it grows and the kernel knows nothing of it. When
//! somebody reads beyond the end that it knows, it asks; but it drops the answer if anything about
//! the file has changed in the kernel meanwhile (another program's write has returned), and
//! goes on with the size it knew: the read ends before what was written long ago. So the
//! first answer about the size of such a file is held back until the kernel knows the size by
//! another way: a notification that stores the file's last byte, and the size with it.
//!
//! The kernel never knows a size too large: clients do not cut files below it behind its back.
//!
//! Lock order: the state is a leaf.

use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Whoever takes a file away waits so long at most for answers that are held back.
const HELD_BACK_MAX: Duration = Duration::from_millis(200);

#[derive(Default)]
struct State {
    /// Files that were away since the kernel was told their size.
    away: HashSet<u64>,
    /// Answers that are held back.
    held: HashMap<u64, u32>,
}

/// See the module.
pub(crate) struct Sizes {
    state: Mutex<State>,
    changed: Condvar,
    any: AtomicBool,
    /// A process before this one knew which were away: it is the others that are noted.
    inverted: bool,
}

impl Sizes {
    pub(crate) fn new(continues: bool) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            any: AtomicBool::new(continues),
            inverted: continues,
        }
    }

    /// Another client is about to get the file. Waits for answers that are held back: what they
    /// tell the kernel must not be old by then.
    pub(crate) fn leaves(&self, ino: u64) {
        let mut state = self.state.lock();
        while state.held.contains_key(&ino) {
            if self.changed.wait_for(&mut state, HELD_BACK_MAX).timed_out() {
                break;
            }
        }
        self.any.store(true, Ordering::Release);
        match self.inverted {
            true => state.away.remove(&ino),
            false => state.away.insert(ino),
        };
    }

    /// Before the front end looks a size up for the kernel: whether the answer has to be held
    /// back; [`Self::known`] or [`Self::given_up`] follows then.
    pub(crate) fn hold_back(&self, ino: u64) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut state = self.state.lock();
        let away = state.away.contains(&ino) != self.inverted;
        if away {
            *state.held.entry(ino).or_default() += 1;
        }
        away
    }

    /// Whether an answer that is held back still has to be.
    pub(crate) fn is_away(&self, ino: u64) -> bool {
        self.state.lock().away.contains(&ino) != self.inverted
    }

    /// The kernel knows the size, and the answer has gone out.
    pub(crate) fn known(&self, ino: u64) {
        let mut state = self.state.lock();
        match self.inverted {
            true => state.away.insert(ino),
            false => state.away.remove(&ino),
        };
        self.let_go(state, ino);
    }

    /// There was no answer.
    pub(crate) fn given_up(&self, ino: u64) {
        self.let_go(self.state.lock(), ino);
    }

    fn let_go(&self, mut state: parking_lot::MutexGuard<'_, State>, ino: u64) {
        if let Some(held) = state.held.get_mut(&ino) {
            *held -= 1;
            if *held == 0 {
                state.held.remove(&ino);
                self.changed.notify_all();
            }
        }
    }

    /// The kernel has forgotten an inode.
    pub(crate) fn forget(&self, ino: u64) {
        if self.any.load(Ordering::Acquire) {
            self.state.lock().away.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn only_the_first_answer_about_a_file_that_was_away_is_held_back() {
        let sizes = Sizes::new(false);
        assert!(!sizes.hold_back(5));
        sizes.leaves(5);
        assert!(sizes.hold_back(5) && sizes.is_away(5) && !sizes.hold_back(6));
        sizes.given_up(5);
        assert!(sizes.hold_back(5), "the kernel still does not know it");
        sizes.known(5);
        assert!(!sizes.hold_back(5) && !sizes.is_away(5));
        sizes.leaves(5);
        sizes.forget(5);
        assert!(!sizes.hold_back(5));
    }

    #[test]
    fn nothing_is_known_of_what_a_process_before_told() {
        let sizes = Sizes::new(true);
        assert!(sizes.hold_back(5));
        sizes.known(5);
        assert!(!sizes.hold_back(5));
        sizes.leaves(5);
        assert!(sizes.hold_back(5));
    }

    #[test]
    fn a_file_does_not_leave_under_an_answer() {
        let sizes = Arc::new(Sizes::new(false));
        sizes.leaves(5);
        assert!(sizes.hold_back(5));
        let other = sizes.clone();
        let leaving = std::thread::spawn(move || other.leaves(5));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!leaving.is_finished());
        sizes.known(5);
        leaving.join().unwrap();
        assert!(sizes.is_away(5), "it has left after the answer");
    }
}
