//! A medium below memory: byte ranges that are read, written, discarded and flushed.
//!
//! What a power cut leaves is each medium's own to say. In common: what was written before a
//! [`BlockDevice::flush`] that returned is there afterwards.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, MemfdFlags};

use crate::error::BlockError;
use crate::{in_use, lock, trouble_of};
use shale_sys::private;

/// A block device, an image file, or a model of one. Calls come from several threads at once.
///
/// Ranges outside the medium are the caller's mistake and panic.
pub trait BlockDevice: Send + Sync {
    /// Size in bytes.
    fn bytes(&self) -> u64;

    /// Reads from `offset` on until `into` is full. What was never written, or discarded,
    /// reads as zeros unless the medium says otherwise.
    ///
    /// # Errors
    /// What the medium or the operating system says.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError>;

    /// Writes all of `from`. Not durable before the next [`BlockDevice::flush`].
    ///
    /// # Errors
    /// What the medium or the operating system says; part of it may be written.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), BlockError>;

    /// Writes all of `from`, durable on return. What was written before and not flushed may or may not be.
    ///
    /// # Errors
    /// As [`BlockDevice::write`] and [`BlockDevice::flush`].
    fn write_durable(&self, offset: u64, from: &[u8]) -> Result<(), BlockError> {
        self.write(offset, from)?;
        self.flush()
    }

    /// What the range holds is not needed any more.
    ///
    /// # Errors
    /// What the medium or the operating system says.
    fn discard(&self, offset: u64, bytes: u64) -> Result<(), BlockError>;

    /// Makes durable what was written and discarded before.
    ///
    /// # Errors
    /// What the medium or the operating system says; then nobody knows what is durable.
    fn flush(&self) -> Result<(), BlockError>;
}

/// A file, or memory that looks like one. A file is locked (`flock`) while it is open.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    path: PathBuf,
    bytes: u64,
}

/// What memory is called; no file's path.
const MEMORY: &str = "memory";

fn locked(file: &File, path: &Path) -> Result<(), BlockError> {
    lock(file).map_err(|e| BlockError::os(path, in_use(file), e))
}

impl FileDevice {
    /// `bytes` bytes of memory, zeros. Gone when it is dropped.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn memory(bytes: u64) -> Result<Self, BlockError> {
        let path = PathBuf::from(MEMORY);
        let file = rustix::fs::memfd_create("shale-device", MemfdFlags::CLOEXEC)
            .map(File::from)
            .map_err(|e| BlockError::os(&path, "make a file in memory", e))?;
        Self::sized(file, path, bytes)
    }

    /// Makes the file, or opens it, and gives it `bytes` bytes; new ones are zeros.
    ///
    /// # Errors
    /// The operating system refuses, or another process uses it.
    pub fn create(path: &Path, bytes: u64) -> Result<Self, BlockError> {
        // What is there need not be a file of ours, but a link that leads nowhere is not followed.
        let file = match path.exists() {
            true => File::options().read(true).write(true).open(path),
            false => private::create_new(path),
        };
        let file = file.map_err(|e| BlockError::os(path, "create it", e))?;
        private::close_to_others(&file, path)?;
        locked(&file, path)?;
        Self::sized(file, path.to_owned(), bytes)
    }

    /// Opens a file as long as it is.
    ///
    /// # Errors
    /// The operating system refuses, or another process uses it.
    pub fn open(path: &Path) -> Result<Self, BlockError> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|e| BlockError::os(path, "open it", e))?;
        private::close_to_others(&file, path)?;
        locked(&file, path)?;
        let found = file.metadata();
        let found = found.map_err(|e| BlockError::os(path, "find its length", e))?;
        Ok(FileDevice {
            file,
            path: path.to_owned(),
            bytes: found.len(),
        })
    }

    fn sized(file: File, path: PathBuf, bytes: u64) -> Result<Self, BlockError> {
        file.set_len(bytes)
            .map_err(|e| BlockError::os(&path, format!("make it {bytes} bytes long"), e))?;
        Ok(FileDevice { file, path, bytes })
    }

    /// What is wrong with the file as a whole, if anything is.
    pub fn trouble(&self) -> Option<String> {
        match self.path == Path::new(MEMORY) {
            true => None,
            false => trouble_of(&self.file, &self.path, self.bytes),
        }
    }

    fn assert_inside(&self, offset: u64, bytes: u64) {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "{bytes} bytes at {offset} are outside of {} bytes",
            self.bytes
        );
    }
}

impl BlockDevice for FileDevice {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        self.assert_inside(offset, into.len() as u64);
        self.file.read_exact_at(into, offset).map_err(|e| {
            BlockError::os(
                &self.path,
                format!("read {} bytes at {offset}", into.len()),
                e,
            )
        })
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), BlockError> {
        self.assert_inside(offset, from.len() as u64);
        self.file.write_all_at(from, offset).map_err(|e| {
            BlockError::os(
                &self.path,
                format!("write {} bytes at {offset}", from.len()),
                e,
            )
        })
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        self.assert_inside(offset, bytes);
        if bytes == 0 {
            return Ok(());
        }
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, mode, offset, bytes).map_err(|e| {
            BlockError::os(&self.path, format!("discard {bytes} bytes at {offset}"), e)
        })
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.file
            .sync_data()
            .map_err(|e| BlockError::os(&self.path, "flush it", e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_discarded_is_zeros() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("image");
        let medium = FileDevice::create(&path, 1 << 20).unwrap();
        medium.write(8_192, &[7; 8_192]).unwrap();
        medium.discard(8_192, 4_096).unwrap();
        medium.discard(0, 0).unwrap();
        medium.flush().unwrap();
        drop(medium);
        let medium = FileDevice::open(&path).unwrap();
        assert_eq!(medium.bytes(), 1 << 20);
        let mut found = [1; 8_192];
        medium.read(8_192, &mut found).unwrap();
        assert_eq!((found[0], found[4_095], found[4_096]), (0, 0, 7));
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn outside_is_a_mistake() {
        let medium = FileDevice::memory(4_096).unwrap();
        let _ = medium.read(4_096, &mut [0]);
    }
}
