//! From a caught call to the function that serves it.
//!
//! Everything here runs with the thread marked *inside*: calls that the library itself makes
//! through libc pass, and signals wait until the thread is out again. What may block
//! for long (opening a FIFO) is done before the thread is marked, as if the library
//! were not there.

use crate::calls::names::Rest;
use crate::calls::{attributes, data, descriptors, direct, mapping, names, process, route, vfork};
use crate::failure;
use crate::names as names_in_process;
use crate::short;
use core::sync::atomic::Ordering;
use shale_fd::table::{self, Entry};
use shale_fd::transfer;
use shale_interpose::inside::{READY, caught, with_signals_blocked, with_signals_blocked_raw};
use shale_interpose::outcome::{CLASS, PANICKED, PASS, class};
use shale_interpose::raw::{self, Args, nr};
use shale_interpose::thread::{self, Thread};
use shale_libfs::prepare_thread;
use shale_proto::mounts::RangeCall;

/// Serves call `number`; [`PASS`]: go on without us.
///
/// # Safety
/// Called by the stubs only, with the arguments of a call that the program makes: pointers among
/// them are what the program would have passed to the kernel.
pub unsafe extern "C-unwind" fn shale_serve(number: u32, args: *const Args) -> i64 {
    // SAFETY: the stub saved six registers there.
    // Not copied: loading together what was stored apart a moment ago would stall.
    let args = unsafe { &*args };
    let thread = thread::this();
    let inside = thread.inside.load(Ordering::Relaxed) != 0 && !vfork::left_inside(thread);
    if inside || !READY.load(Ordering::Acquire) {
        if number == nr::CLOSE {
            table::remove_own(args[0] as i32);
        }
        return PASS;
    }
    thread.serving.store(1, Ordering::Relaxed);
    let result = serve(thread, number, args);
    thread.serving.store(0, Ordering::Relaxed);
    match result == PANICKED {
        true => failure::go_on_without(thread, number, args),
        false => result,
    }
}

#[inline(always)]
fn serve(thread: &Thread, number: u32, args: &Args) -> i64 {
    if process::notice_fork(thread) == PANICKED {
        return PANICKED;
    }
    if !thread.vfork.load(Ordering::Relaxed).is_null() && vfork::is_child(thread) {
        return with_signals_blocked_raw(thread, || {
            caught(|| vfork::call_of_child(thread, number, args))
        });
    }
    if crate::MEMORY.is_short()
        && let Some(result) = without_memory(number, args)
    {
        return result;
    }
    if names_in_process::are_wanted()
        && let Some(result) = names_in_process::call(thread, number, args)
    {
        return result;
    }
    match number {
        nr::OPEN | nr::CREAT | nr::OPENAT | nr::OPENAT2 | nr::OPEN_BY_HANDLE_AT => {
            let fd = names_in_process::by_kernel(thread, number, args);
            if fd >= 0 && opened(thread, fd as i32, number, args) == PANICKED {
                // The file is open: nothing of the call is left to be done.
                failure::go_on_without(thread, number, args);
            }
            fd
        }
        nr::CLONE | nr::CLONE3 | nr::FORK | nr::VFORK => process::clone(thread, number, args),
        nr::EXECVE | nr::EXECVEAT => process::exec(thread, number, args),
        nr::UNSHARE | nr::CLOSE_RANGE if parts_descriptors(number, args) => {
            process::retire(thread);
            shale_fd::report::passed(number, "shares memory or descriptors, not both");
            PASS
        }
        nr::PRCTL | nr::SECCOMP => {
            if restricts_calls(number, args) {
                process::retire(thread);
                with_signals_blocked_raw(thread, || {
                    shale_fd::report::passed(number, "its system calls are restricted");
                    // At its end it may not write a file.
                    caught(|| {
                        shale_fd::report::end();
                        0
                    })
                });
            }
            PASS
        }
        nr::MMAP if !is_ours(number, args) && !shares_ours(thread, args) => PASS,
        nr::MMAP if mapping::need_not_be_noted(args) => mapping::map_unnoted(thread, args),
        nr::MUNMAP | nr::MPROTECT if !direct::any() => PASS,
        number if short::is_between(number, args) => PASS,
        number if let Some(result) = short::call(thread, number, args) => result,
        _ => {
            // `malloc`, under its locks, maps memory and reads files of the kernel's.
            let asks = matches!(number, nr::MMAP | nr::SYNC | nr::SYNCFS);
            if !thread.is_prepared() && (asks || is_ours(number, args)) {
                thread.prepare(prepare_thread);
            }
            with_signals_blocked(thread, || {
                let result = dispatch(thread, number, args);
                if thread.leaves.load(Ordering::Relaxed) != 0 {
                    route::leave(thread);
                }
                result
            })
        }
    }
}

/// Enters a file that was just opened, if it is ours.
#[inline]
fn opened(thread: &Thread, fd: i32, number: u32, args: &Args) -> i64 {
    let mut rest = Rest::Look;
    if thread.is_prepared() && thread.tid.load(Ordering::Relaxed) != 0 {
        with_signals_blocked_raw(thread, || {
            // A fork counts descriptors: none comes between that and the copy.
            thread.begin();
            rest = names::opened_quickly(fd, number, args);
            thread.end();
            0
        });
    }
    if let Rest::Look = rest {
        let looked = with_signals_blocked(thread, || {
            rest = names::opened(fd, number, args).map_or(Rest::Nothing, Rest::Enter);
            0
        });
        if looked != 0 {
            return looked;
        }
    }
    let Rest::Enter(opened) = rest else {
        return 0;
    };
    thread.prepare(prepare_thread);
    with_signals_blocked(thread, || {
        names::enter(fd, opened);
        0
    })
}

/// Whether the thread gets descriptors of its own, and shares its memory still.
fn parts_descriptors(number: u32, args: &Args) -> bool {
    match number {
        nr::UNSHARE => args[0] & libc::CLONE_FILES as u64 != 0,
        _ => args[2] & u64::from(libc::CLOSE_RANGE_UNSHARE) != 0,
    }
}

/// Whether the kernel lets the process make only some system calls from now on (seccomp(2)): those that the program makes, not those that this
/// library would make for it. A filter at no address only asks whether the kernel has filters.
fn restricts_calls(number: u32, args: &Args) -> bool {
    let (mode, [strict, filter]) = match number {
        nr::PRCTL if args[0] != libc::PR_SET_SECCOMP as u64 => return false,
        nr::PRCTL => (
            args[1],
            [libc::SECCOMP_MODE_STRICT, libc::SECCOMP_MODE_FILTER],
        ),
        _ => {
            let modes = [libc::SECCOMP_SET_MODE_STRICT, libc::SECCOMP_SET_MODE_FILTER];
            (args[0], modes)
        }
    };
    mode == u64::from(strict) || mode == u64::from(filter) && args[2] != 0
}

/// What a call returns where this library has no memory for it; `None`: it needs none to speak of. What is
/// opened now is left to the kernel.
#[cold]
fn without_memory(number: u32, args: &Args) -> Option<i64> {
    match number {
        nr::OPEN | nr::CREAT | nr::OPENAT | nr::OPENAT2 | nr::OPEN_BY_HANDLE_AT => Some(PASS),
        nr::CLOSE | nr::CLOSE_RANGE | nr::DUP | nr::DUP2 | nr::DUP3 | nr::FCNTL => None,
        nr::CLONE | nr::CLONE3 | nr::FORK | nr::VFORK | nr::EXECVE | nr::EXECVEAT => None,
        nr::LSEEK | nr::FSTAT | nr::NEWFSTATAT | nr::STATX => None,
        _ if !is_ours(number, args) => None,
        nr::MMAP | nr::SENDFILE | nr::SPLICE | nr::COPY_FILE_RANGE => Some(raw::fail(libc::ENOMEM)),
        _ if names::stays_unknown(args[0] as i32) => Some(PASS),
        _ => Some(raw::fail(libc::ENOMEM)),
    }
}

/// Whether a call is about a file of ours, by whichever of its descriptors.
fn is_ours(number: u32, args: &Args) -> bool {
    let ours = |at: usize| matches!(table::get(args[at] as i32), Entry::File(_));
    match number {
        nr::MMAP => ours(4),
        nr::MREMAP | nr::MUNMAP | nr::MPROTECT | nr::RT_SIGACTION | nr::IO_URING_SETUP => false,
        nr::SETUID | nr::SETREUID | nr::SETRESUID | nr::SETFSUID | nr::UNSHARE => false,
        nr::SYNC | nr::SYNCFS => false,
        nr::DUP2 | nr::DUP3 | nr::SENDFILE => ours(0) || ours(1),
        nr::SPLICE | nr::COPY_FILE_RANGE => ours(0) || ours(2),
        nr::SENDMSG | nr::SENDMMSG => transfer::sends_ours(number, args),
        nr::CLOSE_RANGE => table::has_file(args[0] as u32, args[1] as u32),
        _ => ours(0),
    }
}

/// Whether memory is to be shared with a file of a mount, of which only this descriptor is not known.
fn shares_ours(thread: &Thread, args: &Args) -> bool {
    let mut ours = false;
    if mapping::is_shared(args) {
        with_signals_blocked(thread, || {
            ours = mapping::file_of(args[4] as i32).is_some();
            0
        });
    }
    ours
}

fn dispatch(thread: &Thread, number: u32, args: &Args) -> i64 {
    match number {
        nr::RT_SIGACTION => return shale_interpose::signals::set_action(args),
        nr::DUP2 | nr::DUP3 => return descriptors::dup_to(number, args),
        nr::CLOSE_RANGE => return descriptors::close_range(args),
        nr::SENDFILE | nr::SPLICE | nr::COPY_FILE_RANGE => return transfer::between(number, args),
        nr::SENDMSG | nr::SENDMMSG => return transfer::message(number, args),
        nr::MMAP => return mapping::map(args),
        nr::MREMAP => return mapping::remap(args),
        nr::MUNMAP => return direct::unmap(args),
        nr::MPROTECT => return direct::protect(args),
        nr::SETUID | nr::SETREUID | nr::SETRESUID | nr::SETFSUID => {
            crate::client::forget_user();
            return PASS;
        }
        nr::UNSHARE => return PASS,
        nr::SYNC | nr::SYNCFS => return attributes::sync_all(number, args),
        nr::FALLOCATE if RangeCall::is_needed(args[1] as u32) => {
            return attributes::shift(thread, args[0] as i32, args);
        }
        nr::IO_URING_SETUP => {
            shale_fd::report::passed(number, "io_uring");
            return PASS;
        }
        _ => {}
    }
    let fd = args[0] as i32;
    let index = match names::entry(fd) {
        Entry::Kernel => return PASS,
        Entry::Own => return own(number),
        Entry::File(index) => index,
    };
    match number {
        nr::READ | nr::PREAD => data::read_plain(thread, fd, index, number, args),
        nr::WRITE
        | nr::PWRITE
        | nr::READV
        | nr::WRITEV
        | nr::PREADV
        | nr::PWRITEV
        | nr::PREADV2
        | nr::PWRITEV2 => data::transfer(thread, fd, index, number, args),
        nr::LSEEK => data::seek(thread, fd, index, args),
        nr::FSYNC | nr::FDATASYNC | nr::SYNC_FILE_RANGE => {
            attributes::sync(thread, fd, index, number, args)
        }
        nr::FTRUNCATE | nr::FALLOCATE => attributes::resize(thread, fd, index, number, args),
        nr::FSTAT | nr::NEWFSTATAT | nr::STATX => attributes::stat(thread, fd, index, number, args),
        nr::CLOSE => descriptors::close(fd),
        nr::DUP => descriptors::dup(index, number, args),
        nr::FCNTL => descriptors::fcntl(index, number, args),
        nr::IOCTL => attributes::ioctl(thread, fd, index, args),
        _ => PASS,
    }
}

/// What a program gets for a descriptor of the library's own. What looks harmless goes on.
fn own(number: u32) -> i64 {
    match number {
        nr::FSTAT | nr::NEWFSTATAT | nr::STATX => PASS,
        _ => raw::fail(libc::EBADF),
    }
}

/// Numbers of [`class::DESCRIPTOR`].
pub const BY_DESCRIPTOR: [u32; 22] = [
    nr::READ,
    nr::WRITE,
    nr::CLOSE,
    nr::FSTAT,
    nr::LSEEK,
    nr::IOCTL,
    nr::PREAD,
    nr::PWRITE,
    nr::READV,
    nr::WRITEV,
    nr::DUP,
    nr::FCNTL,
    nr::FSYNC,
    nr::FDATASYNC,
    nr::FTRUNCATE,
    nr::NEWFSTATAT,
    nr::SYNC_FILE_RANGE,
    nr::PREADV,
    nr::PWRITEV,
    nr::PREADV2,
    nr::PWRITEV2,
    nr::STATX,
];

/// Numbers of [`class::ALWAYS`].
pub const ALWAYS: [u32; 32] = [
    nr::PRCTL,
    nr::SECCOMP,
    nr::FALLOCATE,
    nr::MMAP,
    nr::MREMAP,
    nr::OPEN,
    nr::CREAT,
    nr::OPENAT,
    nr::OPENAT2,
    nr::OPEN_BY_HANDLE_AT,
    nr::DUP2,
    nr::DUP3,
    nr::CLOSE_RANGE,
    nr::SENDFILE,
    nr::SPLICE,
    nr::COPY_FILE_RANGE,
    nr::SENDMSG,
    nr::SENDMMSG,
    nr::CLONE,
    nr::CLONE3,
    nr::FORK,
    nr::VFORK,
    nr::EXECVE,
    nr::EXECVEAT,
    nr::RT_SIGACTION,
    nr::SETUID,
    nr::SETREUID,
    nr::SETRESUID,
    nr::IO_URING_SETUP,
    nr::UNSHARE,
    nr::SYNC,
    nr::SYNCFS,
];

/// Fills the table of classes.
pub fn set_classes() {
    for number in BY_DESCRIPTOR {
        CLASS[number as usize].store(class::DESCRIPTOR, Ordering::Relaxed);
    }
    for number in ALWAYS {
        CLASS[number as usize].store(class::ALWAYS, Ordering::Relaxed);
    }
    for number in direct::CALLS {
        CLASS[number as usize].store(class::AT_TIMES, Ordering::Relaxed);
    }
    names_in_process::set_classes();
}
