//! Children by `vfork`, and by `posix_spawn`, which is made of it.
//!
//! Until it execs such a child runs in its parent's memory, with descriptors of its own. The table is
//! about its parent's, so the child has a list ([`Inherited`]), made before the call: which of
//! its descriptors are which descriptions. Each counts as a user meanwhile, so none is freed
//! and taken for another file. The child keeps to its list:
//!
//! * A number that it closes or replaces leaves the list. The parent has the file still.
//! * What it duplicates or uses by itself gets its offset handed to the kernel for good,
//!   before; so does what is left on the list and open when it execs.
//!
//! Between the making of the list and the call other threads may open and close. So the child, in
//! its first call, drops from the list what is not in its parent's table any more:
//! that may be another file in the child. Nobody who passes a descriptor on closes it in
//! that moment.

use crate::names::{setting, spawn};
use core::ptr;
use core::sync::atomic::Ordering;
use shale_fd::inherited::Inherited;
use shale_interpose::environment;
use shale_interpose::inside::with_signals_blocked;
use shale_interpose::raw::{self, Args, nr};
use shale_interpose::thread::Thread;

/// Before the call that makes the child.
pub fn prepare(thread: &Thread) {
    if thread.tid.load(Ordering::Relaxed) == 0 {
        thread.set_up();
        shale_libfs::prepare_thread();
    }
    // Nobody has to wait for others where there are no placeholders.
    if setting::are_wanted() {
        thread.inside.store(1, Ordering::Relaxed);
        spawn::before_vfork(thread);
        thread.inside.store(0, Ordering::Relaxed);
    }
    with_signals_blocked(thread, || {
        let inherited = Box::into_raw(Box::new(Inherited::now()));
        thread.vfork.store(inherited.cast(), Ordering::Relaxed);
        0
    });
}

/// Whether a child by `vfork` was killed in a call of its own, and left its parent's thread *inside*.
#[cold]
pub fn left_inside(thread: &Thread) -> bool {
    !thread.vfork.load(Ordering::Relaxed).is_null() && !is_child(thread)
}

/// Whether a thread that began a `vfork` is the child. If it is not, the child is gone.
#[cold]
pub fn is_child(thread: &Thread) -> bool {
    let child = raw::getpid() != thread.pid.load(Ordering::Relaxed);
    if !child {
        thread.inside.store(0, Ordering::Relaxed);
        with_signals_blocked(thread, || {
            let inherited = thread.vfork.swap(ptr::null_mut(), Ordering::Relaxed);
            // SAFETY: made by `prepare`, and taken out just now; there is no child any more.
            let mut inherited = unsafe { Box::from_raw(inherited.cast::<Inherited>()) };
            inherited.clear();
            spawn::spawned();
            0
        });
    }
    child
}

/// In a child with memory of its own: forgets what was copied. `true`: it is the child of a child by
/// `vfork`, and the table says nothing of its descriptors.
pub fn forget(thread: &Thread) -> bool {
    let inherited = thread.vfork.swap(ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: made by `prepare`, and never freed here: its users are the parent's to drop.
    let inherited = unsafe { inherited.cast::<Inherited>().as_ref() };
    inherited.is_some_and(Inherited::has_children)
}

/// A call of a `vfork` child, in its parent's memory.
pub fn call_of_child(thread: &Thread, number: u32, args: &Args) -> i64 {
    // SAFETY: made by `prepare`. The parent's thread is suspended, and no other one uses it.
    let inherited = unsafe { &mut *thread.vfork.load(Ordering::Relaxed).cast::<Inherited>() };
    if !matches!(number, nr::EXECVE | nr::EXECVEAT) {
        return inherited.call(number, args);
    }
    inherited.begin();
    inherited.hand_over_inherited();
    // It does not come back, and the parent goes on with what stands here.
    thread.inside.store(0, Ordering::Relaxed);
    environment::exec(number, args)
}
