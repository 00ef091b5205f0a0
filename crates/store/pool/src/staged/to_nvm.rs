//! A volume without NVM that gets NVM, between mounts.
//!
//! Its memory tier has the form of NVM, so the newest image is read into segments of the NVM directory, which then grow to the size that is
//! asked for, and the zones of the SSD get the space of the area. All that is done in a directory that nobody names. Then the
//! volume file names it, and not the area, in one rename: that is when the volume has NVM. At last the area is wiped, so that no old volume file leads to it.
//!
//! A power cut before the rename leaves the volume as it was, and a directory with a note `copying`, which the next try begins again; after
//! it, the volume with NVM, and a note of which area is to be wiped ([`resolve_note`]).

use super::area::{AreaDevice, entry_of, failed, layout, open_area};
use super::memory_tier::{lock_memory, remove_memory, unlock, why_not_current};
use super::resize::{blocks_max, resize_ssd};
use crate::device_probe::wrong;
use crate::error::{PoolError, Result};
use crate::growth::tier::OldTier;
use crate::growth::{make_segments, sync_dir};
use crate::host_space::{HostSpace, log_file_bytes, shown};
use crate::labels;
use crate::nvm_dir::{NvmLock, make_nvm, open_nvm};
use crate::nvm_target::{Note, NotedArea, Wanted, clear, prepare, refused, resolve_note};
use crate::volume_file::{NvmEntry, VolumeFile};
use serde::Serialize;
use shale_format::limits::{BLOCK_BYTES, NVM_BYTES_MIN};
use shale_nvm::{Map, MapOptions, Path as CountPath};
use shale_persist::Domain;
use shale_persist::staged::StagedArea;
use shale_sys::failpoints;
use shale_volume::{View, Volume, VolumeError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What became of a volume without NVM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NvmAdded {
    /// Its NVM directory.
    pub dir: PathBuf,
    /// Bytes of its NVM.
    pub size_bytes: u64,
    /// Bytes that its memory tier had.
    pub memory_bytes: u64,
    /// The SSD that had the area.
    pub device: PathBuf,
    /// Bytes that the area had.
    pub area_bytes: u64,
    /// Bytes that the zones of that SSD got of it.
    pub tier_gained_bytes: u64,
    /// The volume's durability, which stays.
    pub durability: String,
    /// What a fence is worth there: the name of a [`Domain`].
    pub persistence: &'static str,
    /// What a power cut may take of it, in one sentence.
    pub power_cut: &'static str,
}

/// Whether all that a volume without NVM has is in its newest checkpoint: else it has to be recovered before its memory tier can become
/// anything.
///
/// # Errors
/// It is in use; the device of the area cannot be used.
pub fn is_in_checkpoint(file: &VolumeFile) -> Result<bool> {
    let dir = file.nvm_dir();
    let lock = lock_memory(dir)?;
    let found = AreaDevice::open(file).and_then(|AreaDevice { device, starts, .. }| {
        let is_memory = why_not_current(file, starts)?.is_none();
        Ok(!is_memory && is_clean(&open_area(file, device)?))
    });
    unlock(dir, lock)?;
    found
}

fn is_clean(area: &StagedArea) -> bool {
    area.last_checkpoint().clean && area.staged_bytes() == 0
}

/// Gives a volume without NVM the NVM of `entry`: a directory that is made, or empty, and its bytes. Nobody may have it mounted, and all of
/// it has to be in its newest checkpoint ([`is_in_checkpoint`]). `progress` hears what is done, and of how much; `reached` of every step, for tests.
///
/// # Errors
/// It is in use or has NVM; something else is there, or no space; it is smaller than the memory tier; the device of the area cannot be used:
/// the volume is as before.
pub fn add_nvm(
    path: &Path,
    entry: &NvmEntry,
    progress: &mut dyn FnMut(u64, u64),
    reached: &dyn Fn(&'static str),
) -> Result<NvmAdded> {
    let file = VolumeFile::load(path)?;
    if !file.is_staged() {
        let why =
            "the volume has NVM: shale device grow has it grow, shale device replace moves it";
        return Err(refused(path, why));
    }
    let to = std::path::absolute(&entry.dir);
    let to = to.map_err(|e| PoolError::file(&entry.dir, "resolve it", e))?;
    let bytes = entry.size_bytes / BLOCK * BLOCK;
    check_size(path, bytes, file.nvm_bytes())?;
    let memory = file.nvm_dir().to_path_buf();
    let lock = lock_memory(&memory)?;
    let was_there = to.symlink_metadata().is_ok();
    let made = Making {
        path,
        file: &file,
        to: &to,
        bytes,
        reached,
    }
    .run(progress);
    match &made {
        // What was left of a memory tier, and not whole, goes with the lock.
        Ok(_) => {
            if let Err(e) = remove_memory(&memory, lock) {
                tracing::warn!("{e}");
            }
        }
        Err(_) => {
            if !was_there {
                // It stays if anything is in it.
                let _ = std::fs::remove_dir(&to);
            }
            let _ = unlock(&memory, lock);
        }
    }
    made
}

fn check_size(path: &Path, bytes: u64, memory_bytes: u64) -> Result<()> {
    let least = memory_bytes.max(NVM_BYTES_MIN);
    match bytes < least {
        true => {
            let why = format!(
                "NVM of {} is too small: its memory tier has {}, which is the least, as blocks keep their places",
                shown(bytes),
                shown(memory_bytes)
            );
            Err(refused(path, why))
        }
        false => Ok(()),
    }
}

/// NVM that is being made.
struct Making<'m> {
    path: &'m Path,
    file: &'m VolumeFile,
    to: &'m Path,
    bytes: u64,
    reached: &'m dyn Fn(&'static str),
}

impl Making<'_> {
    fn run(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<NvmAdded> {
        let (file, to) = (self.file, self.to);
        let area = entry_of(file)?.clone();
        let AreaDevice {
            device,
            starts,
            uuid,
        } = AreaDevice::open(file)?;
        let opened = open_area(file, device)?;
        if !is_clean(&opened) || why_not_current(file, starts)?.is_none() {
            let why = "not all of it is in its last checkpoint: mount it once, and unmount it";
            return Err(refused(self.path, why));
        }
        prepare(&Wanted {
            to,
            from: None,
            uuid: &file.uuid,
            bytes: self.bytes + log_file_bytes(file.log_bytes),
            what: "NVM and the log of the mount",
        })?;
        let _lock = NvmLock::take(to)?;
        let noted = NotedArea {
            device: area.device.clone(),
            at_byte: area.at_byte,
            starts,
        };
        Note::of(&file.uuid).with_area(noted).write(to)?;
        (self.reached)("add-noted");
        let made = self.make(&opened, (starts, &uuid), progress);
        // The note is resolved by who can lock the device.
        drop(opened);
        let (gained, domain) = match made {
            Ok(made) => made,
            Err(error) => {
                // The first failure is the one to report.
                let _ = clear(to);
                return Err(error);
            }
        };
        (self.reached)("add-made");
        self.name(area.at_byte, gained)?;
        failpoints::reach("nvm-named");
        (self.reached)("add-named");
        resolve_note(to)?;
        (self.reached)("add-wiped");
        Ok(NvmAdded {
            dir: to.to_path_buf(),
            size_bytes: self.bytes,
            memory_bytes: file.nvm_bytes(),
            device: area.device.clone(),
            area_bytes: layout(&area).bytes(),
            tier_gained_bytes: gained,
            durability: file.durability.clone(),
            persistence: domain.name(),
            power_cut: domain.lost_by_power_cut(
                HostSpace::of(to)?.is_memory,
                file.durability.parse().unwrap_or_default(),
            ),
        })
    }

    /// Makes all of the directory, durably. Gives the bytes that the zones of the area's device got, and what NVM it is.
    fn make(
        &self,
        area: &StagedArea,
        (starts, device_uuid): (u64, &[u8; 16]),
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(u64, Domain)> {
        let (file, to, from) = (self.file, self.to, self.file.nvm_bytes());
        let map = make_nvm(to, from, &MapOptions::new())?;
        let view = map.on(CountPath::Structure);
        let mut fill = |at: u64, bytes: &[u8]| {
            view.copy_nt(at as usize, bytes);
            progress(at + bytes.len() as u64, from * 2);
        };
        let device = &entry_of(file)?.device;
        area.read_image(&mut fill).map_err(|e| failed(device, e))?;
        view.fence();
        (self.reached)("add-written");
        compare(file, area, &map, progress)?;
        let map = Arc::new(map);
        let old = OldTier::read(&map)?;
        file.check_superblock(&old.superblock)?;
        if self.bytes > from {
            let new = old.superblock_of(self.bytes);
            let new = new.map_err(|why| refused(self.path, why))?;
            make_segments(to, (from, self.bytes), self.reached)?;
            old.grow(&open_nvm(to, self.bytes, &MapOptions::new())?, &new)?;
        }
        drop(map);
        (self.reached)("add-grown");
        let map = Arc::new(open_nvm(to, self.bytes, &MapOptions::new())?);
        let gained = self.take_area(&map, device_uuid)?;
        let (uuid, segments) = (file.uuid_bytes(), map.pieces().len());
        let domain = Domain::of(&map);
        let txid = Volume::open(map)?.txid();
        labels::write(to, &uuid, segments, starts, txid.0);
        sync_dir(to)?;
        to.parent().map_or(Ok(()), sync_dir)?;
        Ok((gained, domain))
    }

    /// Gives the area's space to the zones of its device, where no other device of the tier has the addresses behind them.
    fn take_area(&self, map: &Arc<Map>, device_uuid: &[u8; 16]) -> Result<u64> {
        let area = entry_of(self.file)?;
        let (view, _) = View::open(map.clone())?;
        let table = view.device_table()?;
        let at = table.of(0).iter().position(|p| p.uuid == *device_uuid);
        let at = at.ok_or_else(|| wrong(&area.device, "it is none of the volume's devices"))?;
        let place = table.of(0)[at];
        let end = area.at_byte + layout(area).bytes();
        let each = u64::from(place.zone_blocks);
        let blocks = (end - place.zones_byte()) / BLOCK / each * each;
        let blocks = blocks.min(blocks_max(&table, 0, at));
        if blocks <= place.blocks || !view.superblock().has_device_table() {
            return Ok(0);
        }
        Ok(match resize_ssd(map, device_uuid, blocks) {
            Ok(()) => (blocks - place.blocks) * BLOCK,
            // The space is of use and not needed: tables of it found no place in NVM.
            Err(PoolError::Volume(VolumeError::NoSpace { .. } | VolumeError::Lower(_))) => 0,
            Err(e) => return Err(e),
        })
    }

    /// Has the volume file name the NVM directory, and no area.
    fn name(&self, at_byte: u64, gained: u64) -> Result<()> {
        let area = entry_of(self.file)?;
        let nth = self.file.ssd.iter().position(|d| d.path == area.device);
        VolumeFile::edit(self.path, |_, there| {
            there.staged = None;
            there.nvm = vec![NvmEntry::new(self.to, self.bytes)];
            if let Some(device) = nth.and_then(|nth| there.ssd.get_mut(nth))
                && gained > 0
            {
                device.size_bytes = at_byte + layout(area).bytes();
            }
        })
    }
}

/// Compares what was written with the image.
fn compare(
    file: &VolumeFile,
    area: &StagedArea,
    map: &Map,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let (view, from) = (map.on(CountPath::Structure), file.nvm_bytes());
    let (mut there, mut wrong) = (Vec::new(), None);
    let device = &entry_of(file)?.device;
    let read = area.read_image(&mut |at, bytes| {
        there.resize(bytes.len(), 0);
        view.load(at as usize, &mut there);
        if there != bytes || map.lost(at as usize, bytes.len()).is_some() {
            wrong.get_or_insert(at);
        }
        progress(from + at + bytes.len() as u64, from * 2);
    });
    read.map_err(|e| failed(device, e))?;
    match wrong {
        None => Ok(()),
        Some(at) => {
            let why = format!("byte {at} is not what was written there: is the medium damaged?");
            Err(refused(device, why))
        }
    }
}
