//! Children, and other program images.
//!
//! * A child by `fork` has its parent's descriptions and none of its sessions. While the
//!   kernel copies the process no other thread is inside the library.
//! * A child by `vfork` runs in its parent's memory until it execs: see [`vfork`].
//! * A new program image knows nothing of descriptions: those that it inherits are handed
//!   over to the kernel for good, for everybody who shares them.

use crate::calls::{direct, names, vfork};
use crate::client;
use crate::names::{place, spawn, state};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use shale_fd::description;
use shale_fd::locked;
use shale_fd::mapped;
use shale_fd::mounts;
use shale_fd::own;
use shale_fd::placeholder;
use shale_fd::report;
use shale_fd::table;
use shale_fd::transfer;
use shale_interpose::environment;
use shale_interpose::inside::{READY, caught, with_signals_blocked};
use shale_interpose::outcome::{ONTO_STACK, PASS};
use shale_interpose::probe;
use shale_interpose::raw::{self, Args, nr};
use shale_interpose::thread::{self, Thread};

/// A word that the kernel clears in every child that has memory of its own.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

/// Makes the mark. Once, at start; `false`: the kernel cannot.
pub fn make_mark() -> bool {
    const MADVISE: u32 = 28;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    // SAFETY: a new mapping where the kernel chooses, and advice about it.
    let at = unsafe { raw::syscall(nr::MMAP, &[0, 4096, protection, flags, u64::MAX, 0]) };
    if at < 0 {
        return false;
    }
    let advice = [at as u64, 4096, libc::MADV_WIPEONFORK as u64, 0, 0, 0];
    // SAFETY: as above.
    if unsafe { raw::syscall(MADVISE, &advice) } < 0 {
        return false;
    }
    let mark = at as *mut AtomicU32;
    // SAFETY: the mapping is there for ever, aligned, and atomics may have any content.
    unsafe { &*mark }.store(1, Ordering::Relaxed);
    MARK.store(mark, Ordering::Release);
    true
}

fn mark() -> &'static AtomicU32 {
    // SAFETY: made before the first call is served, and never unmapped.
    unsafe { &*MARK.load(Ordering::Relaxed) }
}

/// Finds out that this is a child that came about without our knowing. 0, or
/// [`PANICKED`](shale_interpose::outcome::PANICKED).
#[inline]
pub fn notice_fork(thread: &Thread) -> i64 {
    match mark().load(Ordering::Relaxed) {
        0 => guarded_child(thread),
        _ => 0,
    }
}

#[cold]
fn guarded_child(thread: &Thread) -> i64 {
    thread.inside.store(1, Ordering::Relaxed);
    let result = caught(|| {
        if vfork::forget(thread) {
            table::forget_all();
        }
        table::count_all();
        in_child();
        leave_not_known();
        0
    });
    thread.inside.store(0, Ordering::Relaxed);
    result
}

/// Sets everything right in a child with memory of its own.
fn in_child() {
    // First: a thread that was not inside, but making its slot, may have held one when all was copied.
    crate::MEMORY.unlock_all();
    mark().store(1, Ordering::Relaxed);
    thread::only_this_is_left();
    shale_libfs::reset_in_child();
    client::forget_all();
    mapped::begin_again();
    direct::begin_again();
    placeholder::forget_all();
    locked::forget_all();
    spawn::begin_again();
    state::begin_again();
    place::begin_again();
    own::close_all(direct::keeps);
    report::begin_again();
}

/// `clone`, `clone3`, `fork`, `vfork`.
pub fn clone(thread: &Thread, number: u32, args: &Args) -> i64 {
    const OWN_THREAD: i32 = libc::CLONE_THREAD | libc::CLONE_FILES | libc::CLONE_SETTLS;
    let mut block = [0; BLOCK_WORDS];
    let Some(Asked { flags, stack, args }) = Asked::of(number, args, &mut block) else {
        return PASS;
    };
    let has = |flag: i32| flags & flag as u64 == flag as u64;
    let has_any = |of: i32| flags & of as u64 != 0;
    match (has(libc::CLONE_VM), has(libc::CLONE_VFORK)) {
        (true, false) if has(OWN_THREAD) => PASS,
        (true, true) if !has_any(OWN_THREAD) => {
            vfork::prepare(thread);
            PASS
        }
        (false, false) if !has_any(OWN_THREAD) => fork(thread, number, &args, stack),
        _ => {
            retire(thread);
            report::passed(number, "shares memory or descriptors, not both");
            PASS
        }
    }
}

/// The kernel knows 11.
const BLOCK_WORDS: usize = 32;

/// What a call that makes a child asks for.
struct Asked {
    flags: u64,
    /// Upper end of the child's stack; 0: where the parent's is.
    stack: u64,
    /// The call, without the stack.
    args: Args,
}

impl Asked {
    /// `block` is where a copy of what the call points to lies. `None`: the kernel will refuse.
    fn of(number: u32, args: &Args, block: &mut [u64; BLOCK_WORDS]) -> Option<Self> {
        let (mut args, mut stack) = (*args, 0);
        let flags = match number {
            nr::CLONE => {
                stack = core::mem::take(&mut args[1]);
                args[0]
            }
            nr::CLONE3 if args[1] < 64 || probe::readable(args[0], args[1]) < args[1] => {
                return None;
            }
            // Nobody knows.
            nr::CLONE3 if args[1] as usize > size_of_val(block) => u64::MAX,
            nr::CLONE3 => {
                let bytes = args[1] as usize;
                // SAFETY: the program says that so many bytes are there, and there is space for them.
                unsafe {
                    let into = block.as_mut_ptr().cast::<u8>();
                    core::ptr::copy_nonoverlapping(args[0] as *const u8, into, bytes);
                }
                args[0] = block.as_ptr() as u64;
                // Its lower end, and its size.
                stack = block[5].wrapping_add(block[6]);
                block[5..7].fill(0);
                block[0]
            }
            nr::VFORK => (libc::CLONE_VM | libc::CLONE_VFORK) as u64,
            _ => 0,
        };
        Some(Self { flags, stack, args })
    }
}

/// Makes a child with memory and descriptors of its own. Without a stack: so both sides go on from here,
/// each with a copy of everything, and the child changes to its stack on the way out.
fn fork(thread: &Thread, number: u32, args: &Args, stack: u64) -> i64 {
    // Set up first: in the child the block has to be this thread's.
    if thread.tid.load(Ordering::Relaxed) == 0 {
        thread.set_up();
    }
    let looked = with_signals_blocked(thread, || {
        names::look_at_all();
        0
    });
    if looked != 0 {
        return looked;
    }
    thread.inside.store(1, Ordering::Relaxed);
    let alone = spawn::alone_without_placeholders(thread, "a child is made");
    // What other threads have opened since.
    leave_not_known();
    table::for_each_file(|_, index| description::add_user(index));
    // SAFETY: as the program asks, but for the stack.
    let mut pid = unsafe { raw::syscall(number, args) };
    if pid == 0 {
        core::mem::forget(alone);
        in_child();
        if stack != 0 {
            thread.child_stack.store(stack as usize, Ordering::Relaxed);
            pid = ONTO_STACK;
        }
    } else {
        if pid < 0 {
            table::for_each_file(|_, index| description::drop_user(index));
        }
        spawn::spawned();
        drop(alone);
    }
    thread.inside.store(0, Ordering::Relaxed);
    pid
}

/// Leaves to the kernel for good what lies on a mount that this process does not know: so that it never comes about that
/// parent and child take it for different files.
fn leave_not_known() {
    table::for_each_file(|fd, index| {
        if description::get(index).mount.load(Ordering::Acquire) >= mounts::count() {
            transfer::hand_over_as(fd, index);
            table::remove(fd);
        }
    });
}

/// Before descriptors are shared without memory, or memory without descriptors, or both without a
/// thread's own block: one table cannot be about all that follows. Everything goes to the
/// kernel for good, and nothing more is served in this process and its children.
pub fn retire(thread: &Thread) {
    if thread.tid.load(Ordering::Relaxed) == 0 {
        thread.set_up();
    }
    thread.inside.store(1, Ordering::Relaxed);
    let alone = spawn::alone_without_placeholders(thread, "descriptors are shared");
    hand_over_all();
    READY.store(false, Ordering::Release);
    drop(alone);
    thread.inside.store(0, Ordering::Relaxed);
}

/// Hands every file over, and leaves its descriptors to the kernel. Nobody else is inside.
fn hand_over_all() {
    table::for_each_file(|fd, index| {
        transfer::hand_over_as(fd, index);
        table::remove(fd);
    });
}

/// Hands over what a new program image would inherit.
fn hand_over_inherited() {
    table::for_each_file(|fd, index| {
        if transfer::is_inherited(fd) {
            transfer::hand_over_as(fd, index);
        }
    });
}

/// `execve`, `execveat`.
pub fn exec(thread: &Thread, number: u32, args: &Args) -> i64 {
    with_signals_blocked(thread, || {
        hand_over_inherited();
        report::at_exit();
        // What others use as well need not be kept for us. What only we use stays, in
        // case the kernel refuses.
        let mut left = Vec::new();
        table::for_each_file(|_, index| {
            if description::users(index) > 1 {
                description::drop_user(index);
                left.push(index);
            }
        });
        let result = environment::exec(number, args);
        report::goes_on();
        for index in left {
            description::add_user(index);
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_fd::recent::{self, Recent};
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    /// Whether a child ends by itself within 10 s, and well.
    fn ends_well(child: i32) -> bool {
        let begun = Instant::now();
        let mut status = 0;
        // SAFETY: a child of this process, and a place for its status.
        while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
            if begun.elapsed() > Duration::from_secs(10) {
                // SAFETY: as above.
                unsafe { libc::kill(child, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        status == 0
    }

    /// Threads make their slots, which allocates, before they are inside, so a fork does not wait for them.
    #[test]
    fn a_child_does_not_wait_for_what_a_thread_held_that_made_its_slot() {
        assert!(make_mark());
        assert!(thread::register_barriers());
        let ended = AtomicBool::new(false);
        let ended = &ended;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let made = recent::make().cast::<Recent>();
                    // SAFETY: it was just made, and nobody else knows it.
                    drop(unsafe { Box::from_raw(made) });
                }
            });
            for _ in 0..50 {
                // SAFETY: the child goes on with code that is made for it, and ends.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    in_child();
                    // SAFETY: ends this process.
                    unsafe { libc::_exit(0) };
                }
                let ends = ends_well(child);
                ended.store(!ends, Ordering::Relaxed);
                assert!(ends, "the child hangs");
            }
            ended.store(true, Ordering::Relaxed);
        });
    }
}
