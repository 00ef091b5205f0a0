//! Whether memory that a program passes is there: a bad pointer is `EFAULT`, as the kernel says, and does not end the program.
//!
//! The kernel finds out by touching it, and so do we: three routines whose only accesses may fault. Their faults are led behind them by the
//! handler of faults ([`crate::signals`]), which is in place from the start ([`crate::signals::catch_faults`]). What is
//! there when it is looked at may be gone a moment later, if another thread unmaps it: that ends the program, as before.

use core::arch::global_asm;
use std::ffi::CStr;

const PAGE: u64 = 4096;

unsafe extern "C" {
    /// Reads a byte of each page from the first address up to the second one. Gives that, or the address that cannot be read.
    fn shale_probe_read(at: u64, end: u64) -> u64;
    /// Writes a byte as it is. Gives the next address, or the same if it cannot be written.
    fn shale_probe_write(at: u64) -> u64;
    safe fn shale_probe_end();
    safe fn shale_probe_fault();
}

global_asm!(
    ".text",
    ".p2align 4",
    ".hidden shale_probe_read",
    ".globl shale_probe_read",
    "shale_probe_read:",
    ".cfi_startproc",
    "2: cmp rdi, rsi",
    "jae 3f",
    "mov al, byte ptr [rdi]",
    "add rdi, 4096",
    "and rdi, -4096",
    "jmp 2b",
    "3: mov rax, rsi",
    "ret",
    ".hidden shale_probe_write",
    ".globl shale_probe_write",
    "shale_probe_write:",
    "lock or byte ptr [rdi], 0",
    "lea rax, [rdi + 1]",
    "ret",
    ".hidden shale_probe_end",
    ".globl shale_probe_end",
    "shale_probe_end:",
    ".hidden shale_probe_fault",
    ".globl shale_probe_fault",
    "shale_probe_fault:",
    "mov rax, rdi",
    "ret",
    ".cfi_endproc",
);

/// Where a thread goes on that has faulted at instruction `at`; `None`: not in these routines.
pub(crate) fn behind(at: u64) -> Option<u64> {
    let first = shale_probe_read as *const () as u64;
    let end = shale_probe_end as *const () as u64;
    let fault = shale_probe_fault as *const () as u64;
    (first..end).contains(&at).then_some(fault)
}

/// How many of these bytes can be read, from the first one on.
#[inline]
pub fn readable(at: u64, bytes: u64) -> u64 {
    let Some(end) = at.checked_add(bytes) else {
        return 0;
    };
    // SAFETY: reads only, whose faults are led behind them.
    let to = unsafe { shale_probe_read(at, end) };
    to.max(at) - at
}

/// Whether a byte can be written. It stays as it is.
#[inline]
pub fn is_writable(at: u64) -> bool {
    // SAFETY: one atomic operation that changes nothing, whose fault is led behind it.
    unsafe { shale_probe_write(at) != at }
}

/// The string at an address; `None`: it does not end within `bytes_max` bytes, or before what cannot be read.
///
/// # Safety
/// What can be read there stays as it is for as long as the result is used.
pub unsafe fn string<'a>(at: u64, bytes_max: usize) -> Option<&'a CStr> {
    let mut bytes = PAGE - at % PAGE;
    loop {
        if readable(at, bytes) < bytes {
            return None;
        }
        // SAFETY: it can be read, and stays.
        let there = unsafe { core::slice::from_raw_parts(at as *const u8, bytes as usize) };
        match CStr::from_bytes_until_nul(there) {
            Ok(string) => return (string.count_bytes() < bytes_max).then_some(string),
            Err(_) if bytes as usize > bytes_max => return None,
            Err(_) => bytes += PAGE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::{self, nr};

    /// Two pages: one that can be written, then one that cannot be used at all; or read only.
    fn pages(second: i32) -> u64 {
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let all = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        // SAFETY: a new mapping, and a change of it.
        unsafe {
            let at = raw::syscall(nr::MMAP, &[0, 2 * PAGE, all, flags, u64::MAX, 0]) as u64;
            let of_second = [at + PAGE, PAGE, second as u64, 0, 0, 0];
            assert_eq!(raw::syscall(nr::MPROTECT, &of_second), 0);
            at
        }
    }

    #[test]
    fn what_is_not_there_is_found() {
        // The standard library has one of its own, for stacks that overflow.
        // SAFETY: no handler.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        crate::signals::catch_faults();
        let at = pages(libc::PROT_NONE);
        assert_eq!(readable(at + 10, 100), 100);
        assert_eq!(readable(at + 10, 2 * PAGE), PAGE - 10);
        assert_eq!(readable(at + PAGE + 5, 9), 0);
        assert_eq!((readable(at, 0), readable(u64::MAX - 1, 9)), (0, 0));
        assert!(is_writable(at) && !is_writable(at + PAGE));
        let read_only = pages(libc::PROT_READ) + PAGE;
        assert!(readable(read_only, PAGE) == PAGE && !is_writable(read_only));

        let place = (at + PAGE - 4) as *mut [u8; 4];
        // SAFETY: in the first page.
        unsafe { place.write(*b"abc\0") };
        // SAFETY: nobody changes the pages.
        let found = |at, max| unsafe { string(at, max) }.map(CStr::to_bytes);
        assert_eq!(found(at + PAGE - 4, 4), Some(&b"abc"[..]));
        assert_eq!(found(at + PAGE - 4, 3), None);
        // SAFETY: as above.
        unsafe { place.write(*b"abcd") };
        assert_eq!(
            found(at + PAGE - 4, 100),
            None,
            "it goes on where nothing is"
        );
        assert_eq!(found(at + PAGE, 100), None);
    }
}
