//! Names, and the volume as a whole.

use crate::attachment::Attachment;
use crate::edge::{Out, buffer, count, handle, status, text};
use crate::status::{stat, statvfs};
use core::ffi::{c_char, c_int, c_uint};
use shale_libfs::{Errno, Result, Tree};

/// One call with one path.
///
/// # Safety
/// As [`handle`] and [`text`].
unsafe fn at(
    volume: *const Attachment,
    path: *const c_char,
    f: impl FnOnce(&Tree, &[u8]) -> Result<()>,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path) = unsafe { (handle(volume)?, text(path)?) };
        f(&volume.tree, path)
    })
}

/// One call with two paths.
///
/// # Safety
/// As [`handle`] and [`text`].
unsafe fn at_two(
    volume: *const Attachment,
    paths: (*const c_char, *const c_char),
    f: impl FnOnce(&Tree, &[u8], &[u8]) -> Result<()>,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, first, second) = unsafe { (handle(volume)?, text(paths.0)?, text(paths.1)?) };
        f(&volume.tree, first, second)
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle, a string, and a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_stat(
    volume: *const Attachment,
    path: *const c_char,
    to: *mut libc::stat,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, out) = unsafe { (handle(volume)?, text(path)?, Out::at(to)?) };
        out.put(stat(&volume.tree.stat(path)?, volume.device));
        Ok(())
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle, a string, and a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_lstat(
    volume: *const Attachment,
    path: *const c_char,
    to: *mut libc::stat,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, out) = unsafe { (handle(volume)?, text(path)?, Out::at(to)?) };
        out.put(stat(&volume.tree.lstat(path)?, volume.device));
        Ok(())
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle and a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_access(
    volume: *const Attachment,
    path: *const c_char,
    mode: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { at(volume, path, |t, p| t.access(p, mode.cast_unsigned())) }
}

/// See the header.
///
/// # Safety
/// As the header says: a handle and a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_mkdir(
    volume: *const Attachment,
    path: *const c_char,
    mode: libc::mode_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { at(volume, path, |t, p| t.mkdir(p, mode)) }
}

/// See the header.
///
/// # Safety
/// As the header says: a handle and a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_rmdir(volume: *const Attachment, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { at(volume, path, Tree::rmdir) }
}

/// See the header.
///
/// # Safety
/// As the header says: a handle and a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_unlink(volume: *const Attachment, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { at(volume, path, Tree::unlink) }
}

/// See the header.
///
/// # Safety
/// As the header says: a handle and two strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_rename(
    volume: *const Attachment,
    old: *const c_char,
    new: *const c_char,
    flags: c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { at_two(volume, (old, new), |t, old, new| t.rename(old, new, flags)) }
}

/// See the header.
///
/// # Safety
/// As the header says: a handle and two strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_link(
    volume: *const Attachment,
    old: *const c_char,
    new: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { at_two(volume, (old, new), Tree::link) }
}

/// See the header.
///
/// # Safety
/// As the header says: a handle and two strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_symlink(
    volume: *const Attachment,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { at_two(volume, (target, path), Tree::symlink) }
}

/// See the header.
///
/// # Safety
/// As the header says: a handle, a string, and a buffer of that length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_readlink(
    volume: *const Attachment,
    path: *const c_char,
    into: *mut c_char,
    n: usize,
) -> isize {
    count(|| {
        // SAFETY: the caller's promise.
        let (volume, path, into) =
            unsafe { (handle(volume)?, text(path)?, buffer(into.cast(), n)?) };
        if into.is_empty() {
            return Err(Errno::INVAL);
        }
        let target = volume.tree.readlink(path)?;
        let n = target.len().min(into.len());
        into[..n].copy_from_slice(&target[..n]);
        Ok(n)
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_sync(volume: *const Attachment) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { handle(volume) }?.tree.sync())
}

/// See the header.
///
/// # Safety
/// As the header says: a handle, and a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_statfs(volume: *const Attachment, to: *mut libc::statvfs) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, out) = unsafe { (handle(volume)?, Out::at(to)?) };
        out.put(statvfs(&volume.tree.statfs()?));
        Ok(())
    })
}
