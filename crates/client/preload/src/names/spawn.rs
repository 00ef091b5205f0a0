//! Children, which must not have placeholders.

use crate::names::setting::{are_wanted, have_served};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use shale_fd::placeholder;
use shale_interpose::inside::with_signals_blocked;
use shale_interpose::thread::{self, Alone, Thread};

/// Children by `vfork` that have not begun another program: nothing is opened meanwhile.
static SPAWNING: AtomicU32 = AtomicU32::new(0);
/// Times that it is tried to have no placeholders.
const TRIES: u32 = 3;

/// This process has made a child at some time.
static EVER: AtomicBool = AtomicBool::new(false);

/// Whether this process has made a child since it began: what that does (a mount) this one may rely on at once.
pub fn ever() -> bool {
    EVER.load(Ordering::Relaxed)
}

/// A child by `vfork` begins to have this process's memory, and descriptors of its own.
fn spawning() {
    EVER.store(true, Ordering::Relaxed);
    SPAWNING.fetch_add(1, Ordering::SeqCst);
}

/// It has begun another program, or ended.
pub fn spawned() {
    if are_wanted() {
        SPAWNING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether what is opened now may be a placeholder.
pub fn may_open() -> bool {
    SPAWNING.load(Ordering::SeqCst) == 0
}

/// In a child: it has made none.
pub fn begin_again() {
    EVER.store(false, Ordering::Relaxed);
    SPAWNING.store(0, Ordering::Relaxed);
}

/// Before a child by `vfork` is made. The thread is marked inside, and not busy.
pub fn before_vfork(thread: &Thread) {
    if !are_wanted() {
        return;
    }
    // Where no names are served, nobody has to be waited for: who begins to sees that there is a child.
    spawning();
    if have_served() {
        drop(without_placeholders(thread, "a child is made"));
    }
}

/// Before a child is made, or descriptors are shared: has the kernel open everything, and nothing be opened here until [`spawned`].
/// Gives what keeps other threads outside. The thread is marked inside, and not busy.
pub fn alone_without_placeholders(thread: &Thread, why: &'static str) -> Alone {
    if !are_wanted() {
        return thread::alone();
    }
    spawning();
    without_placeholders(thread, why)
}

fn without_placeholders(thread: &Thread, why: &'static str) -> Alone {
    for _ in 0..TRIES {
        let alone = thread::alone();
        if !placeholder::any() {
            return alone;
        }
        drop(alone);
        with_signals_blocked(thread, || {
            placeholder::materialise_all(why);
            0
        });
        thread.inside.store(1, Ordering::Relaxed);
    }
    thread::alone()
}
