//! The constructor, and what runs when the process exits.

use crate::hook::exports::{self, at_exit_of_process};
use crate::{calls, client, failure, names, pays, serve};
use core::ffi::{c_char, c_void};
use core::sync::atomic::Ordering;
use shale_fd::{description, recent, report};
use shale_interpose::inside::READY;
use shale_interpose::rewrite;
use shale_interpose::trampolines::{REAL, SITES_LEAD_HERE, serve_with};
use shale_interpose::{bypass, environment, protect, signals, thread};

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(i32, Variables, Variables) = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = at_exit_of_process;

/// An array of strings that ends with a null pointer.
type Variables = *mut *mut c_char;

/// Called with a frame, and data.
type OfFrame = extern "C" fn(*mut c_void, *mut c_void) -> i32;

unsafe extern "C" {
    static mut environ: Variables;
    fn _Unwind_Backtrace(of_frame: OfFrame, data: *mut c_void) -> i32;
}

extern "C" fn start(_: i32, _: Variables, variables: Variables) {
    // This constructor runs before libc's own, which would set it to the same.
    // SAFETY: there is one thread, and the dynamic linker passes the program's variables.
    unsafe {
        if environ.is_null() {
            environ = variables;
        }
    }
    // Nothing here may end the program: without us it runs on the mount.
    let _ = std::panic::catch_unwind(set_up);
}

fn set_up() {
    let thread = thread::this();
    thread.inside.store(1, Ordering::Relaxed);
    ready_unwinder();
    find_real();
    // Without it a call that gets no memory ends the program.
    let _ = crate::MEMORY.keep_reserve();
    if runs_in_valgrind() {
        report::configure();
        report::rewritten(0, false);
        report::end();
    } else if description::make() && calls::process::make_mark() {
        let bypassed = bypass::is_wanted();
        report::configure();
        failure::configure();
        environment::keep();
        thread::keep_for_slots(recent::make);
        serve_with(serve::shale_serve);
        thread.set_up();
        let has_barriers = thread::register_barriers();
        if bypassed {
            names::setting::set_never();
            bypass::set_classes();
        } else {
            client::configure();
            names::setting::configure();
            pays::configure();
            protect::configure();
            serve::set_classes();
        }
        let rewritten = has_barriers && {
            let done = rewrite::rewrite(names::setting::are_wanted());
            report::rewritten(done.sites, done.all);
            done.all
        };
        calls::direct::set_any(false);
        if rewritten {
            // Only where the program's own handlers come by here: else it would find ours.
            if !bypassed {
                signals::catch_faults();
            }
            SITES_LEAD_HERE.store(1, Ordering::Relaxed);
            READY.store(true, Ordering::Release);
        }
        if bypassed {
            report::bypassed();
        } else if !rewritten {
            // There will be nothing to add, and at its end the program may not be allowed to write.
            report::end();
        }
    }
    thread.inside.store(0, Ordering::Relaxed);
}

/// Whether this is Valgrind's processor and not the machine's: it goes on with code that it has translated before that was changed, and takes
/// another stack for an overflow of the program's. It understands this sequence, which does nothing otherwise, as a question (Valgrind's manual, "The client
/// request mechanism").
fn runs_in_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let question = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0u64;
    // SAFETY: the four rotations are by 128 bits in all, and an exchange of a register with itself changes nothing.
    unsafe {
        core::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") question.as_ptr(),
            inout("rdx") answer,
            inout("rdi") 0u64 => _,
        );
    }
    answer != 0
}

/// Has the unwinder fill in its table of registers, as it does at its first use. It is linked into this library; but a handler
/// of the program that throws, or a thread that is cancelled, unwinds frames of ours by the program's own copy, and what our frames then ask
/// ours for needs the table.
fn ready_unwinder() {
    extern "C" fn enough(_: *mut c_void, _: *mut c_void) -> i32 {
        1
    }
    // SAFETY: it looks at this frame and ends at once, since `enough` says so; there is no data.
    unsafe { _Unwind_Backtrace(enough, core::ptr::null_mut()) };
}

/// Looks up libc's functions behind the symbols that we export.
fn find_real() {
    for (name, number) in exports::NAMES {
        // SAFETY: a string, and a lookup behind this library.
        let real = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if !real.is_null() {
            REAL[number as usize].store(real.cast(), Ordering::Release);
        }
    }
    for (name, real) in [
        (c"dlopen", &exports::DLOPEN),
        (c"dlmopen", &exports::DLMOPEN),
    ] {
        // SAFETY: as above.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        real.store(found.cast(), Ordering::Release);
    }
}
