//! A readers-writer lock whose writer leaves without an atomic read-modify-write.
//!
//! Such an instruction waits until everything that was stored before it has reached memory.
//! After a fence that is the time that the medium takes, during which the thread could
//! do what comes after the lock. So the one who leaves only stores and looks whether somebody
//! waits; a thread that is about to sleep makes the two happen in this order on every processor, with
//! `membarrier` (some microseconds, paid only by those who would sleep anyway).
//!
//! While one thread alone uses such locks it enters and leaves without such instructions, as a reader too
//! ([`crate::lone`]).
//!
//! Invariants: while `state` is [`WRITER`] only its owner changes it. A sleeper counts itself in
//! `sleepers`, then has the barrier, then looks at `state` a last time (in the kernel, as it
//! goes to sleep): so either it sees that the lock was left, or who leaves it sees the sleeper.
//! Where there is no barrier to be had a sleeper wakes up by itself after [`SLEEP_MAX`].

use crate::lone;
use parking_lot::lock_api;
use rustix::thread::futex::{self, Flags, Timespec};
use rustix::thread::{MembarrierCommand, membarrier};
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

/// A value behind an [`Asymmetric`] lock.
pub type RwLock<T> = lock_api::RwLock<Asymmetric, T>;
/// The right to read it.
pub type ReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, Asymmetric, T>;
/// The right to change it.
pub type WriteGuard<'a, T> = lock_api::RwLockWriteGuard<'a, Asymmetric, T>;

/// In `state`: a writer has the lock. Else the number of readers.
const WRITER: u32 = 1 << 31;
/// Looks before a thread sleeps: longer than a short call keeps the lock.
const SPINS: u32 = 100;
/// Longest sleep without looking.
const SLEEP_MAX: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// The lock itself. Threads of one process share it, not several processes. Who reads while
/// somebody waits to write lets that one go first, for a while; so reading twice at once is
/// slow then, and no deadlock.
pub struct Asymmetric {
    state: AtomicU32,
    sleepers: AtomicU32,
    /// Of those who wait, the ones that want to write.
    writers: AtomicU32,
}

impl Asymmetric {
    #[inline(always)]
    fn try_write(&self) -> bool {
        self.change(|now| (now == 0).then_some(WRITER)).is_some()
    }

    /// One more reader, unless there is a writer. (Others may come and go meanwhile.)
    #[inline(always)]
    fn try_read(&self) -> bool {
        self.change(|now| (now < WRITER - 1).then_some(now + 1))
            .is_some()
    }

    /// Makes `state` what `next` says to what it is, in one step; gives what it was. `None`: `next` gave
    /// nothing.
    #[inline(always)]
    fn change(&self, next: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        let plain = lone::PROCESS.alone(|| {
            let now = self.state.load(Ordering::Relaxed);
            let next = next(now)?;
            self.state.store(next, Ordering::Release);
            Some(now)
        });
        match plain {
            Some(done) => done,
            None => self.change_among_others(next),
        }
    }

    #[inline]
    fn change_among_others(&self, next: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        let mut now = self.state.load(Ordering::Relaxed);
        loop {
            let next = next(now)?;
            let order = (Ordering::SeqCst, Ordering::Relaxed);
            match self
                .state
                .compare_exchange_weak(now, next, order.0, order.1)
            {
                Ok(_) => return Some(now),
                Err(changed) => now = changed,
            }
        }
    }

    #[inline(always)]
    fn wake(&self) {
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        // Nobody sleeps on a word that is not there.
        let _ = futex::wake(&self.state, Flags::PRIVATE, i32::MAX as u32);
    }

    #[cold]
    fn write_slowly(&self) {
        self.writers.fetch_add(1, Ordering::Relaxed);
        self.wait(|_| self.try_write());
        self.writers.fetch_sub(1, Ordering::Relaxed);
    }

    #[cold]
    fn read_slowly(&self) {
        let polite = |slept: bool| slept || self.writers.load(Ordering::Relaxed) == 0;
        self.wait(|slept| polite(slept) && self.try_read());
    }

    /// Waits until `done`, which is given whether the thread has slept already.
    fn wait(&self, done: impl Fn(bool) -> bool) {
        for _ in 0..SPINS {
            if done(false) {
                return;
            }
            std::hint::spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // If the kernel has none, sleepers wake by themselves.
        barrier();
        let mut slept = false;
        loop {
            let state = self.state.load(Ordering::SeqCst);
            if done(slept) {
                break;
            }
            // Woken, changed meanwhile, interrupted, or slept long enough: look again.
            if state != 0 {
                let _ = futex::wait(&self.state, Flags::PRIVATE, state, Some(&SLEEP_MAX));
            }
            slept = true;
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Does for the calling thread what its first lock would: that may allocate with libc, and wait for a fork
/// of another thread to be over.
pub fn prepare_thread() {
    lone::PROCESS.alone(|| ());
}

/// In a child that libc does not know of, by a system call of the program's own: it has one thread, which
/// is inside of no lock.
pub fn reset_in_child() {
    lone::in_child();
}

/// Makes every thread of the process have a full barrier, wherever it is. `false`: the kernel has none.
pub fn barrier() -> bool {
    let everywhere = || membarrier(MembarrierCommand::PrivateExpedited);
    // The first time in this process it has to be registered.
    let first = || membarrier(MembarrierCommand::RegisterPrivateExpedited);
    everywhere().is_ok() || first().and_then(|()| everywhere()).is_ok()
}

// SAFETY: a writer comes in only when `state` is 0 and makes it WRITER in the same step, so nobody
// is inside then; readers come in only by adding to a number without it, in one step; and nobody
// but the writer takes WRITER away. A step is one instruction, or a load and a store between
// which no other thread makes one. Entering acquires what leaving released.
unsafe impl lock_api::RawRwLock for Asymmetric {
    const INIT: Self = Self {
        state: AtomicU32::new(0),
        sleepers: AtomicU32::new(0),
        writers: AtomicU32::new(0),
    };

    type GuardMarker = lock_api::GuardNoSend;

    #[inline(always)]
    fn lock_shared(&self) {
        if !self.try_lock_shared() {
            self.read_slowly();
        }
    }

    #[inline]
    fn try_lock_shared(&self) -> bool {
        self.writers.load(Ordering::Relaxed) == 0 && self.try_read()
    }

    #[inline(always)]
    unsafe fn unlock_shared(&self) {
        if self.change(|now| Some(now - 1)) == Some(1) {
            compiler_fence(Ordering::SeqCst);
            self.wake();
        }
    }

    #[inline(always)]
    fn lock_exclusive(&self) {
        if !self.try_write() {
            self.write_slowly();
        }
    }

    #[inline]
    fn try_lock_exclusive(&self) -> bool {
        self.try_write()
    }

    #[inline(always)]
    unsafe fn unlock_exclusive(&self) {
        self.state.store(0, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        self.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    /// Two words that only differ while somebody changes them.
    #[test]
    fn writers_are_alone_and_nobody_is_forgotten() {
        let lock = Arc::new(RwLock::new((0u64, 0u64)));
        let threads: Vec<_> = (0..6u64)
            .map(|thread| {
                let lock = Arc::clone(&lock);
                std::thread::spawn(move || {
                    for turn in 0..20_000u64 {
                        if (turn + thread) % 3 == 0 {
                            let read = lock.read();
                            assert_eq!(read.0, read.1);
                            if turn % 512 == 0 {
                                std::thread::yield_now();
                            }
                        } else {
                            let mut write = lock.write();
                            write.0 += 1;
                            if turn % 256 == 0 {
                                std::thread::yield_now();
                            }
                            write.1 += 1;
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let each: u64 = (0..6u64)
            .map(|thread| (0..20_000).filter(|turn| (turn + thread) % 3 != 0).count() as u64)
            .sum();
        assert_eq!(*lock.read(), (each, each));
        assert!(!lock.is_locked());
    }

    /// A sleeper is woken when the lock is left, long before it would look by itself.
    #[test]
    fn a_sleeper_is_woken() {
        let lock = Arc::new(RwLock::new(()));
        let mut timeouts = 0;
        for round in 0..60 {
            let guard = lock.write();
            let other = Arc::clone(&lock);
            let waiter = std::thread::spawn(move || {
                if round % 2 == 0 {
                    drop(other.write());
                } else {
                    drop(other.read());
                }
                Instant::now()
            });
            // SAFETY: the lock is held by this test; the raw lock is only looked at.
            let raw = unsafe { lock.raw() };
            while raw.sleepers.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(300));
            let left = Instant::now();
            drop(guard);
            let woken = waiter.join().unwrap();
            timeouts += u32::from(woken.duration_since(left) > Duration::from_millis(2));
        }
        assert!(
            timeouts < 20,
            "{timeouts} of 60 sleepers woke by themselves"
        );
    }

    #[test]
    fn readers_do_not_keep_a_writer_out() {
        keep_out(false);
        keep_out(true);
    }

    fn keep_out(by_trying: bool) {
        let lock = Arc::new(RwLock::new(0u32));
        let stop = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let (lock, stop) = (Arc::clone(&lock), Arc::clone(&stop));
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let read = if by_trying {
                            lock.try_read()
                        } else {
                            Some(lock.read())
                        };
                        std::hint::spin_loop();
                        drop(read);
                    }
                })
            })
            .collect();
        for _ in 0..200 {
            *lock.write() += 1;
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(*lock.read(), 200);
        let twice = (lock.read(), lock.read());
        assert!(lock.try_write().is_none());
        drop(twice);
        assert!(lock.try_write().is_some());
    }
}
