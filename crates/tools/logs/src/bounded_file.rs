//! The log of a mount: supervisor and daemon append to it, and it never takes more than so much of `/run`, which is memory.
//!
//! When it is full it becomes `log.old` and is cut to nothing. It stays the same file, so that what
//! another process has open, be it standard error, goes on in it.

use rustix::fs::FlockOperation;
use shale_sys::private;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Bytes of the log, and of the one before it.
pub const LOG_BYTES_MAX: u64 = 1 << 20;

/// The end of a log that is bounded.
#[derive(Debug)]
pub struct LogFile {
    file: File,
    path: PathBuf,
}

impl LogFile {
    /// Of a file that was opened for appending.
    pub fn new(file: File, path: PathBuf) -> Self {
        Self { file, path }
    }

    /// Keeps what is there as the old log, unless another process is about to.
    fn start_again(&self) -> io::Result<()> {
        let is_mine = rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive);
        if is_mine.is_err() {
            return Ok(());
        }
        let kept = self.keep();
        rustix::fs::flock(&self.file, FlockOperation::Unlock)?;
        kept
    }

    fn keep(&self) -> io::Result<()> {
        let bytes = self.file.metadata()?.len();
        // Another process may have done it meanwhile.
        if bytes < LOG_BYTES_MAX / 2 {
            return Ok(());
        }
        let old = self.path.with_extension("old");
        let kept = bytes.min(LOG_BYTES_MAX);
        let mut text = vec![0; kept as usize];
        let written = File::open(&self.path).and_then(|log| {
            log.read_exact_at(&mut text, bytes - kept)?;
            let _ = fs::remove_file(&old);
            private::create_new(&old)?.write_all(&text)
        });
        // Bounded it is in any case.
        self.file.set_len(0)?;
        written
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.file.metadata()?.len() + bytes.len() as u64 > LOG_BYTES_MAX {
            // What is to be logged now is worth more than what was logged before.
            let _ = self.start_again();
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_log_never_grows_beyond_its_bound() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let open = || {
            let mut options = fs::OpenOptions::new();
            LogFile::new(
                options.create(true).append(true).open(&path).unwrap(),
                path.clone(),
            )
        };
        // Two processes, one of which has it open for ever.
        let (mut one, mut other) = (open(), open());
        let line = [b'x'; 1000];
        for n in 0..5000 {
            let log = if n % 3 == 0 { &mut one } else { &mut other };
            log.write_all(&line).unwrap();
            assert!(fs::metadata(&path).unwrap().len() <= LOG_BYTES_MAX);
        }
        one.write_all(b"last").unwrap();
        assert!(fs::read(&path).unwrap().ends_with(b"xlast"));
        let old = fs::metadata(dir.path().join("log.old")).unwrap();
        assert_eq!(old.permissions().mode() & 0o777, 0o600);
        assert!(old.len() <= LOG_BYTES_MAX && old.len() > LOG_BYTES_MAX / 2);
    }
}
