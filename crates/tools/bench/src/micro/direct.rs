//! LibFS called in this process, as the preload library calls it: paths and handles.

use std::path::Path;

use shale_libfs::{Errno, File, OFlags, Tree};
use shale_nvm::Path as For;

use super::calls::file_name;
use super::target::{DeviceCounts, LIBFS, Target, TargetCounts};
use crate::BenchError;
use crate::Result;
use crate::scratch::{Scratch, ScratchOptions, os_error};

const DATA: &[u8] = b"/data";
/// Bytes written at once while a file is filled.
const FILL_BYTES: usize = 1 << 20;
/// Of the update log: a round never fills it to where digest begins.
const LOG_BYTES: u64 = 64 << 20;
/// What else the volume needs.
const SPARE_BYTES: u64 = 64 << 20;

/// A volume of its own, without the kernel in between.
pub(crate) struct Direct {
    // Before the volume, since it holds an inode of it.
    data: Option<File>,
    end: u64,
    tree: Tree,
    scratch: Scratch,
}

fn failed(what: &'static str) -> impl FnOnce(Errno) -> BenchError {
    move |errno| BenchError::call(LIBFS, what)(os_error(errno))
}

fn path(number: u64) -> [u8; 10] {
    let mut path = [b'/'; 10];
    path[1..].copy_from_slice(&file_name(number));
    path
}

impl Direct {
    /// Makes a volume in `dir` for a file of `data_bytes` bytes that is overwritten.
    pub(crate) fn new(dir: &Path, data_bytes: u64) -> Result<Self> {
        let options = ScratchOptions {
            nvm_bytes: 4 * data_bytes + SPARE_BYTES,
            log_bytes: LOG_BYTES,
        };
        let scratch = Scratch::new(dir, options)?;
        Ok(Direct {
            data: None,
            end: 0,
            tree: scratch.tree(),
            scratch,
        })
    }

    fn data(&self) -> &File {
        self.data.as_ref().expect("a round makes its file first")
    }

    fn whole(what: &'static str, expected: usize, found: usize) -> Result<()> {
        match expected == found {
            true => Ok(()),
            false => Err(BenchError::Wrong {
                target: LIBFS.to_owned(),
                what,
                expected: expected as u64,
                found: found as u64,
            }),
        }
    }
}

impl Target for Direct {
    fn name(&self) -> &str {
        LIBFS
    }

    fn fresh(&mut self) -> Result<()> {
        if self.data.take().is_some() {
            self.tree.unlink(DATA).map_err(failed("unlink"))?;
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        let file = self
            .tree
            .open(DATA, flags, 0o644)
            .map_err(failed("create"))?;
        self.data = Some(file);
        self.end = 0;
        Ok(())
    }

    fn fill(&mut self, bytes: u64) -> Result<()> {
        self.fresh()?;
        let block = vec![0x3c; FILL_BYTES];
        while self.end < bytes {
            let some = (bytes - self.end).min(FILL_BYTES as u64) as usize;
            self.append(&block[..some])?;
        }
        Ok(())
    }

    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.write(self.end, data)?;
        self.end += data.len() as u64;
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.data().pwrite(offset, data).map_err(failed("write"))?;
        Self::whole("write", data.len(), written)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        let read = self.data().pread(offset, into).map_err(failed("read"))?;
        Self::whole("read", into.len(), read)
    }

    fn create(&mut self, number: u64) -> Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        let made = self.tree.open(&path(number), flags, 0o644);
        made.map(drop).map_err(failed("create"))
    }

    fn unlink(&mut self, number: u64) -> Result<()> {
        self.tree.unlink(&path(number)).map_err(failed("unlink"))
    }

    fn flush(&mut self) -> Result<()> {
        self.scratch.flush();
        Ok(())
    }

    fn counts(&self) -> Option<TargetCounts> {
        let session = self.scratch.session();
        let mut calls: DeviceCounts = session.log_counts().total().into();
        calls += session.nvm_counts().total().into();
        // Pages that client and daemon talk through are memory, never NVM.
        let all = self.scratch.daemon().map().counts();
        let mut background = DeviceCounts::default();
        for path in For::ALL.into_iter().filter(|path| *path != For::Control) {
            background += all.path(path).into();
        }
        Some(TargetCounts { calls, background })
    }
}
