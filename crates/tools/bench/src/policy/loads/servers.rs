//! The four server loads of Filebench, with its published parameters (`fileserver.f`, `webserver.f`, `webproxy.f`, `varmail.f`).
//!
//! Sizes of files and appends are of a gamma distribution with shape 1.5, and four of five files are there before the load
//! begins, as Filebench has it. What is not taken over: its rate limits, and names of files, which here are numbers.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::file_set::{FileSet, State};
use super::load::{Load, LoadOptions};
use super::worker::{Open, Work, Worker};
use crate::Result;

/// Bytes of a call: `$iosize` of all four, 1 MiB.
pub(crate) const IO_BYTES: u64 = 1 << 20;
/// Mean bytes of an append: `$meanappendsize` of all four, 16 KiB.
const APPEND_BYTES: u64 = 16 << 10;
/// Of a hundred files so many are there at the beginning: `prealloc=80`.
const PREALLOCATED_PERCENT: u64 = 80;

/// One of the loads on a directory.
pub(crate) struct Server {
    load: Load,
    files: FileSet,
    /// `$meanfilesize`.
    file_bytes: u64,
    log_path: PathBuf,
    log: Mutex<Option<Open>>,
}

impl Server {
    /// The load with Filebench's number of files, unless another one is asked for.
    pub fn new(load: Load, dir: &Path, options: &LoadOptions) -> Self {
        // $nfiles, $meandirwidth, $meanfilesize.
        let (files, width, file_bytes) = match load {
            Load::Fileserver => (10_000, 20, 128 << 10),
            Load::Webserver => (1_000, 20, 16 << 10),
            Load::Webproxy => (10_000, 1_000_000, 16 << 10),
            _ => (1_000, 1_000_000, 16 << 10),
        };
        Server {
            load,
            files: FileSet::new(dir, options.files.unwrap_or(files), width),
            file_bytes,
            log_path: dir.join("log"),
            log: Mutex::new(None),
        }
    }

    fn read_one(&self, worker: &mut Worker) -> Result<()> {
        let Some((number, path)) = self.files.take(worker, State::Present) else {
            return Ok(());
        };
        worker.read_file(&path)?;
        self.files.put(number, State::Present);
        Ok(())
    }

    fn create_one(&self, worker: &mut Worker, mean: u64, synced: bool) -> Result<()> {
        let Some((number, path)) = self.files.take(worker, State::Absent) else {
            return Ok(());
        };
        let file = worker.create(&path)?;
        let bytes = worker.size(mean);
        worker.write(&file, bytes, &path)?;
        self.finish(worker, file, number, synced, &path)
    }

    fn append_one(&self, worker: &mut Worker, reads: bool, synced: bool) -> Result<()> {
        let Some((number, path)) = self.files.take(worker, State::Present) else {
            return Ok(());
        };
        let file = worker.open(&path, OpenOptions::new().read(true).append(true))?;
        if reads {
            worker.read_whole(&file, &path)?;
        }
        let bytes = worker.size(APPEND_BYTES);
        worker.write(&file, bytes, &path)?;
        self.finish(worker, file, number, synced, &path)
    }

    fn finish(
        &self,
        worker: &mut Worker,
        file: Open,
        number: u64,
        synced: bool,
        path: &Path,
    ) -> Result<()> {
        if synced {
            worker.fsync(&file, path)?;
        }
        worker.close(file);
        self.files.put(number, State::Present);
        Ok(())
    }

    fn delete_one(&self, worker: &mut Worker) -> Result<()> {
        let Some((number, path)) = self.files.take(worker, State::Present) else {
            return Ok(());
        };
        worker.unlink(&path)?;
        self.files.put(number, State::Absent);
        Ok(())
    }

    fn stat_one(&self, worker: &mut Worker) -> Result<()> {
        let Some((number, path)) = self.files.take(worker, State::Present) else {
            return Ok(());
        };
        worker.stat(&path)?;
        self.files.put(number, State::Present);
        Ok(())
    }

    fn append_log(&self, worker: &mut Worker) -> Result<()> {
        let log = self.log.lock();
        let bytes = worker.size(APPEND_BYTES);
        match log.as_ref() {
            Some(log) => worker.write(log, bytes, &self.log_path),
            None => Ok(()),
        }
    }
}

impl Work for Server {
    fn prepare(&self, worker: &mut Worker) -> Result<()> {
        self.files.make_dirs(worker)?;
        for number in 0..self.files.len() {
            if worker.below(100) >= PREALLOCATED_PERCENT {
                continue;
            }
            let bytes = worker.size(self.file_bytes);
            worker.make_file(&self.files.path(number), bytes)?;
            self.files.put(number, State::Present);
        }
        let opened = worker.open(&self.log_path, OpenOptions::new().create(true).append(true))?;
        *self.log.lock() = Some(opened);
        Ok(())
    }

    fn turn(&self, worker: &mut Worker) -> Result<()> {
        match self.load {
            Load::Fileserver => {
                self.create_one(worker, self.file_bytes, false)?;
                self.append_one(worker, false, false)?;
                self.read_one(worker)?;
                self.delete_one(worker)?;
                self.stat_one(worker)
            }
            Load::Webserver => {
                (0..10).try_for_each(|_| self.read_one(worker))?;
                self.append_log(worker)
            }
            Load::Webproxy => {
                self.delete_one(worker)?;
                self.create_one(worker, APPEND_BYTES, false)?;
                (0..5).try_for_each(|_| self.read_one(worker))?;
                self.append_log(worker)
            }
            _ => {
                self.delete_one(worker)?;
                self.create_one(worker, APPEND_BYTES, true)?;
                self.append_one(worker, true, true)?;
                self.read_one(worker)
            }
        }
    }
}
