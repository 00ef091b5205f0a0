//! What can go wrong in the daemon: where, what was expected, what was found.

use shale_clients::error::ClientError;
use shale_nvm::NvmError;
use shale_oplog::OplogError;
use shale_persist::staged::PersistError;
use shale_pool::PoolError;
use shale_proto::ProtoError;
use shale_recovery::error::RecoveryError;
use shale_volume::VolumeError;
use std::io;
use std::path::Path;

/// Result with [`DaemonError`].
pub type Result<T> = std::result::Result<T, DaemonError>;

/// The daemon could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// The media of the volume.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// All slots of the log table are taken.
    #[error("all {slots} update logs are in use; detach a client first")]
    NoSlot {
        /// Number of slots.
        slots: u32,
    },
    /// A client's log file or control pages.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// What a crash left.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// The daemon is being stopped.
    #[error("the volume is being unmounted")]
    Closing,
    /// The volume was shut down, and is mounted still.
    #[error("the volume was shut down: unmount it, and mount it again")]
    Down,
    /// NVM.
    #[error(transparent)]
    Nvm(#[from] NvmError),
    /// A volume without NVM is to be served without the device of its staging area.
    #[error("the SSD with the staging area is not there: nothing could be made durable")]
    NoArea,
    /// The staging area.
    #[error("the staging area: {0}")]
    Staged(#[from] PersistError),
    /// The volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// An update log.
    #[error(transparent)]
    Log(#[from] OplogError),
    /// The socket.
    #[error(transparent)]
    Proto(#[from] ProtoError),
}

impl DaemonError {
    /// Whether another process has locked the volume or one of its devices: it may be free a moment later.
    pub fn is_busy(&self) -> bool {
        match self {
            DaemonError::Pool(error) => error.is_busy(),
            _ => false,
        }
    }

    pub(crate) fn file(
        path: &Path,
        tried: impl Into<String>,
        source: impl Into<io::Error>,
    ) -> Self {
        DaemonError::Pool(PoolError::file(path, tried, source))
    }
}
