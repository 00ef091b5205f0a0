//! Threads and children of this process, as far as tables by thread need to know of them.
//!
//! Such tables are not kept with destructors of thread-local storage: `exit` runs those first, and libc
//! writes what is in its buffers after it; so does a thread in the destructors of its thread-specific
//! data. An entry names its thread instead, and a thread that needs an entry looks which of the named
//! threads still live.

use std::arch::asm;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The kernel's number of the calling thread.
#[inline]
pub fn id() -> u32 {
    rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .cast_unsigned()
}

/// An address that identifies the calling thread while it lives.
#[inline(always)]
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: the x86-64 ABI keeps the address of the thread control block in its
    // own first word, at fs:0. Reading it has no effect.
    unsafe {
        asm!("mov {}, qword ptr fs:[0]", out(reg) pointer,
             options(pure, readonly, nostack, preserves_flags));
    }
    pointer
}

/// Whether this process has a thread of this number. (A main thread that has ended counts as one until
/// the process ends.) Leaves `errno` alone.
pub fn lives(thread: u32) -> bool {
    let process = i64::from(rustix::process::getpid().as_raw_nonzero().get());
    let result: i64;
    // SAFETY: the instruction clobbers rax, rcx and r11 only, and no memory is named: signal 0
    // is not sent, it only asks.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") libc::SYS_tgkill => result,
            in("rdi") process, in("rsi") i64::from(thread), in("rdx") 0,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result != -i64::from(libc::ESRCH)
}

/// Handlers of [`in_children`], by address.
static NOTED: [AtomicUsize; HANDLERS_MAX] = [const { AtomicUsize::new(0) }; HANDLERS_MAX];
/// Different handlers of one process.
const HANDLERS_MAX: usize = 8;

/// Has `handler` called in every child that libc's `fork` makes of this process, and in their children.
/// It may do what a signal handler may. It is noted once, however often this is called. `false`:
/// libc has no memory for it, or there are too many.
pub fn in_children(handler: extern "C" fn()) -> bool {
    let me = handler as *const () as usize;
    for place in &NOTED {
        match place.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // SAFETY: the handler is there as long as this library is.
                let done = unsafe { libc::pthread_atfork(None, None, Some(handler)) } == 0;
                if !done {
                    place.store(0, Ordering::Release);
                }
                return done;
            }
            Err(there) if there == me => return true,
            Err(_) => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn threads_live_until_they_end() {
        assert!(lives(id()));
        let ended = std::thread::spawn(|| {
            assert!(lives(id()));
            id()
        });
        let ended = ended.join().unwrap();
        // The kernel may take a moment to bury it.
        let begun = std::time::Instant::now();
        while lives(ended) {
            assert!(begun.elapsed().as_secs() < 10);
            std::thread::yield_now();
        }
        assert!(!lives(1), "a thread of another process");
    }

    #[test]
    fn a_handler_is_called_once_in_a_child() {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        extern "C" fn count() {
            CALLS.fetch_add(1, Ordering::Relaxed);
        }
        assert!(in_children(count) && in_children(count));
        // SAFETY: the child only looks at a word and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let calls = CALLS.load(Ordering::Relaxed);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(calls != 1)) };
        }
        let mut status = 0;
        // SAFETY: a child of this process and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, CALLS.load(Ordering::Relaxed)), (0, 0));
    }
}
