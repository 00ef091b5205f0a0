//! Threads that are cancelled (pthread_cancel(3)).
//!
//! Of a thread that is cancelled in the middle of the library locks would stay held, and libc ends the program where the unwinding meets
//! code that catches panics. So no call that the library makes is a cancellation point: those that it makes by libc's functions
//! (the standard library does) come to functions of the same names here, which nobody else sees, or to those that are
//! exported ([`crate::hook::exports`]), which know that the thread is inside. Where libc cancels a thread at once, while it makes a system call, it sends a signal,
//! which waits until the call is served ([`crate::hook::signals`]).
//!
//! A call that is served is the cancellation point that it is in libc, at its begin: by way of a call site libc itself looks,
//! by way of an exported symbol the trampoline, once there can be something to be seen.

use crate::hook::raw::set_errno;
use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, Ordering};

/// The signal by which glibc cancels a thread.
pub(crate) const SIGCANCEL: usize = 32;

/// Not 0 when a thread of this process may have been cancelled.
pub(crate) static CANCELS: AtomicU32 = AtomicU32::new(0);

/// A handler for `signal` is about to be set: glibc sets the one for its own signal before the first thread is cancelled.
pub(crate) fn note_handler(signal: usize) {
    if signal == SIGCANCEL {
        CANCELS.store(1, Ordering::Relaxed);
    }
}

global_asm!(
    ".text",
    ".p2align 4",
    ".hidden poll",
    ".globl poll",
    "poll:",
    ".cfi_startproc",
    "mov eax, 7",
    "jmp 2f",
    ".cfi_endproc",
    "",
    ".p2align 4",
    ".hidden writev",
    ".globl writev",
    "writev:",
    ".cfi_startproc",
    "mov eax, 20",
    "2: syscall",
    "cmp rax, -4096",
    "ja 3f",
    "ret",
    "3: mov rdi, rax",
    "jmp {fail}",
    ".cfi_endproc",
    "",
    // Gives the error number.
    ".p2align 4",
    ".hidden clock_nanosleep",
    ".globl clock_nanosleep",
    "clock_nanosleep:",
    ".cfi_startproc",
    "mov r10, rcx",
    "mov eax, 230",
    "syscall",
    "neg eax",
    "ret",
    ".cfi_endproc",
    fail = sym set_errno,
);
