//! Records on their way into the volume, and why one does not get there.

use shale_format::record::{Kind, RecordHeader, flag};
use shale_format::{Ino, LogPos};
use shale_oplog::Op;

/// One record to be digested.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its header.
    pub header: RecordHeader,
    /// What it does.
    pub op: Op,
}

impl Item {
    /// Whether the transaction goes on in the next record.
    pub fn more(&self) -> bool {
        self.header.flags & flag::MORE != 0
    }

    /// Position behind it.
    pub fn end(&self) -> LogPos {
        LogPos(self.header.pos + u64::from(self.header.bytes))
    }
}

/// A record that must not be digested, nor anything behind it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("log record at {} ({kind:?}, inode {}): {why}", pos.0, ino.0)]
pub struct Refused {
    /// Where it is.
    pub pos: LogPos,
    /// What it does; `None`: it is not even a record.
    pub kind: Option<Kind>,
    /// The first inode it names.
    pub ino: Ino,
    /// What is wrong with it.
    pub why: String,
}
