//! The pattern of syncs of TPC-C on a database with a journal.
//!
//! HiNFS: DBT2 on PostgreSQL 8.4.10 with three warehouses (Table 1), over 90% of the bytes synced (§2.1). Here each page that a
//! transaction changes is written to the journal and to its place; the journal is synced at each commit, the database at each
//! checkpoint, so that all bytes are synced but those since the last one.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::load::LoadOptions;
use super::worker::{Open, Work, Worker};
use crate::Result;

/// Bytes of a page. Ours (PostgreSQL's are 8 KiB).
const PAGE_BYTES: u64 = 4 << 10;
/// Bytes of the largest call: what the database is filled with.
pub(crate) const IO_BYTES: u64 = 64 << 10;
/// The database as a number of files of [`IO_BYTES`]. Ours.
const FILES: u64 = 1_000;
/// Pages that a transaction reads. Ours.
const READS: u64 = 8;
/// Pages that a transaction overwrites. Ours.
const WRITES: u64 = 4;
/// Bytes of the record that ends a transaction in the journal. Ours.
const COMMIT_BYTES: u64 = 128;
/// Transactions between two checkpoints. Ours.
const CHECKPOINT_EVERY: u64 = 64;

/// The journal, once it is made.
struct Journal {
    file: Open,
    transactions: u64,
}

/// A database.
pub(crate) struct Database {
    path: PathBuf,
    journal_path: PathBuf,
    pages: u64,
    file: OnceLock<Open>,
    /// One transaction commits after the other.
    journal: Mutex<Option<Journal>>,
}

impl Database {
    /// One of so many times 64 KiB.
    pub fn new(dir: &Path, options: &LoadOptions) -> Self {
        let files = options.files.unwrap_or(FILES).max(1);
        Database {
            path: dir.join("database"),
            journal_path: dir.join("journal"),
            pages: files * (IO_BYTES / PAGE_BYTES),
            file: OnceLock::new(),
            journal: Mutex::new(None),
        }
    }

    fn page(&self, worker: &mut Worker) -> u64 {
        worker.below(self.pages) * PAGE_BYTES
    }
}

impl Work for Database {
    fn prepare(&self, worker: &mut Worker) -> Result<()> {
        worker.make_file(&self.path, self.pages * PAGE_BYTES)?;
        let file = worker.open(&self.path, OpenOptions::new().read(true).write(true))?;
        self.file.get_or_init(|| file);
        let how = OpenOptions::new().append(true).create_new(true).to_owned();
        *self.journal.lock() = Some(Journal {
            file: worker.open(&self.journal_path, &how)?,
            transactions: 0,
        });
        Ok(())
    }

    fn turn(&self, worker: &mut Worker) -> Result<()> {
        let database = self.file.get().expect("a load prepares first");
        for _ in 0..READS {
            let page = self.page(worker);
            worker.read_at(database, page, PAGE_BYTES, &self.path)?;
        }
        let mut journal = self.journal.lock();
        let journal = journal.as_mut().expect("a load prepares first");
        let log = &journal.file;
        for _ in 0..WRITES {
            let page = self.page(worker);
            worker.write_at(database, page, PAGE_BYTES, &self.path)?;
            worker.write_by(log, PAGE_BYTES, PAGE_BYTES, &self.journal_path)?;
        }
        worker.write(log, COMMIT_BYTES, &self.journal_path)?;
        worker.fsync(log, &self.journal_path)?;
        journal.transactions += 1;
        if journal.transactions.is_multiple_of(CHECKPOINT_EVERY) {
            worker.fsync(database, &self.path)?;
            worker.truncate(log, &self.journal_path)?;
        }
        Ok(())
    }
}
