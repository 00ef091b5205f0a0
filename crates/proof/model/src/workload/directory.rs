//! Any directory, by system calls.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::files::{DigestCounts, Files, Handle, Open};
use shale_bench::BenchError;
use shale_bench::Result;

/// A directory, by system calls.
pub struct Directory {
    name: String,
    dir: PathBuf,
    open: Open<File>,
}

impl Directory {
    /// Uses directory `dir`, which is there. Names that a workload makes must not be.
    pub fn new(name: &str, dir: &Path) -> Self {
        Directory {
            name: name.to_owned(),
            dir: dir.to_owned(),
            open: Open::new(),
        }
    }

    fn opened(&mut self, name: &str, new: bool, what: &'static str) -> Result<Handle> {
        let path = self.dir.join(name);
        let mut options = OpenOptions::new();
        let options = options.read(true).append(true).create_new(new).mode(0o644);
        let file = options.open(path);
        let file = file.map_err(BenchError::call(&self.name, what))?;
        Ok(self.open.add(file))
    }
}

impl Files for Directory {
    fn name(&self) -> &str {
        &self.name
    }

    fn create(&mut self, name: &str) -> Result<Handle> {
        self.opened(name, true, "create")
    }

    fn open(&mut self, name: &str) -> Result<Handle> {
        self.opened(name, false, "open")
    }

    fn append(&mut self, file: Handle, data: &[u8]) -> Result<()> {
        let mut file = self.open.get(file);
        file.write_all(data)
            .map_err(BenchError::call(&self.name, "append"))
    }

    fn sync(&mut self, file: Handle) -> Result<()> {
        let synced = self.open.get(file).sync_all();
        synced.map_err(BenchError::call(&self.name, "fsync"))
    }

    fn read_whole(&mut self, file: Handle, part: &mut [u8]) -> Result<u64> {
        let file = self.open.get(file);
        let mut at = 0;
        loop {
            let n = file
                .read_at(part, at)
                .map_err(BenchError::call(&self.name, "read"))?;
            if n == 0 {
                return Ok(at);
            }
            at += n as u64;
        }
    }

    fn close(&mut self, file: Handle) {
        self.open.remove(file);
    }

    fn stat(&mut self, name: &str) -> Result<()> {
        let found = std::fs::symlink_metadata(self.dir.join(name));
        found
            .map(drop)
            .map_err(BenchError::call(&self.name, "stat"))
    }

    fn list(&mut self, each: &mut dyn FnMut()) -> Result<()> {
        let entries = std::fs::read_dir(&self.dir).map_err(BenchError::file(&self.dir, "list"))?;
        for entry in entries {
            entry.map_err(BenchError::file(&self.dir, "list"))?;
            each();
        }
        Ok(())
    }

    fn unlink(&mut self, name: &str) -> Result<()> {
        let removed = std::fs::remove_file(self.dir.join(name));
        removed.map_err(BenchError::call(&self.name, "unlink"))
    }

    fn flush(&mut self) -> Result<()> {
        let dir = File::open(&self.dir).map_err(BenchError::file(&self.dir, "open"))?;
        rustix::fs::syncfs(&dir).map_err(BenchError::call(&self.name, "syncfs"))
    }

    fn digest_counts(&self) -> Option<DigestCounts> {
        None
    }
}
