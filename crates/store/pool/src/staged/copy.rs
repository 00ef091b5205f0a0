//! The memory tier of a volume that is not mounted, for a check and a repair.

use super::area::{AreaDevice, entry_of, failed, open_area};
use super::memory_tier::{lock_memory, read_image, unlock, why_not_current};
use super::pages;
use crate::error::{PoolError, Result};
use crate::nvm_dir::NvmLock;
use crate::volume_file::VolumeFile;
use shale_nvm::{Map, MapOptions};
use shale_persist::staged::{Checkpoint, PAGE_BYTES, StagedArea};
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// Where the state of a volume is that is not mounted.
#[derive(Debug)]
pub enum Found {
    /// In its memory tier: its daemon was killed, and all is there that it knew.
    Memory,
    /// In the area alone, and here.
    Copy(StagedCopy),
}

/// The newest image in memory of this process. While it lives nobody can mount the volume.
#[derive(Debug)]
pub struct StagedCopy {
    /// What the memory tier of the next mount will hold before batches are replayed.
    pub map: Arc<Map>,
    /// The checkpoint that it is of.
    pub checkpoint: Checkpoint,
    /// Batches that the next mount will replay: what was made durable since.
    pub batches: u64,
    dir: PathBuf,
    lock: Option<NvmLock>,
}

/// Finds the state of a volume without NVM that is not mounted. Its device is closed again when this returns.
///
/// # Errors
/// It is in use; the device or its area cannot be used.
pub fn examine(file: &VolumeFile) -> Result<Found> {
    let dir = file.nvm_dir().to_path_buf();
    let lock = lock_memory(&dir)?;
    let found = find(file);
    match found {
        Ok(Some((map, checkpoint, batches))) => Ok(Found::Copy(StagedCopy {
            map: Arc::new(map),
            checkpoint,
            batches,
            dir,
            lock: Some(lock),
        })),
        Ok(None) => Ok(Found::Memory),
        Err(e) => {
            // The first failure is the one to report.
            let _ = unlock(&dir, lock);
            Err(e)
        }
    }
}

/// The newest image, its checkpoint, and how many batches follow; `None`: the memory tier is there.
fn find(file: &VolumeFile) -> Result<Option<(Map, Checkpoint, u64)>> {
    let AreaDevice { device, starts, .. } = AreaDevice::open(file)?;
    if why_not_current(file, starts)?.is_none() {
        return Ok(None);
    }
    let area = open_area(file, device)?;
    let map = MapOptions::new().anonymous(file.nvm_bytes() as usize)?;
    read_image(file, &area, &map)?;
    let batches = count_batches(file, &area)?;
    Ok(Some((map, area.last_checkpoint(), batches)))
}

fn count_batches(file: &VolumeFile, area: &StagedArea) -> Result<u64> {
    let mut batches = 0;
    let counted = area.for_each_batch(&mut |_| {
        batches += 1;
        ControlFlow::Continue(())
    });
    let device = &entry_of(file)?.device;
    counted.map_err(|e| failed(device, e))?;
    Ok(batches)
}

impl StagedCopy {
    /// Whether a checkpoint may be made of the copy: it would free batches that wait.
    ///
    /// # Errors
    /// Some do, with what to do.
    pub fn may_be_repaired(&self, file: &VolumeFile) -> Result<()> {
        if self.batches == 0 {
            return Ok(());
        }
        let why = format!(
            "{} staged batches wait to be replayed, and a repair would lose them: mount it once, and repair it then if it has to be",
            self.batches
        );
        Err(PoolError::Refused {
            path: entry_of(file)?.device.clone(),
            why,
        })
    }

    /// Writes what a repair has changed: a checkpoint of all pages in which the copy is not as the images are. `txid`: the volume's last
    /// batch.
    ///
    /// # Errors
    /// Batches wait to be replayed, which a checkpoint would free; what the device says: then the volume is as it was.
    pub fn write_back(&self, file: &VolumeFile, txid: u64) -> Result<Checkpoint> {
        let entry = entry_of(file)?;
        let area = open_area(file, AreaDevice::open(file)?.device)?;
        self.may_be_repaired(file)?;
        let fds: Vec<BorrowedFd<'_>> = self.map.fds().collect();
        let [fd] = fds[..] else {
            unreachable!("memory without a name is one piece");
        };
        // Through the descriptor: a mapping would allocate what was never written.
        let mut unread = None;
        area.compare(&mut |page, into| {
            let at = page * PAGE_BYTES as u64;
            match rustix::io::pread(fd, &mut into[..], at) {
                Ok(PAGE_BYTES) => {}
                Ok(_) => unread = Some(rustix::io::Errno::IO),
                Err(e) => unread = Some(e),
            }
        });
        if let Some(e) = unread {
            return Err(PoolError::file(&self.dir, "read its copy", e));
        }
        let at = (txid, self.checkpoint.clean);
        pages::checkpoint(&entry.device, &area, &self.map, &[], at)
    }
}

impl Drop for StagedCopy {
    fn drop(&mut self) {
        if let Some(lock) = self.lock.take()
            && let Err(e) = unlock(&self.dir, lock)
        {
            tracing::warn!("{e}");
        }
    }
}
