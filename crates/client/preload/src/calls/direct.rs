//! Private mappings directly from NVM (Strata §4.1, DESIGN §35).
//!
//! What is mapped is the blocks themselves, read-only to begin with as a private mapping is: no
//! page is read through the mount, and the file stays with this library. It shows the file as it was
//! when it was mapped, which POSIX allows a private mapping. A descriptor keeps the blocks as they
//! are; children inherit it with the mapping, `exec` closes it as it unmaps, and `munmap`
//! of the whole closes it here. Another one, with no rights, keeps the mount busy, as a mapping does.
//!
//! The last block of a file is copied: behind the end a mapping shows zeros. Where a part of the
//! range cannot be had so, the whole mapping is the mount's.

use crate::calls::names;
use crate::calls::route::{Call, Route};
use crate::client::caller;
use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::Mutex;
use shale_fd::own;
use shale_fd::report;
use shale_fd::table;
use shale_interpose::outcome::{CLASS, class};
use shale_interpose::raw::{self, Args, nr};
use shale_libfs::DirectMap;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

const PAGE: u64 = 4096;
/// Mappings of one process at a time; each has two descriptors.
const RANGES_MAX: usize = 128;
/// Flags of `mmap` under which a mapping can be direct, all others are the mount's.
const KNOWN_FLAGS: i32 = libc::MAP_PRIVATE | PLACE_FLAGS | HOW_FLAGS;
/// Those that say where it is to be.
const PLACE_FLAGS: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT;
/// Those that each piece of it gets.
const HOW_FLAGS: i32 = libc::MAP_POPULATE
    | libc::MAP_NONBLOCK
    | libc::MAP_LOCKED
    | libc::MAP_NORESERVE
    | libc::MAP_DENYWRITE;

/// What is mapped, and the descriptors that keep it.
struct Range {
    first: u64,
    end: u64,
    keep: i32,
    mount: Option<i32>,
}

/// Calls that are looked at while there are such mappings: [`class::AT_TIMES`].
pub const CALLS: [u32; 2] = [nr::MUNMAP, nr::MPROTECT];

static RANGES: Mutex<Vec<Range>> = Mutex::new(Vec::new());
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether a call about memory can be about one of these mappings.
#[inline]
pub fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Whether a range of addresses meets one.
pub fn meets(first: u64, bytes: u64) -> bool {
    let end = first.saturating_add(bytes);
    let ranges = RANGES.lock();
    any() && ranges.iter().any(|r| r.first < end && first < r.end)
}

/// Whether a descriptor keeps a mapping.
pub fn keeps(fd: i32) -> bool {
    let ranges = RANGES.lock();
    ranges.iter().any(|r| r.keep == fd || r.mount == Some(fd))
}

/// In a child, which has all mappings with what keeps them: nobody else is noting.
pub fn begin_again() {
    if RANGES.is_locked() {
        // SAFETY: the only thread of this process is here.
        unsafe { RANGES.force_unlock() };
    }
}

/// `mmap` of a file of ours, if it can be direct; `None`: the mount's.
pub fn map(args: &Args) -> Option<i64> {
    let [_, bytes, protection, flags, fd, offset] = *args;
    let (fd, flags) = (fd as i32, flags as i32);
    let table::Entry::File(index) = names::entry(fd) else {
        return None;
    };
    // A directory of NVM may be mounted so that nothing in it is executed.
    let plain = flags & libc::MAP_TYPE == libc::MAP_PRIVATE
        && flags & !KNOWN_FLAGS == 0
        && protection as i32 & !(libc::PROT_READ | libc::PROT_WRITE) == 0;
    if !plain || bytes == 0 || offset % PAGE != 0 || RANGES.lock().len() >= RANGES_MAX {
        return None;
    }
    let call = Call::new(shale_interpose::thread::this(), fd, index, nr::MMAP, args);
    let Route::Here(client, _) = call.route(false) else {
        return None;
    };
    if !call.readable() {
        return None;
    }
    let found = client
        .session
        .map_direct(&caller(), call.ino(), offset, bytes)
        .ok()??;
    let mount = open_path(fd);
    match place(args, &found) {
        Ok(Some(at)) => {
            if flags & libc::MAP_FIXED != 0 {
                gone(at, bytes);
            }
            note(at, bytes, found.keep, mount);
            report::fast(nr::MMAP);
            Some(at as i64)
        }
        Ok(None) => None,
        Err(errno) => Some(errno),
    }
}

/// A descriptor of a file with which nothing can be done, and whose closing gives up no lock.
fn open_path(fd: i32) -> Option<OwnedFd> {
    let link = format!("/proc/self/fd/{fd}\0");
    let flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    // SAFETY: the path ends with a zero byte.
    let fd = unsafe { raw::syscall(nr::OPEN, &[link.as_ptr() as u64, flags, 0, 0, 0, 0]) };
    // SAFETY: the kernel has made it just now.
    (fd >= 0).then(|| own::hide(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
}

fn note(at: u64, bytes: u64, keep: OwnedFd, mount: Option<OwnedFd>) {
    let mut ranges = RANGES.lock();
    ranges.push(Range {
        first: at,
        end: at + bytes.next_multiple_of(PAGE),
        keep: keep.into_raw_fd(),
        mount: mount.map(IntoRawFd::into_raw_fd),
    });
    set_any(true);
}

/// Has calls about memory be looked at while there are such mappings, and not otherwise. The lock of the ranges is held, or
/// the program has not begun.
pub fn set_any(any: bool) {
    ANY.store(any, Ordering::Relaxed);
    let class = if any { class::AT_TIMES } else { class::PASS };
    for number in CALLS {
        CLASS[number as usize].store(class, Ordering::Relaxed);
    }
}

fn mmap(at: u64, bytes: u64, protection: i32, flags: i32, fd: i32, offset: u64) -> i64 {
    let (protection, flags) = (protection as u64, flags as u64);
    let args = [at, bytes, protection, flags, fd as u64, offset];
    // SAFETY: memory that the program has asked for, or that the kernel chooses.
    unsafe { raw::syscall(nr::MMAP, &args) }
}

/// Maps the pieces side by side where the program wants them. `Ok(None)`: the kernel refuses a part.
///
/// # Errors
/// What the program's call returns.
fn place(args: &Args, found: &DirectMap) -> Result<Option<u64>, i64> {
    let [wanted, bytes, protection, flags, _, offset] = *args;
    let (protection, flags) = (protection as i32, flags as i32);
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let place = flags & PLACE_FLAGS;
    let at = mmap(wanted, bytes, libc::PROT_NONE, anonymous | place, -1, 0);
    let at = u64::try_from(at).map_err(|_| at)?;
    let how = libc::MAP_PRIVATE | libc::MAP_FIXED | flags & HOW_FLAGS;
    let mut next = at;
    let mut done = found.pieces.iter().all(|piece| {
        let fd = found.segments[piece.segment].as_raw_fd();
        let here = mmap(next, piece.bytes, protection, how, fd, piece.offset);
        next += piece.bytes;
        here >= 0
    });
    let behind = found.size.saturating_sub(offset);
    if done && behind < bytes.next_multiple_of(PAGE) && behind % PAGE != 0 {
        let last = at + behind / PAGE * PAGE;
        done = copied(last, behind % PAGE, protection, flags & HOW_FLAGS);
    }
    if done {
        return Ok(Some(at));
    }
    if flags & libc::MAP_FIXED == 0 {
        // SAFETY: what was mapped just now.
        unsafe { raw::syscall(nr::MUNMAP, &[at, bytes, 0, 0, 0, 0]) };
    }
    // Else the mount's mapping goes over it.
    Ok(None)
}

/// Replaces a mapped page by a copy of its first bytes, with zeros behind them.
fn copied(page: u64, bytes: u64, protection: i32, how: i32) -> bool {
    let mut copy = [0u8; PAGE as usize];
    let copy = &mut copy[..bytes as usize];
    let all = libc::PROT_READ | libc::PROT_WRITE;
    if !protect_page(page, PAGE, libc::PROT_READ) {
        return false;
    }
    // SAFETY: the page was mapped just now, is readable, and nobody else knows of it.
    copy.copy_from_slice(unsafe { core::slice::from_raw_parts(page as *const u8, copy.len()) });
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | how;
    if mmap(page, PAGE, all, flags, -1, 0) < 0 {
        return false;
    }
    // SAFETY: as above, and writable.
    unsafe { core::ptr::copy_nonoverlapping(copy.as_ptr(), page as *mut u8, copy.len()) };
    protect_page(page, PAGE, protection)
}

fn protect_page(at: u64, bytes: u64, protection: i32) -> bool {
    // SAFETY: memory of these mappings.
    let done = unsafe { raw::syscall(nr::MPROTECT, &[at, bytes, protection as u64, 0, 0, 0]) };
    done == 0
}

/// `munmap`.
pub fn unmap(args: &Args) -> i64 {
    // SAFETY: the program's own call, made for it.
    let result = unsafe { raw::syscall(nr::MUNMAP, args) };
    if result == 0 {
        gone(args[0], args[1]);
    }
    result
}

/// Memory is no mapping of these any more. One of which only the middle has gone keeps all of it.
pub fn gone(first: u64, bytes: u64) {
    let end = first.saturating_add(bytes.next_multiple_of(PAGE));
    let close = |fd: i32| {
        table::remove_own(fd);
        raw::close(fd);
    };
    let mut ranges = RANGES.lock();
    ranges.retain_mut(|r| {
        let meets = first < r.end && r.first < end;
        match (meets, first <= r.first, end >= r.end) {
            (true, true, true) => {
                close(r.keep);
                r.mount.map(close);
                return false;
            }
            (true, true, false) => r.first = end,
            (true, false, true) => r.end = first,
            _ => {}
        }
        true
    });
    set_any(!ranges.is_empty());
}

/// `mremap` of memory that meets one of these mappings. It can become smaller where it is.
/// What the mount's mapping of it would show besides is not there to be mapped.
pub fn remap(args: &Args) -> i64 {
    let [at, old_bytes, new_bytes, flags, ..] = *args;
    let [old, new] = [old_bytes, new_bytes].map(|b| b.next_multiple_of(PAGE));
    if flags & !(libc::MREMAP_MAYMOVE as u64) != 0 || new > old {
        return raw::fail(libc::ENOMEM);
    }
    // SAFETY: the program's own call, made for it.
    let result = unsafe { raw::syscall(nr::MREMAP, args) };
    if result >= 0 && new < old {
        gone(at + new, old - new);
    }
    result
}

/// `mprotect`. What is to be executed is copied first: the NVM directory may not allow that.
pub fn protect(args: &Args) -> i64 {
    let [at, bytes, protection, ..] = *args;
    if protection as i32 & libc::PROT_EXEC != 0 && meets(at, bytes) {
        let end = at.saturating_add(bytes.next_multiple_of(PAGE));
        let parts: Vec<(u64, u64)> = RANGES
            .lock()
            .iter()
            .map(|r| (r.first.max(at), r.end.min(end)))
            .filter(|(first, last)| first < last)
            .collect();
        if !parts
            .iter()
            .all(|&(first, last)| replaced(first, last - first))
        {
            return raw::fail(libc::ENOMEM);
        }
    }
    // SAFETY: the program's own call, made for it.
    unsafe { raw::syscall(nr::MPROTECT, args) }
}

/// Puts a copy in the place of memory.
fn replaced(at: u64, bytes: u64) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let copy = mmap(0, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
    if copy < 0 || !protect_page(at, bytes, libc::PROT_READ) {
        return false;
    }
    // SAFETY: both are mapped and that long, the copy was made just now, and the other one is
    // readable; a program that changes it meanwhile races with itself.
    unsafe { core::ptr::copy_nonoverlapping(at as *const u8, copy as *mut u8, bytes as usize) };
    let moves = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    // SAFETY: the copy goes where the program expects the same bytes.
    let moved = unsafe { raw::syscall(nr::MREMAP, &[copy as u64, bytes, bytes, moves, at, 0]) };
    moved >= 0
}
