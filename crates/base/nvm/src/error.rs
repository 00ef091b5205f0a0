//! What can go wrong with a mapping of NVM: which file, what was tried, what was found.

use std::io;
use std::path::PathBuf;

/// A failure of the world outside; mistakes of the caller (ranges, alignment) panic instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NvmError {
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
    /// A file ends before the range that was to be mapped; touching it would raise SIGBUS.
    #[error("{}: expected at least {expected} bytes, found {found}", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Bytes needed.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// A piece cannot be mapped beside the next one: its length is 0 or no multiple of a page.
    #[error("{}: expected a piece of a positive multiple of {expected} bytes, found {found}", path.display())]
    PieceLength {
        /// The file.
        path: PathBuf,
        /// The unit, in bytes.
        expected: usize,
        /// The length asked for, in bytes.
        found: usize,
    },
    /// The descriptor meant to replace a piece is of another file.
    #[error("{}: expected the file with device and inode {expected:?}, found {found:?}", path.display())]
    OtherFile {
        /// The file that was offered.
        path: PathBuf,
        /// Device and inode number of the mapped piece.
        expected: (u64, u64),
        /// Device and inode number of the file offered.
        found: (u64, u64),
    },
    /// A map of no pieces.
    #[error("expected at least one piece to map, found none")]
    NoPieces,
}

impl NvmError {
    /// The OS error number, where there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            NvmError::Os { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    pub(crate) fn os(
        path: impl Into<PathBuf>,
        tried: impl Into<String>,
        source: impl Into<io::Error>,
    ) -> Self {
        NvmError::Os {
            path: path.into(),
            tried: tried.into(),
            source: source.into(),
        }
    }
}
