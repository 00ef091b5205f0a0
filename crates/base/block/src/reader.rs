//! Reading a device by a descriptor that can do nothing else.

use super::buffer::Buffer;
use super::file::read_all;
use crate::error::BlockError;
use std::os::fd::OwnedFd;
use std::path::Path;

/// A device that another process has open for writing, and that this one only reads, block by block. Past the page
/// cache where the other one goes past it. It is not locked.
pub struct BlockReader(OwnedFd);

impl BlockReader {
    /// For a descriptor of [`TierDevice::reader`](super::TierDevice::reader).
    pub fn new(fd: OwnedFd) -> BlockReader {
        BlockReader(fd)
    }

    /// Reads `bytes` bytes at `at`, both multiples of [`IO_BYTES`](super::IO_BYTES), the first at least one.
    /// What another process writes meanwhile is there in part, or not.
    ///
    /// # Errors
    /// The device fails, or is shorter.
    pub fn read(&self, at: u64, bytes: usize) -> Result<Buffer, BlockError> {
        let mut buffer = Buffer::new(bytes);
        let path = Path::new("a device of the volume");
        match read_all(&self.0, at, buffer.bytes()) {
            Ok(()) => Ok(buffer),
            Err(e) => Err(BlockError::os(
                path,
                format!("read {bytes} bytes at {at}"),
                e,
            )),
        }
    }
}
