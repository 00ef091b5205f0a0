//! Files that were opened. The kernel opens; here it is seen whether the file is ours.

use crate::client;
use crate::pays;
use core::sync::atomic::Ordering;
use shale_fd::description::{self, Description, NOT_PLACED, mode};
use shale_fd::mapped;
use shale_fd::mounts;
use shale_fd::report;
use shale_fd::table::{self, Entry};
use shale_interpose::inside::READY;
use shale_interpose::raw::{Args, nr};
use shale_interpose::thread;

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
    if is_surely_not_ours(path, flags) {
        return None;
    }
    mounts::place(fd).map(|place| Opened { place, flags })
}

/// Whether what was opened is no regular file, or on no mount of ours.
fn is_surely_not_ours(path: Option<&[u8]>, flags: i32) -> bool {
    flags & libc::O_PATH != 0
        || flags & libc::O_TMPFILE == libc::O_DIRECTORY
        || path.is_some_and(mounts::surely_elsewhere)
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
    if is_surely_not_ours(path, flags) {
        return Rest::Nothing;
    }
    if pays::by_time() && !client::ever_attached() {
        if report::is_on() {
            // It has the number of files of ours.
            match mounts::place_quickly(fd) {
                None => return Rest::Look,
                Some(None) => return Rest::Nothing,
                Some(Some(_)) => report::opened(),
            }
        }
        enter_not_placed(fd, flags);
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
    let fill = |_, d: &Description| {
        d.ino.store(place.ino, Ordering::Relaxed);
        d.mount.store(place.mount, Ordering::Release);
        d.begin_counting(!pays::by_time());
        let mode = match note_past(d, place, mapped) {
            true => mode::FAST,
            false => mode::KERNEL,
        };
        d.mode.store(mode, Ordering::Release);
    };
    if let Some(d) = enter_filled(fd, flags, fill) {
        report::opened();
        // Another thread may have begun to serve the file meanwhile.
        if pays::by_time() && pays::serves_at_once(place.mount, place.ino) {
            d.note_served();
        }
    }
}

/// Enters a descriptor that may be ours: on which mount its file lies is asked when that matters ([`entry`]). Most
/// files that a program opens it closes after a few calls, which the kernel does anyway.
fn enter_not_placed(fd: i32, flags: i32) {
    let fill = |_, d: &Description| {
        d.ino.store(0, Ordering::Relaxed);
        d.mount.store(NOT_PLACED, Ordering::Release);
        d.begin_counting(false);
        d.mode.store(mode::KERNEL, Ordering::Release);
    };
    if let Some(d) = enter_filled(fd, flags, fill) {
        // Another thread may have begun to serve the file meanwhile.
        if client::ever_attached() {
            d.note_served();
        }
    }
}

/// Enters a descriptor with a new description, which `fill` completes; `None`: there is none, or the number is too high.
pub fn enter_filled(
    fd: i32,
    flags: i32,
    fill: impl FnOnce(u32, &Description),
) -> Option<&'static Description> {
    if !READY.load(Ordering::Acquire) {
        return None;
    }
    let index = description::take()?;
    let d = description::get(index);
    let held = d.lock(thread::this().tid.load(Ordering::Relaxed));
    d.flags.store((flags & KEPT) as u32, Ordering::Relaxed);
    d.offset.store(0, Ordering::Relaxed);
    d.past_pages.store(0, Ordering::Relaxed);
    d.not_before_ns.store(0, Ordering::Relaxed);
    fill(index, d);
    drop(held);
    if !table::enter(fd, index) {
        description::drop_user(index);
        return None;
    }
    Some(d)
}

/// Notes of a description what this process has done with its file before. Gives whether it is served from its first
/// call on. The lock is held.
fn note_past(d: &Description, place: mounts::Place, mapped: bool) -> bool {
    if mapped {
        d.not_before_ns.store(i64::MAX, Ordering::Relaxed);
    }
    let client = client::current(place.mount);
    let was_away = client.is_some_and(|c| c.link.leases.was_away(place.ino));
    let fast = !mapped && pays::serves_at_once(place.mount, place.ino);
    if fast || was_away || (mapped && client.is_some()) {
        d.note_served();
    }
    fast
}

/// What a descriptor is, for calls to which it matters which file it has: if nobody has asked yet whose it is, that
/// is done now. Inside the library, with signals blocked.
#[inline]
pub fn entry(fd: i32) -> Entry {
    match table::get(fd) {
        Entry::File(index) if !description::get(index).is_placed() => {
            look(fd, index);
            table::get(fd)
        }
        entry => entry,
    }
}

/// Whether nobody has asked whose file a descriptor has, and nobody need: no file of ours is served.
pub fn stays_unknown(fd: i32) -> bool {
    let unknown = |d: &Description| !d.is_placed() && !d.was_served();
    matches!(table::get(fd), Entry::File(index) if unknown(description::get(index)))
}

/// Asks where the file of a descriptor lies.
#[cold]
fn look(fd: i32, index: u32) {
    let d = description::get(index);
    let generation = description::generation(index);
    let place = mounts::place(fd);
    let _held = d.lock(thread::this().tid.load(Ordering::Relaxed));
    // Another thread may have closed it meanwhile, and this may be the description of another file.
    if description::generation(index) != generation || d.is_placed() {
        return;
    }
    let Some(place) = place else {
        table::remove_of(fd, index);
        return;
    };
    d.ino.store(place.ino, Ordering::Relaxed);
    d.mount.store(place.mount, Ordering::Release);
    // Behind that: who maps the file, or begins to serve it, looks for descriptions of it afterwards.
    note_past(d, place, mapped::is_mapped(place.mount, place.ino));
}

/// Asks of every descriptor whose it is. A child shares the descriptions, and mounts that only one of both has met
/// have not the same number in both.
pub fn look_at_all() {
    table::for_each_file(|fd, _| {
        entry(fd);
    });
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
