//! What is measured, and on what.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Result;

/// Name of the target that is NVM without a file system.
pub const FLOOR: &str = "floor";
/// Name of the target that is LibFS called directly.
pub const LIBFS: &str = "libfs";
/// Name of the target that is a mounted volume.
pub const MOUNT: &str = "mount";
/// Name of the target that is tmpfs.
pub const TMPFS: &str = "tmpfs";

/// An operation whose latency is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Write at the end of a file that was empty when the round began.
    Append,
    /// Write over a file from front to back.
    Overwrite,
    /// Write over a file at random multiples of the size.
    RandomOverwrite,
    /// Read a file from front to back.
    SequentialRead,
    /// Read a file at random multiples of the size.
    RandomRead,
    /// Make an empty file.
    Create,
    /// Remove an empty file.
    Unlink,
}

impl Op {
    /// All, in the order in which they are measured.
    pub const ALL: [Op; 7] = [
        Op::Append,
        Op::Overwrite,
        Op::RandomOverwrite,
        Op::SequentialRead,
        Op::RandomRead,
        Op::Create,
        Op::Unlink,
    ];

    /// The name in reports and of plots.
    pub fn name(self) -> &'static str {
        match self {
            Op::Append => "append",
            Op::Overwrite => "overwrite",
            Op::RandomOverwrite => "random-overwrite",
            Op::SequentialRead => "sequential-read",
            Op::RandomRead => "random-read",
            Op::Create => "create",
            Op::Unlink => "unlink",
        }
    }

    /// Whether it stores data of some size.
    pub fn writes(self) -> bool {
        matches!(self, Op::Append | Op::Overwrite | Op::RandomOverwrite)
    }

    /// Whether it is measured for each size.
    pub fn has_size(self) -> bool {
        !matches!(self, Op::Create | Op::Unlink)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What mappings of NVM counted, summed over what a target uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceCounts {
    /// Fences.
    pub fences: u64,
    /// Cache lines of which the write-back was asked for.
    pub lines_flushed: u64,
    /// Bytes stored in any way.
    pub bytes_stored: u64,
}

impl std::ops::Sub for DeviceCounts {
    type Output = DeviceCounts;

    fn sub(self, earlier: DeviceCounts) -> DeviceCounts {
        DeviceCounts {
            fences: self.fences - earlier.fences,
            lines_flushed: self.lines_flushed - earlier.lines_flushed,
            bytes_stored: self.bytes_stored - earlier.bytes_stored,
        }
    }
}

impl std::ops::AddAssign for DeviceCounts {
    fn add_assign(&mut self, other: DeviceCounts) {
        self.fences += other.fences;
        self.lines_flushed += other.lines_flushed;
        self.bytes_stored += other.bytes_stored;
    }
}

impl From<shale_nvm::PathCounts> for DeviceCounts {
    fn from(counts: shale_nvm::PathCounts) -> Self {
        DeviceCounts {
            fences: counts.fences,
            lines_flushed: counts.lines_flushed,
            bytes_stored: counts.bytes_stored,
        }
    }
}

/// What a target's devices counted so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TargetCounts {
    /// In the calls: update log and stolen blocks.
    pub calls: DeviceCounts,
    /// In the background: digest.
    pub background: DeviceCounts,
}

/// Something that files, or the bytes of one, can be kept on. Every operation is
/// durable when it returns, as far as the target can do that.
///
/// There is one file of data at a time: an empty one ([`Target::fresh`]) or one full of
/// bytes ([`Target::fill`]). Files with numbers are others, and empty.
pub trait Target {
    /// The name in reports.
    fn name(&self) -> &str;

    /// Makes the file of data an empty one.
    ///
    /// # Errors
    /// What the target says; likewise below.
    fn fresh(&mut self) -> Result<()>;

    /// Makes the file of data one of `bytes` bytes, written from front to back.
    ///
    /// # Errors
    /// As above.
    fn fill(&mut self, bytes: u64) -> Result<()>;

    /// Writes `data` at the end of the file of data.
    ///
    /// # Errors
    /// As above.
    fn append(&mut self, data: &[u8]) -> Result<()>;

    /// Writes `data` at byte `offset` of the file of data.
    ///
    /// # Errors
    /// As above.
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()>;

    /// Reads from byte `offset` of the file of data.
    ///
    /// # Errors
    /// As above; also if the file ends before `into` does.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Makes empty file `number`, and leaves it closed.
    ///
    /// # Errors
    /// As above.
    fn create(&mut self, number: u64) -> Result<()>;

    /// Removes file `number`.
    ///
    /// # Errors
    /// As above.
    fn unlink(&mut self, number: u64) -> Result<()>;

    /// Returns when all work that was put off is done.
    ///
    /// # Errors
    /// As above.
    fn flush(&mut self) -> Result<()>;

    /// What its devices counted so far, where there are such counts.
    fn counts(&self) -> Option<TargetCounts>;
}
