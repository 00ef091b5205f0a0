//! Devices of the tiers below NVM: made, labelled, opened.
//!
//! A label says which volume and which place in it a device is for, and how often the volume was
//! started. So a device that is missing, swapped, another volume's, or put back from a backup is
//! named at the start; nothing is written before all are found right. Labels count starts as those
//! of segments do ([`crate::labels`]): twice each time, so that a crash on the way is no damage.

use crate::error::{DaemonError, Result};
use crate::make::random;
use crate::medium::{self, wrong};
use crate::volume_file::{DeviceFile, VolumeFile, uuid_text};
use shale_device::{Map, TierDevice};
use shale_format::TierId;
use shale_format::device_table::{DevicePlace, DeviceTable};
use shale_format::limits::{BLOCK_BYTES, DEVICES_MAX};
use shale_format::superblock::{DeviceEntry, Superblock, TierTable};
use shale_format::version::VERSION;
use shale_format::zone::{DeviceLabel, LABEL_MAGIC};
use shale_volume::{LowerDevices, Volume};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zerocopy::FromZeros;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Fewest zones of a tier: two that are written, one that is cleaned, one in reserve.
const ZONES_MIN: u64 = 4;
/// Tiers below NVM as people call them.
pub(crate) const NAMES: [&str; 2] = ["ssd", "hdd"];
/// They.
pub(crate) const LOWER: [TierId; 2] = [TierId::Ssd, TierId::Hdd];

/// The tiers below NVM of a new volume.
#[derive(Clone, Debug, Default)]
pub struct LowerTiers {
    /// Flash.
    pub ssd: Vec<DeviceFile>,
    /// Disks.
    pub hdd: Vec<DeviceFile>,
}

impl LowerTiers {
    pub(crate) fn tiers(&self) -> [&Vec<DeviceFile>; 2] {
        [&self.ssd, &self.hdd]
    }
}

/// Devices that are to become a volume's, open and without labels yet.
pub(crate) struct NewDevices {
    files: [Vec<DeviceFile>; 2],
    tables: [TierTable; 2],
    devices: [Vec<Arc<dyn TierDevice>>; 2],
}

fn label_of(device: &dyn TierDevice) -> Result<Option<DeviceLabel>> {
    let mut found: Option<DeviceLabel> = None;
    let mut bytes = [0; BLOCK_BYTES];
    for copy in [0, 1] {
        device.read(copy * BLOCK, &mut bytes)?;
        if let Ok(label) = DeviceLabel::decode(&bytes, copy)
            && found.is_none_or(|f| f.count < label.count)
        {
            found = Some(label);
        }
    }
    Ok(found)
}

/// The identity on a device's label, if it has one.
pub(crate) fn label_uuid(device: &dyn TierDevice) -> Option<[u8; 16]> {
    label_of(device).ok().flatten().map(|label| label.uuid)
}

fn write_label(device: &dyn TierDevice, label: &DeviceLabel) -> Result<()> {
    let mut bytes = [0; BLOCK_BYTES];
    bytes[..DeviceLabel::BYTES].copy_from_slice(&label.encode());
    for copy in [0, 1] {
        device.write(copy * BLOCK, &bytes)?;
        device.flush()?;
    }
    Ok(())
}

/// A device that is to become a volume's: open, without a label.
pub(crate) struct NewDevice {
    pub(crate) entry: DeviceEntry,
    pub(crate) device: Arc<dyn TierDevice>,
}

impl NewDevice {
    /// Opens, or makes, what is to be divided. What holds a volume is refused without `force`;
    /// `mine`: labels of this volume are left of devices that it does not have any more.
    pub(crate) fn open(file: &DeviceFile, force: bool, mine: Option<[u8; 16]>) -> Result<Self> {
        let mut entry = medium::divide(file)?;
        entry.uuid = random()?;
        let device = medium::make(file, &entry, force)?;
        let label = label_of(&*device)?.filter(|l| Some(l.volume) != mine);
        if let (Some(label), false) = (label, force) {
            return Err(DaemonError::Exists {
                path: file.path.clone(),
                found: format!("the label of volume {}", uuid_text(&label.volume)),
            });
        }
        Ok(NewDevice { entry, device })
    }

    /// Writes its label, durably.
    pub(crate) fn label(&self, volume: [u8; 16], at: (u32, u32), count: u64) -> Result<()> {
        write_label(&*self.device, &label(volume, at, &self.entry, count))
    }
}

/// Takes the label off a device.
pub(crate) fn wipe_label(device: &dyn TierDevice) -> Result<()> {
    for copy in [0, 1] {
        device.write(copy * BLOCK, &[0; BLOCK_BYTES])?;
    }
    Ok(device.flush()?)
}

impl NewDevices {
    /// Opens, or makes, what is to be divided. What holds a volume is refused without `force`.
    pub(crate) fn open(lower: &LowerTiers, force: bool) -> Result<NewDevices> {
        let mut new = NewDevices {
            files: Default::default(),
            tables: [TierTable::new_zeroed(); 2],
            devices: Default::default(),
        };
        for (n, files) in lower.tiers().into_iter().enumerate() {
            if let Some(extra) = files.get(DEVICES_MAX) {
                return Err(wrong(
                    &extra.path,
                    format!("a tier has at most {DEVICES_MAX} devices"),
                ));
            }
            for file in files {
                let file = medium::as_found(file)?;
                let one = NewDevice::open(&file, force, None)?;
                new.add(n, one.entry, one.device);
                new.files[n].push(file);
            }
            let zones: u64 = new.tables[n].device.iter().map(DeviceEntry::zones).sum();
            if let Some(first) = files.first() {
                check_zones(&first.path, n, zones)?;
            }
        }
        Ok(new)
    }

    fn add(&mut self, tier: usize, entry: DeviceEntry, device: Arc<dyn TierDevice>) {
        let table = &mut self.tables[tier];
        table.device[table.devices as usize] = entry;
        table.devices += 1;
        table.blocks += entry.blocks;
        self.devices[tier].push(device);
    }

    /// What they are, by tier, as they were found.
    pub(crate) fn files(&self) -> &[Vec<DeviceFile>; 2] {
        &self.files
    }

    pub(crate) fn tables(&self) -> [TierTable; 2] {
        self.tables
    }

    /// Writes the labels, durably.
    pub(crate) fn label(&self, volume: [u8; 16]) -> Result<()> {
        for (tier, table) in (1..).zip(&self.tables) {
            for (place, device) in (0..).zip(&self.devices[tier as usize - 1]) {
                let entry = &table.device[place as usize];
                write_label(&**device, &label(volume, (tier, place), entry, 0))?;
            }
        }
        Ok(())
    }

    pub(crate) fn devices(&self) -> LowerDevices {
        let [ssd, hdd] = self.devices.clone();
        LowerDevices { ssd, hdd }
    }
}

/// Refuses a tier (0 ssd, 1 hdd) that would have too few zones to be cleaned.
pub(crate) fn check_zones(path: &Path, tier: usize, zones: u64) -> Result<()> {
    match zones < ZONES_MIN {
        true => {
            let why = format!("{} has {zones} zones, and needs {ZONES_MIN}", NAMES[tier]);
            Err(wrong(path, why))
        }
        false => Ok(()),
    }
}

fn label(
    volume: [u8; 16],
    (tier, place): (u32, u32),
    entry: &DeviceEntry,
    count: u64,
) -> DeviceLabel {
    DeviceLabel {
        magic: LABEL_MAGIC,
        crc: 0,
        version: VERSION,
        volume,
        uuid: entry.uuid,
        tier,
        place,
        blocks: entry.blocks,
        zone_blocks: entry.zone_blocks,
        kind: entry.kind,
        count,
        reserved: [0; 48],
    }
}

/// One device that is in its place.
struct Placed {
    at: (u32, u32),
    entry: DeviceEntry,
    device: Arc<dyn TierDevice>,
    /// Percentage that is kept out of use.
    spare: u32,
}

/// Devices of a volume, each found right.
pub(crate) struct Opened {
    volume: [u8; 16],
    placed: Vec<Placed>,
    newest: u64,
    /// Devices that the volume file names and the volume does not have: adding or removing them was
    /// cut short.
    strangers: Vec<PathBuf>,
}

/// Opens the devices that a volume file names and compares them with the device table. `starts`: how
/// often the volume was started, as its segments tell.
///
/// # Errors
/// A device is missing, of another volume, in another's place, older than the others; it is named. So is an NVM
/// directory that is older than a device.
pub(crate) fn open(
    file: &VolumeFile,
    sb: &Superblock,
    table: &DeviceTable,
    starts: u64,
) -> Result<Opened> {
    let mut opened = Opened {
        volume: sb.uuid,
        placed: Vec::new(),
        newest: starts,
        strangers: Vec::new(),
    };
    let mut counts = Vec::new();
    for (n, files) in [&file.ssd, &file.hdd].into_iter().enumerate() {
        let places = table.of(n);
        let (mine, strangers) = ours(files, places);
        opened.strangers.extend(strangers);
        if mine.len() != places.len() {
            let named: Vec<String> = files.iter().map(|f| f.path.display().to_string()).collect();
            return Err(DaemonError::VolumeFile {
                path: file.nvm_dir().to_path_buf(),
                key: NAMES[n].to_owned(),
                why: format!(
                    "the volume has {} devices there, the volume file names {}: {}",
                    places.len(),
                    files.len(),
                    named.join(", ")
                ),
            });
        }
        for (place, file) in mine.into_iter().enumerate() {
            let entry = places[place].entry();
            let at = (n as u32 + 1, place as u32);
            let device = medium::open(file, &entry)?;
            let found = check(&file.path, &*device, (sb, table), at)?;
            counts.push((file.path.clone(), found));
            opened.newest = opened.newest.max(found);
            let spare = file.spare();
            opened.placed.push(Placed {
                at,
                entry,
                device,
                spare,
            });
        }
    }
    for (path, count) in counts {
        if count + 1 < opened.newest {
            let why = format!(
                "it is older than the rest of the volume (label {count}, expected {}): was it put \
                 back from a backup?",
                opened.newest
            );
            return Err(wrong(&path, why));
        }
        // Segments count each start first.
        if starts > 0 && count > starts {
            return Err(DaemonError::NvmDir {
                dir: file.nvm_dir().to_path_buf(),
                why: format!(
                    "it is older than {} (label {starts}, expected {count}): was it put back from a \
                     backup?",
                    path.display()
                ),
            });
        }
    }
    Ok(opened)
}

/// Which of the devices that are named are the volume's, and which are not. Where there are more
/// than the volume has, those whose label it does not know are left out, if it is the others that it
/// has.
fn ours<'f>(
    files: &'f [DeviceFile],
    places: &[DevicePlace],
) -> (Vec<&'f DeviceFile>, Vec<PathBuf>) {
    let all: Vec<&DeviceFile> = files.iter().collect();
    if all.len() <= places.len() {
        return (all, Vec::new());
    }
    let known = |file: &&DeviceFile| {
        let device = medium::open_label(file);
        let label = device.and_then(|d| label_of(&*d).ok().flatten());
        label.is_some_and(|l| places.iter().any(|p| p.uuid == l.uuid))
    };
    let (mine, others): (Vec<_>, Vec<_>) = files.iter().partition(|f| known(f));
    match mine.len() == places.len() {
        true => (mine, others.into_iter().map(|f| f.path.clone()).collect()),
        false => (all, Vec::new()),
    }
}

/// The count on the label of the device that is to be at this tier and place.
fn check(
    path: &Path,
    device: &dyn TierDevice,
    (sb, table): (&Superblock, &DeviceTable),
    at: (u32, u32),
) -> Result<u64> {
    let Some(label) = label_of(device)? else {
        let why = "it has no label of a volume: another device, or an erased one".to_owned();
        return Err(wrong(path, why));
    };
    if label.volume != sb.uuid {
        let why = format!(
            "it is of volume {}, expected {}",
            uuid_text(&label.volume),
            uuid_text(&sb.uuid)
        );
        return Err(wrong(path, why));
    }
    let entry = &table.of(at.0 as usize - 1)[at.1 as usize];
    if label.uuid != entry.uuid {
        let tier = label
            .tier
            .checked_sub(1)
            .and_then(|n| NAMES.get(n as usize));
        let why = format!(
            "it is {} {} of this volume, not {} {}: are devices swapped?",
            tier.unwrap_or(&"device"),
            label.place,
            NAMES[at.0 as usize - 1],
            at.1
        );
        return Err(wrong(path, why));
    }
    Ok(label.count)
}

impl Opened {
    /// Notes one more start on every device, once of the two times.
    pub(crate) fn count_start(&self, count: u64) -> Result<()> {
        for one in &self.placed {
            write_label(&*one.device, &label(self.volume, one.at, &one.entry, count))?;
        }
        Ok(())
    }

    /// Devices that the volume file names and the volume does not have.
    pub(crate) fn strangers(&self) -> &[PathBuf] {
        &self.strangers
    }

    /// The newest count there is, of segments and devices.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// Opens their volume, which keeps their spare.
    ///
    /// # Errors
    /// As [`Volume::open_with`].
    pub(crate) fn open_volume(&self, map: Arc<Map>) -> Result<Volume> {
        let volume = Volume::open_with(map, &self.devices())?;
        for one in &self.placed {
            let (tier, place) = one.at;
            let tier = LOWER[tier as usize - 1];
            volume.set_spare(tier, place as usize, one.spare)?;
        }
        Ok(volume)
    }

    fn devices(&self) -> LowerDevices {
        let of = |tier| {
            let mine = self.placed.iter().filter(move |p| p.at.0 == tier);
            mine.map(|p| Arc::clone(&p.device)).collect()
        };
        LowerDevices {
            ssd: of(1),
            hdd: of(2),
        }
    }
}
