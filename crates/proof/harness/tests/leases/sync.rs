//! What `sync.rs` is in both crates, for the model: locks as `parking_lot` has them, over
//! the checker's.

use crate::memory;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

pub(crate) use crate::memory::Words as SharedWords;
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::atomic::compiler_fence;

/// So few that the way into sleep is explored as well.
pub(crate) const SPINS: u32 = 1;

/// Nothing is killed or stopped here.
pub(crate) mod failpoints {
    pub(crate) fn reach(_name: &str) {}
}

pub(crate) mod mutants {
    pub(crate) use crate::memory::is_on;
}

pub(crate) fn pause() {
    memory::step();
}

pub(crate) fn sleep(_time: Duration) {
    memory::fence();
    shuttle::thread::yield_now();
}

pub(crate) fn backoff_sleep(time: Duration) -> Duration {
    sleep(time);
    time
}

/// A lock; to take and to release it are locked instructions.
#[derive(Default, Debug)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    guard: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        memory::fence();
        let guard = self.0.lock();
        // Also of one whose holder has failed: those that are unwound after it must not
        // fail in turn, which would hide what it said.
        let guard = Some(guard.unwrap_or_else(|poisoned| poisoned.into_inner()));
        MutexGuard { mutex: self, guard }
    }

    pub(crate) fn read(&self) -> MutexGuard<'_, T> {
        self.lock()
    }

    pub(crate) fn write(&self) -> MutexGuard<'_, T> {
        self.lock()
    }
}

/// Nothing here depends on several readers at the same time.
pub(crate) type RwLock<T> = Mutex<T>;

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            memory::step();
            memory::fence();
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.guard.as_ref().expect("held but while waiting")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("held but while waiting")
    }
}

pub(crate) fn let_pass<T>(held: &mut MutexGuard<'_, T>) {
    memory::fence();
    drop(held.guard.take());
    shuttle::thread::yield_now();
    held.guard = held.mutex.lock().guard.take();
}

/// A condition variable.
#[derive(Default, Debug)]
pub(crate) struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(held) = guard.guard.take() {
            memory::fence();
            let held = self.0.wait(held);
            guard.guard = Some(held.unwrap_or_else(|poisoned| poisoned.into_inner()));
        }
    }

    /// Time is what it needs to be: this may end at once.
    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _time: Duration) -> Woken {
        memory::fence();
        drop(guard.guard.take());
        shuttle::thread::yield_now();
        guard.guard = guard.mutex.lock().guard.take();
        Woken
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// What a wait that may have timed out gives.
pub(crate) struct Woken;
