//! Lines to the user, on standard error.

use crate::table::{self, Entry};
use core::sync::atomic::{AtomicU64, Ordering};
use shale_interpose::raw::{self, nr};

/// Device and inode of standard error when the program began: it may be another file by now.
static STDERR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Once, at the start of the program.
pub fn configure() {
    if let Some(file) = stderr() {
        for (place, value) in STDERR.iter().zip(file) {
            place.store(value, Ordering::Relaxed);
        }
    }
}

fn stderr() -> Option<[u64; 2]> {
    let file = crate::mounts::statx(2, libc::AT_STATX_DONT_SYNC, libc::STATX_INO)?;
    let device = libc::makedev(file.stx_dev_major, file.stx_dev_minor);
    Some([device, file.stx_ino])
}

/// A line on standard error, if that is the kernel's file that it was when the program began.
pub fn warn(what: &str) {
    let before = [0, 1].map(|at| STDERR[at].load(Ordering::Relaxed));
    if stderr() != Some(before) || table::get(2) != Entry::Kernel {
        return;
    }
    let line = format!("shale: process {}: {what}\n", raw::getpid());
    let args = [2, line.as_ptr() as u64, line.len() as u64, 0, 0, 0];
    // SAFETY: a string that lives through the call.
    unsafe { raw::syscall(nr::WRITE, &args) };
}
