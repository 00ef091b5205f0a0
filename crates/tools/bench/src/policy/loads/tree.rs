//! A tree of sources, compiled as `make` of a kernel does it or searched as `grep -r` does.
//!
//! HiNFS built and searched Linux 3.11.0 (Table 1) and gives no sizes. Those here are ours, rounded from what such a tree and
//! its build look like: how often which kind of file is written, read again and removed follows kbuild's rules.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::load::LoadOptions;
use super::worker::{Work, Worker};
use crate::Result;

/// Bytes of a read: a buffer of `grep`. Ours.
pub(crate) const IO_BYTES: u64 = 32 << 10;
/// Bytes of a write: a buffer of the C library. Ours; a smaller size of calls that is asked for is that of writes too.
const WRITE_BYTES: u64 = 4 << 10;
/// Sources. Ours.
const SOURCES: u64 = 1_000;
/// Sources of a directory, whose objects are linked into one. Ours.
const WIDTH: u64 = 20;
/// Mean bytes of a source and of a header. Ours.
const SOURCE_BYTES: u64 = 12 << 10;
/// Headers for each hundred sources. Ours.
const HEADERS_PERCENT: u64 = 50;
/// Headers that a source reads. Ours.
const INCLUDES: u64 = 8;
/// Mean bytes of an object. Ours.
const OBJECT_BYTES: u64 = 32 << 10;
/// Mean bytes of a list of dependencies, and of the command file that is made of it. Ours.
const LIST_BYTES: u64 = 8 << 10;

/// A tree.
pub(crate) struct Tree {
    dir: PathBuf,
    sources: u64,
    headers: u64,
    compiles: bool,
    write_bytes: u64,
    next: AtomicU64,
}

impl Tree {
    /// One of so many sources, that is compiled, or else searched.
    pub fn new(dir: &Path, options: &LoadOptions, compiles: bool) -> Self {
        let sources = options.files.unwrap_or(SOURCES).max(1);
        Tree {
            dir: dir.to_owned(),
            sources,
            headers: (sources * HEADERS_PERCENT / 100).max(1),
            compiles,
            write_bytes: options.io_bytes.unwrap_or(WRITE_BYTES).min(WRITE_BYTES),
            next: AtomicU64::new(0),
        }
    }

    fn part(&self, source: u64) -> PathBuf {
        self.dir.join(format!("{:04}", source / WIDTH))
    }

    fn of_source(&self, source: u64, kind: &str) -> PathBuf {
        self.part(source).join(format!("{source:06}.{kind}"))
    }

    fn header(&self, number: u64) -> PathBuf {
        self.dir.join("include").join(format!("{number:06}.h"))
    }

    /// Replaces a file, as compilers do.
    fn replace(&self, worker: &mut Worker, path: &Path, bytes: u64, there: bool) -> Result<()> {
        if there {
            worker.unlink(path)?;
        }
        let file = worker.create(path)?;
        worker.write_by(&file, bytes, self.write_bytes, path)?;
        worker.close(file);
        Ok(())
    }

    fn compile(&self, worker: &mut Worker, source: u64, again: bool) -> Result<()> {
        worker.read_file(&self.of_source(source, "c"))?;
        for _ in 0..INCLUDES {
            let header = worker.below(self.headers);
            worker.read_file(&self.header(header))?;
        }
        let bytes = worker.size(OBJECT_BYTES);
        self.replace(worker, &self.of_source(source, "o"), bytes, again)?;
        let list = self.of_source(source, "d");
        let bytes = worker.size(LIST_BYTES);
        self.replace(worker, &list, bytes, false)?;
        worker.read_file(&list)?;
        self.replace(worker, &self.of_source(source, "cmd"), bytes, again)?;
        worker.unlink(&list)
    }

    /// Links the objects of a directory that are there: another thread may be replacing one.
    fn link(&self, worker: &mut Worker, last: u64, again: bool) -> Result<()> {
        let before = worker.counts.read;
        for source in last - last % WIDTH..=last {
            let path = self.of_source(source, "o");
            if let Some(object) = worker.open_if_there(&path)? {
                worker.read_whole(&object, &path)?;
                worker.close(object);
            }
        }
        let bytes = worker.counts.read - before;
        self.replace(worker, &self.part(last).join("built-in.o"), bytes, again)
    }
}

impl Work for Tree {
    fn prepare(&self, worker: &mut Worker) -> Result<()> {
        worker.make_dir(&self.dir.join("include"))?;
        for source in (0..self.sources).step_by(WIDTH as usize) {
            worker.make_dir(&self.part(source))?;
        }
        for source in 0..self.sources {
            let bytes = worker.size(SOURCE_BYTES);
            worker.make_file(&self.of_source(source, "c"), bytes)?;
        }
        for header in 0..self.headers {
            let bytes = worker.size(SOURCE_BYTES);
            worker.make_file(&self.header(header), bytes)?;
        }
        Ok(())
    }

    fn turn(&self, worker: &mut Worker) -> Result<()> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        if !self.compiles {
            let number = next % (self.sources + self.headers);
            return match number.checked_sub(self.sources) {
                None => worker.read_file(&self.of_source(number, "c")),
                Some(header) => worker.read_file(&self.header(header)),
            };
        }
        let (source, again) = (next % self.sources, next >= self.sources);
        self.compile(worker, source, again)?;
        match source % WIDTH == WIDTH - 1 || source == self.sources - 1 {
            true => self.link(worker, source, again),
            false => Ok(()),
        }
    }
}
