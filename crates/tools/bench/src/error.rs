//! Why a measurement could not be made.

use std::path::PathBuf;

use shale_block::BlockError;
use shale_daemon::DaemonError;
use shale_nvm::NvmError;
use shale_pool::PoolError;

/// Why a measurement could not be made. What it had set up is taken down again.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The operating system refused something about a file.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What was to be done with it.
        what: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// An operation of a target failed while it was measured.
    #[error("{target}: cannot {what}: {source}")]
    Call {
        /// The target's name.
        target: String,
        /// The operation.
        what: &'static str,
        /// What it said.
        source: std::io::Error,
    },
    /// An operation did less than it was asked to, or something else.
    #[error("{target}: {what}: expected {expected}, found {found}")]
    Wrong {
        /// The target's name.
        target: String,
        /// The operation.
        what: &'static str,
        /// What should have come out.
        expected: u64,
        /// What came out.
        found: u64,
    },
    /// Another program that is needed failed.
    #[error("{program} failed: {found}")]
    Program {
        /// Its name.
        program: String,
        /// What it said.
        found: String,
    },
    /// A mapping of NVM.
    #[error(transparent)]
    Nvm(#[from] NvmError),
    /// A block device.
    #[error(transparent)]
    Device(#[from] BlockError),
    /// The media of a volume cannot be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The daemon refused.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// A plot could not be drawn.
    #[error("cannot draw {}: {found}", path.display())]
    Plot {
        /// The file.
        path: PathBuf,
        /// What the plotting library said.
        found: String,
    },
    /// An option has a value that makes no sense.
    #[error("option {option}: expected {expected}, found {found}")]
    Option {
        /// The option.
        option: &'static str,
        /// What would be legal.
        expected: String,
        /// What was given.
        found: String,
    },
}

impl BenchError {
    /// A function that turns an error of the operating system about `path` into ours.
    pub fn file<E: Into<std::io::Error>>(
        path: impl Into<PathBuf>,
        what: &'static str,
    ) -> impl FnOnce(E) -> BenchError {
        let path = path.into();
        move |source| BenchError::File {
            path,
            what,
            source: source.into(),
        }
    }

    /// A function that turns an error of an operation of `target` into ours.
    pub fn call<E: Into<std::io::Error>>(
        target: &str,
        what: &'static str,
    ) -> impl FnOnce(E) -> BenchError {
        move |source| BenchError::Call {
            target: target.to_owned(),
            what,
            source: source.into(),
        }
    }
}
