//! A directory of a volume, by LibFS's own paths and handles.

use std::path::Path;

use shale_libfs::{Errno, File, OFlags, Tree};

use super::files::{DigestCounts, Files, Handle, Open};
use shale_bench::BenchError;
use shale_bench::Result;
use shale_bench::micro::LIBFS;
use shale_bench::scratch::{Scratch, ScratchOptions, os_error};

const DIR: &str = "/work";

/// A directory of a volume of its own, in this process.
pub struct DirectFiles {
    // Before the volume, since handles hold inodes of it.
    open: Open<File>,
    tree: Tree,
    scratch: Scratch,
}

fn failed(what: &'static str) -> impl FnOnce(Errno) -> BenchError {
    move |errno| BenchError::call(LIBFS, what)(os_error(errno))
}

fn path(name: &str) -> Vec<u8> {
    [DIR.as_bytes(), b"/", name.as_bytes()].concat()
}

impl DirectFiles {
    /// Makes a volume in directory `dir` (on tmpfs or DAX).
    ///
    /// # Errors
    /// No space, or what the daemon says.
    pub fn new(dir: &Path, options: ScratchOptions) -> Result<Self> {
        let scratch = Scratch::new(dir, options)?;
        let tree = scratch.tree();
        tree.mkdir(DIR.as_bytes(), 0o755).map_err(failed("mkdir"))?;
        Ok(DirectFiles {
            open: Open::new(),
            tree,
            scratch,
        })
    }

    /// The volume.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    fn opened(&mut self, name: &str, new: OFlags, what: &'static str) -> Result<Handle> {
        let flags = OFlags::RDWR | OFlags::APPEND | new;
        let file = self.tree.open(&path(name), flags, 0o644);
        Ok(self.open.add(file.map_err(failed(what))?))
    }
}

impl Files for DirectFiles {
    fn name(&self) -> &str {
        LIBFS
    }

    fn create(&mut self, name: &str) -> Result<Handle> {
        self.opened(name, OFlags::CREATE | OFlags::EXCL, "create")
    }

    fn open(&mut self, name: &str) -> Result<Handle> {
        self.opened(name, OFlags::empty(), "open")
    }

    fn append(&mut self, file: Handle, data: &[u8]) -> Result<()> {
        let written = self.open.get(file).write(data).map_err(failed("append"))?;
        match written == data.len() {
            true => Ok(()),
            false => Err(BenchError::Wrong {
                target: LIBFS.to_owned(),
                what: "append",
                expected: data.len() as u64,
                found: written as u64,
            }),
        }
    }

    fn sync(&mut self, file: Handle) -> Result<()> {
        self.open.get(file).sync(false).map_err(failed("fsync"))
    }

    fn read_whole(&mut self, file: Handle, part: &mut [u8]) -> Result<u64> {
        let mut at = 0;
        loop {
            match self
                .open
                .get(file)
                .pread(at, part)
                .map_err(failed("read"))?
            {
                0 => return Ok(at),
                n => at += n as u64,
            }
        }
    }

    fn close(&mut self, file: Handle) {
        self.open.remove(file);
    }

    fn stat(&mut self, name: &str) -> Result<()> {
        let found = self.tree.lstat(&path(name));
        found.map(drop).map_err(failed("stat"))
    }

    fn list(&mut self, each: &mut dyn FnMut()) -> Result<()> {
        for entry in self.tree.read_dir(DIR.as_bytes()).map_err(failed("list"))? {
            entry.map_err(failed("list"))?;
            each();
        }
        Ok(())
    }

    fn unlink(&mut self, name: &str) -> Result<()> {
        self.tree.unlink(&path(name)).map_err(failed("unlink"))
    }

    fn flush(&mut self) -> Result<()> {
        self.scratch.flush();
        Ok(())
    }

    fn digest_counts(&self) -> Option<DigestCounts> {
        let stats = self.scratch.status().digest.stats;
        Some(DigestCounts {
            records: stats.records,
            skipped: stats.skipped,
            payload_bytes: stats.payload_bytes,
            digested_bytes: stats.bytes_digested,
        })
    }
}
