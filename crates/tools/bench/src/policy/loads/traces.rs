//! Synthetic loads in place of the traces that HiNFS replayed (Figure 13): of a trace it kept reads, writes, unlinks and fsyncs.
//!
//! They are NOT the traces. What is published of these is in [`shape`]: LASR has no fsync (§2.1), Facebook's calls have less
//! than 1 KiB on average and it has many fsyncs (§5.3). All other numbers are ours, the shares of synced bytes of Usr0, Usr1 and
//! Facebook too (Figure 2 draws them, the text has none): `--sync-percent` sets another one. Files are either
//! synced whenever they are written or never, since whether a block's writes are synced hardly changes (§3.2, Figure 4).

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::file_set::{FileSet, State};
use super::load::{Load, LoadOptions};
use super::worker::{Open, Work, Worker};
use crate::Result;

/// Bytes of the largest call. Ours.
pub(crate) const IO_BYTES_MAX: u64 = 64 << 10;
/// Files. Ours.
const FILES: u64 = 1_000;
/// Mean bytes of a file when it is made. Ours.
const FILE_BYTES: u64 = 32 << 10;
/// A file of this size is overwritten, not appended to. Ours.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Of a hundred uses of a file so many write. Ours.
const WRITES_PERCENT: u64 = 50;
/// Of a hundred uses of a file so many remove it and make another one. Ours.
const UNLINKS_PERCENT: u64 = 5;
/// Writes in a row of one file, before its fsync if it has any. Ours.
const WRITES: u64 = 4;

/// What is known of a trace, and what we put for the rest.
struct Shape {
    /// Of a hundred bytes written so many are synced.
    sync_percent: u32,
    /// Mean bytes of a call.
    io_bytes: u64,
}

fn shape(load: Load) -> Shape {
    let (sync_percent, io_bytes) = match load {
        // Published: no fsync. The size is ours.
        Load::Lasr => (0, 2 << 10),
        // Published: less than 1 KiB, many fsyncs. The share is ours.
        Load::Facebook => (90, 768),
        // Ours.
        Load::Usr0 => (40, 4 << 10),
        _ => (60, 4 << 10),
    };
    Shape {
        sync_percent,
        io_bytes,
    }
}

/// A load in place of a trace.
pub(crate) struct Trace {
    shape: Shape,
    files: FileSet,
    sizes: Vec<AtomicU64>,
}

impl Trace {
    /// The load in place of one of them.
    pub fn new(load: Load, dir: &Path, options: &LoadOptions) -> Self {
        let mut shape = shape(load);
        shape.sync_percent = options.sync_percent.unwrap_or(shape.sync_percent).min(100);
        // At least one file of each of the two kinds.
        let files = FileSet::new(dir, options.files.unwrap_or(FILES).max(2), 20);
        Trace {
            sizes: (0..files.len()).map(|_| AtomicU64::new(0)).collect(),
            shape,
            files,
        }
    }

    /// Files below this number are synced.
    fn synced(&self) -> u64 {
        let share = self.files.len() * u64::from(self.shape.sync_percent) / 100;
        share.clamp(1, self.files.len() - 1)
    }

    /// A file for the next use and whether it is one of those that are synced. Few are used much.
    fn choose(&self, worker: &mut Worker) -> (u64, bool) {
        let synced = worker.below(100) < u64::from(self.shape.sync_percent);
        let (first, count) = match synced {
            true => (0, self.synced()),
            false => (self.synced(), self.files.len() - self.synced()),
        };
        let place = (count as f64 * worker.unit().powi(3)) as u64;
        (first + place.min(count - 1), synced)
    }

    fn make(&self, worker: &mut Worker, number: u64, path: &Path) -> Result<()> {
        let bytes = worker.size(FILE_BYTES).min(FILE_BYTES_MAX);
        self.sizes[number as usize].store(bytes, Ordering::Relaxed);
        worker.make_file(path, bytes)
    }

    /// Removes a file and makes another one, by as many calls as are written to one that is there.
    fn replace(&self, worker: &mut Worker, number: u64, synced: bool, path: &Path) -> Result<()> {
        worker.unlink(path)?;
        let file = worker.create(path)?;
        let mut end = 0;
        for _ in 0..WRITES {
            let bytes = self.call(worker);
            worker.write_at(&file, end, bytes, path)?;
            end += bytes;
        }
        self.sizes[number as usize].store(end, Ordering::Relaxed);
        self.finish(worker, file, synced, path)
    }

    fn finish(&self, worker: &mut Worker, file: Open, synced: bool, path: &Path) -> Result<()> {
        if synced {
            worker.fsync(&file, path)?;
        }
        worker.close(file);
        Ok(())
    }

    fn write(&self, worker: &mut Worker, number: u64, synced: bool, path: &Path) -> Result<()> {
        let file = worker.open(path, OpenOptions::new().write(true))?;
        let size = &self.sizes[number as usize];
        for _ in 0..WRITES {
            let (end, bytes) = (size.load(Ordering::Relaxed), self.call(worker));
            let appends = worker.below(2) == 0 && end + bytes <= FILE_BYTES_MAX;
            let offset = match appends {
                true => end,
                false => worker.below(end),
            };
            worker.write_at(&file, offset, bytes, path)?;
            size.store(end.max(offset + bytes), Ordering::Relaxed);
        }
        self.finish(worker, file, synced, path)
    }

    fn read(&self, worker: &mut Worker, number: u64, path: &Path) -> Result<()> {
        let file = worker.open(path, OpenOptions::new().read(true))?;
        for _ in 0..WRITES {
            let offset = worker.below(self.sizes[number as usize].load(Ordering::Relaxed));
            let bytes = self.call(worker);
            worker.read_at(&file, offset, bytes, path)?;
        }
        worker.close(file);
        Ok(())
    }

    /// Bytes of the next call.
    fn call(&self, worker: &mut Worker) -> u64 {
        worker.size(self.shape.io_bytes).min(IO_BYTES_MAX)
    }
}

impl Work for Trace {
    fn prepare(&self, worker: &mut Worker) -> Result<()> {
        self.files.make_dirs(worker)?;
        for number in 0..self.files.len() {
            self.make(worker, number, &self.files.path(number))?;
            self.files.put(number, State::Present);
        }
        Ok(())
    }

    fn turn(&self, worker: &mut Worker) -> Result<()> {
        let mut synced = false;
        let taken = self.files.take_by(State::Present, || {
            let (number, is_synced) = self.choose(worker);
            synced = is_synced;
            number
        });
        let Some((number, path)) = taken else {
            return Ok(());
        };
        let choice = worker.below(100);
        if choice < WRITES_PERCENT {
            self.write(worker, number, synced, &path)?;
        } else if choice < WRITES_PERCENT + UNLINKS_PERCENT {
            self.replace(worker, number, synced, &path)?;
        } else {
            self.read(worker, number, &path)?;
        }
        self.files.put(number, State::Present);
        Ok(())
    }
}
