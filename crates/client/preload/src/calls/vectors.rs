//! The program's buffers.
//!
//! The kernel answers a bad pointer with an error; here it would be a crash. What can be detected
//! cheaply is checked: the first page, addresses that are not the program's, lengths.

use shale_fd::mapped;
use shale_interpose::raw::{self, Args, nr};

/// Most bytes that one call moves, as on Linux.
pub const CALL_BYTES_MAX: usize = 0x7fff_f000;
/// The end of a program's addresses.
pub const USER_END: u64 = 0x7fff_ffff_f000;
/// Most buffers of one call.
const BUFFERS_MAX: u64 = 1024;

/// One buffer: address and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Buffer {
    at: u64,
    bytes: u64,
}

impl Buffer {
    /// The buffer of a call like `read`, cut to what one call moves.
    ///
    /// # Errors
    /// `EFAULT`, `EINVAL`.
    pub fn new(at: u64, bytes: u64) -> Result<Self, i64> {
        if bytes > i64::MAX as u64 {
            return Err(raw::fail(libc::EINVAL));
        }
        let bytes = bytes.min(CALL_BYTES_MAX as u64);
        let bad =
            bytes > 0 && (at < 4096 || at.checked_add(bytes).is_none_or(|end| end > USER_END));
        if bad {
            Err(raw::fail(libc::EFAULT))
        } else {
            Ok(Self { at, bytes })
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.bytes as usize
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Its bytes, to be read.
    ///
    /// # Safety
    /// It is a buffer that the program gave for this call.
    pub unsafe fn data<'a>(self) -> &'a [u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the program says that these bytes are there for the time of the call.
        // Should another thread of it change them meanwhile, they are copied as they
        // come, and nothing else depends on them.
        unsafe { core::slice::from_raw_parts(self.at as *const u8, self.len()) }
    }

    /// Its bytes, to be filled.
    ///
    /// # Safety
    /// As [`Self::data`].
    pub unsafe fn space<'a>(self) -> &'a mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as in `data`.
        unsafe { core::slice::from_raw_parts_mut(self.at as *mut u8, self.len()) }
    }

    /// Whether touching it may be a call to the daemon.
    #[inline]
    pub fn may_fault(&self) -> bool {
        mapped::may_fault(self.at, self.len())
    }

    /// Its first `bytes` bytes.
    pub fn first(self, bytes: usize) -> Self {
        Self {
            bytes: self.bytes.min(bytes as u64),
            ..self
        }
    }
}

/// The buffers of a call like `readv`.
///
/// # Errors
/// `EFAULT`, `EINVAL`.
///
/// # Safety
/// `at` and `count` are what the program gave for this call.
pub unsafe fn buffers(at: u64, count: u64) -> Result<Vec<Buffer>, i64> {
    if count > BUFFERS_MAX {
        return Err(raw::fail(libc::EINVAL));
    }
    let list = Buffer::new(at, count * size_of::<Buffer>() as u64)?;
    let mut left = CALL_BYTES_MAX;
    let mut all = Vec::with_capacity(count as usize);
    for i in 0..count {
        // SAFETY: the program says that it has `count` of them there.
        let one = unsafe { (list.at as *const Buffer).add(i as usize).read_unaligned() };
        let one = Buffer::new(one.at, one.bytes)?.first(left);
        left -= one.len();
        all.push(one);
    }
    Ok(all)
}

/// Bytes that a `read` or a `write` of any form asks for; 0: the kernel will refuse.
pub fn bytes(number: u32, args: &Args) -> usize {
    match number {
        nr::READ | nr::WRITE | nr::PREAD | nr::PWRITE => args[2] as usize,
        _ => {
            // SAFETY: the registers of the program's own call.
            let all = unsafe { buffers(args[1], args[2]) };
            all.map_or(0, |all| all.iter().map(Buffer::len).sum())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_buffers_are_refused() {
        assert_eq!(Buffer::new(0, 1), Err(raw::fail(libc::EFAULT)));
        assert_eq!(Buffer::new(u64::MAX - 4, 8), Err(raw::fail(libc::EFAULT)));
        assert_eq!(Buffer::new(8192, u64::MAX), Err(raw::fail(libc::EINVAL)));
        assert!(Buffer::new(0, 0).unwrap().is_empty());
        let list = [(8192u64, 5u64), (4096, 1 << 40), (4096, 7)];
        // SAFETY: the list is there; its buffers are not touched.
        let all = unsafe { buffers(list.as_ptr() as u64, 3) }.unwrap();
        assert_eq!(all.iter().map(Buffer::len).sum::<usize>(), CALL_BYTES_MAX);
        // SAFETY: as above.
        assert_eq!(
            // SAFETY: a length above the limit is refused before the list is read.
            unsafe { buffers(list.as_ptr() as u64, 1025) },
            Err(raw::fail(libc::EINVAL))
        );
    }
}
