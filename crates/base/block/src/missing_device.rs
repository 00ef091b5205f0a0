//! A device that is not there: it has a name and a size, and everything else fails.

use super::{BlockCounts, Counters, Did, TierDevice, check_range};
use crate::BlockDevice;
use crate::error::BlockError;
use std::path::PathBuf;

/// The place of a device that could not be opened, so that what else there is can be used.
pub struct AbsentBlocks {
    path: PathBuf,
    bytes: u64,
    why: String,
    counters: Counters,
}

impl AbsentBlocks {
    /// A device of `bytes` bytes that should be at `path`, and `why` it is not.
    pub fn new(path: PathBuf, bytes: u64, why: String) -> AbsentBlocks {
        AbsentBlocks {
            path,
            bytes,
            why,
            counters: Counters::default(),
        }
    }

    fn refuse(&self, did: Did) -> Result<(), BlockError> {
        let gone = BlockError::Unfit {
            path: self.path.clone(),
            why: self.why.clone(),
        };
        self.counters.note(did, Err(gone))
    }
}

impl BlockDevice for AbsentBlocks {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        check_range(offset, into.len() as u64, self.bytes);
        self.refuse(Did::Read(into.len() as u64))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), BlockError> {
        check_range(offset, from.len() as u64, self.bytes);
        self.refuse(Did::Wrote(from.len() as u64))
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        check_range(offset, bytes, self.bytes);
        self.refuse(Did::Discarded(bytes))
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.refuse(Did::Flushed)
    }
}

impl TierDevice for AbsentBlocks {
    fn counts(&self) -> BlockCounts {
        self.counters.snapshot()
    }

    fn access(&self) -> &'static str {
        "none"
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn trouble(&self) -> Option<String> {
        Some(self.why.clone())
    }
}
