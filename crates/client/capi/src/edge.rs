//! The border to C: what comes in is pointers, what goes out is numbers.

use crate::attachment::Attachment;
use crate::protect::Inside;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::slice;
use shale_libfs::{Errno, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs one function of the header: a result as it is, an error as its negative number. A panic
/// is a mistake of ours and becomes `EIO`. If it came when a record was in the log already, the process
/// appends no other: its memory no longer knows what is in the log.
pub(crate) fn answer(f: impl FnOnce() -> Result<i64>) -> i64 {
    let _inside = Inside::enter();
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(number)) => number,
        Ok(Err(e)) => -i64::from(e.raw_os_error()),
        Err(payload) => {
            // Dropping what a panic carries could panic once more.
            core::mem::forget(payload);
            -i64::from(libc::EIO)
        }
    }
}

/// As [`answer`], of a function that returns 0 or an error.
pub(crate) fn status(f: impl FnOnce() -> Result<()>) -> c_int {
    answer(|| f().map(|()| 0)) as c_int
}

/// As [`answer`], of a function that returns a count of bytes.
pub(crate) fn count(f: impl FnOnce() -> Result<usize>) -> isize {
    answer(|| f().map(|n| n as i64)) as isize
}

/// A value behind a handle, in the process that made it. Errors: `EBADF` for null, `ENOTCONN`
/// in a child of that process.
///
/// # Safety
/// `handle` is null, or a handle of this kind that has not ended and does not end while `'a` lasts.
pub(crate) unsafe fn handle<'a, T: AsRef<Attachment>>(handle: *const T) -> Result<&'a T> {
    // SAFETY: by the contract it is null or points to a value that lives as long as `'a`; values
    // behind handles are only ever shared.
    let value = unsafe { handle.as_ref() }.ok_or(Errno::BADF)?;
    value.as_ref().in_this_process()?;
    Ok(value)
}

/// The bytes of a string. Errors: `EFAULT` for null.
///
/// # Safety
/// `text` is null, or ends with a zero byte and stays as it is while `'a` lasts.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a [u8]> {
    if text.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: not null, and by the contract a string that lives as long as `'a`.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Whether `bytes` at `at` can be a buffer. Errors: `EINVAL` for more than there can be, `EFAULT`
/// for null and not empty. `false`: it is empty.
fn check_buffer(at: *const c_void, bytes: usize) -> Result<bool> {
    if isize::try_from(bytes).is_err() {
        return Err(Errno::INVAL);
    }
    if at.is_null() && bytes > 0 {
        return Err(Errno::FAULT);
    }
    Ok(bytes > 0)
}

/// A buffer to read from.
///
/// # Safety
/// `at` has `bytes` bytes, or `bytes` is 0, or `at` is null; they stay as they are while `'a` lasts.
pub(crate) unsafe fn bytes<'a>(at: *const c_void, bytes: usize) -> Result<&'a [u8]> {
    if !check_buffer(at, bytes)? {
        return Ok(&[]);
    }
    // SAFETY: not null, no longer than a slice may be, and by the contract readable and unchanged.
    Ok(unsafe { slice::from_raw_parts(at.cast(), bytes) })
}

/// A buffer to write into.
///
/// # Safety
/// `at` has space for `bytes` bytes, or `bytes` is 0, or `at` is null; nobody else uses them while
/// `'a` lasts.
pub(crate) unsafe fn buffer<'a>(at: *mut c_void, bytes: usize) -> Result<&'a mut [u8]> {
    if !check_buffer(at, bytes)? {
        return Ok(&mut []);
    }
    // SAFETY: not null, no longer than a slice may be, by the contract writable and only ours. What
    // C has there counts as written, whatever it is: bytes have no invalid values.
    Ok(unsafe { slice::from_raw_parts_mut(at.cast(), bytes) })
}

/// Where a result goes. Errors: `EFAULT` for null: found before anything is done.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    /// `at` is null, or aligned, writable and nobody else's until the call that got it returns.
    pub(crate) unsafe fn at(at: *mut T) -> Result<Self> {
        if at.is_null() {
            return Err(Errno::FAULT);
        }
        Ok(Self(at))
    }

    /// Puts the result there; what was there counts as raw memory.
    pub(crate) fn put(self, value: T) {
        // SAFETY: not null, and by the contract of `at` a place for a `T` that only we use.
        unsafe { self.0.write(value) }
    }
}

/// An offset or a length as C has it. Errors: `EINVAL` for a negative one.
pub(crate) fn not_negative(number: i64) -> Result<u64> {
    u64::try_from(number).map_err(|_| Errno::INVAL)
}

/// Copies a value whose length the caller had to guess: returns the length, and with no space at
/// all only that. Errors: `ERANGE` if there is some space but too little.
pub(crate) fn copy_all(value: &[u8], into: &mut [u8]) -> Result<usize> {
    if !into.is_empty() {
        let into = into.get_mut(..value.len()).ok_or(Errno::RANGE)?;
        into.copy_from_slice(value);
    }
    Ok(value.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;

    #[test]
    fn panics_and_errors_become_numbers() {
        assert_eq!(answer(|| panic!("on purpose")), -i64::from(libc::EIO));
        assert_eq!(status(|| Err(Errno::NOENT)), -libc::ENOENT);
        assert_eq!(count(|| Ok(7)), 7);
    }

    #[test]
    fn buffers_are_checked() {
        let four = [1u8, 2, 3, 4];
        let at = four.as_ptr().cast();
        // SAFETY: the array, or lengths and addresses that are refused or not looked at.
        unsafe {
            assert_eq!(bytes(at, 4), Ok(&four[..]));
            assert_eq!(bytes(at, usize::MAX), Err(Errno::INVAL));
            assert_eq!(bytes(ptr::null(), 1), Err(Errno::FAULT));
            assert_eq!(bytes(ptr::null(), 0), Ok(&[][..]));
            assert_eq!(text(ptr::null()), Err(Errno::FAULT));
            assert!(Out::<u32>::at(ptr::null_mut()).is_err());
        }
    }

    #[test]
    fn values_are_copied_whole_or_not() {
        let mut buffer = [0; 3];
        assert_eq!(copy_all(b"abc", &mut buffer), Ok(3));
        assert_eq!(&buffer, b"abc");
        assert_eq!(copy_all(b"abcd", &mut buffer), Err(Errno::RANGE));
        assert_eq!(copy_all(b"abcd", &mut []), Ok(4));
    }
}
