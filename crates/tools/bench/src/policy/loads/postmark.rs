//! PostMark 1.5 (J. Katcher, PostMark: a new file system benchmark, Network Appliance TR3022, 1997), with its defaults.
//!
//! Transactions are all that is measured, not the making of the first files nor the removal of the last ones. What is not taken over: buffered
//! calls of the C library (calls are of the size of its blocks), and its list of files, which here are numbers, twice as many as
//! there are at the beginning.

use std::fs::OpenOptions;
use std::path::Path;

use super::file_set::{FileSet, State};
use super::load::LoadOptions;
use super::worker::{Work, Worker};
use crate::Result;

/// Bytes of a call: `set read`, `set write`, 512.
pub(crate) const IO_BYTES: u64 = 512;
/// Files at the beginning: `set number`, 500.
const FILES: u64 = 500;
/// Least and most bytes of a file: `set size`, 500 and 9,770 (9.77 kilobytes), evenly distributed.
const BYTES: (u64, u64) = (500, 9_770);
/// Of ten transactions so many read rather than append, and create rather than delete: `set bias read`, `set bias create`, 5.
const BIAS: u64 = 5;

/// PostMark on a directory.
pub(crate) struct Postmark {
    first: u64,
    files: FileSet,
}

fn bytes(worker: &mut Worker) -> u64 {
    BYTES.0 + worker.below(BYTES.1 - BYTES.0 + 1)
}

impl Postmark {
    /// With so many files at the beginning.
    pub fn new(dir: &Path, options: &LoadOptions) -> Self {
        let first = options.files.unwrap_or(FILES).max(1);
        Postmark {
            first,
            files: FileSet::new(dir, 2 * first, u64::MAX),
        }
    }

    fn read_or_append(&self, worker: &mut Worker) -> Result<()> {
        let reads = worker.below(10) < BIAS;
        let Some((number, path)) = self.files.take(worker, State::Present) else {
            return Ok(());
        };
        if reads {
            worker.read_file(&path)?;
        } else {
            let file = worker.open(&path, OpenOptions::new().append(true))?;
            let bytes = bytes(worker);
            worker.write(&file, bytes, &path)?;
            worker.close(file);
        }
        self.files.put(number, State::Present);
        Ok(())
    }

    fn create_or_delete(&self, worker: &mut Worker) -> Result<()> {
        let creates = worker.below(10) < BIAS;
        let from = if creates {
            State::Absent
        } else {
            State::Present
        };
        let Some((number, path)) = self.files.take(worker, from) else {
            return Ok(());
        };
        if creates {
            let bytes = bytes(worker);
            worker.make_file(&path, bytes)?;
            self.files.put(number, State::Present);
        } else {
            worker.unlink(&path)?;
            self.files.put(number, State::Absent);
        }
        Ok(())
    }
}

impl Work for Postmark {
    fn prepare(&self, worker: &mut Worker) -> Result<()> {
        for number in 0..self.first {
            let bytes = bytes(worker);
            worker.make_file(&self.files.path(number), bytes)?;
            self.files.put(number, State::Present);
        }
        Ok(())
    }

    fn turn(&self, worker: &mut Worker) -> Result<()> {
        self.read_or_append(worker)?;
        self.create_or_delete(worker)
    }
}
