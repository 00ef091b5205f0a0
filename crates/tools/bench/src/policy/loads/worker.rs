//! What a load is to its threads: their calls, their choices, what each has done.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::load::Load;
use crate::chance::Chance;
use crate::{BenchError, Result};

/// A load that is running.
pub(crate) trait Work: Sync {
    /// Makes what is there before the load begins.
    fn prepare(&self, worker: &mut Worker) -> Result<()>;

    /// Does what the load does again and again, once.
    fn turn(&self, worker: &mut Worker) -> Result<()>;
}

/// What threads did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Calls.
    pub operations: u64,
    /// Bytes written.
    pub written: u64,
    /// Bytes read.
    pub read: u64,
    /// Calls of fsync.
    pub fsyncs: u64,
    /// Bytes written that an fsync followed.
    pub synced: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.operations += other.operations;
        self.written += other.written;
        self.read += other.read;
        self.fsyncs += other.fsyncs;
        self.synced += other.synced;
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct Open {
    file: File,
    /// Bytes written since the last fsync.
    unsynced: AtomicU64,
}

impl Open {
    fn of(file: File) -> Self {
        let unsynced = AtomicU64::new(0);
        Open { file, unsynced }
    }
}

/// One thread of a load.
pub(crate) struct Worker {
    load: Load,
    chance: Chance,
    buffer: Vec<u8>,
    /// What it did so far.
    pub counts: Counts,
}

impl Worker {
    /// Thread `number` of a load whose calls have `io_bytes` bytes.
    pub fn new(load: Load, number: u64, seed: u64, io_bytes: usize) -> Self {
        let letter = b'a' + (number % 26) as u8;
        Worker {
            load,
            chance: Chance::new(seed.wrapping_mul(1_000_003).wrapping_add(number)),
            buffer: vec![letter; io_bytes],
            counts: Counts::default(),
        }
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.chance.next_u64() % bound
    }

    /// A number above 0, up to 1.
    pub fn unit(&mut self) -> f64 {
        ((self.chance.next_u64() >> 11) + 1) as f64 / 9_007_199_254_740_993.0
    }

    /// A size: gamma distribution with shape 1.5, as Filebench's. That is an exponential and half the square of a normal.
    pub fn size(&mut self, mean: u64) -> u64 {
        let (radius, angle) = (self.unit(), self.unit());
        let normal = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
        let gamma = -self.unit().ln() + normal * normal / 2.0;
        ((gamma / 1.5 * mean as f64) as u64).max(1)
    }

    fn failed<E: Into<std::io::Error>>(
        &self,
        what: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> BenchError + use<E> {
        let target = format!("{}: {}", self.load, path.display());
        move |source| BenchError::call(&target, what)(source)
    }

    /// Opens a file.
    pub fn open(&mut self, path: &Path, how: &OpenOptions) -> Result<Open> {
        let opened = how.open(path).map_err(self.failed("open", path))?;
        self.counts.operations += 1;
        Ok(Open::of(opened))
    }

    /// Opens a file that may have been removed.
    pub fn open_if_there(&mut self, path: &Path) -> Result<Option<Open>> {
        self.counts.operations += 1;
        match File::open(path) {
            Ok(file) => Ok(Some(Open::of(file))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("open", path)(error)),
        }
    }

    /// Creates a file that is not there.
    pub fn create(&mut self, path: &Path) -> Result<Open> {
        self.open(path, OpenOptions::new().write(true).create_new(true))
    }

    /// Writes so many bytes where the file is, in calls of the load's size.
    pub fn write(&mut self, to: &Open, bytes: u64, path: &Path) -> Result<()> {
        self.write_by(to, bytes, self.buffer.len() as u64, path)
    }

    /// Writes so many bytes where the file is, in calls of `each` bytes, at most the load's size.
    pub fn write_by(&mut self, to: &Open, bytes: u64, each: u64, path: &Path) -> Result<()> {
        let mut left = bytes;
        while left > 0 {
            let some = left.min(each).min(self.buffer.len() as u64);
            let written = (&to.file).write_all(&self.buffer[..some as usize]);
            written.map_err(self.failed("write", path))?;
            self.wrote(to, some);
            left -= some;
        }
        Ok(())
    }

    /// Writes at most the load's size at a place.
    pub fn write_at(&mut self, to: &Open, offset: u64, bytes: u64, path: &Path) -> Result<()> {
        let some = bytes.min(self.buffer.len() as u64);
        let written = to.file.write_all_at(&self.buffer[..some as usize], offset);
        written.map_err(self.failed("write", path))?;
        self.wrote(to, some);
        Ok(())
    }

    fn wrote(&mut self, to: &Open, bytes: u64) {
        to.unsynced.fetch_add(bytes, Ordering::Relaxed);
        self.counts.written += bytes;
        self.counts.operations += 1;
    }

    /// Reads from where the file is to its end, in calls of the load's size.
    pub fn read_whole(&mut self, from: &Open, path: &Path) -> Result<()> {
        loop {
            let read = (&from.file).read(&mut self.buffer);
            let bytes = read.map_err(self.failed("read", path))?;
            self.counts.operations += 1;
            self.counts.read += bytes as u64;
            if bytes == 0 {
                return Ok(());
            }
        }
    }

    /// Reads at most the load's size from a place.
    pub fn read_at(&mut self, from: &Open, offset: u64, bytes: u64, path: &Path) -> Result<()> {
        let some = bytes.min(self.buffer.len() as u64) as usize;
        let read = from.file.read_at(&mut self.buffer[..some], offset);
        self.counts.read += read.map_err(self.failed("read", path))? as u64;
        self.counts.operations += 1;
        Ok(())
    }

    /// Makes what was written durable.
    pub fn fsync(&mut self, file: &Open, path: &Path) -> Result<()> {
        file.file.sync_all().map_err(self.failed("fsync", path))?;
        self.counts.operations += 1;
        self.counts.fsyncs += 1;
        self.counts.synced += file.unsynced.swap(0, Ordering::Relaxed);
        Ok(())
    }

    /// Cuts a file.
    pub fn truncate(&mut self, file: &Open, path: &Path) -> Result<()> {
        file.file
            .set_len(0)
            .map_err(self.failed("truncate", path))?;
        self.counts.operations += 1;
        Ok(())
    }

    /// Closes a file.
    pub fn close(&mut self, file: Open) {
        drop(file);
        self.counts.operations += 1;
    }

    /// Removes a name.
    pub fn unlink(&mut self, path: &Path) -> Result<()> {
        std::fs::remove_file(path).map_err(self.failed("unlink", path))?;
        self.counts.operations += 1;
        Ok(())
    }

    /// Asks what is known of a name.
    pub fn stat(&mut self, path: &Path) -> Result<()> {
        std::fs::metadata(path).map_err(self.failed("stat", path))?;
        self.counts.operations += 1;
        Ok(())
    }

    /// Makes a directory of a load, which may be there.
    pub fn make_dir(&self, path: &Path) -> Result<()> {
        std::fs::create_dir_all(path).map_err(self.failed("mkdir", path))
    }

    /// Reads a whole file.
    pub fn read_file(&mut self, path: &Path) -> Result<()> {
        let file = self.open(path, OpenOptions::new().read(true))?;
        self.read_whole(&file, path)?;
        self.close(file);
        Ok(())
    }

    /// Makes a file of so many bytes.
    pub fn make_file(&mut self, path: &Path, bytes: u64) -> Result<()> {
        let file = self.create(path)?;
        self.write(&file, bytes, path)?;
        self.close(file);
        Ok(())
    }
}
