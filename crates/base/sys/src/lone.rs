//! One thread that is alone in changing words of locks, so that it need not lock the bus for it.
//!
//! A locked instruction waits until everything that was loaded and stored before it is done: behind a
//! copy of a block, for the whole copy. Most programs have one thread that uses files. While that is
//! so, it changes a word with a load and a store, between two stores that say so. Another thread that
//! comes first says that there are two now, has every thread of the process make a barrier, and waits
//! until the first one is between changes: what that one does next, it does with locked instructions,
//! as all do from then on.
//!
//! Invariants: `who` is a thread's address only while no other thread has ever got past
//! [`Lone::join`]; only that thread writes `changing`, and looks at `who` after it has. So either it
//! sees that `who` is another one, or who changed `who` sees `changing` once the barrier is made.
//! An address is another thread's only after the first has ended. A child of a fork has one thread and restarts.

use crate::biased_rwlock;
use crate::threads;
use crate::threads::thread_pointer;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, compiler_fence};
use std::time::Duration;

/// No thread yet.
const NOBODY: usize = 0;
/// A second thread is on its way in. Threads' addresses are even.
const CLOSING: usize = 1;
/// There may be any number of threads.
const MANY: usize = 3;

/// Instead of a barrier, where the process may make none any more.
const NO_BARRIER_WAIT: Duration = Duration::from_millis(10);

/// Who changes words of locks.
pub(crate) struct Lone {
    /// [`NOBODY`], [`CLOSING`], [`MANY`], or the address of the only thread.
    who: AtomicUsize,
    /// 1 while the only thread changes a word.
    changing: AtomicU32,
}

/// That of the locks of this process.
pub(crate) static PROCESS: Lone = Lone::new();

impl Lone {
    pub(crate) const fn new() -> Self {
        Self {
            who: AtomicUsize::new(NOBODY),
            changing: AtomicU32::new(0),
        }
    }

    /// Calls `change` if the calling thread is the only one: nobody else changes a word meanwhile.
    /// `None`: it was not called, and the thread has to change words with locked instructions.
    /// `change` must not come here again.
    #[inline(always)]
    pub(crate) fn alone<T>(&self, change: impl FnOnce() -> T) -> Option<T> {
        let me = thread_pointer();
        if self.who.load(Ordering::Relaxed) != me && !self.join(me) {
            return None;
        }
        self.changing.store(1, Ordering::Relaxed);
        // The barrier of who joins orders this store and the load below.
        compiler_fence(Ordering::SeqCst);
        let still = self.who.load(Ordering::Acquire) == me;
        let result = if still { Some(change()) } else { None };
        compiler_fence(Ordering::SeqCst);
        self.changing.store(0, Ordering::Release);
        if !still {
            self.wait();
        }
        result
    }

    /// Comes in as one more thread; whether it is the first.
    #[inline(always)]
    fn join(&self, me: usize) -> bool {
        self.who.load(Ordering::Acquire) != MANY && self.join_slowly(me)
    }

    #[cold]
    fn join_slowly(&self, me: usize) -> bool {
        begin_again_in_children();
        let first = if biased_rwlock::barrier() { me } else { MANY };
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let seen = match self.who.compare_exchange(NOBODY, first, order.0, order.1) {
            Ok(_) => return first == me,
            Err(seen) => seen,
        };
        let mine = seen != CLOSING
            && seen != MANY
            && self
                .who
                .compare_exchange(seen, CLOSING, Ordering::SeqCst, order.1)
                .is_ok();
        if mine {
            if !biased_rwlock::barrier() {
                // Forbidden meanwhile: what a thread has stored is seen long before.
                std::thread::sleep(NO_BARRIER_WAIT);
            }
            while self.changing.load(Ordering::Acquire) != 0 {
                std::thread::yield_now();
            }
            self.who.store(MANY, Ordering::Release);
        }
        self.wait();
        false
    }

    /// Waits until the thread that comes in as the second one has seen the first one between changes.
    #[cold]
    fn wait(&self) {
        while self.who.load(Ordering::Acquire) == CLOSING {
            std::thread::yield_now();
        }
    }
}

/// Has a child know that it has one thread, which may be in the place of any of its parent's.
fn begin_again_in_children() {
    if !threads::in_children(in_child) {
        // Without it nobody is ever alone: this is before the first thread is.
        PROCESS.who.store(MANY, Ordering::Release);
    }
}

/// In a child: it has one thread, which is between changes.
pub(crate) extern "C" fn in_child() {
    PROCESS.changing.store(0, Ordering::Relaxed);
    if PROCESS.who.load(Ordering::Relaxed) != MANY {
        PROCESS.who.store(NOBODY, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn add(lone: &Lone, word: &AtomicU64) -> bool {
        let plain = lone.alone(|| {
            let now = word.load(Ordering::Relaxed);
            word.store(now + 1, Ordering::Relaxed);
        });
        if plain.is_none() {
            word.fetch_add(1, Ordering::AcqRel);
        }
        plain.is_some()
    }

    /// Of what two more threads add to a word while the first one does, nothing is lost, whenever they come.
    #[test]
    fn nothing_is_lost_when_others_come() {
        const EACH: u64 = 300;
        let mut alone_for = 0;
        for round in 0..600u64 {
            let (lone, word) = (Lone::new(), AtomicU64::new(0));
            let begun = AtomicU64::new(0);
            std::thread::scope(|scope| {
                let others = [1, 2].map(|other: u64| {
                    let (lone, word, begun) = (&lone, &word, &begun);
                    scope.spawn(move || {
                        while begun.load(Ordering::Acquire) <= round * other % 200 {
                            std::hint::spin_loop();
                        }
                        (0..EACH).filter(|_| add(lone, word)).count()
                    })
                });
                for turn in 0..EACH {
                    alone_for += u64::from(add(&lone, &word));
                    begun.store(turn + 1, Ordering::Release);
                }
                for other in others {
                    assert_eq!(other.join().unwrap(), 0, "round {round}");
                }
            });
            assert_eq!(word.into_inner(), 3 * EACH, "round {round}");
            assert_eq!(lone.who.into_inner(), MANY);
        }
        assert!(alone_for > 600, "alone for {alone_for} changes");
    }

    #[test]
    fn a_thread_is_alone_until_another_comes() {
        let (lone, word) = (Lone::new(), AtomicU64::new(0));
        assert!((0..10).all(|_| add(&lone, &word)));
        assert!(!std::thread::scope(|s| s
            .spawn(|| add(&lone, &word))
            .join()
            .unwrap()));
        assert!(!add(&lone, &word));
        assert_eq!(word.into_inner(), 12);
    }

    /// A child restarts, whatever its parent's threads were doing.
    #[test]
    fn a_child_is_alone() {
        let word = AtomicU64::new(0);
        add(&PROCESS, &word);
        let many = PROCESS.who.load(Ordering::Relaxed) == MANY;
        // SAFETY: the child only adds to a word and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let plain = add(&PROCESS, &word);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(plain == many)) };
        }
        let mut status = 0;
        // SAFETY: a child of this process and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
