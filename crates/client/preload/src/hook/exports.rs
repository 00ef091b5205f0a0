//! The symbols that programs call most, exported: cheaper than the way through libc's
//! call site.
//!
//! Each looks whether its descriptor is in the table and goes on to libc's own function if it is
//! not, so that a blocking call stays what libc made of it (a cancellation point). Calls of the library itself come here, too: they must be
//! none ([`crate::hook::own_calls`]).

use crate::names::kernel::before_loading;
use core::arch::naked_asm;
use core::ffi::c_void;
use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, Ordering};
use shale_fd::report;
use shale_interpose::outcome::{FD_END, TABLE};
use shale_interpose::raw::nr;
use shale_interpose::thread::{self, Thread};
use shale_interpose::trampolines::{REAL, SITES_LEAD_HERE};
use std::panic::catch_unwind;

macro_rules! by_descriptor {
    ($($name:ident $number:expr;)*) => { $(
        /// As in libc.
        ///
        /// # Safety
        /// As in libc.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(_fd: i32, _: *mut c_void, _: usize, _: i64) -> i64 {
            naked_asm!(
                ".cfi_startproc",
                "mov eax, {nr}",
                "cmp edi, {fd_end}",
                "jae 2f",
                "mov r10d, edi",
                "lea r11, [rip + {table}]",
                "cmp dword ptr [r11 + r10*4], 0",
                "jne shale_symbol",
                "2: mov r11, qword ptr [rip + shale_thread@GOTTPOFF]",
                "cmp dword ptr fs:[r11 + {inside}], 0",
                "jne shale_symbol",
                "jmp qword ptr [rip + {real} + {nr}*8]",
                ".cfi_endproc",
                nr = const $number,
                fd_end = const FD_END,
                inside = const offset_of!(Thread, inside),
                table = sym TABLE,
                real = sym REAL,
            )
        }
    )* };
}

macro_rules! always {
    ($($name:ident $number:expr;)*) => { $(
        /// As in libc.
        ///
        /// # Safety
        /// As in libc.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(_: i64, _: i64, _: i64, _: i64) -> i64 {
            naked_asm!(
                ".cfi_startproc",
                "mov eax, {nr}",
                "cmp dword ptr [rip + {lead}], 0",
                "je shale_symbol",
                "mov r11, qword ptr [rip + shale_thread@GOTTPOFF]",
                "cmp dword ptr fs:[r11 + {inside}], 0",
                "jne shale_symbol",
                "jmp qword ptr [rip + {real} + {nr}*8]",
                ".cfi_endproc",
                nr = const $number,
                inside = const offset_of!(Thread, inside),
                lead = sym SITES_LEAD_HERE,
                real = sym REAL,
            )
        }
    )* };
}

by_descriptor! {
    read nr::READ; write nr::WRITE; close nr::CLOSE;
    lseek nr::LSEEK; lseek64 nr::LSEEK;
    pread nr::PREAD; pread64 nr::PREAD; pwrite nr::PWRITE; pwrite64 nr::PWRITE;
    fsync nr::FSYNC; fdatasync nr::FDATASYNC;
    ftruncate nr::FTRUNCATE; ftruncate64 nr::FTRUNCATE;
}

always! {
    open nr::OPEN; open64 nr::OPEN; openat nr::OPENAT; openat64 nr::OPENAT;
    creat nr::CREAT; creat64 nr::CREAT;
}

/// Names to look up in libc, and the numbers they stand for in [`REAL`].
pub(crate) const NAMES: [(&core::ffi::CStr, u32); 13] = [
    (c"read", nr::READ),
    (c"write", nr::WRITE),
    (c"close", nr::CLOSE),
    (c"lseek64", nr::LSEEK),
    (c"pread64", nr::PREAD),
    (c"pwrite64", nr::PWRITE),
    (c"fsync", nr::FSYNC),
    (c"fdatasync", nr::FDATASYNC),
    (c"ftruncate64", nr::FTRUNCATE),
    (c"open64", nr::OPEN),
    (c"openat64", nr::OPENAT),
    (c"creat64", nr::CREAT),
    (c"_exit", nr::EXIT_GROUP),
];

/// libc's own `dlopen` and `dlmopen`; null: it has none.
pub(crate) static DLOPEN: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
pub(crate) static DLMOPEN: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

macro_rules! loads {
    ($($name:ident $real:ident;)*) => { $(
        /// As in libc, to which it jumps: libc goes by who calls. Code that is loaded has to be known first
        /// ([`shale_interpose::executable`]).
        ///
        /// # Safety
        /// As in libc.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(_: i64, _: i64, _: i64) -> *mut c_void {
            naked_asm!(
                ".cfi_startproc",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "call {before}",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "mov rax, qword ptr [rip + {real}]",
                "test rax, rax",
                "jz 2f",
                "jmp rax",
                "2: ret",
                ".cfi_endproc",
                before = sym before_loading,
                real = sym $real,
            )
        }
    )* };
}

loads! {
    dlopen DLOPEN; dlmopen DLMOPEN;
}

/// The process ends: the report is written ([`report::at_exit`]). As the dynamic linker calls it.
pub(crate) extern "C" fn at_exit_of_process() {
    let thread = thread::this();
    let was_inside = thread.inside.swap(1, Ordering::Relaxed);
    // A panic must not leave the library.
    let _ = catch_unwind(report::at_exit);
    thread.inside.store(was_inside, Ordering::Relaxed);
}

/// As in libc; what was counted is reported first.
///
/// # Safety
/// As in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: i32) -> ! {
    at_exit_of_process();
    loop {
        // SAFETY: no pointers; does not return.
        unsafe { shale_interpose::raw::syscall(nr::EXIT_GROUP, &[status as u64, 0, 0, 0, 0, 0]) };
    }
}

/// As [`_exit`].
///
/// # Safety
/// As in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: i32) -> ! {
    // SAFETY: the same function.
    unsafe { _exit(status) }
}

/// As in libc; the limit that writes obey is looked up again.
///
/// # Safety
/// As in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: i32, limit: *const c_void) -> i32 {
    // SAFETY: the caller's pointer goes to the kernel, which checks it.
    let result = unsafe {
        shale_interpose::raw::syscall(nr::SETRLIMIT, &[resource as u64, limit as u64, 0, 0, 0, 0])
    };
    shale_fd::limits::forget();
    if result < 0 {
        shale_interpose::raw::set_errno(result) as i32
    } else {
        0
    }
}

/// As [`setrlimit`]: on this machine both are the same.
///
/// # Safety
/// As in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: i32, limit: *const c_void) -> i32 {
    // SAFETY: the same function.
    unsafe { setrlimit(resource, limit) }
}

/// As in libc; the limit that writes obey is looked up again.
///
/// # Safety
/// As in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    pid: i32,
    resource: i32,
    new: *const c_void,
    old: *mut c_void,
) -> i32 {
    let args = [pid as u64, resource as u64, new as u64, old as u64, 0, 0];
    // SAFETY: the caller's pointers go to the kernel, which checks them.
    let result = unsafe { shale_interpose::raw::syscall(nr::PRLIMIT64, &args) };
    shale_fd::limits::forget();
    if result < 0 {
        shale_interpose::raw::set_errno(result) as i32
    } else {
        0
    }
}

/// As [`prlimit64`].
///
/// # Safety
/// As in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    pid: i32,
    resource: i32,
    new: *const c_void,
    old: *mut c_void,
) -> i32 {
    // SAFETY: the same function.
    unsafe { prlimit64(pid, resource, new, old) }
}
