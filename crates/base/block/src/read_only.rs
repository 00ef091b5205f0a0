//! A file or a block device that is looked at: neither locked nor changed, also if another process has it open.

use super::{BlockCounts, Counters, Did, TierDevice, check_range};
use crate::BlockDevice;
use crate::error::BlockError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

/// Reads alone; another process may write meanwhile. Everything but a read fails.
pub struct ReadOnlyBlocks {
    file: File,
    path: PathBuf,
    bytes: u64,
    counters: Counters,
}

impl ReadOnlyBlocks {
    /// Opens a file or a block device as long as it is, in whole blocks.
    ///
    /// # Errors
    /// It is neither; the operating system refuses.
    pub fn open(path: &Path) -> Result<ReadOnlyBlocks, BlockError> {
        let failed = |tried: &str, e: std::io::Error| BlockError::os(path, tried, e);
        // Opening something else, such as a pipe, could wait for another process.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::open(path, flags, Mode::empty());
        let mut file = File::from(fd.map_err(|e| failed("open it", e.into()))?);
        let kind = file.metadata().map_err(|e| failed("look at it", e))?;
        let kind = kind.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(BlockError::Unfit {
                path: path.to_path_buf(),
                why: "it is neither a file nor a block device".to_owned(),
            });
        }
        let end = file.seek(SeekFrom::End(0));
        let bytes = end.map_err(|e| failed("find its length", e))?;
        Ok(ReadOnlyBlocks {
            file,
            path: path.to_path_buf(),
            bytes: bytes / super::IO_BYTES as u64 * super::IO_BYTES as u64,
            counters: Counters::default(),
        })
    }

    fn refuse(&self, did: Did) -> Result<(), BlockError> {
        let error = BlockError::os(
            &self.path,
            "change it: it was opened to be read",
            Errno::ROFS,
        );
        self.counters.note(did, Err(error))
    }
}

impl BlockDevice for ReadOnlyBlocks {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        check_range(offset, into.len() as u64, self.bytes);
        let bytes = into.len();
        let read = self
            .file
            .read_exact_at(into, offset)
            .map_err(|e| BlockError::os(&self.path, format!("read {bytes} bytes at {offset}"), e));
        self.counters.note(Did::Read(bytes as u64), read)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), BlockError> {
        check_range(offset, from.len() as u64, self.bytes);
        self.refuse(Did::Wrote(from.len() as u64))
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        check_range(offset, bytes, self.bytes);
        self.refuse(Did::Discarded(bytes))
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.refuse(Did::Flushed)
    }
}

impl TierDevice for ReadOnlyBlocks {
    fn counts(&self) -> BlockCounts {
        self.counters.snapshot()
    }

    fn access(&self) -> &'static str {
        "read only, through the page cache"
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_what_another_has_locked_and_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        crate::BlockFile::create(&path, 3 * 4096 + 100).unwrap();
        let locked = crate::BlockFile::open(&path, 4096).unwrap();
        locked.write(4096, &[7; 4096]).unwrap();
        locked.flush().unwrap();
        let device = ReadOnlyBlocks::open(&path).unwrap();
        let mut found = [0; 4096];
        device.read(4096, &mut found).unwrap();
        assert_eq!((found[0], device.bytes()), (7, 3 * 4096));
        assert!(device.write(0, &[1; 4096]).is_err() && device.flush().is_err());
        assert!(device.discard(0, 4096).is_err());
        assert_eq!(device.counts().errors, 3);
    }

    #[test]
    fn what_is_no_file_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        for path in [pipe.as_path(), dir.path(), Path::new("/dev/null")] {
            assert!(ReadOnlyBlocks::open(path).is_err(), "{}", path.display());
        }
    }
}
