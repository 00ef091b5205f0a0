//! A directory used by system calls: tmpfs, ext4, the mount.
//!
//! Only a descriptor of the directory is used, so that the length of its path costs
//! nothing, and a file system may be unmounted from its place meanwhile.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, fsync, openat, unlinkat};

use super::target::{Target, TargetCounts};
use crate::BenchError;
use crate::Result;

/// When a call's effect is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sync {
    /// When it returns: nothing more to do (the mount with the strict policy), or never
    /// and nothing can be done about it (tmpfs).
    OnReturn,
    /// After an `fsync` of the file, or of the directory for a removed name.
    Fsync,
}

const DATA: &str = "data";
/// Bytes written at once while a file is filled.
const FILL_BYTES: usize = 1 << 20;

/// A directory by system calls.
pub(crate) struct Calls {
    name: String,
    dir: OwnedFd,
    data: Option<File>,
    end: u64,
    sync: Sync,
}

impl Calls {
    /// Uses directory `dir`, which should be empty.
    pub(crate) fn open(name: &str, dir: &Path, sync: Sync) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd =
            rustix::fs::open(dir, flags, Mode::empty()).map_err(BenchError::file(dir, "open"))?;
        Ok(Self::of(name, fd, sync))
    }

    /// Uses the directory behind a descriptor.
    pub(crate) fn of(name: &str, dir: OwnedFd, sync: Sync) -> Self {
        Calls {
            name: name.to_owned(),
            dir,
            data: None,
            end: 0,
            sync,
        }
    }

    fn data(&self) -> &File {
        self.data.as_ref().expect("a round makes its file first")
    }

    fn sync_data(&self) -> Result<()> {
        match self.sync {
            Sync::OnReturn => Ok(()),
            Sync::Fsync => fsync(self.data()).map_err(BenchError::call(&self.name, "fsync")),
        }
    }

    fn make(&self, name: &str) -> Result<OwnedFd> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        openat(&self.dir, name, flags, Mode::from_raw_mode(0o644))
            .map_err(BenchError::call(&self.name, "create"))
    }

    fn remove_data(&mut self) -> Result<()> {
        if self.data.take().is_some() {
            unlinkat(&self.dir, DATA, AtFlags::empty())
                .map_err(BenchError::call(&self.name, "unlink"))?;
        }
        Ok(())
    }
}

/// The name of empty file `number`.
pub(crate) fn file_name(number: u64) -> [u8; 9] {
    let mut name = *b"f00000000";
    let mut rest = number;
    for digit in name[1..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    name
}

impl Target for Calls {
    fn name(&self) -> &str {
        &self.name
    }

    fn fresh(&mut self) -> Result<()> {
        self.remove_data()?;
        self.data = Some(self.make(DATA)?.into());
        self.end = 0;
        self.sync_data()
    }

    fn fill(&mut self, bytes: u64) -> Result<()> {
        self.fresh()?;
        let block = vec![0x3c; FILL_BYTES];
        let mut at = 0;
        while at < bytes {
            let some = (bytes - at).min(FILL_BYTES as u64) as usize;
            let written = self.data().write_all_at(&block[..some], at);
            written.map_err(BenchError::call(&self.name, "fill"))?;
            at += some as u64;
        }
        self.end = bytes;
        self.sync_data()
    }

    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.write(self.end, data)?;
        self.end += data.len() as u64;
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.data().write_all_at(data, offset);
        written.map_err(BenchError::call(&self.name, "write"))?;
        self.sync_data()
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        let read = self.data().read_exact_at(into, offset);
        read.map_err(BenchError::call(&self.name, "read"))
    }

    fn create(&mut self, number: u64) -> Result<()> {
        let name = file_name(number);
        let file = self.make(std::str::from_utf8(&name).expect("digits"))?;
        match self.sync {
            Sync::OnReturn => Ok(()),
            Sync::Fsync => fsync(&file).map_err(BenchError::call(&self.name, "fsync")),
        }
    }

    fn unlink(&mut self, number: u64) -> Result<()> {
        unlinkat(&self.dir, &file_name(number)[..], AtFlags::empty())
            .map_err(BenchError::call(&self.name, "unlink"))?;
        match self.sync {
            Sync::OnReturn => Ok(()),
            Sync::Fsync => fsync(&self.dir).map_err(BenchError::call(&self.name, "fsync")),
        }
    }

    fn flush(&mut self) -> Result<()> {
        match &self.data {
            // Everything of the mount's log is in the volume after this, or it costs nothing.
            Some(file) => rustix::fs::syncfs(file).map_err(BenchError::call(&self.name, "syncfs")),
            None => rustix::fs::syncfs(&self.dir).map_err(BenchError::call(&self.name, "syncfs")),
        }
    }

    fn counts(&self) -> Option<TargetCounts> {
        None
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        // A directory that was given is left as it was, as far as that is possible.
        let _ = self.remove_data();
    }
}
