//! The floor: the bytes alone, without a file system.
//!
//! A write is one non-temporal copy and one fence, a read is one copy out, of the same
//! bytes at the same offsets as for the other targets. Creating and removing a
//! file is one record of [`NAME_RECORD_BYTES`] bytes.

use std::path::Path;

use shale_nvm::{Map, MapOptions, Path as For};

use super::target::{FLOOR, Target, TargetCounts};
use crate::Result;

/// What a change of one short name needs at least: who, what, and the name, in whole lines.
pub const NAME_RECORD_BYTES: usize = 128;

/// Bytes written at once while the file is filled.
const FILL_BYTES: usize = 1 << 20;

/// Bare NVM.
pub(crate) struct Floor {
    map: Map,
    end: usize,
}

impl Floor {
    /// Maps a new file of `bytes` bytes in `dir`, of which the name goes at once.
    pub(crate) fn new(dir: &Path, bytes: usize) -> Result<Self> {
        let file = tempfile::Builder::new()
            .prefix("floor-")
            .tempdir_in(dir)
            .map_err(crate::BenchError::file(dir, "make a directory in"))?;
        let map = MapOptions::new().create_file(&file.path().join("nvm"), bytes)?;
        map.populate()?;
        Ok(Floor { map, end: 0 })
    }

    /// What the mapping stores with, as in "avx512+clwb".
    pub(crate) fn instructions(&self) -> &'static str {
        self.map.instructions()
    }

    /// Whether a fence makes bytes survive a power cut here.
    pub(crate) fn domain(&self) -> shale_persist::Domain {
        shale_persist::Domain::of(&self.map)
    }
}

impl Target for Floor {
    fn name(&self) -> &str {
        FLOOR
    }

    fn fresh(&mut self) -> Result<()> {
        self.end = 0;
        Ok(())
    }

    fn fill(&mut self, bytes: u64) -> Result<()> {
        // As the others do, so that its lines are where theirs are.
        let block = vec![0x3c; FILL_BYTES];
        self.fresh()?;
        for at in (0..bytes).step_by(FILL_BYTES) {
            self.append(&block[..FILL_BYTES.min((bytes - at) as usize)])?;
        }
        Ok(())
    }

    fn append(&mut self, data: &[u8]) -> Result<()> {
        if self.end + data.len() > self.map.bytes() {
            self.end = 0;
        }
        let view = self.map.on(For::Data);
        view.copy_nt(self.end, data);
        view.fence();
        self.end += data.len();
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let view = self.map.on(For::Data);
        view.copy_nt(offset as usize, data);
        view.fence();
        Ok(())
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.map.on(For::Data).load(offset as usize, into);
        Ok(())
    }

    fn create(&mut self, _number: u64) -> Result<()> {
        self.append(&[0x5a; NAME_RECORD_BYTES])
    }

    fn unlink(&mut self, _number: u64) -> Result<()> {
        self.append(&[0xa5; NAME_RECORD_BYTES])
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn counts(&self) -> Option<TargetCounts> {
        Some(TargetCounts {
            calls: self.map.counts().total().into(),
            background: Default::default(),
        })
    }
}
