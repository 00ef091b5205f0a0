//! The directory of a memory tier: found after its daemon was killed, or made from the area, and removed.

use super::area::{AreaDevice, entry_of, failed, open_area};
use crate::buffer_dir::make_private_dir;
use crate::error::{PoolError, Result};
use crate::host_space::{HostSpace, free_memory, log_file_bytes, shown, taken_bytes};
use crate::labels;
use crate::nvm_dir::{NvmLock, lock_path, make_nvm, open_nvm, remove, volume_files};
use crate::volume_file::VolumeFile;
use shale_block::TierDevice;
use shale_nvm::{Map, MapOptions, Path as CountPath};
use shale_persist::staged::{Checkpoint, StagedArea};
use shale_volume::View;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// A file that says that the memory tier beside it is not whole: it is being made, or removed.
const MARKER: &str = "restoring";
/// How often a directory is made again that goes while it is locked.
const LOCK_TRIES: usize = 100;

/// A memory tier that a mount may use.
#[derive(Debug)]
pub struct Restored {
    /// The lock of its directory, as [`NvmLock::take`] gives it.
    pub lock: NvmLock,
    /// Its segments, mapped with the options that were given; none of what was stored to make them was recorded.
    pub map: Map,
    /// It was made from the newest image: batches wait to be replayed, labels and logs are missing. Else it is as its daemon
    /// left it when it was killed.
    pub restored: bool,
    /// The newest checkpoint. A clean one: no batches wait.
    pub checkpoint: Checkpoint,
}

/// Locks the memory tier of a volume, and makes it from the newest image if it is missing, cut short, another volume's, or older than the
/// device of the area. That device is closed again when this returns.
///
/// # Errors
/// The volume is in use; the device or its area cannot be used; shared memory has too little space: then how much is needed is said; the
/// directory is another user's.
pub fn restore(file: &VolumeFile, options: &MapOptions) -> Result<Restored> {
    let lock = lock_memory(file.nvm_dir())?;
    let AreaDevice { device, starts, .. } = AreaDevice::open(file)?;
    restore_of(file, options, (lock, starts), device)
}

/// As [`restore`], from a device that is open and whose label is not looked at.
///
/// # Errors
/// As there.
pub fn restore_from(
    file: &VolumeFile,
    options: &MapOptions,
    device: Arc<dyn TierDevice>,
) -> Result<Restored> {
    let lock = lock_memory(file.nvm_dir())?;
    restore_of(file, options, (lock, 0), device)
}

fn restore_of(
    file: &VolumeFile,
    options: &MapOptions,
    (lock, starts): (NvmLock, u64),
    device: Arc<dyn TierDevice>,
) -> Result<Restored> {
    let (dir, bytes) = (file.nvm_dir(), file.nvm_bytes());
    let area = open_area(file, device)?;
    let checkpoint = area.last_checkpoint();
    let old = why_not_current(file, starts)?;
    if let Some(why) = &old {
        let shown = dir.display();
        let number = checkpoint.number;
        tracing::info!(checkpoint = number, why = %why, "memory tier made again in {shown}");
        make(file, &area)?;
    }
    drop(area);
    Ok(Restored {
        lock,
        map: open_nvm(dir, bytes, options)?,
        restored: old.is_some(),
        checkpoint,
    })
}

/// Notes that a memory tier which [`restore`] made is whole: batches are replayed, and a checkpoint is newer. From now on it is taken when its
/// daemon was killed.
///
/// # Errors
/// What the system says.
pub fn finish_restore(dir: &Path) -> Result<()> {
    remove(&dir.join(MARKER))
}

/// Removes a memory tier, with all files of it, whose lock the caller has: what it held is in the last checkpoint. The next mount makes it
/// again, also if this does not come to its end.
///
/// # Errors
/// What the system says.
pub fn remove_memory(dir: &Path, lock: NvmLock) -> Result<()> {
    mark(dir)?;
    for name in volume_files(dir)? {
        remove(&dir.join(name))?;
    }
    remove(&dir.join(MARKER))?;
    remove(&lock_path(dir))?;
    drop(lock);
    match std::fs::remove_dir(dir) {
        // Another mount has begun to make it again.
        Err(e) if [ErrorKind::NotFound, ErrorKind::DirectoryNotEmpty].contains(&e.kind()) => Ok(()),
        done => done.map_err(|e| PoolError::file(dir, "remove it", e)),
    }
}

/// Removes the memory tier of a volume that was destroyed, if it is there and this user's.
///
/// # Errors
/// It is in use; as [`remove_memory`].
pub(crate) fn remove_of(dir: &Path) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let found = dir.symlink_metadata();
    match found.is_ok_and(|found| found.is_dir() && found.uid() == own) {
        true => remove_memory(dir, NvmLock::take(dir)?),
        false => Ok(()),
    }
}

/// Removes a directory that was made only to be locked.
pub(crate) fn unlock(dir: &Path, lock: NvmLock) -> Result<()> {
    match volume_files(dir)?.is_empty() {
        true => remove_memory(dir, lock),
        false => Ok(()),
    }
}

/// Locks the directory of a memory tier; makes it if it is missing.
pub(crate) fn lock_memory(dir: &Path) -> Result<NvmLock> {
    for _ in 0..LOCK_TRIES {
        make_private_dir(dir)?;
        match NvmLock::take(dir) {
            Ok(lock) if lock.is_at(&lock_path(dir)) => return Ok(lock),
            // It went while it was locked: an unmount ended.
            Ok(_) => {}
            Err(PoolError::File { source, .. }) if source.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    let gone = std::io::Error::from(ErrorKind::NotFound);
    Err(PoolError::file(dir, "lock it", gone))
}

/// Why the memory tier that is there is none to go on with; `None`: it is. `starts`: how often the volume was started, as the device of
/// the area tells.
pub(crate) fn why_not_current(file: &VolumeFile, starts: u64) -> Result<Option<String>> {
    let (dir, bytes) = (file.nvm_dir(), file.nvm_bytes());
    if dir.join(MARKER).symlink_metadata().is_ok() {
        return Ok(Some("it is not whole".to_owned()));
    }
    let map = match open_nvm(dir, bytes, &MapOptions::new()) {
        Ok(map) => Arc::new(map),
        Err(e @ PoolError::NvmDir { .. }) => return Ok(Some(e.to_string())),
        Err(e) => return Err(e),
    };
    let uuid = file.uuid_bytes();
    let found = match View::open_head(map.clone()) {
        Ok((view, _)) => view.superblock().uuid,
        Err(e) => return Ok(Some(e.to_string())),
    };
    if found != uuid {
        return Ok(Some("it is another volume's".to_owned()));
    }
    let count = match labels::check(dir, &uuid, map.pieces().len()) {
        Ok(count) => count,
        Err(e) => return Ok(Some(e.to_string())),
    };
    Ok((count < starts)
        .then(|| format!("it is older than the device (label {count}, expected {starts})")))
}

/// Makes the segments from the newest image. Nothing of what was there before is left but the lock.
fn make(file: &VolumeFile, area: &StagedArea) -> Result<()> {
    let (dir, bytes) = (file.nvm_dir(), file.nvm_bytes());
    check_space(file)?;
    mark(dir)?;
    for name in volume_files(dir)? {
        remove(&dir.join(name))?;
    }
    let made =
        make_nvm(dir, bytes, &MapOptions::new()).and_then(|map| read_image(file, area, &map));
    if made.is_err() {
        // Memory is not to be kept by what nobody can use. The first failure is the one to report.
        for name in volume_files(dir)? {
            let _ = remove(&dir.join(name));
        }
    }
    made
}

/// Reads the newest image into a memory tier that holds zeros.
pub(crate) fn read_image(file: &VolumeFile, area: &StagedArea, map: &Map) -> Result<()> {
    let view = map.on(CountPath::Structure);
    let put = &mut |at: u64, bytes: &[u8]| view.store(at as usize, bytes);
    { area.read_image(put) }.map_err(|e| match entry_of(file) {
        Ok(entry) => failed(&entry.device, e),
        Err(no_area) => no_area,
    })
}

fn mark(dir: &Path) -> Result<()> {
    let path = dir.join(MARKER);
    let made = shale_sys::private::create_new(&path);
    match made {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(PoolError::file(&path, "make it", e)),
        _ => Ok(()),
    }
}

/// Whether the memory tier and the log of the mount fit into shared memory, and into memory. What is in the directory is going to go.
pub(crate) fn check_space(file: &VolumeFile) -> Result<()> {
    let dir = file.nvm_dir();
    let log_bytes = file.clone().with_next_mount().log_bytes;
    let need = file.nvm_bytes() + log_file_bytes(log_bytes);
    let (host, taken) = (HostSpace::of(dir)?, taken_bytes(dir)?);
    let memory = free_memory().filter(|_| host.is_memory);
    let free = memory.map_or(host.free_bytes, |free| free.min(host.free_bytes));
    let free = free.saturating_add(taken);
    if free >= need {
        return Ok(());
    }
    let (parts, free) = (
        format!(
            "{} ({} of the memory tier, {} for the log of the mount)",
            shown(need),
            shown(file.nvm_bytes()),
            shown(log_file_bytes(log_bytes))
        ),
        shown(free),
    );
    let why = format!(
        "the volume needs {parts} of shared memory, and {free} are free there ({}): end what takes it, make it larger (mount -o \
         remount,size=SIZE), set staged.memory_dir to a directory of another tmpfs, or a smaller log_bytes, in the volume file; the memory tier \
         itself gets smaller only with a new volume (shale mkfs --memory SIZE)",
        host.kind
    );
    Err(unfit(dir, why))
}

fn unfit(dir: &Path, why: String) -> PoolError {
    PoolError::NvmDir {
        dir: dir.to_path_buf(),
        why,
    }
}
