//! Which reader slot a thread uses.
//!
//! A thread takes a number in its first call and keeps it as long as it lives. It can make calls until the
//! very end: libc writes its buffers in `exit`, and programs write in destructors of thread-specific
//! data, both after the destructors of thread-local storage. So there is none here that would give the
//! number back. The number names its thread instead; when none is free, those of threads that have
//! ended are free again.
//!
//! Invariant: a number's word names the thread that has it in [`NUMBER`], or one that has ended, or
//! nobody. It changes by compare-and-exchange, and a count in its upper half with each change: so a
//! thread that finds the owner dead does not take the number from another one with the same name.

use shale_proto::shared_pages::client_page::READER_SLOTS;
use shale_sys::threads;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The last slot is shared by all threads for which no other is left.
pub const SHARED: usize = READER_SLOTS - 1;

/// Who has each number: the kernel's number of the thread in the lower half, 0: nobody; changes in the upper.
static OWNER: [AtomicU64; SHARED] = [const { AtomicU64::new(0) }; SHARED];
static OVERFLOW: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

/// Held by the one thread that is inside a section of the shared slot.
pub type Overflow = parking_lot::MutexGuard<'static, ()>;

/// The thread has no number yet.
const NONE: usize = usize::MAX;

thread_local! {
    // Nothing to drop: so it is there before the thread's first destructor and after its last.
    static NUMBER: Cell<usize> = const { Cell::new(NONE) };
}

/// Has all that the calling thread's end runs noted now. That allocates with libc, whose locks a
/// fork of another thread may hold: not to be done first where such a fork waits for this thread.
pub fn prepare_thread() {
    number();
    shale_sys::biased_rwlock::prepare_thread();
    // Those of a thread that has to wait for a lock.
    let lock = parking_lot::Mutex::new(());
    let never = parking_lot::Condvar::new();
    let _ = never.wait_for(&mut lock.lock(), std::time::Duration::ZERO);
}

/// In a child that libc does not know of, by a system call of the program's own: its one thread is inside
/// of no call and has no number.
pub fn reset_in_child() {
    in_child();
    shale_sys::biased_rwlock::reset_in_child();
}

extern "C" fn in_child() {
    NUMBER.set(NONE);
    for owner in &OWNER {
        owner.store(0, Ordering::Relaxed);
    }
}

/// Reader slot of the calling thread.
#[inline(always)]
pub fn number() -> usize {
    match NUMBER.get() {
        NONE => take(),
        number => number,
    }
}

#[cold]
fn take() -> usize {
    // Without memory for it a child would go on with the numbers of its parent's threads.
    let found = threads::in_children(in_child).then(|| free_number(threads::id()));
    let number = found.flatten().unwrap_or(SHARED);
    NUMBER.set(number);
    number
}

/// A number for thread `me`: that of an ended thread with its name, a free one, one of another thread that
/// has ended.
fn free_number(me: u32) -> Option<usize> {
    let is = |from: u32| move |owner: u32| owner == from;
    claim(me, is(me))
        .or_else(|| claim(me, is(0)))
        .or_else(|| claim(me, |owner| !threads::lives(owner)))
}

/// The first number whose owner `may` lose it.
fn claim(me: u32, may: impl Fn(u32) -> bool) -> Option<usize> {
    OWNER.iter().position(|word| {
        let seen = word.load(Ordering::Acquire);
        let claimed = ((seen >> 32).wrapping_add(1) << 32) | u64::from(me);
        may(seen as u32)
            && word
                .compare_exchange(seen, claimed, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    })
}

/// What a thread with slot `n` holds while it is inside.
#[inline(always)]
pub fn overflow(n: usize) -> Option<Overflow> {
    (n == SHARED).then(|| OVERFLOW.lock())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::Barrier;

    /// Ten times as many threads as there are numbers, some at once: no two have one, and those of ended
    /// ones are taken again.
    #[test]
    fn numbers_of_threads_that_have_ended_are_taken_again() {
        const AT_ONCE: usize = 40;
        let mut shared = 0;
        for _ in 0..SHARED * 10 / AT_ONCE {
            let barrier = Barrier::new(AT_ONCE);
            let numbers: Vec<usize> = std::thread::scope(|scope| {
                let thread = || {
                    let number = number();
                    // All of them live until each has its number.
                    barrier.wait();
                    number
                };
                let all: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(thread)).collect();
                all.into_iter().map(|t| t.join().unwrap()).collect()
            });
            let own: Vec<_> = numbers.iter().filter(|&&n| n != SHARED).collect();
            assert_eq!(own.iter().collect::<BTreeSet<_>>().len(), own.len());
            shared += AT_ONCE - own.len();
        }
        // A thread is still there for a moment after it was joined.
        assert!(
            shared < AT_ONCE,
            "{shared} threads had no number of their own"
        );
    }

    /// A number is there in destructors of thread-local storage, whenever they run.
    #[test]
    fn a_thread_that_ends_has_its_number() {
        struct Late(usize);
        impl Drop for Late {
            fn drop(&mut self) {
                assert_eq!(number(), self.0);
            }
        }
        thread_local! {
            static LATE: Cell<Option<Late>> = const { Cell::new(None) };
        }
        let thread = || {
            LATE.set(Some(Late(number())));
        };
        std::thread::spawn(thread).join().unwrap();
    }
}
