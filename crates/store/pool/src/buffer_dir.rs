//! Directories in shared memory: that of the update logs of buffered clients on a volume with NVM, and how any of them is made.
//!
//! A buffered client appends to a log in memory, and what has to survive a power cut is copied to its log in the NVM directory. After a power
//! cut the directory here is gone, and the logs in NVM count; after the daemon was killed it is there, and has more than they.

use crate::error::{PoolError, Result};
use crate::nvm_dir::{remove, volume_files};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// Mode of the directory.
const DIR_MODE: u32 = 0o700;

/// Makes a directory in shared memory, or looks whether it is one that nobody else can have put files into.
///
/// # Errors
/// It is another user's, or no directory; what the system says.
pub fn make_private_dir(dir: &Path) -> Result<()> {
    match std::fs::DirBuilder::new().mode(DIR_MODE).create(dir) {
        Ok(()) => return Ok(()),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let parent = dir.parent().unwrap_or(Path::new("/"));
            let why = format!(
                "{} is missing, in which a directory of the volume is made: is shared memory mounted there?",
                parent.display()
            );
            return Err(wrong(dir, why));
        }
        Err(e) => return Err(PoolError::file(dir, "make it", e)),
    }
    let found = match dir.symlink_metadata() {
        Ok(found) => found,
        // It goes at this moment: the lock will tell.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(PoolError::file(dir, "look at it", e)),
    };
    let own = rustix::process::geteuid().as_raw();
    let shown = dir.display();
    if !found.is_dir() {
        return Err(wrong(dir, format!("it is no directory: rm {shown}")));
    }
    if found.uid() != own {
        let why = format!(
            "it belongs to user {}, who could change every file of the volume: mount as that user, or rm -r {shown}",
            found.uid()
        );
        return Err(wrong(dir, why));
    }
    if found.mode() & 0o7777 != DIR_MODE {
        let mode = std::fs::Permissions::from_mode(DIR_MODE);
        let closed = std::fs::set_permissions(dir, mode);
        closed.map_err(|e| PoolError::file(dir, "close it to other users", e))?;
    }
    Ok(())
}

/// Removes the directory of buffered logs, if no log is left in it.
///
/// # Errors
/// What the system says.
pub fn remove_if_empty(dir: &Path) -> Result<()> {
    match std::fs::remove_dir(dir) {
        Err(e) if [ErrorKind::NotFound, ErrorKind::DirectoryNotEmpty].contains(&e.kind()) => Ok(()),
        done => done.map_err(|e| PoolError::file(dir, "remove it", e)),
    }
}

/// Removes the directory of buffered logs with all logs in it: those of a volume that is no more.
///
/// # Errors
/// What the system says.
pub fn remove_all(dir: &Path) -> Result<()> {
    for name in volume_files(dir)? {
        remove(&dir.join(name))?;
    }
    remove_if_empty(dir)
}

fn wrong(dir: &Path, why: String) -> PoolError {
    PoolError::NvmDir {
        dir: dir.to_path_buf(),
        why,
    }
}
