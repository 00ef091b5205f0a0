//! Memory that direct I/O accepts: aligned to 4 KiB.

use super::IO_BYTES;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Bytes on a multiple of [`IO_BYTES`].
pub struct Buffer {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to this value alone, like that of a `Vec<u8>`.
unsafe impl Send for Buffer {}

impl Buffer {
    fn layout(bytes: usize) -> Layout {
        // Never fails: the lengths are constants of this crate.
        Layout::from_size_align(bytes, IO_BYTES).unwrap_or(Layout::new::<u64>())
    }

    /// `bytes` zeros.
    ///
    /// # Panics
    /// If it is not a positive multiple of [`IO_BYTES`].
    pub fn new(bytes: usize) -> Buffer {
        assert!(bytes > 0 && bytes.is_multiple_of(IO_BYTES));
        let layout = Self::layout(bytes);
        // SAFETY: the layout has a positive size.
        let at = unsafe { alloc_zeroed(layout) };
        match NonNull::new(at) {
            Some(at) => Buffer { at, bytes },
            None => handle_alloc_error(layout),
        }
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `at` is valid for `bytes` initialised bytes, and borrowed through `self`.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, and nobody refers to it any more.
        unsafe { dealloc(self.at.as_ptr(), Self::layout(self.bytes)) }
    }
}
