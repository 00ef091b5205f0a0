//! Files with all their space that have no name yet: a process that dies before giving one leaves
//! nothing behind.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path as FilePath;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use crate::error::NvmError;
use crate::map::{allocate, sync_directory};

/// Creates a file of `bytes` zeros in `dir`, with all its space as
/// [`create_file`](crate::MapOptions::create_file) does, but without a name: it goes with
/// its last descriptor, and in a power cut.
///
/// # Errors
/// There is no space, or the file system has no such files (`EOPNOTSUPP`).
pub fn create_unnamed(dir: &FilePath, bytes: usize) -> Result<OwnedFd, NvmError> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|e| NvmError::os(dir, "create a file without a name in it", e))?;
    allocate(dir, &fd, bytes)?;
    Ok(fd)
}

/// Gives such a file a name on the same file system. When this returns the name survives a power
/// cut, as far as the file system does.
///
/// # Errors
/// The name exists already; what else the kernel says. Then there is no name.
pub fn name_unnamed(file: impl AsFd, path: &FilePath) -> Result<(), NvmError> {
    let own = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    rustix::fs::linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW)
        .map_err(|e| NvmError::os(path, "name it", e))?;
    let synced = sync_directory(path);
    if synced.is_err() {
        // The first failure is the one to report.
        let _ = rustix::fs::unlink(path);
    }
    synced
}

/// Gives a file another name in the same directory; what has that name already is gone. When this returns the new name
/// survives a power cut, as far as the file system does.
///
/// # Errors
/// What the kernel says. Then the file has its old name, or the new one, which a power cut can take back.
pub fn rename_file(from: &FilePath, to: &FilePath) -> Result<(), NvmError> {
    assert!(from.parent() == to.parent(), "another directory");
    rustix::fs::rename(from, to).map_err(|e| NvmError::os(from, "rename it", e))?;
    sync_directory(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Map, Piece};

    #[test]
    fn a_file_appears_with_its_name_and_all_its_space() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let fd = create_unnamed(dir.path(), 1 << 20).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks, (1 << 20) / 512);
        let path = dir.path().join("log-007");
        name_unnamed(&fd, &path).unwrap();
        let taken = name_unnamed(&fd, &path).unwrap_err();
        assert_eq!(taken.raw_os_error(), Some(libc::EEXIST));
        let piece = Piece { fd, bytes: 1 << 20 };
        let map = Map::open(vec![piece], Access::ReadWrite).unwrap();
        map.copy_nt(4096, b"content");
        let content = std::fs::read(&path).unwrap();
        assert_eq!(
            (content.len(), &content[4096..4103]),
            (1 << 20, &b"content"[..])
        );
        let other = dir.path().join("log-008");
        std::fs::write(&other, "in its place").unwrap();
        rename_file(&path, &other).unwrap();
        assert!(!path.exists() && std::fs::read(&other).unwrap() == content);
        let missing = rename_file(&path, &other).unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
        let gone = create_unnamed(&dir.path().join("none"), 4096).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ENOENT));
    }
}
