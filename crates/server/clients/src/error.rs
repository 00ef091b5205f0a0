//! Why a client cannot be served.

use shale_nvm::NvmError;
use std::io;
use std::path::{Path, PathBuf};

/// Result with [`ClientError`].
pub type Result<T> = std::result::Result<T, ClientError>;

/// The system does not give what a client needs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The kernel cannot order memory between processes.
    #[error("membarrier: {0}; the kernel must be Linux 4.16 or newer with CONFIG_MEMBARRIER")]
    Membarrier(io::Error),
    /// A log file or a control page.
    #[error("{}: cannot {tried}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried, as a verb phrase.
        tried: String,
        /// What the kernel answered.
        source: io::Error,
    },
    /// A page cannot be mapped.
    #[error(transparent)]
    Nvm(#[from] NvmError),
}

impl ClientError {
    pub(crate) fn file(
        path: &Path,
        tried: impl Into<String>,
        source: impl Into<io::Error>,
    ) -> Self {
        ClientError::File {
            path: path.to_path_buf(),
            tried: tried.into(),
            source: source.into(),
        }
    }
}
