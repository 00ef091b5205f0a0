//! What can go wrong with a block device: which path, what was tried, what was found.

use shale_sys::PrivateError;
use std::io;
use std::path::PathBuf;

/// A failure of the world outside; mistakes of the caller (ranges, alignment) panic instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// A system call failed.
    #[error("{}: cannot {tried}: {source}", path.display())]
    Os {
        /// The file, or the link target of its descriptor.
        path: PathBuf,
        /// What was tried, as a verb phrase ("map 4096 bytes read-write").
        tried: String,
        /// What the kernel answered.
        source: io::Error,
    },
    /// A file is shorter than what it is to hold.
    #[error("{}: expected at least {expected} bytes, found {found}", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Bytes needed.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// An image holds something else than what was to be opened.
    #[error("{}: {what}: expected {expected}, found {found}", path.display())]
    Image {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// What should be there.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// It is not what it was to be used as.
    #[error("{}: {why}", path.display())]
    Unfit {
        /// The device.
        path: PathBuf,
        /// What was found, and what was expected.
        why: String,
    },
    /// A report of a device's zones cannot be what it says.
    #[error("{}: its report of zone {zone}: {what}: expected {expected}, found {found}", path.display())]
    ZoneReport {
        /// The device.
        path: PathBuf,
        /// The zone, from 0.
        zone: u64,
        /// What differs.
        what: &'static str,
        /// What should be there.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// A flash page was to be programmed that is not the next one of its erase block. Below
    /// `expected`: it holds something, and must be erased first.
    #[error("erase block {block}: page {page} cannot be programmed: expected page {expected}")]
    OutOfOrder {
        /// The erase block.
        block: u32,
        /// The page within it.
        page: u32,
        /// The page that comes next; the number of pages if the block is full.
        expected: u32,
    },
    /// The error-correcting code of a flash page does not fit: it was torn by a power cut.
    #[error("erase block {block}: page {page} is torn")]
    TornPage {
        /// The erase block.
        block: u32,
        /// The page within it.
        page: u32,
    },
    /// Power was cut while the block was erased: it holds nothing until it is erased again.
    #[error("erase block {block} is half erased")]
    HalfErased {
        /// The erase block.
        block: u32,
    },
    /// An erase block is worn out: it cannot be programmed or erased any more, only read.
    #[error("erase block {block} is worn out")]
    WornBlock {
        /// The erase block.
        block: u32,
    },
    /// A zone of a host-managed device is worn out: it can only be read, or not even that.
    #[error("{}: zone {zone} is worn out", path.display())]
    WornZone {
        /// The device.
        path: PathBuf,
        /// The zone, from 0.
        zone: u64,
    },
    /// Cleaning gains no page any more.
    #[error("no erase block is worth cleaning: {free} are free, expected at least {expected}")]
    NoVictim {
        /// Free erase blocks.
        free: usize,
        /// Those that are kept in reserve.
        expected: usize,
    },
}

impl BlockError {
    /// The OS error number, where there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            BlockError::Os { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Whether part of a medium has worn out, and the medium goes on without it.
    pub fn is_worn_out(&self) -> bool {
        matches!(
            self,
            BlockError::WornBlock { .. } | BlockError::WornZone { .. }
        )
    }

    /// Whether the file system that an image lies on has no space for it.
    pub fn is_full(&self) -> bool {
        matches!(self.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
    }

    /// A system call on `path` failed; `tried` is a verb phrase.
    pub fn os(
        path: impl Into<PathBuf>,
        tried: impl Into<String>,
        source: impl Into<io::Error>,
    ) -> Self {
        BlockError::Os {
            path: path.into(),
            tried: tried.into(),
            source: source.into(),
        }
    }
}

impl From<PrivateError> for BlockError {
    fn from(error: PrivateError) -> Self {
        match error {
            PrivateError::Os {
                path,
                tried,
                source,
            } => BlockError::os(path, tried, source),
            PrivateError::Open { path, why } => BlockError::Unfit { path, why },
        }
    }
}
