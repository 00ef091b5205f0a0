//! Files that are mapped through the mount: shared, or privately where that cannot be
//! [direct](crate::calls::direct).
//!
//! Pages of a mapping are the kernel's, read and written back through the mount. It does not
//! ask for a file's size at a page fault, so it has to be the one who changes it: a file
//! that this process has mapped once is left to the kernel from then on, with all its
//! descriptors here.
//! What is mapped is noted in [`shale_fd::mapped`].

use crate::calls::{direct, names};
use crate::client;
use crate::failure;
use crate::pays;
use core::sync::atomic::Ordering;
use shale_fd::description::{self, mode};
use shale_fd::mapped;
use shale_fd::report;
use shale_fd::table::{self, Entry};
use shale_interpose::inside::with_signals_blocked;
use shale_interpose::outcome::PASS;
use shale_interpose::raw::{self, Args, nr};
use shale_interpose::thread::{self, Thread};
use std::os::fd::BorrowedFd;

/// Why a mapping is the kernel's, as the report says it.
const THROUGH_MOUNT: &str = "mapped through the mount";

/// `mremap`.
pub fn remap(args: &Args) -> i64 {
    if direct::any() && direct::meets(args[0], args[1]) {
        return direct::remap(args);
    }
    if !mapped::may_fault(args[0], args[1] as usize) {
        return PASS;
    }
    // SAFETY: the program's own call.
    let at = unsafe { raw::syscall(nr::MREMAP, args) };
    if at >= 0 {
        mapped::note(at as u64, args[2]);
    }
    at
}

/// Whether memory is to be a file's, and what is stored there, too. Also of a descriptor that this
/// library does not know, by inheritance or `/proc`: the same file may be open under one that it does.
pub fn is_shared(args: &Args) -> bool {
    let flags = args[3] as i32;
    let kind = flags & libc::MAP_TYPE;
    let shared = kind == libc::MAP_SHARED || kind == libc::MAP_SHARED_VALIDATE;
    shared && flags & libc::MAP_ANONYMOUS == 0
}

/// The file of a descriptor, if it lies on a mount: mount and inode number.
pub fn file_of(fd: i32) -> Option<(u32, u64)> {
    match names::entry(fd) {
        Entry::File(index) => {
            let d = description::get(index);
            let mount = d.mount.load(Ordering::Relaxed);
            Some((mount, d.ino.load(Ordering::Relaxed)))
        }
        Entry::Own => None,
        Entry::Kernel => shale_fd::mounts::place(fd).map(|place| (place.mount, place.ino)),
    }
}

/// `mmap`.
pub fn map(args: &Args) -> i64 {
    let fd = args[4] as i32;
    if let Some(result) = direct::map(args) {
        return result;
    }
    let Some(file) = file_of(fd) else {
        return PASS;
    };
    leave_file(fd, file);
    if is_shared(args) && args[2] as i32 & libc::PROT_WRITE != 0 {
        // SAFETY: the program's descriptor, in a call about it.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        // A process that may not read the file may not map it, either; there is no such attribute.
        let _ = rustix::fs::fgetxattr(file, shale_proto::mounts::MAPPED, &mut [0u8; 1][..]);
    }
    // SAFETY: the program's own call.
    let at = unsafe { raw::syscall(nr::MMAP, args) };
    note_memory(args, at);
    at
}

/// Whether nothing has to be known of a mapping: private, in a process that serves no file yet, and of a descriptor whose
/// file no child or parent serves by it. What there is of such mappings when it begins to, the kernel says.
pub fn need_not_be_noted(args: &Args) -> bool {
    let private = args[3] as i32 & libc::MAP_TYPE == libc::MAP_PRIVATE;
    private && pays::by_time() && !client::ever_attached() && !was_served(args[4] as i32)
}

/// Whether the kernel may know an old size of the file of a descriptor, since it was served by it.
fn was_served(fd: i32) -> bool {
    matches!(table::get(fd), Entry::File(index) if description::get(index).was_served())
}

/// `mmap` of which [nothing has to be known](need_not_be_noted).
pub fn map_unnoted(thread: &Thread, args: &Args) -> i64 {
    mapped::leave_unnoted();
    report::passed(nr::MMAP, THROUGH_MOUNT);
    // SAFETY: the program's own call.
    let at = unsafe { raw::syscall(nr::MMAP, args) };
    // Another thread may have made this process a client meanwhile, and not have seen the mapping.
    if at >= 0 && client::ever_attached() {
        let noted = with_signals_blocked(thread, || {
            let fd = args[4] as i32;
            if let Some(file) = file_of(fd) {
                leave_file(fd, file);
                note_memory(args, at);
            }
            0
        });
        if noted != 0 {
            failure::go_on_without(thread, nr::MMAP, args);
        }
    }
    at
}

/// Notes that memory is a file's now, if the kernel has done it.
fn note_memory(args: &Args, at: i64) {
    if at >= 0 {
        if direct::any() {
            direct::gone(at as u64, args[1]);
        }
        mapped::note(at as u64, args[1]);
    }
}

/// Has a file that is mapped be the kernel's, with all its descriptors here.
fn leave_file(fd: i32, file: (u32, u64)) {
    mapped::note_file(file);
    report::passed(nr::MMAP, THROUGH_MOUNT);
    // It may have been made longer here. What others do to a file that is with the mount, the mount knows.
    if was_served(fd) || client::is_attached(file.0) {
        shale_fd::mounts::refresh_size(fd);
    }
    let tid = thread::this().tid.load(Ordering::Relaxed);
    table::for_each(0, u32::MAX, |fd, entry| {
        let Entry::File(index) = entry else { return };
        let d = description::get(index);
        if (
            d.mount.load(Ordering::Relaxed),
            d.ino.load(Ordering::Relaxed),
        ) != file
        {
            return;
        }
        let held = d.lock(tid);
        d.not_before_ns.store(i64::MAX, Ordering::Relaxed);
        d.use_pages(fd);
        if d.mode.load(Ordering::Relaxed) == mode::FAST {
            d.to_kernel(fd, mode::KERNEL);
        }
        drop(held);
    });
}
