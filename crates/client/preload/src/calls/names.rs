//! Files that were opened. The kernel opens; here it is seen whether the file is ours.

use crate::client;
use crate::fd::description::{self, mode};
use crate::fd::mapped;
use crate::fd::table;
use crate::hook::inside::READY;
use crate::hook::raw::{Args, nr};
use crate::mounts;
use crate::pays;
use crate::thread;
use core::sync::atomic::Ordering;

/// Flags of `open` that a description keeps. `O_SYNC` contains `O_DSYNC`.
const KEPT: i32 = libc::O_ACCMODE | libc::O_APPEND | libc::O_DSYNC;

/// A file of ours that the kernel has opened, and the flags that were given.
#[derive(Clone, Copy)]
pub struct Opened {
    place: mounts::Place,
    flags: i32,
}

/// The kernel has opened `fd`: what that is, if it is a file of ours. Allocates nothing with
/// libc, whose `malloc` opens files of the kernel's.
pub fn opened(fd: i32, number: u32, args: &Args) -> Option<Opened> {
    // What closed it may have escaped us.
    table::remove(fd);
    // SAFETY: the registers of the program's own call, which the kernel has accepted.
    let (path, flags) = unsafe { what(number, args) };
    if flags & libc::O_PATH != 0 || path.is_some_and(mounts::surely_elsewhere) {
        return None;
    }
    mounts::place(fd).map(|place| Opened { place, flags })
}

/// What [`opened_quickly`] leaves to be done.
#[derive(Clone, Copy)]
pub enum Rest {
    /// Nothing.
    Nothing,
    /// [`enter`].
    Enter(Opened),
    /// [`opened`]: the kernel's number of the mount was not met before.
    Look,
}

/// As [`opened`] and [`enter`], as far as that takes neither lock of this process nor memory.
pub fn opened_quickly(fd: i32, number: u32, args: &Args) -> Rest {
    table::remove(fd);
    // SAFETY: as in `opened`.
    let (path, flags) = unsafe { what(number, args) };
    if flags & libc::O_PATH != 0 || path.is_some_and(mounts::surely_elsewhere) {
        return Rest::Nothing;
    }
    let Some(found) = mounts::place_quickly(fd) else {
        return Rest::Look;
    };
    let Some(place) = found else {
        return Rest::Nothing;
    };
    let opened = Opened { place, flags };
    if client::is_attached(place.mount) {
        return Rest::Enter(opened);
    }
    match mapped::is_mapped_quickly(place.mount, place.ino) {
        None => Rest::Enter(opened),
        Some(mapped) => {
            enter_as(fd, &opened, mapped);
            Rest::Nothing
        }
    }
}

/// Enters a descriptor of ours that the kernel has opened.
pub fn enter(fd: i32, opened: Opened) {
    let place = opened.place;
    enter_as(fd, &opened, mapped::is_mapped(place.mount, place.ino));
}

/// As [`enter`]; `mapped`: this process has mapped the file.
fn enter_as(fd: i32, opened: &Opened, mapped: bool) {
    let &Opened { place, flags } = opened;
    if !READY.load(Ordering::Acquire) {
        return;
    }
    let Some(index) = description::take() else {
        return;
    };
    let d = description::get(index);
    let held = d.lock(thread::this().tid.load(Ordering::Relaxed));
    d.ino.store(place.ino, Ordering::Relaxed);
    d.mount.store(place.mount, Ordering::Relaxed);
    d.flags.store((flags & KEPT) as u32, Ordering::Relaxed);
    d.offset.store(0, Ordering::Relaxed);
    d.past_pages.store(0, Ordering::Relaxed);
    d.not_before_ns
        .store(if mapped { i64::MAX } else { 0 }, Ordering::Relaxed);
    let fast = !mapped && pays::serves_at_once(place.mount, place.ino);
    let client = client::current(place.mount);
    let was_away = client.is_some_and(|c| c.link.leases.was_away(place.ino));
    let served = fast || was_away || (mapped && client.is_some());
    d.begin_counting(served || !pays::by_time());
    let mode = if fast { mode::FAST } else { mode::KERNEL };
    d.mode.store(mode, Ordering::Release);
    drop(held);
    if table::enter(fd, index) {
        crate::report::opened();
        // Another thread may have begun to serve the file meanwhile.
        if pays::by_time() && pays::serves_at_once(place.mount, place.ino) {
            d.note_served();
        }
    } else {
        description::drop_user(index);
    }
}

/// Path and flags of a call that opened something.
///
/// # Safety
/// The registers are those of a call that the kernel has accepted.
unsafe fn what<'a>(number: u32, args: &Args) -> (Option<&'a [u8]>, i32) {
    let (path, flags) = match number {
        nr::OPEN => (args[0], args[1] as i32),
        nr::CREAT => (args[0], libc::O_WRONLY),
        nr::OPENAT => (args[1], args[2] as i32),
        // SAFETY: the kernel has read the flags there.
        nr::OPENAT2 => (args[1], unsafe { (args[2] as *const u64).read_unaligned() }
            as i32),
        _ => return (None, args[2] as i32),
    };
    // SAFETY: the kernel has read the path there.
    let path = unsafe { core::ffi::CStr::from_ptr(path as *const core::ffi::c_char) };
    (Some(path.to_bytes()), flags)
}
