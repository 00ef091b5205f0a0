//! Extended attributes.

use crate::attachment::Attachment;
use crate::edge::{buffer, bytes, copy_all, count, handle, status, text};
use core::ffi::{c_char, c_int, c_void};

/// See the header.
///
/// # Safety
/// As the header says: a handle, two strings, and a buffer of that length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_setxattr(
    volume: *const Attachment,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    n: usize,
    flags: c_int,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, name, value) =
            unsafe { (handle(volume)?, text(path)?, text(name)?, bytes(value, n)?) };
        let flags = flags.cast_unsigned();
        volume.tree.setxattr(path, name, value, flags, true)
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle, two strings, and a buffer of that length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_getxattr(
    volume: *const Attachment,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    n: usize,
) -> isize {
    count(|| {
        // SAFETY: the caller's promise.
        let (volume, path, name, into) =
            unsafe { (handle(volume)?, text(path)?, text(name)?, buffer(value, n)?) };
        copy_all(&volume.tree.getxattr(path, name, true)?, into)
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle, a string, and a buffer of that length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_listxattr(
    volume: *const Attachment,
    path: *const c_char,
    names: *mut c_char,
    n: usize,
) -> isize {
    count(|| {
        // SAFETY: the caller's promise.
        let (volume, path, into) =
            unsafe { (handle(volume)?, text(path)?, buffer(names.cast(), n)?) };
        copy_all(&volume.tree.listxattr(path, true)?, into)
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle and two strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_removexattr(
    volume: *const Attachment,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, name) = unsafe { (handle(volume)?, text(path)?, text(name)?) };
        volume.tree.removexattr(path, name, true)
    })
}
