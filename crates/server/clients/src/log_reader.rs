//! The log file of a client, read by calls into the kernel.
//!
//! The client has the file open for writing and can cut it short whenever it likes; a
//! load through a mapping of the daemon's would then end the daemon. A read says that
//! there is nothing. The client's own threads and those of this process read their own
//! log through a mapping (see [`shale_oplog::source`]).

use crate::error::{ClientError, Result};
use rustix::fs::{Mode, OFlags};
use shale_oplog::LogReader;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// An open log file.
#[derive(Debug)]
pub struct FdLogReader {
    fd: OwnedFd,
    bytes: usize,
}

impl FdLogReader {
    /// Opens the log file at `path`, which is a name in a directory that clients may be able to
    /// write to: what is no regular file is refused, and no link is followed.
    ///
    /// # Errors
    /// It is not there, or is something else.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = shale_sys::failpoints::io()
            .and_then(|()| rustix::fs::open(path, flags, Mode::empty()))
            .map_err(|e| ClientError::file(path, "open it", e))?;
        let stat = rustix::fs::fstat(&fd)
            .map_err(|e| ClientError::file(path, "read its attributes", e))?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
            let what = std::io::Error::other("it is no regular file");
            return Err(ClientError::file(path, "use it as a log", what));
        }
        let bytes = usize::try_from(stat.st_size).unwrap_or(0);
        Ok(Self { fd, bytes })
    }

    /// Reads through `fd`, a log file of `bytes` bytes.
    pub fn of(fd: OwnedFd, bytes: usize) -> Self {
        Self { fd, bytes }
    }

    /// The file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl LogReader for FdLogReader {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn load(&self, at: usize, into: &mut [u8]) -> bool {
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&self.fd, &mut into[done..], (at + done) as u64) {
                Ok(0) => return false,
                Ok(n) => done += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// Stores a word of a log file, for its client to read. A file that does not take it has no
/// client that could be notified.
pub fn set_word(log: impl AsFd, at: usize, value: u64) {
    if let Err(e) = rustix::io::pwrite(log, &value.to_le_bytes(), at as u64) {
        tracing::debug!("a client's log does not take a word: {e}");
    }
}

/// A word of a log file; 0 if it is not there.
pub fn word(log: &dyn LogReader, at: usize) -> u64 {
    let mut bytes = [0; 8];
    match log.load(at, &mut bytes) {
        true => u64::from_le_bytes(bytes),
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_cut_short_is_reported_and_a_link_is_not_followed() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("log-000");
        std::fs::write(&path, vec![7; 8192]).unwrap();
        let log = FdLogReader::open(&path).unwrap();
        let mut into = [0; 100];
        assert!(log.load(8000, &mut into) && into == [7; 100]);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(8050).unwrap();
        assert!(!log.load(8000, &mut into));
        assert_eq!(
            (word(&log, 0), word(&log, 8048)),
            (0x0707_0707_0707_0707, 0)
        );
        let link = dir.path().join("log-001");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(FdLogReader::open(&link).is_err());
        assert!(FdLogReader::open(dir.path()).is_err());
    }
}
