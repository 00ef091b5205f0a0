//! The program's buffers.
//!
//! The kernel answers a bad pointer with an error; here it would be a crash. So what a call reads is touched first where
//! a fault does no harm ([`probe`]), and where it writes its first byte.

use core::sync::atomic::Ordering;
use shale_fd::mapped;
use shale_interpose::probe;
use shale_interpose::raw::{self, Args, nr};
use shale_interpose::thread;

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

/// What a call does with memory of the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads it.
    Read,
    /// It stores there.
    Write,
}

impl Buffer {
    /// The buffer of a call like `read` or `write`, cut to what one call moves, and where it is read to what is there. One that is written
    /// begins where something is; whether all of it is, only the kernel finds out without touching what it will not fill.
    ///
    /// # Errors
    /// `EFAULT`, `EINVAL`.
    #[inline]
    pub fn of(at: u64, bytes: u64, access: Access) -> Result<Self, i64> {
        let buffer = Self::new(at, bytes)?;
        let there = match access {
            _ if buffer.is_empty() => return Ok(buffer),
            Access::Read => probe::readable(at, buffer.bytes),
            Access::Write if is_writable(at) => buffer.bytes,
            Access::Write => 0,
        };
        match there {
            0 => Err(raw::fail(libc::EFAULT)),
            bytes => Ok(Self { at, bytes }),
        }
    }

    /// Memory of a `T` that a call is to fill in, or that it reads.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn check<T>(at: u64, access: Access) -> Result<(), i64> {
        let bytes = size_of::<T>() as u64;
        let there = Self::of(at, bytes, access)?.bytes == bytes
            && (access == Access::Read || probe::is_writable(at + bytes - 1));
        if there {
            Ok(())
        } else {
            Err(raw::fail(libc::EFAULT))
        }
    }

    /// The buffer of a call, cut to what one call moves, wherever it is.
    ///
    /// # Errors
    /// `EFAULT`, `EINVAL`.
    fn new(at: u64, bytes: u64) -> Result<Self, i64> {
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
pub unsafe fn buffers(at: u64, count: u64, access: Access) -> Result<Vec<Buffer>, i64> {
    if count > BUFFERS_MAX {
        return Err(raw::fail(libc::EINVAL));
    }
    let bytes = count * size_of::<Buffer>() as u64;
    let list = Buffer::of(at, bytes, Access::Read)?;
    if list.bytes < bytes {
        return Err(raw::fail(libc::EFAULT));
    }
    let mut left = CALL_BYTES_MAX;
    let mut all = Vec::with_capacity(count as usize);
    for i in 0..count {
        // SAFETY: the program says that it has `count` of them there.
        let one = unsafe { (list.at as *const Buffer).add(i as usize).read_unaligned() };
        let wanted = Buffer::new(one.at, one.bytes)?.first(left);
        match Buffer::of(wanted.at, wanted.bytes, access) {
            Ok(there) => all.push(there),
            Err(e) if all.iter().all(Buffer::is_empty) => return Err(e),
            // As much as there is before it.
            Err(_) => break,
        }
        left -= wanted.len();
        if all.last().is_some_and(|there| there.len() < wanted.len()) {
            break;
        }
    }
    Ok(all)
}

/// Whether a byte can be written, or could a moment ago in this page.
#[inline]
fn is_writable(at: u64) -> bool {
    let (thread, page) = (thread::this(), at as usize & !4095);
    if thread.writable_page.load(Ordering::Relaxed) == page {
        return true;
    }
    let is_writable = probe::is_writable(at);
    if is_writable {
        thread.writable_page.store(page, Ordering::Relaxed);
    }
    is_writable
}

/// Bytes that a `read` or a `write` of any form asks for; 0: the kernel will refuse.
pub fn bytes(number: u32, args: &Args) -> usize {
    match number {
        nr::READ | nr::WRITE | nr::PREAD | nr::PWRITE => args[2] as usize,
        _ => {
            // SAFETY: the registers of the program's own call.
            let all = unsafe { buffers(args[1], args[2], Access::Read) };
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
        let bytes = [0u8; 8192];
        let at = bytes.as_ptr() as u64;
        let list = [(at, 5u64), (at, 0), (at + 10, 7)];
        // SAFETY: the list is there.
        let all = unsafe { buffers(list.as_ptr() as u64, 3, Access::Read) }.unwrap();
        assert_eq!(all.iter().map(Buffer::len).sum::<usize>(), 12);
        // SAFETY: as above.
        assert_eq!(
            // SAFETY: a length above the limit is refused before the list is read.
            unsafe { buffers(list.as_ptr() as u64, 1025, Access::Read) },
            Err(raw::fail(libc::EINVAL))
        );
    }
}
