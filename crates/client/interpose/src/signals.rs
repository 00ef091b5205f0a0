//! Signals wait while their thread is inside the library.
//!
//! A handler may call anything that is safe in a handler, `write` for one, and may jump out
//! and never return. If it ran while its thread holds a lock of libfs or of the memory,
//! the thread would wait for itself for ever. So the kernel is given a handler of ours.
//! It goes on to the program's at once if the thread is outside. If not, it notes the
//! signal, has all others blocked when it returns, and when the call is over
//! ([`crate::trampolines`]) the signal is sent to the thread again and the mask is opened.
//!
//! Faults of the thread itself cannot wait; their handler runs at once, and whatever it
//! calls passes, since the thread is still inside. Faults of [`crate::probe`] are led behind it, and
//! nobody hears of them. So that they are, the handlers of `SIGSEGV` and `SIGBUS` are ours also where the program has none
//! ([`catch_faults`]): it does then what the kernel would have done.

use crate::cancellation;
use crate::outcome::PASS;
use crate::probe;
use crate::raw::{self, Args, nr};
use crate::site::site_of_stub;
use crate::thread::{self, SIGINFO_BYTES, Thread};
use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use parking_lot::Mutex;

const SIGNALS: usize = 65;
const SA_SIGINFO: u64 = 4;
const SA_RESETHAND: u64 = 0x8000_0000;
const SA_RESTORER: u64 = 0x0400_0000;
/// Faults that [`crate::probe`] may meet with.
const PROBED: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// An action as the kernel's call has it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Action {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

/// The program's handlers, by number of the signal.
static HANDLER: [AtomicU64; SIGNALS] = [const { AtomicU64::new(0) }; SIGNALS];
/// Flags that the program gave with them.
static FLAGS: [AtomicU64; SIGNALS] = [const { AtomicU64::new(0) }; SIGNALS];
/// Serialises changes.
static CHANGING: Mutex<()> = Mutex::new(());

/// [`catch_faults`] was called.
static CATCHES: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    safe fn shale_signal();
    safe fn shale_restore();
}

global_asm!(
    ".text",
    ".p2align 4",
    ".hidden shale_signal",
    ".globl shale_signal",
    "shale_signal:",
    ".cfi_startproc",
    "mov r11, qword ptr [rip + shale_thread@GOTTPOFF]",
    "cmp dword ptr fs:[r11 + {inside}], 0",
    "jne 2f",
    "lea rax, [rip + {flags}]",
    "mov ecx, edi",
    "test dword ptr [rax + rcx*8 + 0], 0x80000000",
    "jne 2f",
    "cmp edi, {segv}",
    "je 2f",
    "cmp edi, {bus}",
    "je 2f",
    "lea rax, [rip + {handler}]",
    "jmp qword ptr [rax + rcx*8]",
    "2: jmp {slow}",
    ".cfi_endproc",
    "",
    // What a handler returns to that was set without libc.
    ".p2align 4",
    "nop",
    ".hidden shale_restore",
    ".globl shale_restore",
    "shale_restore:",
    // As unwinders know it.
    "mov rax, 15",
    "syscall",
    segv = const libc::SIGSEGV,
    bus = const libc::SIGBUS,
    inside = const offset_of!(Thread, inside),
    flags = sym FLAGS,
    handler = sym HANDLER,
    slow = sym slow,
);

/// The signal of a thread that is cancelled waits also where others do not, in a system call that is made for the program: its
/// handler unwinds the stack from where it came, which code of Rust is not made for. A system call that waits, or is about to, ends with EINTR, since the
/// signal is sent again right behind it.
///
/// # Safety
/// Called by the kernel's frame for a signal.
unsafe extern "C-unwind" fn on_cancel(signal: i32, info: *mut u64, context: *mut libc::ucontext_t) {
    let thread = thread::this();
    let inside = thread.inside.load(Ordering::Relaxed) != 0;
    if !inside && thread.serving.load(Ordering::Relaxed) == 0 {
        // SAFETY: the frame that the kernel made.
        let at = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
        // Nothing tells the unwinder of stubs.
        if let Some(site) = site_of_stub(*at as usize) {
            *at = site as i64;
        }
        // SAFETY: as this function.
        unsafe { slow(signal, info, context) };
        return;
    }
    if !inside {
        // SAFETY: the frame that the kernel made; it came from code that can be read.
        unsafe { skip_system_call(context) };
    }
    // SAFETY: the thread's own block, and the frame that the kernel made.
    unsafe { put_off(thread, signal, info, context) };
}

/// Has a thread that would go on with a system call go on behind it, as if a signal had come.
///
/// # Safety
/// `context` is the kernel's, of a thread that serves a call and is not inside.
unsafe fn skip_system_call(context: *mut libc::ucontext_t) {
    const INSTRUCTION: [u8; 2] = [0x0f, 0x05];
    // SAFETY: as above.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize];
    // SAFETY: the thread would read these bytes next.
    if unsafe { (at as *const [u8; 2]).read_unaligned() } == INSTRUCTION {
        registers[libc::REG_RIP as usize] = at + 2;
        registers[libc::REG_RAX as usize] = raw::fail(libc::EINTR);
    }
}

type Handler = unsafe extern "C-unwind" fn(i32, *mut u64, *mut libc::ucontext_t);

/// A signal that has to wait, or whose handler is for once only.
///
/// # Safety
/// Called by the kernel's frame for a signal.
unsafe extern "C-unwind" fn slow(signal: i32, info: *mut u64, context: *mut libc::ucontext_t) {
    let thread = thread::this();
    let inside = thread.inside.load(Ordering::Relaxed) != 0;
    // SAFETY: the kernel filled it in; the code is its third number.
    let code = unsafe { *info.cast::<i32>().add(2) };
    if PROBED.contains(&signal) && code > 0 {
        // SAFETY: the frame that the kernel made.
        let at = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
        if let Some(behind) = probe::behind(*at as u64) {
            *at = behind as i64;
            return;
        }
    }
    let fault = matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP
    );
    if inside && !(fault && code > 0) {
        // SAFETY: the thread's own block, and the frame that the kernel made.
        unsafe { put_off(thread, signal, info, context) };
        return;
    }
    let number = signal as usize;
    let handler = HANDLER[number].load(Ordering::Acquire);
    if handler == 0 {
        // The program has none, and the fault comes again when this returns; what was sent is sent again.
        set_default(signal);
        if code <= 0 {
            // SAFETY: what the kernel said of the signal, which is blocked until this returns.
            unsafe { send_again(signal, info) };
        }
        return;
    }
    if FLAGS[number].load(Ordering::Relaxed) & SA_RESETHAND != 0 {
        set_default(signal);
    }
    if handler > 1 {
        // SAFETY: what the program gave as its handler for this signal.
        unsafe { core::mem::transmute::<u64, Handler>(handler)(signal, info, context) };
    }
}

/// Has the kernel do what it does by itself.
fn set_default(signal: i32) {
    let default = Action::default();
    let args = [signal as u64, (&raw const default) as u64, 0, 8, 0, 0];
    // SAFETY: an action that lives through the call.
    unsafe { raw::syscall(nr::RT_SIGACTION, &args) };
}

/// Sends a signal to this thread, as it came.
///
/// # Safety
/// `info` is what the kernel said of it, and the thread has it blocked.
unsafe fn send_again(signal: i32, info: *mut u64) {
    let (pid, tid) = (raw::getpid() as u64, raw::gettid() as u64);
    let args = [pid, tid, signal as u64, info as u64, 0, 0];
    // SAFETY: as above.
    unsafe { raw::syscall(nr::RT_TGSIGQUEUEINFO, &args) };
}

/// The handler that faults have where the program has none.
fn catching() -> Action {
    Action {
        handler: shale_signal as *const () as u64,
        flags: SA_SIGINFO | SA_RESTORER,
        restorer: shale_restore as *const () as u64,
        mask: 0,
    }
}

/// Has faults of [`crate::probe`] caught from now on, also where the program has no handler for them. A program that ignores them keeps that.
pub fn catch_faults() {
    for signal in PROBED {
        let (catching, mut before) = (catching(), Action::default());
        let args = [
            signal as u64,
            (&raw const catching) as u64,
            (&raw mut before) as u64,
            8,
            0,
            0,
        ];
        // SAFETY: actions that live through the call.
        unsafe { raw::syscall(nr::RT_SIGACTION, &args) };
        if before.handler != 0 && before.handler != catching.handler {
            let args = [signal as u64, (&raw const before) as u64, 0, 8, 0, 0];
            // SAFETY: as above.
            unsafe { raw::syscall(nr::RT_SIGACTION, &args) };
        }
    }
    CATCHES.store(true, Ordering::Relaxed);
}

/// Of several signals that come at once the kernel makes all frames before any handler has run, each upon the one before, and one may come
/// while this runs: the last one is put off first, and the context of the first one is the program's own. Those that find one that waits already
/// wait in the kernel.
///
/// # Safety
/// `info` and `context` are the kernel's, for a signal of this thread.
unsafe fn put_off(thread: &Thread, signal: i32, info: *mut u64, context: *mut libc::ucontext_t) {
    const RT_SIGPROCMASK: u32 = 14;
    let all = u64::MAX;
    let args = [
        libc::SIG_SETMASK as u64,
        (&raw const all) as u64,
        0,
        8,
        0,
        0,
    ];
    // SAFETY: a mask that lives through the call. All signals are blocked from now on, here and where the handler returns to, until the stub
    // opens the mask; only the thread itself, here and in the stub, touches its block.
    unsafe {
        raw::syscall(RT_SIGPROCMASK, &args);
        let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
        *thread.mask.get() = *mask;
        *mask = all;
    }
    if thread.pending.load(Ordering::Relaxed) != 0 {
        // SAFETY: what the kernel said of the signal, for this thread, which has it blocked.
        unsafe { send_again(signal, info) };
        return;
    }
    // SAFETY: as above.
    unsafe { core::ptr::copy_nonoverlapping(info, thread.info.get().cast(), SIGINFO_BYTES / 8) };
    thread.pending.store(signal, Ordering::Relaxed);
}

/// `rt_sigaction`.
pub fn set_action(args: &Args) -> i64 {
    let (number, new, old) = (
        args[0] as usize,
        args[1] as *const Action,
        args[2] as *mut Action,
    );
    if !(1..SIGNALS).contains(&number) || args[3] != 8 {
        return PASS;
    }
    let bytes = size_of::<Action>() as u64;
    let is_bad = !new.is_null() && probe::readable(new as u64, bytes) < bytes;
    if is_bad || (!old.is_null() && !probe::is_writable(old as u64)) {
        return raw::fail(libc::EFAULT);
    }
    let ours = match number {
        cancellation::SIGCANCEL => on_cancel as *const () as u64,
        _ => shale_signal as *const () as u64,
    };
    let _one = CHANGING.lock();
    let before = (
        HANDLER[number].load(Ordering::Relaxed),
        FLAGS[number].load(Ordering::Relaxed),
    );
    let mut passed = *args;
    let mut action;
    // SAFETY: the program's own arguments.
    if let Some(wanted) = unsafe { new.as_ref() } {
        action = *wanted;
        if wanted.handler > 1 {
            HANDLER[number].store(wanted.handler, Ordering::Release);
            FLAGS[number].store(wanted.flags, Ordering::Release);
            cancellation::note_handler(number);
            action.handler = ours;
            action.flags = (wanted.flags | SA_SIGINFO) & !SA_RESETHAND;
        } else if wanted.handler == 0
            && PROBED.contains(&(number as i32))
            && CATCHES.load(Ordering::Relaxed)
        {
            HANDLER[number].store(0, Ordering::Release);
            action = catching();
        }
        passed[1] = (&raw const action) as u64;
    }
    // SAFETY: the program's own call, or with an action that lives through it.
    let result = unsafe { raw::syscall(nr::RT_SIGACTION, &passed) };
    if result < 0 {
        HANDLER[number].store(before.0, Ordering::Release);
        FLAGS[number].store(before.1, Ordering::Release);
        return result;
    }
    // SAFETY: the kernel has just written there.
    if let Some(old) = unsafe { old.as_mut() }
        && old.handler == ours
    {
        *old = match before.0 {
            0 => Action::default(),
            handler => Action {
                handler,
                flags: before.1 | old.flags & !SA_SIGINFO,
                ..*old
            },
        };
    }
    result
}
