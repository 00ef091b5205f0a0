//! Calls that this library makes by libc's functions are no cancellation points (pthread_cancel(3)).
//!
//! Of a thread that is cancelled in the middle of the library locks would stay held ([`shale_interpose::cancellation`]). So calls
//! that the standard library makes by libc's functions come to functions of the same names here, which nobody else sees, or to those that are
//! exported ([`crate::hook::exports`]), which know that the thread is inside. They stand in the crate that is linked as the library: in another
//! one they would be taken only where something there refers to them.

use core::arch::global_asm;
use shale_interpose::raw::set_errno;

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
