//! Open files.

use crate::attachment::Attachment;
use crate::edge::{Out, answer, buffer, bytes, count, handle, not_negative, status, text};
use crate::status::stat;
use core::ffi::{c_char, c_int, c_void};
use shale_libfs::{Errno, File, OFlags, Result};
use std::sync::Arc;

/// An open file or directory: `shale_file_t`.
pub struct OpenFile {
    pub(crate) file: File,
    pub(crate) flags: OFlags,
    // Behind `file`: it ends first.
    pub(crate) volume: Arc<Attachment>,
}

impl AsRef<Attachment> for OpenFile {
    fn as_ref(&self) -> &Attachment {
        &self.volume
    }
}

/// See the header.
///
/// # Safety
/// As the header says: a handle, a string, and a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_open(
    volume: *const Attachment,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
    file: *mut *mut OpenFile,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, out) =
            unsafe { (Attachment::share(volume)?, text(path)?, Out::at(file)?) };
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        let file = volume.tree.open(path, flags, mode)?;
        out.put(Box::into_raw(Box::new(OpenFile {
            file,
            flags,
            volume,
        })));
        Ok(())
    })
}

/// See the header.
///
/// # Safety
/// As the header says: null or a handle, which nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_close(file: *mut OpenFile) -> c_int {
    status(|| {
        // SAFETY: the caller's promise. In a child this ends here and nothing is dropped: the
        // counts that dropping changes are its parent's.
        unsafe { handle(file.cast_const()) }?;
        // SAFETY: the handle came from `Box::into_raw`, and by the caller's promise it ends here.
        drop(unsafe { Box::from_raw(file) });
        Ok(())
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle, and a buffer of that length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_read(file: *const OpenFile, into: *mut c_void, n: usize) -> isize {
    count(|| {
        // SAFETY: the caller's promise.
        let (file, into) = unsafe { (handle(file)?, buffer(into, n)?) };
        file.file.read(into)
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle, and a buffer of that length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_write(
    file: *const OpenFile,
    from: *const c_void,
    n: usize,
) -> isize {
    count(|| {
        // SAFETY: the caller's promise.
        let (file, from) = unsafe { (handle(file)?, bytes(from, n)?) };
        file.file.write(from)
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle, and a buffer of that length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_pread(
    file: *const OpenFile,
    into: *mut c_void,
    n: usize,
    offset: i64,
) -> isize {
    count(|| {
        // SAFETY: the caller's promise.
        let (file, into) = unsafe { (handle(file)?, buffer(into, n)?) };
        file.file.pread(not_negative(offset)?, into)
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle, and a buffer of that length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_pwrite(
    file: *const OpenFile,
    from: *const c_void,
    n: usize,
    offset: i64,
) -> isize {
    count(|| {
        // SAFETY: the caller's promise.
        let (file, from) = unsafe { (handle(file)?, bytes(from, n)?) };
        file.file.pwrite(not_negative(offset)?, from)
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_lseek(file: *const OpenFile, by: i64, whence: c_int) -> i64 {
    answer(|| {
        // SAFETY: the caller's promise.
        let file = unsafe { handle(file) }?;
        let at = file.file.lseek(by, whence.cast_unsigned())?;
        i64::try_from(at).map_err(|_| Errno::OVERFLOW)
    })
}

fn sync(file: Result<&OpenFile>, data_only: bool) -> Result<()> {
    file?.file.sync(data_only)
}

/// See the header.
///
/// # Safety
/// As the header says: a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_fsync(file: *const OpenFile) -> c_int {
    // SAFETY: the caller's promise.
    status(|| sync(unsafe { handle(file) }, false))
}

/// See the header.
///
/// # Safety
/// As the header says: a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_fdatasync(file: *const OpenFile) -> c_int {
    // SAFETY: the caller's promise.
    status(|| sync(unsafe { handle(file) }, true))
}

/// See the header.
///
/// # Safety
/// As the header says: a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_ftruncate(file: *const OpenFile, n: i64) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let file = unsafe { handle(file) }?;
        file.file.truncate(not_negative(n)?)
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_fallocate(
    file: *const OpenFile,
    mode: c_int,
    offset: i64,
    n: i64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let file = unsafe { handle(file) }?;
        let (offset, n) = (not_negative(offset)?, not_negative(n)?);
        file.file.fallocate(mode.cast_unsigned(), offset, n)
    })
}

/// See the header.
///
/// # Safety
/// As the header says: a handle, and a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shale_fstat(file: *const OpenFile, to: *mut libc::stat) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (file, out) = unsafe { (handle(file)?, Out::at(to)?) };
        out.put(stat(&file.file.stat()?, file.volume.device));
        Ok(())
    })
}
