//! Calls that move data or descriptors where the library cannot follow.

use crate::description::{self, mode};
use crate::mounts;
use crate::report;
use crate::table::{self, Entry};
use core::sync::atomic::Ordering;
use shale_interpose::outcome::PASS;
use shale_interpose::probe;
use shale_interpose::raw::{self, Args, nr};

/// Gives the offset of `fd` to the kernel, if it is ours. The next call that we serve takes it back.
fn lend(fd: i32, number: u32) {
    if let Entry::File(index) = table::get(fd) {
        let d = description::get(index);
        let held = d.lock(raw::gettid());
        if d.mode.load(Ordering::Relaxed) == mode::FAST {
            d.to_kernel(fd, mode::KERNEL);
        }
        drop(held);
        report::passed(number, "between two descriptors");
    }
}

/// Gives the offset of `fd` to the kernel for good, if it is ours.
pub fn hand_over(fd: i32) {
    if let Entry::File(index) = table::get(fd) {
        hand_over_as(fd, index);
    }
}

/// Gives the offset of `fd`, which has description `index`, to the kernel for good.
pub fn hand_over_as(fd: i32, index: u32) {
    let d = description::get(index);
    let held = d.lock(raw::gettid());
    d.to_kernel(fd, mode::HANDED_OVER);
    drop(held);
}

/// Whether a new program image would inherit `fd`.
pub fn is_inherited(fd: i32) -> bool {
    let flags = raw::fcntl(fd, libc::F_GETFD, 0);
    flags >= 0 && flags & i64::from(libc::FD_CLOEXEC) == 0
}

/// Has the kernel ask for the size of a file of ours: it does not by itself before it reads
/// pages of it.
fn refresh(fd: i32) {
    if let Entry::File(index) = table::get(fd)
        && description::get(index).was_served()
    {
        mounts::refresh_size(fd);
    }
}

/// `sendfile`, `splice`, `copy_file_range`: where no offset is given, the kernel uses its own.
pub fn between(number: u32, args: &Args) -> i64 {
    // `sendfile` always writes at the offset of what it writes to.
    let sides = match number {
        nr::SENDFILE => [(args[0], 0), (args[1], args[2])],
        _ => [(args[0], args[1]), (args[2], args[3])],
    };
    for (fd, offset) in sides {
        refresh(fd as i32);
        if offset == 0 {
            lend(fd as i32, number);
        }
    }
    // Nor does it for a file that we do not know, and that is read.
    let from = sides[usize::from(number == nr::SENDFILE)].0 as i32;
    if table::get(from) == Entry::Kernel && mounts::place(from).is_some() {
        mounts::refresh_size(from);
    }
    PASS
}

/// `sendmsg`, `sendmmsg`: a process that gets a descriptor shares its offset.
pub fn message(number: u32, args: &Args) -> i64 {
    each_sent(number, args, |fd| {
        hand_over(fd);
        report::passed(nr::SENDMSG, "descriptor sent away");
    });
    PASS
}

/// Whether a file of ours is among the descriptors that are sent.
pub fn sends_ours(number: u32, args: &Args) -> bool {
    let mut ours = false;
    each_sent(number, args, |fd| {
        ours |= matches!(table::get(fd), Entry::File(_))
    });
    ours
}

/// Calls `f` for every descriptor that `sendmsg` or `sendmmsg` sends.
pub fn each_sent(number: u32, args: &Args, mut f: impl FnMut(i32)) {
    let (at, count, stride) = match number {
        nr::SENDMSG => (args[1], 1, size_of::<libc::msghdr>()),
        _ => (args[1], args[2].min(1024), size_of::<libc::mmsghdr>()),
    };
    for i in 0..count {
        let header = at + i * stride as u64;
        if probe::readable(header, stride as u64) < stride as u64 {
            return;
        }
        // SAFETY: the program says that a message header is there.
        unsafe { each_in(&*(header as *const libc::msghdr), &mut f) };
    }
}

/// # Safety
/// The header is one that the program gave for sending.
unsafe fn each_in(header: &libc::msghdr, f: &mut impl FnMut(i32)) {
    let bytes = header.msg_controllen as u64;
    if bytes == 0 || probe::readable(header.msg_control as u64, bytes) < bytes {
        return;
    }
    // SAFETY: the macros stay within the control data that the header names.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !control.is_null() {
        // SAFETY: as above.
        let (one, data) = unsafe { (&*control, libc::CMSG_DATA(control)) };
        if one.cmsg_level == libc::SOL_SOCKET && one.cmsg_type == libc::SCM_RIGHTS {
            let head = data as usize - control as usize;
            let fds = one.cmsg_len.saturating_sub(head) / size_of::<i32>();
            for i in 0..fds {
                // SAFETY: `cmsg_len` says that so many numbers are there.
                f(unsafe { data.cast::<i32>().add(i).read_unaligned() });
            }
        }
        // SAFETY: as above.
        control = unsafe { libc::CMSG_NXTHDR(header, control) };
    }
}
