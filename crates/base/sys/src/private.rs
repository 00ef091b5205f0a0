//! Files that nobody but their owner may open: what holds a volume's bytes, and locks.
//!
//! `flock` needs no more than a descriptor, so any process that can read a lock file can hold it. Modes are given
//! when a file is made, never afterwards, and a symbolic link in the place of a name is not followed.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path as FilePath, PathBuf};

use rustix::fs::{FileType, Mode};

/// What the owner may do with such a file.
pub const MODE: u32 = 0o600;
/// What others and the group would have.
const OTHERS: u32 = 0o077;

/// A file that others may open cannot be closed to them.
#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    /// A system call failed.
    #[error("{}: cannot {tried}: {source}", path.display())]
    Os {
        /// The file.
        path: PathBuf,
        /// What was tried, as a verb phrase.
        tried: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
    /// It is more open than it may be, and stays so.
    #[error("{}: {why}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What was found, and what to do.
        why: String,
    },
}

impl PrivateError {
    fn unread(path: &FilePath, e: impl Into<io::Error>) -> Self {
        PrivateError::Os {
            path: path.to_owned(),
            tried: "read its attributes",
            source: e.into(),
        }
    }
}

/// Makes a file that its owner alone may open.
///
/// # Errors
/// Something has the name, be it a symbolic link that leads nowhere; what the system says.
pub fn create_new(path: &FilePath) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(MODE);
    options.open(path)
}

/// Opens a lock file, or makes it. One that users other than its owner may open is closed to them.
///
/// # Errors
/// It is a symbolic link or no file; it is neither this user's, nor root's, nor that of the owner of its directory, who could keep
/// it locked for ever.
pub fn open_lock(path: &FilePath) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    // Not blocking: a FIFO in its place would wait for somebody who writes.
    options
        .mode(MODE)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).map_err(|e| match e.raw_os_error() {
        Some(libc::ELOOP) => not_a_lock("it is a symbolic link: remove it"),
        _ => e,
    })?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(not_a_lock("it is not a regular file: remove it"));
    }
    let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let directory = directory.unwrap_or(FilePath::new(".")).metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if ![own, 0, directory.uid()].contains(&found.uid()) {
        let uid = found.uid();
        let why = format!("it belongs to user {uid}, who could keep it locked: remove it");
        return Err(not_a_lock(&why));
    }
    if found.mode() & OTHERS != 0 {
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    Ok(file)
}

fn not_a_lock(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Closes an open file to everybody but its owner. Devices are left to those who set their rights (udev).
///
/// # Errors
/// It is more open and another user's: it is named, with what to do.
pub fn close_to_others(file: impl AsFd, path: &FilePath) -> Result<(), PrivateError> {
    let failed = |e| PrivateError::unread(path, e);
    let found = rustix::fs::fstat(&file).map_err(failed)?;
    let mode = found.st_mode & 0o7777;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile || mode & OTHERS == 0 {
        return Ok(());
    }
    let shown = path.display();
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & !OTHERS)).map_err(|e| {
        PrivateError::Open {
            path: path.to_owned(),
            why: format!(
                "its mode {mode:04o} lets users other than its owner open it, and it cannot be changed ({e}): chmod 600 {shown}"
            ),
        }
    })?;
    tracing::warn!("{shown}: its mode {mode:04o} let other users open it; it is closed to them");
    Ok(())
}

/// The same of a file by its name, which is not followed. What is no regular file is left as it is.
///
/// # Errors
/// As [`close_to_others`].
pub fn close_name_to_others(path: &FilePath) -> Result<(), PrivateError> {
    let failed = |e: io::Error| PrivateError::unread(path, e);
    let found = path.symlink_metadata().map_err(failed)?;
    if !found.is_file() || found.mode() & OTHERS == 0 {
        return Ok(());
    }
    let mut options = OpenOptions::new();
    let options = options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    close_to_others(options.open(path).map_err(failed)?, path)
}

/// The process that holds a `flock` of a file, as the kernel tells it: the one that took it. `None`: nobody does, or
/// one of another process namespace.
pub fn lock_holder(file: impl AsFd) -> Option<u32> {
    let stat = rustix::fs::fstat(file).ok()?;
    let (major, minor) = (
        rustix::fs::major(stat.st_dev),
        rustix::fs::minor(stat.st_dev),
    );
    let is = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    holder_in(&locks, &is)
}

/// `N: FLOCK  ADVISORY  WRITE PID MAJOR:MINOR:INODE START END`; who waits has "->" behind the number.
fn holder_in(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, place, ..] = words[..] else {
            return None;
        };
        let pid = pid.parse().ok().filter(|pid| *pid > 0);
        pid.filter(|_| place == file)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FlockOperation, flock};

    fn mode(path: &FilePath) -> u32 {
        path.symlink_metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn locks_are_private_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        drop(open_lock(&path).unwrap());
        assert_eq!(mode(&path), MODE);
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        drop(open_lock(&path).unwrap());
        assert_eq!(mode(&path), MODE, "mended");
        let (link, target) = (dir.path().join("link"), dir.path().join("target"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let said = open_lock(&link).unwrap_err().to_string();
        assert!(said.contains("symbolic link") && !target.exists(), "{said}");
        assert!(create_new(&link).is_err() && !target.exists());
        std::fs::create_dir(&target).unwrap();
        assert!(open_lock(&target).is_err());
    }

    #[test]
    fn the_holder_of_a_lock_is_reported() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = open_lock(&dir.path().join("lock")).unwrap();
        assert_eq!(lock_holder(&file), None);
        flock(&file, FlockOperation::LockExclusive).unwrap();
        assert_eq!(lock_holder(&file), Some(std::process::id()));
        let text = "1: POSIX  ADVISORY  WRITE 7 00:1a:5 0 EOF\n2: FLOCK  ADVISORY  WRITE 0 00:1a:5 0 EOF\n\
                    2: -> FLOCK  ADVISORY  WRITE 9 00:1a:5 0 EOF\n3: FLOCK  ADVISORY  READ  8 00:1a:5 0 EOF\n";
        assert_eq!(holder_in(text, "00:1a:5"), Some(8));
        assert_eq!(holder_in(text, "00:1a:6"), None);
    }
}
