//! What can go wrong in a task, in words for the person who ran it.

use std::path::{Path, PathBuf};

/// Why a task did not succeed. Each task prints its findings itself, line by
/// line, before it returns the count.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line names no task.
    #[error("{0}")]
    Usage(&'static str),
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A program could not be started.
    #[error("cannot run {program}: {source}")]
    Program {
        /// Its name.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// `cargo metadata` failed, or the root manifest lacks what we read from it.
    #[error("cargo metadata: {0}")]
    Metadata(String),
    /// `tidy` found departures from the rules.
    #[error("tidy: {0} findings")]
    Untidy(usize),
    /// `docs/SPEC.md` and the layouts in the source disagree.
    #[error("spec: {0}")]
    Spec(String),
    /// A picture and its data disagree, or the data cannot be drawn.
    #[error("figures: {0}")]
    Figure(String),
    /// A result file is not what `shale bench --json` writes.
    #[error("{}: expected {expected}", path.display())]
    BenchFile {
        /// Which file.
        path: PathBuf,
        /// What was looked for and not found.
        expected: &'static str,
    },
    /// Counts differ between two benchmark results.
    #[error("bench-diff: {0} counts differ")]
    BenchDiffers(usize),
    /// A step of `ci` failed.
    #[error("ci: {0} failed")]
    CiFailed(usize),
}

/// Reads a whole text file.
pub fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::File {
        path: path.to_path_buf(),
        source,
    })
}
