//! Why a backup is not taken, or not restored.

use shale_libfs::Errno;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What goes wrong, and where.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// A call on a file outside of the volume.
    #[error("{}: {tried}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried.
        tried: &'static str,
        /// Why it failed.
        why: std::io::Error,
    },
    /// A call on the volume.
    #[error("{what}: {why}")]
    Volume {
        /// What was tried, and of what.
        what: String,
        /// Why it failed.
        why: Errno,
    },
    /// A directory that is not one of backups.
    #[error("{}: {why}", path.display())]
    NotAStore {
        /// The directory.
        path: PathBuf,
        /// What it is.
        why: &'static str,
    },
    /// No complete backup has this name.
    #[error("{}: there is no complete backup {name}", store.display())]
    NoBackup {
        /// The directory of backups.
        store: PathBuf,
        /// What was asked for.
        name: String,
    },
    /// What a backup holds is not what was written.
    #[error("{}: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// Another backup is being taken.
    #[error("{}: another backup is being taken there", .0.display())]
    Busy(PathBuf),
    /// The volume could not be read within the longest freeze.
    #[error("what changed since it was copied could not be read within {} ms, in {tries} tries", longest.as_millis())]
    FreezeTooShort {
        /// The longest freeze.
        longest: Duration,
        /// How often it was tried.
        tries: u32,
    },
    /// The target of a restore cannot be used.
    #[error("{}: {why}", path.display())]
    Target {
        /// The target.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The volume cannot be opened.
    #[error("{0}")]
    Open(String),
}

/// Result with [`BackupError`].
pub type Result<T> = std::result::Result<T, BackupError>;

impl BackupError {
    /// For `map_err`: a call on `path` failed.
    pub fn file<E: Into<std::io::Error>>(
        path: &Path,
        tried: &'static str,
    ) -> impl FnOnce(E) -> Self {
        let path = path.to_owned();
        move |why| Self::File {
            path,
            tried,
            why: why.into(),
        }
    }

    pub(crate) fn damaged(path: &Path, why: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            why: why.into(),
        }
    }
}
