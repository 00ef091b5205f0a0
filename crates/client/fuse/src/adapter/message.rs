//! Taking a message apart and putting a reply together. The kernel is trusted
//! to send what its interface says, but a message that does not is answered
//! with `EINVAL`, never read past its end.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::backend::node::{Errno, Result};
use crate::serving::wire::{InHeader, SetxattrExt, SetxattrIn};

/// What follows the header of a request, consumed from the front.
#[derive(Clone, Copy)]
pub struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    /// The body of a message, without the header and without extensions at its end.
    pub fn of(header: &InHeader, message: &'a [u8]) -> Self {
        let extensions = usize::from(header.total_extlen) * 8;
        let end = message.len().saturating_sub(extensions);
        Self(message.get(size_of::<InHeader>()..end).unwrap_or_default())
    }

    /// The next struct.
    pub fn take<T: FromBytes>(&mut self) -> Result<T> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Errno(libc::EINVAL))?;
        self.0 = rest;
        Ok(value)
    }

    /// What is in front of the name and the value of a request that sets an attribute, and the flags that follow it if the
    /// kernel obeys access control lists (`acls`); else 0.
    pub fn setxattr(&mut self, acls: bool) -> Result<(SetxattrIn, u32)> {
        let set = self.take()?;
        let more = match acls {
            true => self.take::<SetxattrExt>()?.setxattr_flags,
            false => 0,
        };
        Ok((set, more))
    }

    /// The next string, without the zero byte that ends it.
    pub fn name(&mut self) -> Result<&'a [u8]> {
        let end = self
            .0
            .iter()
            .position(|&b| b == 0)
            .ok_or(Errno(libc::EINVAL))?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(name)
    }

    /// The next `bytes` bytes.
    pub fn bytes(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let (data, rest) = self.0.split_at_checked(bytes).ok_or(Errno(libc::EINVAL))?;
        self.0 = rest;
        Ok(data)
    }
}

/// What follows the header of a reply, filled from the front.
pub struct Payload<'a> {
    buffer: &'a mut [u8],
    used: usize,
}

impl<'a> Payload<'a> {
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, used: 0 }
    }

    /// Bytes filled so far.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Adds a struct.
    pub fn put<T: IntoBytes + Immutable>(&mut self, value: &T) -> Result<()> {
        self.put_bytes(value.as_bytes())
    }

    /// Adds bytes.
    pub fn put_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer(bytes.len())?.copy_from_slice(bytes);
        self.used += bytes.len();
        Ok(())
    }

    /// The next `bytes` bytes, to be filled in place and then [`commit`](Self::commit)ted.
    pub fn buffer(&mut self, bytes: usize) -> Result<&mut [u8]> {
        self.buffer[self.used..]
            .get_mut(..bytes)
            .ok_or(Errno(libc::ERANGE))
    }

    /// Counts `bytes` bytes filled in place.
    pub fn commit(&mut self, bytes: usize) {
        debug_assert!(self.used + bytes <= self.buffer.len());
        self.used += bytes;
    }

    /// Adds zeros up to a multiple of 8 bytes.
    pub fn pad(&mut self) -> Result<()> {
        const ZEROS: [u8; 8] = [0; 8];
        self.put_bytes(&ZEROS[..self.used.next_multiple_of(8) - self.used])
    }
}
