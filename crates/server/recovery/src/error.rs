//! Why recovery cannot go on.

use shale_clients::error::ClientError;
use shale_oplog::OplogError;
use shale_persist::staged::PersistError;
use shale_pool::PoolError;
use shale_volume::VolumeError;
use std::io;
use std::path::Path;

/// Result with [`RecoveryError`].
pub type Result<T> = std::result::Result<T, RecoveryError>;

/// What a crash left cannot be brought into the volume now. Nothing of it is lost: the next start tries again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoveryError {
    /// The media of the volume, or a file of its NVM directory.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A log file.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The staging area.
    #[error("the staging area: {0}")]
    Staged(#[from] PersistError),
    /// The volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// An update log.
    #[error(transparent)]
    Log(#[from] OplogError),
}

impl RecoveryError {
    pub(crate) fn file(
        path: &Path,
        tried: impl Into<String>,
        source: impl Into<io::Error>,
    ) -> Self {
        RecoveryError::Pool(PoolError::file(path, tried, source))
    }
}
