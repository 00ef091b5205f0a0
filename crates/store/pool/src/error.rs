//! What can go wrong with the media of a volume: where, what was expected, what was found.

use shale_block::BlockError;
use shale_nvm::NvmError;
use shale_persist::staged::PersistError;
use shale_sys::PrivateError;
use shale_volume::VolumeError;
use std::io;
use std::path::{Path, PathBuf};

/// Result with [`PoolError`].
pub type Result<T> = std::result::Result<T, PoolError>;

/// The media of a volume cannot be used, or not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A system call on a file failed.
    #[error("{}: cannot {tried}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried, as a verb phrase.
        tried: String,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The volume file cannot be used.
    #[error("{}: {key}: {why}", path.display())]
    VolumeFile {
        /// The volume file.
        path: PathBuf,
        /// The key that is wrong, or "file".
        key: String,
        /// What is wrong and what to do.
        why: String,
    },
    /// The NVM directory is not the one of this volume.
    #[error("{}: {why}", dir.display())]
    NvmDir {
        /// The directory.
        dir: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },
    /// A device of a lower tier is not the one of this volume.
    #[error("{}: {why}", path.display())]
    WrongDevice {
        /// The device.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// There is a volume already.
    #[error("{} holds a volume already ({found}); use --force to destroy it", path.display())]
    Exists {
        /// Where.
        path: PathBuf,
        /// What was found.
        found: String,
    },
    /// It takes more than there is.
    #[error("{}: {why}; make it smaller, or use --force to have it made all the same", path.display())]
    NoSpace {
        /// The NVM directory, or the image.
        path: PathBuf,
        /// What it takes, and what there is.
        why: String,
    },
    /// Something cannot be made as it was asked for.
    #[error("{}: {why}", path.display())]
    Refused {
        /// What was to be made, or where.
        path: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// Another daemon serves the volume.
    #[error("{} is in use by another daemon ({holder}); unmount it first", dir.display())]
    InUse {
        /// The NVM directory.
        dir: PathBuf,
        /// What the lock file says about the other daemon.
        holder: String,
    },
    /// The area of a volume without NVM.
    #[error("{}: {source}", device.display())]
    Area {
        /// The device that has it.
        device: PathBuf,
        /// What is wrong with it.
        source: PersistError,
    },
    /// NVM.
    #[error(transparent)]
    Nvm(#[from] NvmError),
    /// A device below NVM.
    #[error(transparent)]
    Device(#[from] BlockError),
    /// A file of the volume that others may open.
    #[error(transparent)]
    Private(#[from] PrivateError),
    /// The volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

impl PoolError {
    /// Whether another process has locked the volume or one of its devices: it may be free a moment later.
    pub fn is_busy(&self) -> bool {
        match self {
            PoolError::InUse { .. } => true,
            PoolError::Device(error) => error.raw_os_error() == Some(libc::EWOULDBLOCK),
            _ => false,
        }
    }

    /// A system call on `path` failed; `tried` is a verb phrase.
    pub fn file(path: &Path, tried: impl Into<String>, source: impl Into<io::Error>) -> Self {
        PoolError::File {
            path: path.to_path_buf(),
            tried: tried.into(),
            source: source.into(),
        }
    }
}
