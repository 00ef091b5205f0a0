//! The NVM directory: segment files, log files, and the lock that keeps a volume to
//! one daemon.
//!
//! All space is allocated when a file is made, so that no store through a mapping
//! ever finds the file system full (that would be SIGBUS).

use crate::error::{PoolError, Result};
use rustix::fs::FlockOperation;
use shale_format::limits::SEGMENT_BYTES;
use shale_nvm::{Access, Map, MapOptions};
use shale_sys::{failpoints, private};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const LOCK: &str = "lock";
/// Name of the file that says that a directory is growing.
pub(crate) const GROWING: &str = "growing";
/// Name of the file that says that the volume of another directory is copied to this one.
pub(crate) const COPYING: &str = "copying";
/// Name of the file of a mapping of programs: this, and a number.
pub const MAPPING_PREFIX: &str = "map-";
/// Directories in the place of one file that are moved out of the way.
const ASIDE_MAX: u32 = 1000;

/// Name of the file of segment `n`.
pub fn segment_name(n: usize) -> String {
    format!("seg-{n:04}")
}

/// Sizes in bytes of the segment files of an NVM tier of `bytes` bytes.
pub fn segment_sizes(bytes: u64) -> Vec<u64> {
    let mut sizes = vec![SEGMENT_BYTES; (bytes / SEGMENT_BYTES) as usize];
    if !bytes.is_multiple_of(SEGMENT_BYTES) {
        sizes.push(bytes % SEGMENT_BYTES);
    }
    sizes
}

/// Maps the segments of `dir` side by side, read-write.
///
/// # Errors
/// The directory or a segment is missing or has another size than `bytes` asks for;
/// the message names it.
pub fn open_nvm(dir: &Path, bytes: u64, options: &MapOptions) -> Result<Map> {
    let wrong = |why: String| PoolError::NvmDir {
        dir: dir.to_path_buf(),
        why,
    };
    if !dir.is_dir() {
        return Err(wrong(
            "the NVM directory is missing: is its file system mounted? (tmpfs is empty after a restart \
             of the machine)"
                .to_owned(),
        ));
    }
    let mut paths = Vec::new();
    for (n, expected) in segment_sizes(bytes).into_iter().enumerate() {
        let path = dir.join(segment_name(n));
        let found = match std::fs::metadata(&path) {
            Ok(m) => m.len(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(wrong(format!(
                    "{} is missing: the volume cannot be served without it",
                    segment_name(n)
                )));
            }
            Err(e) => return Err(PoolError::file(&path, "read its attributes", e)),
        };
        if found != expected {
            return Err(wrong(format!(
                "{} has {found} bytes, expected {expected}: is nvm.size_bytes of the volume file right?",
                segment_name(n)
            )));
        }
        paths.push(path);
    }
    Ok(options.open_files(&paths, Access::ReadWrite)?)
}

/// Closes the files of the volume in `dir` to users other than their owner, as they were made: a copy that was put back may
/// be more open.
///
/// # Errors
/// One is another user's and more open; it is named.
pub fn close_to_others(dir: &Path) -> Result<()> {
    let paths = volume_files(dir)?.into_iter().map(|name| dir.join(name));
    Ok(paths
        .into_iter()
        .try_for_each(|path| private::close_name_to_others(&path))?)
}

/// Makes the segments of a new NVM tier, with all their space.
///
/// # Errors
/// A segment exists, or there is no space; what was made stays.
pub fn make_nvm(dir: &Path, bytes: u64, options: &MapOptions) -> Result<Map> {
    let files: Vec<(PathBuf, usize)> = segment_sizes(bytes)
        .into_iter()
        .enumerate()
        .map(|(n, size)| (dir.join(segment_name(n)), size as usize))
        .collect();
    let map = options.create_files(&files)?;
    map.prepare()?;
    Ok(map)
}

/// The lock of an NVM directory.
pub(crate) fn lock_path(dir: &Path) -> PathBuf {
    dir.join(LOCK)
}

/// What is in `dir` and is none of a volume's, by name; the directory that file systems have for what is lost is
/// everybody's.
pub fn strangers(dir: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(dir).map_err(|e| PoolError::file(dir, "list it", e))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| PoolError::file(dir, "list it", e))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_volume_file(&name) && ![LOCK, GROWING, COPYING, "lost+found"].contains(&&*name) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn is_volume_file(name: &str) -> bool {
    let prefixes = ["seg-", "log-", MAPPING_PREFIX];
    let rest = prefixes
        .into_iter()
        .find_map(|prefix| name.strip_prefix(prefix));
    rest.is_some_and(|rest| rest.bytes().next().is_some_and(|b| b.is_ascii_digit()))
}

/// The files of a volume in `dir`: segments, logs and mappings, by name.
///
/// # Errors
/// The directory cannot be read; a missing one has no files.
pub fn volume_files(dir: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(PoolError::file(dir, "list it", e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| PoolError::file(dir, "list it", e))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_volume_file(&name) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Removes a file of the NVM directory; one that is not there is no error. A directory that
/// somebody has put in its place is moved out of the way: it must keep nobody out.
pub fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() == std::io::ErrorKind::IsADirectory => {
            let aside = (0..=ASIDE_MAX).map(|n| path.with_extension(format!("aside-{n}")));
            let free = aside.into_iter().find(|p| p.symlink_metadata().is_err());
            let moved = free.map_or(Err(e), |to| std::fs::rename(path, to));
            moved.map_err(|e| PoolError::file(path, "move it out of the way", e))
        }
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(PoolError::file(path, "remove it", e))
        }
        _ => Ok(()),
    }
}

/// Who has locked this file, for a message: as the kernel says, or as it wrote into the file.
pub fn holder_of(file: &mut File) -> String {
    let mut written = String::new();
    let _ = file.read_to_string(&mut written);
    let written = written.trim().parse().ok();
    match private::lock_holder(&*file).or(written) {
        Some(pid) => format!("process {pid}"),
        None => "its process is unknown".to_owned(),
    }
}

/// The right to serve the volume in a directory. Goes with the process that holds it.
#[derive(Debug)]
pub struct NvmLock {
    file: File,
}

impl NvmLock {
    /// Takes the lock of `dir` and writes this process's number into it.
    ///
    /// # Errors
    /// Another daemon has it, or the directory cannot be written.
    pub fn take(dir: &Path) -> Result<NvmLock> {
        let path = dir.join(LOCK);
        let mut file = failpoints::io()
            .map_err(std::io::Error::from)
            .and_then(|()| private::open_lock(&path))
            .map_err(|e| PoolError::file(&path, "open the lock", e))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(PoolError::InUse {
                    dir: dir.to_path_buf(),
                    holder: holder_of(&mut file),
                });
            }
            Err(e) => return Err(PoolError::file(&path, "lock it", e)),
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(|e| PoolError::file(&path, "write it", e))?;
        Ok(NvmLock { file })
    }

    /// Whether the file that is locked is still the one with this name.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let names = |found: std::fs::Metadata| (found.dev(), found.ino());
        let locked = self.file.metadata().map(names);
        let there = path.symlink_metadata().map(names);
        matches!((locked, there), (Ok(locked), Ok(there)) if locked == there)
    }
}

impl Drop for NvmLock {
    fn drop(&mut self) {
        // A number that is left behind would only mislead; the lock itself goes with the file.
        let _ = self.file.set_len(0);
        // Closing alone would leave it with a child that was forked and has not called exec yet.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_daemon_at_a_time() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let first = NvmLock::take(dir.path()).unwrap();
        let text = NvmLock::take(dir.path()).unwrap_err().to_string();
        assert!(text.contains(&std::process::id().to_string()), "{text}");
        drop(first);
        NvmLock::take(dir.path()).unwrap();
    }

    #[test]
    fn missing_and_short_segments_are_named() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let bytes = SEGMENT_BYTES + 8192;
        let map = make_nvm(dir.path(), bytes, &MapOptions::new()).unwrap();
        assert_eq!(map.bytes() as u64, bytes);
        drop(map);
        open_nvm(dir.path(), bytes, &MapOptions::new()).unwrap();
        let text = |b| {
            open_nvm(dir.path(), b, &MapOptions::new())
                .unwrap_err()
                .to_string()
        };
        assert!(
            text(bytes + 4096).contains("seg-0001 has 8192 bytes"),
            "{}",
            text(bytes + 4096)
        );
        std::fs::remove_file(dir.path().join("seg-0001")).unwrap();
        assert!(text(bytes).contains("seg-0001 is missing"));
        assert_eq!(volume_files(dir.path()).unwrap(), ["seg-0000"]);
        let none = open_nvm(&dir.path().join("x"), bytes, &MapOptions::new()).unwrap_err();
        assert!(none.to_string().contains("missing"));
    }
}
