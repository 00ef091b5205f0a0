//! Numbered files, some of which are there.
//!
//! Invariant: a number that a thread has taken is nobody else's until it is put back, so that no thread opens what another one
//! is removing.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};

use super::worker::Worker;
use crate::Result;

/// Whether a numbered file is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// It can be created.
    Absent = 0,
    /// It can be opened.
    Present = 1,
    /// A thread has it.
    Taken = 2,
}

/// Numbered files.
pub(crate) struct FileSet {
    dir: PathBuf,
    states: Vec<AtomicU8>,
    dirs: u64,
}

impl FileSet {
    /// No file of `files` in `dir`, so many of them in a directory.
    pub fn new(dir: &Path, files: u64, width: u64) -> Self {
        let files = files.max(1);
        FileSet {
            dir: dir.to_owned(),
            states: (0..files)
                .map(|_| AtomicU8::new(State::Absent as u8))
                .collect(),
            dirs: files.div_ceil(width),
        }
    }

    /// Numbers that there are.
    pub fn len(&self) -> u64 {
        self.states.len() as u64
    }

    /// Makes the directories.
    pub fn make_dirs(&self, worker: &Worker) -> Result<()> {
        let dirs = if self.dirs > 1 { self.dirs } else { 0 };
        (0..dirs).try_for_each(|n| worker.make_dir(&self.dir.join(format!("{n:04}"))))
    }

    /// Path of a file.
    pub fn path(&self, number: u64) -> PathBuf {
        let name = format!("{number:06}");
        match self.dirs {
            0 | 1 => self.dir.join(name),
            dirs => self.dir.join(format!("{:04}", number % dirs)).join(name),
        }
    }

    /// Takes a file in this state, any of them; `None`: none was met.
    pub fn take(&self, worker: &mut Worker, from: State) -> Option<(u64, PathBuf)> {
        self.take_by(from, || worker.below(self.len()))
    }

    /// Takes a file in this state among those that `choose` gives.
    pub fn take_by(&self, from: State, mut choose: impl FnMut() -> u64) -> Option<(u64, PathBuf)> {
        for _ in 0..4 * self.len() {
            let number = choose();
            let state = &self.states[number as usize];
            let taken = state.compare_exchange(
                from as u8,
                State::Taken as u8,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if taken.is_ok() {
                return Some((number, self.path(number)));
            }
        }
        None
    }

    /// Puts a file back.
    pub fn put(&self, number: u64, state: State) {
        self.states[number as usize].store(state as u8, Ordering::Release);
    }
}
