//! Finding volumes by what is on their media, without their volume files: superblocks of memory tiers, labels of devices.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`machine`] | the block devices of this machine |
//! | [`media`] | what of a volume is at one path |
//! | [`head`] | superblock and device table, read alone |
//! | [`members`] | which members a volume has, and which of them were found |
//! | [`rebuild`] | the volume file, from what was found |
//!
//! Nothing is locked (but [`media`] for a moment what it has to open) and nothing is written: volumes may be mounted meanwhile.

mod head;
mod machine;
mod media;
mod members;
mod rebuild;

pub use head::Head;
pub use machine::block_devices;
pub use media::{FoundDevice, FoundSegments};
pub use members::{Member, MemberState};
pub use rebuild::RebuildOptions;

use crate::device_kind::DeviceKind;
use crate::error::{PoolError, Result};
use crate::staged::area::failed;
use crate::volume_file::{VolumeFile, shared_memory_dir};
use media::{Medium, look_at, reader};
use shale_format::limits::{BLOCK_BYTES, LABEL_AREA_BYTES};
use shale_persist::staged::{AreaLayout, Checkpoint, PAGE_BYTES, SavedImage, find_areas};
use std::collections::{BTreeMap, HashSet};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Largest zones that mkfs makes of a device unless others are asked for.
const ZONE_BYTES_USUAL: u64 = 64 << 20;

/// The area of a volume without NVM.
#[derive(Clone, Debug)]
pub struct FoundArea {
    /// The device that has it.
    pub device: PathBuf,
    /// Byte of the device at which it begins.
    pub at_byte: u64,
    /// How large its parts are.
    pub layout: AreaLayout,
    /// Its newest checkpoint.
    pub checkpoint: Checkpoint,
    /// What the image says of the volume.
    pub head: Head,
}

/// All that was found of a volume.
#[derive(Clone, Debug, Default)]
pub struct FoundVolume {
    /// Its identity.
    pub uuid: [u8; 16],
    /// NVM directories with it; more than one: copies.
    pub nvm: Vec<FoundSegments>,
    /// Its memory tier, of a volume without NVM that is mounted, or whose daemon was killed.
    pub memory: Option<FoundSegments>,
    /// Its areas, of a volume without NVM; more than one: copies.
    pub areas: Vec<FoundArea>,
    /// Devices that have its label.
    pub devices: Vec<FoundDevice>,
    /// Devices that its volume file names and another process uses, so that their labels could not be read: tier (0 ssd, 1 hdd),
    /// place, path.
    pub in_use: Vec<(usize, usize, PathBuf)>,
    /// What is wrong with it, in words.
    pub trouble: Vec<String>,
}

/// Something that could not be looked at.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// Where.
    pub path: PathBuf,
    /// Why not.
    pub why: String,
    /// Another process uses it.
    pub in_use: bool,
    /// It is a member of a volume all the same.
    pub is_member: bool,
    /// This user may not.
    pub denied: bool,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Volumes, by identity.
    pub volumes: Vec<FoundVolume>,
    /// What could not be looked at.
    pub unreadable: Vec<Unreadable>,
}

impl Scan {
    /// Looks at files, block devices and directories; a directory without segments is looked through one level deep. `known`: volume files
    /// that tell where memory tiers are, and which devices are which that are in use. `area_at`: where the area begins, if several places
    /// look like it.
    pub fn of(places: &[PathBuf], known: &[VolumeFile], area_at: Option<u64>) -> Scan {
        let mut scan = Scan::default();
        let mut volumes: BTreeMap<[u8; 16], FoundVolume> = BTreeMap::new();
        let mut seen = HashSet::new();
        for place in places.iter().flat_map(|place| expand(place)) {
            if !identity(&place).is_none_or(|id| seen.insert(id)) {
                continue;
            }
            match look_at(&place) {
                Ok(Medium::Segments(found)) => {
                    let volume = volumes.entry(found.uuid).or_default();
                    match is_memory_tier(&found, known) {
                        true => volume.memory = Some(*found),
                        false => volume.nvm.push(*found),
                    }
                }
                Ok(Medium::Device(found)) => {
                    let volume = volumes.entry(found.label.volume).or_default();
                    volume.devices.push(found);
                }
                Ok(Medium::Other) => {}
                Err(error) => scan.unreadable.push(Unreadable::new(place, &error)),
            }
        }
        for (uuid, mut volume) in volumes {
            volume.uuid = uuid;
            volume.look_for_memory(known);
            volume.look_for_areas(area_at);
            let known = known.iter().find(|file| file.uuid_bytes() == uuid);
            volume.in_use = known.map_or(Vec::new(), |file| scan.in_use_of(file));
            for (.., path) in &volume.in_use {
                let is = |u: &&mut Unreadable| identity(&u.path) == identity(path);
                scan.unreadable
                    .iter_mut()
                    .filter(is)
                    .for_each(|u| u.is_member = true);
            }
            scan.volumes.push(volume);
        }
        scan
    }

    /// Devices of a volume file that were found in use.
    fn in_use_of(&self, file: &VolumeFile) -> Vec<(usize, usize, PathBuf)> {
        let is = |path: &Path| {
            let mut all = self.unreadable.iter();
            all.any(|u| u.in_use && identity(&u.path) == identity(path))
        };
        let tiers = [&file.ssd, &file.hdd].into_iter().enumerate();
        let all = tiers.flat_map(|(n, files)| {
            let files = files.iter().enumerate();
            files.map(move |(place, file)| (n, place, file.path.clone()))
        });
        all.filter(|(_, _, path)| is(path)).collect()
    }
}

impl Unreadable {
    fn new(path: PathBuf, error: &PoolError) -> Self {
        let errno = match error {
            PoolError::Device(error) => error.raw_os_error(),
            PoolError::File { source, .. } => source.raw_os_error(),
            _ => None,
        };
        Self {
            path,
            why: error.to_string(),
            in_use: error.is_busy(),
            is_member: false,
            denied: [Some(libc::EACCES), Some(libc::EPERM)].contains(&errno),
        }
    }
}

impl FoundVolume {
    /// What its memory tier says, the newest there is; none: no NVM directory, memory tier or area that can be read was found.
    pub fn head(&self) -> Option<&Head> {
        let nvm = { self.nvm.iter() }.filter_map(|nvm| nvm.head.as_ref().ok());
        // A memory tier without an area is not enough for a mount.
        let memory = { self.memory.iter() }.filter(|_| !self.areas.is_empty());
        let memory = memory.filter_map(|memory| memory.head.as_ref().ok());
        let areas = self.areas.iter().map(|area| &area.head);
        nvm.chain(memory).chain(areas).max_by_key(|head| head.txid)
    }

    fn look_for_memory(&mut self, known: &[VolumeFile]) {
        let named = known.iter().find(|f| f.uuid_bytes() == self.uuid);
        let named = named
            .filter(|f| f.is_staged())
            .map(|f| f.nvm_dir().to_path_buf());
        let dir = named.unwrap_or_else(|| shared_memory_dir(&self.uuid));
        if self.memory.is_none()
            && dir.is_dir()
            && let Ok(Medium::Segments(found)) = look_at(&dir)
            && found.uuid == self.uuid
        {
            self.memory = Some(*found);
        }
    }

    /// A directory with a note `copying` counts where nothing else does: as long as the note is there, what else there is holds the same, or more.
    fn look_for_areas(&mut self, area_at: Option<u64>) {
        if self.nvm.iter().any(|nvm| !nvm.is_copy) {
            self.nvm.retain(|nvm| !nvm.is_copy);
            return;
        }
        for device in &self.devices {
            if device.label.tier != 1 || device.kind != DeviceKind::Conventional {
                continue;
            }
            match FoundArea::on(device, area_at) {
                Ok(found) => self.areas.extend(found),
                Err(error) => self.trouble.push(error.to_string()),
            }
        }
        if !self.areas.is_empty() {
            self.nvm.clear();
        }
    }
}

impl FoundArea {
    /// The area that a device has behind its zones, if it has one.
    fn on(device: &FoundDevice, area_at: Option<u64>) -> Result<Option<FoundArea>> {
        let (label, path) = (&device.label, &device.path);
        let of = |e| failed(path, e);
        let blocks = reader(device)?;
        let block = BLOCK_BYTES as u64;
        let zone_bytes = u64::from(label.zone_blocks).saturating_mul(block);
        let zone_bytes = zone_bytes.max(ZONE_BYTES_USUAL);
        // Zones may begin later: one zone at most. Between them and the area less than a zone is left.
        let from = LABEL_AREA_BYTES.saturating_add(label.blocks.saturating_mul(block));
        let sure = from.saturating_add(zone_bytes);
        let range = from..sure.saturating_add(zone_bytes.saturating_mul(2));
        let at_byte = match area_at {
            Some(at) => at,
            None => match find_areas(&*blocks, label.volume, range, sure).map_err(of)?[..] {
                [] => return Ok(None),
                [at] => at,
                ref all => {
                    let all: Vec<String> = all.iter().map(u64::to_string).collect();
                    let why = format!(
                        "staging areas seem to begin at bytes {}: one is real, and what else looks like one is in a file: say which with \
                         --area-at BYTE",
                        all.join(" and ")
                    );
                    return Err(crate::device_probe::wrong(path, why));
                }
            },
        };
        let image = SavedImage::open(blocks, at_byte).map_err(of)?;
        let mut page = [0; PAGE_BYTES];
        let head = Head::read(image.layout().memory_bytes, &mut |at, into| {
            for (n, part) in (0..).zip(into.chunks_mut(PAGE_BYTES)) {
                let read = image.read_page(at / PAGE_BYTES as u64 + n, &mut page);
                read.map_err(of)?;
                part.copy_from_slice(&page[..part.len()]);
            }
            Ok(())
        })?;
        let mut places = head.table.of(0).iter();
        let place = places.find(|place| place.uuid == label.uuid);
        let is_behind = place.is_some_and(|place| place.device_bytes() <= at_byte);
        if head.superblock.uuid != label.volume || !is_behind {
            let why = format!("what begins at byte {at_byte} is not the volume's staging area");
            return Err(crate::device_probe::wrong(path, why));
        }
        Ok(Some(FoundArea {
            device: path.clone(),
            at_byte,
            layout: image.layout(),
            checkpoint: image.checkpoint(),
            head,
        }))
    }
}

/// Whether segments are those of a memory tier: they lie where a volume file says, or else where it usually is.
fn is_memory_tier(found: &FoundSegments, known: &[VolumeFile]) -> bool {
    let is_at = |dir: &Path| identity(dir).is_some_and(|id| Some(id) == identity(&found.dir));
    let mut staged = known.iter().filter(|file| file.is_staged());
    is_at(&shared_memory_dir(&found.uuid))
        || staged.any(|file| file.uuid_bytes() == found.uuid && is_at(file.nvm_dir()))
}

/// A place, or what is in a directory without segments.
fn expand(place: &Path) -> Vec<PathBuf> {
    if !place.is_dir() || media::has_segments(place) {
        return vec![place.to_path_buf()];
    }
    let entries = match std::fs::read_dir(place) {
        Ok(entries) => entries,
        // Looking at it says why.
        Err(_) => return vec![place.to_path_buf()],
    };
    let mut all: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    all.retain(|path| {
        path.metadata().is_ok_and(|found| {
            let kind = found.file_type();
            kind.is_file() || kind.is_block_device() || kind.is_dir()
        })
    });
    all.sort();
    all
}

/// What two names of the same file or device have in common; a loop device has it in common with the file behind it.
pub fn identity(path: &Path) -> Option<(bool, u64, u64)> {
    let found = path.metadata().ok()?;
    if !found.file_type().is_block_device() {
        return Some((false, found.dev(), found.ino()));
    }
    let (major, minor) = (
        rustix::fs::major(found.rdev()),
        rustix::fs::minor(found.rdev()),
    );
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/loop"));
    let text = |name| std::fs::read_to_string(device.join(name)).unwrap_or_default();
    let (file, offset) = (text("backing_file"), text("offset"));
    let behind = Path::new(file.trim_end_matches('\n')).metadata();
    Some(match behind {
        Ok(behind) if offset.trim() == "0" && behind.is_file() => {
            (false, behind.dev(), behind.ino())
        }
        _ => (true, found.rdev(), 0),
    })
}

/// Where the media of a volume are, as its file says.
pub fn places_of(file: &VolumeFile) -> Vec<PathBuf> {
    let nvm = file.nvm.iter().map(|nvm| nvm.dir.clone());
    let devices = file.ssd.iter().chain(&file.hdd);
    nvm.chain(devices.map(|device| device.path.clone()))
        .collect()
}
