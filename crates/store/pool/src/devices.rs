//! Devices of the lower tiers: made and labelled.
//!
//! A label says which volume and which place in it a device is for, and how often the volume was
//! started ([`crate::device_assembly`]).

use crate::device_probe::{self, ZONES_MIN, wrong};
use crate::error::{PoolError, Result};
use crate::random::random;
use crate::volume_file::{DeviceFile, uuid_text};
use serde::{Deserialize, Serialize};
use shale_block::TierDevice;
use shale_format::TierId;
use shale_format::device_table::{DevicePlace, device_kind};
use shale_format::limits::{BLOCK_BYTES, DEVICES_MAX};
use shale_format::superblock::{DeviceEntry, TierTable};
use shale_format::version::VERSION;
use shale_format::zone::{DeviceLabel, LABEL_MAGIC};
use shale_volume::LowerDevices;
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use zerocopy::FromZeros;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Lower tiers as people call them.
pub const NAMES: [&str; 2] = ["ssd", "hdd"];
/// They.
pub const LOWER: [TierId; 2] = [TierId::Ssd, TierId::Hdd];

/// The lower tiers of a new volume.
#[derive(Clone, Debug, Default)]
pub struct LowerTiers {
    /// Flash.
    pub ssd: Vec<DeviceFile>,
    /// Disks.
    pub hdd: Vec<DeviceFile>,
}

impl LowerTiers {
    /// The devices by tier: SSD, HDD.
    pub fn tiers(&self) -> [&Vec<DeviceFile>; 2] {
        [&self.ssd, &self.hdd]
    }
}

/// How a device is divided into zones, and why so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Divided {
    /// Zones.
    pub zones: u64,
    /// Bytes of a zone.
    pub zone_bytes: u64,
    /// Byte of the device at which the first zone begins. Of raw flash and host-managed devices, behind the area of their labels.
    pub zones_at_byte: u64,
    /// Bytes that the medium is best written or erased in; 0: not known.
    pub unit_bytes: u64,
    /// Who said so.
    pub unit_from: String,
    /// Whether zones begin and end where such units do, counted from the beginning of the disk.
    pub aligned: bool,
}

impl Divided {
    /// How a device in its place is divided; `device`: open, to find its unit.
    pub fn of(place: &DevicePlace, device: Option<&dyn TierDevice>) -> Divided {
        let unit = device.and_then(|d| d.unit());
        let (at, zone_bytes) = (place.zones_byte(), u64::from(place.zone_blocks) * BLOCK);
        let aligned = unit.as_ref().is_none_or(|unit| {
            let begins = (unit.before + at).is_multiple_of(unit.bytes);
            let written_anywhere = place.kind == device_kind::CONVENTIONAL;
            !written_anywhere || begins && zone_bytes.is_multiple_of(unit.bytes)
        });
        Divided {
            zones: place.zones(),
            zone_bytes,
            zones_at_byte: at,
            unit_bytes: unit.as_ref().map_or(0, |unit| unit.bytes),
            unit_from: unit.map_or(String::new(), |unit| unit.from),
            aligned,
        }
    }
}

/// Devices that are to become a volume's, open and without labels yet.
pub(crate) struct NewDevices {
    files: [Vec<DeviceFile>; 2],
    tables: [TierTable; 2],
    starts: [[u32; DEVICES_MAX]; 2],
    devices: [Vec<Arc<dyn TierDevice>>; 2],
    /// Labels were written, or begun to be: what was there before is gone.
    labelled: Cell<bool>,
}

/// The label of a device, if it has one: the newer one of its copies.
pub(crate) fn label_of(device: &dyn TierDevice) -> Result<Option<DeviceLabel>> {
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
pub fn label_uuid(device: &dyn TierDevice) -> Option<[u8; 16]> {
    label_of(device).ok().flatten().map(|label| label.uuid)
}

/// Writes both copies of a label, durably.
pub(crate) fn write_label(device: &dyn TierDevice, label: &DeviceLabel) -> Result<()> {
    let mut bytes = [0; BLOCK_BYTES];
    bytes[..DeviceLabel::BYTES].copy_from_slice(&label.encode());
    for copy in [0, 1] {
        device.write(copy * BLOCK, &bytes)?;
        device.flush()?;
    }
    Ok(())
}

/// A device that is to become a volume's: open, without a label.
pub struct NewDevice {
    /// How it stands in the device table.
    pub entry: DeviceEntry,
    /// As [`device_probe::Division::start`].
    pub start: u32,
    /// The device, locked.
    pub device: Arc<dyn TierDevice>,
}

impl NewDevice {
    /// Opens, or makes, what is to be divided. What holds a volume is refused without `force`;
    /// `mine`: labels of this volume are left of devices that it does not have any more.
    pub fn open(file: &DeviceFile, force: bool, mine: Option<[u8; 16]>) -> Result<Self> {
        let device_probe::Division { mut entry, start } = device_probe::divide(file)?;
        entry.uuid = random()?;
        let device = device_probe::make(file, &entry, force)?;
        let label = label_of(&*device)?.filter(|l| Some(l.volume) != mine);
        if let (Some(label), false) = (label, force) {
            return Err(PoolError::Exists {
                path: file.path.clone(),
                found: format!("the label of volume {}", uuid_text(&label.volume)),
            });
        }
        Ok(NewDevice {
            entry,
            start,
            device,
        })
    }

    /// Writes its label, durably.
    pub fn label(&self, volume: [u8; 16], at: (u32, u32), count: u64) -> Result<()> {
        write_label(&*self.device, &label(volume, at, &self.entry, count))
    }
}

/// Takes the label off a device.
pub fn wipe_label(device: &dyn TierDevice) -> Result<()> {
    for copy in [0, 1] {
        device.write(copy * BLOCK, &[0; BLOCK_BYTES])?;
    }
    Ok(device.flush()?)
}

impl NewDevices {
    /// The tiers that these devices would make. Makes nothing.
    ///
    /// # Errors
    /// One cannot be used, as [`NewDevices::open`].
    pub fn plan(lower: &LowerTiers) -> Result<[TierTable; 2]> {
        let mut tables = [TierTable::new_zeroed(); 2];
        for (n, files) in lower.tiers().into_iter().enumerate() {
            if let Some(extra) = files.get(DEVICES_MAX) {
                return Err(wrong(
                    &extra.path,
                    format!("a tier has at most {DEVICES_MAX} devices"),
                ));
            }
            for file in files {
                let device_probe::Division { entry, .. } =
                    device_probe::divide(&device_probe::as_found(file)?)?;
                let table = &mut tables[n];
                table.device[table.devices as usize] = entry;
                table.devices += 1;
                table.blocks += entry.blocks;
            }
            if let Some(first) = files.first() {
                let zones = tables[n].device.iter().map(DeviceEntry::zones).sum();
                check_zones(&first.path, n, zones)?;
            }
        }
        Ok(tables)
    }

    /// Takes the labels off again that were written.
    pub fn wipe(&self) {
        for device in self
            .devices
            .iter()
            .flatten()
            .filter(|_| self.labelled.get())
        {
            // The first failure is the one to report.
            let _ = wipe_label(&**device);
        }
    }

    /// Opens, or makes, what [`NewDevices::plan`] has looked at. What holds a volume is refused without `force`.
    pub fn open(lower: &LowerTiers, force: bool) -> Result<NewDevices> {
        let mut new = NewDevices {
            files: Default::default(),
            tables: [TierTable::new_zeroed(); 2],
            starts: [[0; DEVICES_MAX]; 2],
            devices: Default::default(),
            labelled: Cell::new(false),
        };
        for (n, files) in lower.tiers().into_iter().enumerate() {
            for file in files {
                let file = device_probe::as_found(file)?;
                let one = NewDevice::open(&file, force, None)?;
                new.add(n, one);
                new.files[n].push(file);
            }
        }
        Ok(new)
    }

    fn add(&mut self, tier: usize, new: NewDevice) {
        let NewDevice {
            entry,
            start,
            device,
        } = new;
        let table = &mut self.tables[tier];
        table.device[table.devices as usize] = entry;
        self.starts[tier][table.devices as usize] = start;
        table.devices += 1;
        table.blocks += entry.blocks;
        self.devices[tier].push(device);
    }

    /// What they are, by tier, as they were found.
    pub fn files(&self) -> &[Vec<DeviceFile>; 2] {
        &self.files
    }

    /// Their tables for the superblock, by tier.
    pub fn tables(&self) -> [TierTable; 2] {
        self.tables
    }

    /// Where their zones begin, by tier.
    pub fn starts(&self) -> [[u32; DEVICES_MAX]; 2] {
        self.starts
    }

    /// How they are divided, by tier.
    pub fn divided(&self) -> [Vec<Divided>; 2] {
        [0, 1].map(|n| {
            let all = self.devices[n].iter().zip(&self.tables[n].device);
            let all = all.zip(&self.starts[n]);
            all.map(|((device, entry), &start)| {
                let place = DevicePlace {
                    start,
                    ..DevicePlace::new(entry, 0, 0)
                };
                Divided::of(&place, Some(&**device))
            })
            .collect()
        })
    }

    /// Writes the labels, durably.
    pub fn label(&self, volume: [u8; 16]) -> Result<()> {
        self.labelled.set(true);
        for (tier, table) in (1..).zip(&self.tables) {
            for (place, device) in (0..).zip(&self.devices[tier as usize - 1]) {
                let entry = &table.device[place as usize];
                write_label(&**device, &label(volume, (tier, place), entry, 0))?;
            }
        }
        Ok(())
    }

    /// The open devices, for the volume.
    pub fn devices(&self) -> LowerDevices {
        let [ssd, hdd] = self.devices.clone();
        LowerDevices { ssd, hdd }
    }
}

/// Refuses a tier (0 ssd, 1 hdd) that would have too few zones to be cleaned.
pub fn check_zones(path: &Path, tier: usize, zones: u64) -> Result<()> {
    match zones < ZONES_MIN {
        true => {
            let why = format!("{} has {zones} zones, and needs {ZONES_MIN}", NAMES[tier]);
            Err(wrong(path, why))
        }
        false => Ok(()),
    }
}

/// What the label of the device at a tier and place of a volume says.
pub fn label(
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
