//! Stacks for served calls.
//!
//! A program may run on stacks that are just large enough for itself: threads of 16 KiB, or
//! signal stacks of less. The kernel needs nothing of them, and neither do we: what is
//! served runs on a stack of ours. It goes with the thread's slot, so a new thread uses
//! what one that has ended leaves behind.

use crate::raw::{self, nr};
use core::arch::naked_asm;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a stack; memory is used only as far as it is touched.
const STACK_BYTES: usize = 256 << 10;
/// Below it: touching this ends the program instead of spoiling memory.
const GUARD_BYTES: usize = 4096;

/// The stack of a slot, made if there is none; 0: there is no memory.
pub fn of_slot(place: &AtomicUsize) -> usize {
    let there = place.load(Ordering::Acquire);
    if there != 0 {
        return there;
    }
    let none = libc::PROT_NONE as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    let bytes = STACK_BYTES + GUARD_BYTES;
    // SAFETY: a new mapping where the kernel chooses disturbs nothing.
    let base = unsafe { raw::syscall(nr::MMAP, &[0, bytes as u64, none, flags, u64::MAX, 0]) };
    if base < 0 {
        return 0;
    }
    const MPROTECT: u32 = 10;
    let base = base as usize;
    let usable = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let args = [
        (base + GUARD_BYTES) as u64,
        STACK_BYTES as u64,
        usable,
        0,
        0,
        0,
    ];
    // SAFETY: the mapping was made just now.
    if unsafe { raw::syscall(MPROTECT, &args) } < 0 {
        return 0;
    }
    place.store(base + bytes, Ordering::Release);
    base + bytes
}

/// Runs `f`, which must not panic, on the thread's stack for served calls, whose upper end is `top`; 0: where it is.
///
/// # Safety
/// That stack is the calling thread's, and it is not on it.
#[inline]
pub unsafe fn call<F: FnMut() -> i64>(top: usize, mut f: F) -> i64 {
    if top == 0 {
        return f();
    }
    let mut job = Job { f, result: 0 };
    // SAFETY: `top` is the upper end of a stack that only this thread uses, and only here:
    // calls from inside do not come here. `run` gets the job that it is made for.
    unsafe { switch(run::<F>, (&raw mut job).cast(), top) };
    job.result
}

struct Job<F> {
    f: F,
    result: i64,
}

/// # Safety
/// `job` is a `Job<F>` that nobody else uses.
unsafe extern "C" fn run<F: FnMut() -> i64>(job: *mut u8) {
    // SAFETY: as above.
    let job = unsafe { &mut *job.cast::<Job<F>>() };
    job.result = (job.f)();
}

/// Calls `f(job)` with the stack pointer at `top`, a multiple of 16.
#[unsafe(naked)]
unsafe extern "C" fn switch(f: unsafe extern "C" fn(*mut u8), job: *mut u8, top: usize) {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdx",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_run_on_the_other_stack_and_come_back() {
        let place = AtomicUsize::new(0);
        let top = of_slot(&place);
        assert_eq!(of_slot(&place), top, "made once");
        let mut inside = 0;
        let work = || {
            let here = 0u8;
            inside = (&raw const here) as usize;
            7
        };
        // SAFETY: made for this test.
        let result = unsafe { call(top, work) };
        assert_eq!(result, 7);
        assert!((top - STACK_BYTES..top).contains(&inside));
    }
}
