//! Leases by choice of the caller.

use crate::attachment::Attachment;
use crate::edge::{handle, status, text};
use crate::files::OpenFile;
use core::ffi::{c_char, c_int};
use shale_libfs::{Errno, LeaseMode, OFlags, Result};

const SHARED: c_int = 1;
const EXCLUSIVE: c_int = 2;
/// Bits of access(2).
const READ: u32 = 4;
const WRITE: u32 = 2;

fn mode_of(mode: c_int) -> Result<LeaseMode> {
    match mode {
        SHARED => Ok(LeaseMode::Shared),
        EXCLUSIVE => Ok(LeaseMode::Exclusive),
        _ => Err(Errno::INVAL),
    }
}

/// See the header.
///
/// # Safety
/// As the header says: a handle and a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_lease(
    volume: *const Attachment,
    path: *const c_char,
    mode: c_int,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path) = unsafe { (handle(volume)?, text(path)?) };
        let mode = mode_of(mode)?;
        // Others lose something by this: not at the word of who may not use it.
        let right = match mode {
            LeaseMode::Shared => READ,
            LeaseMode::Exclusive => WRITE,
        };
        volume.tree.access(path, right)?;
        let ino = volume.tree.stat(path)?.ino;
        volume.session.lease(ino, mode)
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_lease_file(file: *const OpenFile, mode: c_int) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let file = unsafe { handle(file) }?;
        let mode = mode_of(mode)?;
        let access = file.flags & OFlags::ACCMODE;
        let useless = match mode {
            LeaseMode::Shared => OFlags::WRONLY,
            LeaseMode::Exclusive => OFlags::RDONLY,
        };
        if access == useless || file.flags.contains(OFlags::PATH) {
            return Err(Errno::BADF);
        }
        file.volume.session.lease(file.file.ino(), mode)
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle and a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_give_back(volume: *const Attachment, path: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path) = unsafe { (handle(volume)?, text(path)?) };
        volume.session.give_back(volume.tree.stat(path)?.ino)
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_give_back_file(file: *const OpenFile) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let file = unsafe { handle(file) }?;
        file.volume.session.give_back(file.file.ino())
    })
}
