//! The library's own descriptors: out of the program's way, and out of its reach.
//!
//! They get high numbers, are closed by exec, and calls of the program that name them are
//! so that calls on them fail with `EBADF`.

use crate::limits;
use crate::table;
use core::sync::atomic::{AtomicI32, Ordering};
use rustix::process::{Resource, getrlimit};
use shale_interpose::raw;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Least number of an own descriptor; 0 before it is known.
static FIRST: AtomicI32 = AtomicI32::new(0);
/// Where it lies: above what programs use, but where the kernel's table stays small.
const FIRST_MIN: u64 = 1024;
const FIRST_MAX: u64 = 4096;

fn first() -> i32 {
    let known = FIRST.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let soft = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let first = soft.clamp(FIRST_MIN, FIRST_MAX) as i32;
    FIRST.store(first, Ordering::Relaxed);
    first
}

/// Moves a descriptor to a high number and hides it. Where that is impossible it stays and
/// is hidden where it is.
pub fn hide(fd: OwnedFd) -> OwnedFd {
    let number = fd.as_raw_fd();
    let moved = match raw::fcntl(number, libc::F_DUPFD_CLOEXEC, first() as u64) {
        moved if moved >= 0 => moved,
        // Above the limit on numbers: raise it for a moment, as far as allowed.
        _ => limits::above_number(|| raw::fcntl(number, libc::F_DUPFD_CLOEXEC, first() as u64))
            .unwrap_or(-1),
    };
    if moved < 0 {
        table::enter_own(number);
        return fd;
    }
    table::enter_own(moved as i32);
    // SAFETY: the number was made just now and belongs to nobody else.
    unsafe { OwnedFd::from_raw_fd(moved as i32) }
}

/// Closes them in a child, whose copies would keep its parent's connections alive, but for those
/// that keep what is mapped, of which `keeps` knows.
pub fn close_all(keeps: impl Fn(i32) -> bool) {
    table::for_each(0, u32::MAX, |fd, entry| {
        if entry == table::Entry::Own && !keeps(fd) {
            table::remove_own(fd);
            raw::close(fd);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_and_hidden() {
        let file: OwnedFd = std::fs::File::open("/proc/self/stat").unwrap().into();
        let old = file.as_raw_fd();
        let hidden = hide(file);
        assert!(u64::from(hidden.as_raw_fd() as u32) >= FIRST_MIN && hidden.as_raw_fd() != old);
        assert_eq!(table::get(hidden.as_raw_fd()), table::Entry::Own);
        table::remove_own(hidden.as_raw_fd());
    }
}
