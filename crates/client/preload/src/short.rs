//! The short way of files that have hardly been used yet: most files that a program opens never get beyond it.
//!
//! What is left to the mount anyway need not cost more than there. A call that is not about the offset is
//! made at once. One that is holds the description's lock, as on the long way: a thread that takes the offset from the kernel
//! finds no call under way. No session is used here, nothing is allocated, and of the library's own
//! only what children share is locked, so a thread here is not busy and a fork does not wait for it; but for the moment
//! in which a descriptor is taken out.

use crate::calls::descriptors;
use crate::names::{setting, worth};
use core::sync::atomic::Ordering;
use shale_fd::description::{self, Description};
use shale_fd::report;
use shale_fd::table::{self, Entry};
use shale_interpose::inside::with_signals_blocked_raw;
use shale_interpose::raw::{self, Args, nr};
use shale_interpose::thread::Thread;

/// Why a call is left to the mount whose file is not served, as the report says it.
pub const STAYS: &str = "stays with the mount";

/// Does a call whose first argument is a descriptor, if its file is new to us; `None`: the long way.
#[inline]
pub fn call(thread: &Thread, number: u32, args: &Args) -> Option<i64> {
    let fd = args[0] as i32;
    let Entry::File(index) = table::get(fd) else {
        return None;
    };
    let d = description::get(index);
    if !d.is_young() {
        return None;
    }
    match number {
        nr::CLOSE => closed(thread, fd, args),
        nr::FSTAT | nr::NEWFSTATAT | nr::STATX | nr::IOCTL => {
            // SAFETY: as below.
            Some(unsafe { raw::syscall(number, args) })
        }
        nr::PREAD | nr::PWRITE | nr::PREADV | nr::PWRITEV | nr::FSYNC | nr::FDATASYNC => {
            report::passed(number, STAYS);
            d.used_once();
            // SAFETY: the program's own call, made for it. Not passed: by way of the exported symbol it would
            // come by here once more.
            Some(unsafe { raw::syscall(number, args) })
        }
        nr::FCNTL => descriptors::lock_if_asked(d, args),
        nr::READ | nr::WRITE | nr::READV | nr::WRITEV | nr::LSEEK => {
            at_offset(thread, fd, index, d, number, args)
        }
        _ => None,
    }
}

/// Takes a descriptor out, and closes it.
fn closed(thread: &Thread, fd: i32, args: &Args) -> Option<i64> {
    if thread.tid.load(Ordering::Relaxed) == 0 {
        return None;
    }
    with_signals_blocked_raw(thread, || {
        // A fork counts descriptors: none goes between that and the copy.
        thread.begin();
        if setting::are_wanted()
            && let Entry::File(index) = table::get(fd)
        {
            worth::used(description::get(index).spent_ns());
        }
        table::remove(fd);
        thread.end();
        0
    });
    // SAFETY: the program's own call, made for it.
    Some(unsafe { raw::syscall(nr::CLOSE, args) })
}

/// Whether both files of a call between two descriptors are such ones, so that it can pass.
#[inline]
pub fn is_between(number: u32, args: &Args) -> bool {
    let young = |fd: u64| match table::get(fd as i32) {
        Entry::File(index) => description::get(index).is_young(),
        _ => false,
    };
    let other = match number {
        nr::SENDFILE => args[1],
        nr::SPLICE | nr::COPY_FILE_RANGE => args[2],
        _ => return false,
    };
    young(args[0]) && young(other)
}

fn at_offset(
    thread: &Thread,
    fd: i32,
    index: u32,
    d: &'static Description,
    number: u32,
    args: &Args,
) -> Option<i64> {
    let tid = thread.tid.load(Ordering::Relaxed);
    if tid == 0 {
        return None;
    }
    let mut result = None;
    with_signals_blocked_raw(thread, || {
        let held = d.lock(tid);
        if d.is_young() && table::get(fd) == Entry::File(index) {
            report::passed(number, STAYS);
            d.used_once();
            // SAFETY: the program's own call, made for it.
            result = Some(unsafe { raw::syscall(number, args) });
        }
        drop(held);
        0
    });
    result
}
