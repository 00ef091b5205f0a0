//! A volume with NVM that goes on without, between mounts.
//!
//! What is in NVM becomes its memory tier, which has the same form and size. A copy of it in memory of this process gives up the zones at
//! the end of an SSD, if there is no space behind them; an area is made there, with a checkpoint of the copy. Nothing of the volume with NVM has
//! changed by then: nothing of it is in use in those zones. Then the volume file names the area, and not the NVM directory, in one
//! rename: that is when the volume has no NVM. At last the files of the NVM directory go.
//!
//! A note `copying` in the NVM directory says where the area is. A power cut before the rename leaves the volume with NVM, and who opens
//! it next wipes the area and takes the note away; after it, the volume without, and old files with the note, which belong to nobody.

use super::area::failed;
use super::area_place::{self, AreaPlace};
use super::memory_tier::{check_space, lock_memory, remove_memory, unlock};
use super::pages;
use super::resize::resize_ssd;
use crate::device_probe::wrong;
use crate::devices::{label, label_of, write_label};
use crate::error::{PoolError, Result};
use crate::growth;
use crate::labels::{self, PUT_BACK};
use crate::mkfs::allocate;
use crate::nvm_dir::{NvmLock, open_nvm};
use crate::nvm_target::{Note, NotedArea, clear, refused, resolve_note};
use crate::volume_file::{DeviceFile, StagedEntry, VolumeFile, shared_memory_dir};
use serde::Serialize;
use shale_block::TierDevice;
use shale_format::log::slot_state;
use shale_format::superblock::DeviceEntry;
use shale_nvm::{Map, MapOptions, Path as CountPath};
use shale_persist::Domain;
use shale_persist::staged::{PAGE_BYTES, StagedArea};
use shale_sys::failpoints;
use shale_volume::Volume;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What became of a volume with NVM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NvmRemoved {
    /// The NVM directory that it had.
    pub dir: PathBuf,
    /// Where its area is.
    #[serde(flatten)]
    pub place: AreaPlace,
    /// Bytes of the area.
    pub area_bytes: u64,
    /// Bytes that the SSD tier lost.
    pub tier_lost_bytes: u64,
    /// The volume's durability, which stays.
    pub durability: String,
    /// What a power cut may take of it, in one sentence.
    pub power_cut: &'static str,
}

/// Whether records wait in logs of a volume with NVM: they have to be brought into it before it can go on without.
///
/// # Errors
/// It is in use, has no NVM, or that cannot be read.
pub fn has_logs(path: &Path) -> Result<bool> {
    Ok(Source::open(path)?.has_logs)
}

/// Looks where the area of a volume with NVM could be. `staging`: bytes of its staging area, if some were asked for.
///
/// # Errors
/// As [`has_logs`]; there is no SSD for it, or too little space: how much is needed and there is said.
pub fn find_place(path: &Path, staging: Option<u64>) -> Result<AreaPlace> {
    Source::open(path)?.place(path, staging)
}

/// A volume with NVM, locked.
struct Source {
    file: VolumeFile,
    map: Arc<Map>,
    /// How often it was started, as its segments tell.
    starts: u64,
    has_logs: bool,
    _lock: NvmLock,
}

impl Source {
    fn open(path: &Path) -> Result<Source> {
        let file = VolumeFile::load(path)?;
        if file.is_staged() {
            return Err(refused(path, "the volume has no NVM"));
        }
        let lock = NvmLock::take(file.nvm_dir())?;
        growth::resolve_locked(file.nvm_dir(), Some(path))?;
        // Its NVM may have grown just now.
        let file = VolumeFile::load(path)?;
        let dir = file.nvm_dir();
        let map = Arc::new(open_nvm(dir, file.nvm_bytes(), &MapOptions::new())?);
        let starts = labels::check(dir, &file.uuid_bytes(), map.pieces().len())?;
        let volume = Volume::open(map.clone())?;
        file.check_superblock(volume.superblock())?;
        let slots = volume.log_slots();
        Ok(Source {
            has_logs: slots.iter().any(|slot| slot.state != slot_state::FREE),
            file,
            map,
            starts,
            _lock: lock,
        })
    }

    fn place(&self, path: &Path, staging: Option<u64>) -> Result<AreaPlace> {
        let volume = Volume::open(self.map.clone())?;
        let place = area_place::find(path, &self.file, &volume, staging)?;
        let starts = self.starts;
        // As a start would find it: either is older than the other.
        if starts > 0 && place.starts > starts {
            let why = format!(
                "it is older than {} (label {starts}, expected {}): was it put back from a backup? {PUT_BACK}",
                place.device.display(),
                place.starts
            );
            let dir = self.file.nvm_dir().to_path_buf();
            return Err(PoolError::NvmDir { dir, why });
        }
        if place.starts + 1 < starts {
            let there = place.starts;
            let why = format!("it is older than the volume (label {there}, expected {starts})");
            return Err(wrong(&place.device, why));
        }
        Ok(place)
    }
}

/// Takes a volume's NVM away, of which nobody has anything in a log and nothing is in use where its area is to be ([`has_logs`], [`find_place`]). Nobody may have
/// it mounted. `progress` hears what is done, and of how much; `reached` of every step, for tests.
///
/// # Errors
/// As [`find_place`]; shared memory has too little space for its memory tier: the volume is as before.
pub fn remove_nvm(
    path: &Path,
    staging: Option<u64>,
    progress: &mut dyn FnMut(u64, u64),
    reached: &dyn Fn(&'static str),
) -> Result<NvmRemoved> {
    let source = Source::open(path)?;
    if source.has_logs {
        let why = "records wait in its logs: mount it once, and unmount it";
        return Err(refused(path, why));
    }
    let place = source.place(path, staging)?;
    if place.live_blocks > 0 {
        let why = format!(
            "{} blocks are in use where its staging area is to be",
            place.live_blocks
        );
        return Err(refused(&place.device, why));
    }
    let without = without_nvm(&source.file, &place);
    let memory = without.nvm_dir().to_path_buf();
    let lock = lock_memory(&memory)?;
    let removed = Removal {
        path,
        source: &source,
        place: &place,
        without: &without,
        reached,
    }
    .run(progress);
    match &removed {
        Ok(_) => {
            if let Err(e) = remove_memory(&memory, lock) {
                tracing::warn!("{e}");
            }
        }
        Err(_) => {
            let _ = unlock(&memory, lock);
        }
    }
    removed
}

/// The volume file as it is to be, with absolute paths.
fn without_nvm(file: &VolumeFile, place: &AreaPlace) -> VolumeFile {
    let mut without = file.clone();
    without.nvm.clear();
    without.staged = Some(StagedEntry {
        memory_dir: shared_memory_dir(&file.uuid_bytes()),
        memory_bytes: place.memory_bytes,
        device: place.device.clone(),
        at_byte: place.at_byte,
        staging_bytes: place.staging_bytes,
    });
    without.ssd[place.nth].size_bytes = place.at_byte;
    without
}

/// NVM that is being taken away.
struct Removal<'r> {
    path: &'r Path,
    source: &'r Source,
    place: &'r AreaPlace,
    without: &'r VolumeFile,
    reached: &'r dyn Fn(&'static str),
}

impl Removal<'_> {
    fn run(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<NvmRemoved> {
        let (file, place) = (&self.source.file, self.place);
        let dir = file.nvm_dir();
        check_space(self.without)?;
        let copy = Arc::new(MapOptions::new().anonymous(place.memory_bytes as usize)?);
        let written = self.copy_to(&copy, progress)?;
        if place.tier_lost_bytes() > 0 {
            resize_ssd(&copy, &place.uuid, place.blocks[1])?;
        }
        (self.reached)("remove-copied");
        let noted = NotedArea {
            device: place.device.clone(),
            at_byte: place.at_byte,
            starts: place.starts,
        };
        Note::of(&file.uuid).with_area(noted).write(dir)?;
        (self.reached)("remove-noted");
        let device = &file.ssd[place.nth];
        let made = self.make_area(device, &copy, (written, progress));
        let named = made.and_then(|device| {
            self.name()?;
            Ok(device)
        });
        let device = match named {
            Ok(device) => device,
            Err(error) => {
                // It may be named, and not durably so: then the area stays, and the note.
                if VolumeFile::load(self.path).is_ok_and(|file| !file.is_staged()) {
                    // The first failure is the one to report; the next opener of the volume wipes it, too.
                    let _ = resolve_note(dir);
                }
                return Err(error);
            }
        };
        failpoints::reach("no-nvm-named");
        (self.reached)("remove-named");
        // The volume has no NVM any more, whatever becomes of the rest.
        if let Err(e) = self.label(&*device).and_then(|()| clear(dir)) {
            let shown = dir.display();
            tracing::warn!("{e}: remove by hand what is left in {shown}");
        }
        // Of a file system's root, or with somebody's files in it, it stays.
        let _ = std::fs::remove_dir(dir);
        (self.reached)("remove-cleared");
        Ok(NvmRemoved {
            dir: dir.to_path_buf(),
            place: place.clone(),
            area_bytes: place.layout().bytes(),
            tier_lost_bytes: place.tier_lost_bytes(),
            durability: file.durability.clone(),
            power_cut: Domain::Staged
                .lost_by_power_cut(false, file.durability.parse().unwrap_or_default()),
        })
    }

    /// Copies what NVM holds. Gives the bytes that were copied.
    fn copy_to(&self, copy: &Map, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        let map = &*self.source.map;
        let (from, to) = (map.on(CountPath::Structure), copy.on(CountPath::Structure));
        let (pages, page_bytes) = (pages::written(map)?, PAGE_BYTES as u64);
        let all = pages.len() as u64 * page_bytes;
        for (n, page) in (1..).zip(&pages) {
            let at = *page as usize * PAGE_BYTES;
            let bytes: [u8; PAGE_BYTES] = from.load_array(at);
            if map.lost(at, PAGE_BYTES).is_some() {
                let why = format!(
                    "byte {at} of NVM cannot be read: shale fsck and scrub say what it belongs to"
                );
                return Err(refused(self.source.file.nvm_dir(), why));
            }
            to.store(at, &bytes);
            progress(n * page_bytes, all * 3);
        }
        Ok(all)
    }

    /// Makes the area with its first checkpoint, and compares that with the copy. Gives the device.
    fn make_area(
        &self,
        device: &DeviceFile,
        copy: &Arc<Map>,
        (all, progress): (u64, &mut dyn FnMut(u64, u64)),
    ) -> Result<Arc<dyn TierDevice>> {
        let (place, uuid) = (self.place, self.without.uuid_bytes());
        let (path, at, layout) = (&device.path, place.at_byte, place.layout());
        let device = device.open_conventional(at + layout.bytes())?;
        if path.is_file() {
            allocate(path, at, layout.bytes())?;
        }
        let of = |e| failed(path, e);
        let txid = Volume::open(copy.clone())?.txid().0;
        let area = StagedArea::make(device.clone(), at, layout, uuid).map_err(of)?;
        (self.reached)("remove-area");
        let written = pages::written(copy)?;
        pages::checkpoint(path, &area, copy, &written, (txid, true))?;
        drop(area);
        progress(all * 2, all * 3);
        (self.reached)("remove-written");
        let area = StagedArea::open(device.clone(), at, layout, uuid).map_err(of)?;
        let view = copy.on(CountPath::Structure);
        let (mut there, mut bytes, mut same) = (Vec::new(), 0, true);
        let read = area.read_image(&mut |at, image| {
            there.resize(image.len(), 0);
            view.load(at as usize, &mut there);
            same &= there == image;
            bytes += image.len() as u64;
            progress(all * 2 + bytes.min(all), all * 3);
        });
        read.map_err(of)?;
        if !same || bytes < written.len() as u64 * PAGE_BYTES as u64 {
            let why = "its staging area is not what was written there: is the device damaged?";
            return Err(refused(path, why));
        }
        Ok(device)
    }

    /// Has the volume file name the area, and no NVM directory.
    fn name(&self) -> Result<()> {
        let nth = self.place.nth;
        VolumeFile::edit(self.path, |_, there| {
            let Some(device) = there.ssd.get_mut(nth) else {
                return;
            };
            device.size_bytes = self.without.ssd[nth].size_bytes;
            // Named by the same path, absolute or not.
            let device = device.path.clone();
            there.nvm.clear();
            there.staged = self.without.staged.clone();
            there
                .staged
                .iter_mut()
                .for_each(|s| s.device.clone_from(&device));
        })
    }

    /// Has the label of the device say how many blocks it has, as a start would: by that the area is found without a volume file.
    fn label(&self, device: &dyn TierDevice) -> Result<()> {
        let blocks = self.place.blocks[1];
        match label_of(device)?.filter(|found| found.blocks != blocks) {
            None => Ok(()),
            Some(found) => {
                let entry = DeviceEntry {
                    uuid: found.uuid,
                    blocks,
                    zone_blocks: found.zone_blocks,
                    kind: found.kind,
                };
                let at = (found.tier, found.place);
                write_label(device, &label(found.volume, at, &entry, found.count))
            }
        }
    }
}
