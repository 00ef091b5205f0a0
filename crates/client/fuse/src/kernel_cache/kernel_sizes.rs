//! Files whose size the kernel may know too small, and having it know it.
//!
//! While another client has the lease of a file, it grows and the kernel knows nothing of it. When
//! somebody reads beyond the end that it knows, it asks; but it drops the answer if anything about
//! the file has changed in the kernel meanwhile (another program's write has returned), and
//! goes on with the size it knew: the read ends before what was written long ago. So the
//! first answer about the size of such a file is held back until the kernel knows the size by
//! another way: a notification that stores the file's last byte, and the size with it.
//!
//! A size that is too large cannot be mended like this, and the notification would have the answer
//! dropped. So nobody cuts a file below what the kernel knows behind its back, but a client that alone has to
//! do with it ([`crate::kernel_cache::recent_openers`]): then there is nobody whose calls could get between. How large
//! the kernel may think such a file is, is noted when it leaves; the answer is sent as it is.
//!
//! Lock order: the state is a leaf.

use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Files whose size the kernel got since a process before this one. When there are more, nothing
/// is known of any: their next answers are held back once more.
const KNOWN_MAX: usize = 1 << 16;
/// A caller that takes a file away waits so long at most for answers that are held back.
const HELD_BACK_MAX: Duration = Duration::from_millis(200);

#[derive(Default)]
struct State {
    /// Files that were away since the kernel got their size, and the largest size that it
    /// may know.
    away: HashMap<u64, u64>,
    /// If a process before this one knew more: files whose size the kernel got since.
    known: HashSet<u64>,
    /// Answers that are held back.
    held: HashMap<u64, u32>,
}

/// See the module.
pub(crate) struct Sizes {
    state: Mutex<State>,
    changed: Condvar,
    any: AtomicBool,
    /// A process before this one knew which were away.
    continues: bool,
}

impl State {
    /// The kernel has got the size of a file since a process before this one.
    fn note_known(&mut self, ino: u64) {
        if self.known.len() >= KNOWN_MAX {
            self.known = HashSet::new();
        }
        self.known.insert(ino);
    }

    /// The largest size that the kernel may know of a file that was away.
    fn away(&self, ino: u64, continues: bool) -> Option<u64> {
        let unknown = continues && !self.known.contains(&ino);
        self.away.get(&ino).copied().or(unknown.then_some(0))
    }
}

impl Sizes {
    pub(crate) fn new(continues: bool) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            any: AtomicBool::new(continues),
            continues,
        }
    }

    /// Another client is about to get the file, which is `size` bytes long. Waits for answers that
    /// are held back: what they tell the kernel must not be old by then.
    pub(crate) fn leaves(&self, ino: u64, size: u64) {
        let mut state = self.state.lock();
        while state.held.contains_key(&ino) {
            if self.changed.wait_for(&mut state, HELD_BACK_MAX).timed_out() {
                break;
            }
        }
        self.any.store(true, Ordering::Release);
        let largest = state.away.entry(ino).or_default();
        *largest = size.max(*largest);
    }

    /// Before the front end looks a size up for the kernel: whether the answer has to be held
    /// back; [`Self::known`] or [`Self::given_up`] follows then.
    pub(crate) fn hold_back(&self, ino: u64) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut state = self.state.lock();
        let away = state.away(ino, self.continues).is_some();
        if away {
            *state.held.entry(ino).or_default() += 1;
        }
        away
    }

    /// Whether the kernel may know less than `size`, and not more: before an answer that is held back.
    pub(crate) fn may_be_small(&self, ino: u64, size: u64) -> bool {
        let largest = self.state.lock().away(ino, self.continues);
        largest.is_some_and(|largest| largest <= size)
    }

    /// The answer has gone out, and the kernel knows the size. If it thought that the file was longer it
    /// may have dropped the answer: next time it does not think so, but may know less.
    pub(crate) fn known(&self, ino: u64, size: u64) {
        let mut state = self.state.lock();
        match state.away.get_mut(&ino) {
            Some(largest) if size < *largest => *largest = size,
            _ => {
                state.away.remove(&ino);
                if self.continues {
                    state.note_known(ino);
                }
            }
        }
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
            let mut state = self.state.lock();
            state.away.remove(&ino);
            if self.continues {
                state.note_known(ino);
            }
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
        sizes.leaves(5, 10);
        assert!(sizes.hold_back(5) && sizes.may_be_small(5, 10) && !sizes.hold_back(6));
        sizes.given_up(5);
        assert!(sizes.hold_back(5), "the kernel still does not know it");
        sizes.known(5, 10);
        assert!(!sizes.hold_back(5) && !sizes.may_be_small(5, 10));
        sizes.leaves(5, 10);
        sizes.forget(5);
        assert!(!sizes.hold_back(5));
    }

    #[test]
    fn a_file_that_was_cut_while_it_was_away_is_not_made_longer() {
        let sizes = Sizes::new(false);
        sizes.leaves(5, 100);
        sizes.leaves(5, 20);
        assert!(sizes.hold_back(5));
        assert!(!sizes.may_be_small(5, 50) && sizes.may_be_small(5, 100));
        sizes.known(5, 50);
        // Only the second answer may have it know less than there is.
        assert!(sizes.hold_back(5) && sizes.may_be_small(5, 50));
        sizes.known(5, 50);
        assert!(!sizes.hold_back(5));
    }

    #[test]
    fn nothing_is_known_of_what_a_process_before_answered() {
        let sizes = Sizes::new(true);
        assert!(sizes.hold_back(5) && sizes.may_be_small(5, 0));
        sizes.known(5, 10);
        assert!(!sizes.hold_back(5));
        sizes.leaves(5, 10);
        assert!(sizes.hold_back(5) && !sizes.may_be_small(5, 9));
        sizes.forget(6);
        assert!(!sizes.hold_back(6));
    }

    #[test]
    fn not_all_known_files_are_remembered() {
        let sizes = Sizes::new(true);
        (0..3 * KNOWN_MAX as u64).for_each(|ino| sizes.forget(ino));
        assert!(sizes.state.lock().known.len() <= KNOWN_MAX);
        assert!(sizes.hold_back(1), "it is as if nothing were known");
        assert!(!sizes.hold_back(3 * KNOWN_MAX as u64 - 1));
    }

    #[test]
    fn a_file_does_not_leave_under_an_answer() {
        let sizes = Arc::new(Sizes::new(false));
        sizes.leaves(5, 1);
        assert!(sizes.hold_back(5));
        let other = sizes.clone();
        let leaving = std::thread::spawn(move || other.leaves(5, 2));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!leaving.is_finished());
        sizes.known(5, 2);
        leaving.join().unwrap();
        assert!(sizes.may_be_small(5, 2), "it has left after the answer");
    }
}
