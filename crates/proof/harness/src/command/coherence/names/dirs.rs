//! Directories and names of the calls on names.
//!
//! They change every [`AGE_NS`], and so do the clients: what a process has left to the mount because others use it is not left for good. Those of one age are judged
//! together, and no call is on those of two.

use std::fs;
use std::io;
use std::path::Path;

/// After so long all workers go to other directories, and clients are other processes.
pub const AGE_NS: u64 = 5_000_000_000;
/// Directories at a time.
pub const DIRS: u64 = 8;
/// Of workers that are made in advance.
const OWN: u64 = 128;
/// Names in each.
pub const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Ages of a run of `seconds`.
pub fn ages(seconds: u64) -> u64 {
    1 + seconds * 1_000_000_000 / AGE_NS
}

/// A directory of an age.
pub fn dir_name(age: u64, at: u64) -> String {
    format!("n{age}-{at}")
}

/// The directory of a path `DIR/NAME`, or a directory itself.
pub fn dir_of(path: &str) -> &str {
    path.split_once('/').map_or(path, |(dir, _)| dir)
}

/// The age of a path.
pub fn age_of(path: &str) -> &str {
    dir_of(path).split_once('-').map_or("", |(age, _)| age)
}

/// A worker's own directory.
pub fn own_name(worker: u64) -> String {
    format!("own-{worker}")
}

/// Makes the directories of a run of `seconds`, and those of workers: the directory of all of them would be the mount's for a while whenever
/// one is made, and all names below it.
pub fn prepare(dir: &Path, seconds: u64) -> io::Result<()> {
    for worker in 0..OWN {
        fs::create_dir(dir.join(own_name(worker)))?;
    }
    for age in 0..ages(seconds) {
        for at in 0..DIRS {
            fs::create_dir(dir.join(dir_name(age, at)))?;
        }
    }
    Ok(())
}
