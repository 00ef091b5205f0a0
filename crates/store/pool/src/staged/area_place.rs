//! Where the area of a volume that has NVM can be: behind the zones of an SSD, of which some at its end may have to go.

use crate::device_kind::DeviceKind;
use crate::devices::label_of;
use crate::error::Result;
use crate::host_space::shown;
use crate::mkfs::{ALIGN_MAX, staging_bytes};
use crate::nvm_target::refused;
use crate::volume_file::{DeviceFile, VolumeFile};
use serde::Serialize;
use shale_block::{TierDevice, Unit};
use shale_format::TierId;
use shale_format::device_table::DevicePlace;
use shale_format::limits::BLOCK_BYTES;
use shale_persist::staged::AreaLayout;
use shale_volume::Volume;
use std::path::{Path, PathBuf};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Where an area can be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AreaPlace {
    /// The device.
    pub device: PathBuf,
    /// Its identity.
    #[serde(skip)]
    pub uuid: [u8; 16],
    /// Its place among the `[[ssd]]` of the volume file.
    #[serde(skip)]
    pub nth: usize,
    /// Byte at which the area begins.
    pub at_byte: u64,
    /// Bytes of the memory tier.
    pub memory_bytes: u64,
    /// Bytes of the staging area.
    pub staging_bytes: u64,
    /// Blocks that the device has as part of the tier, and those that it keeps.
    #[serde(skip)]
    pub blocks: [u64; 2],
    /// Blocks in use in zones that have to go.
    #[serde(skip)]
    pub live_blocks: u64,
    /// How often the device has seen the volume start.
    #[serde(skip)]
    pub starts: u64,
}

impl AreaPlace {
    /// How large its parts are.
    pub fn layout(&self) -> AreaLayout {
        AreaLayout {
            memory_bytes: self.memory_bytes,
            staging_bytes: self.staging_bytes,
        }
    }

    /// Bytes that the tier loses.
    pub fn tier_lost_bytes(&self) -> u64 {
        (self.blocks[0] - self.blocks[1]) * BLOCK
    }
}

/// What of a device an area could have.
struct Candidate<'c> {
    file: &'c DeviceFile,
    nth: usize,
    device: &'c dyn TierDevice,
    place: DevicePlace,
    /// Its number in the tier.
    at: usize,
    starts: u64,
}

/// Finds the SSD on which the fewest blocks have to move. `staging`: bytes of the staging area, if some were asked for.
///
/// # Errors
/// There is none, or too little space; it says how much is needed, and how much there is.
pub(super) fn find(
    path: &Path,
    file: &VolumeFile,
    volume: &Volume,
    staging: Option<u64>,
) -> Result<AreaPlace> {
    let table = volume.view().device_table()?;
    let mut found: Vec<AreaPlace> = Vec::new();
    let mut lack = None;
    for (nth, entry) in file.ssd.iter().enumerate() {
        if entry.kind != DeviceKind::Conventional {
            continue;
        }
        let device = entry.open_conventional(0)?;
        let Some(label) = label_of(&*device)? else {
            continue;
        };
        let at = table.of(0).iter().position(|p| p.uuid == label.uuid);
        let Some(at) = at.filter(|_| label.volume == file.uuid_bytes()) else {
            continue;
        };
        let candidate = Candidate {
            file: entry,
            nth,
            device: &*device,
            place: table.of(0)[at],
            at,
            starts: label.count,
        };
        match candidate.place(volume, (file.nvm_bytes(), staging)) {
            Ok(place) => found.push(place),
            Err(error) => lack = lack.or(Some(error)),
        }
    }
    let fewest = found.into_iter().min_by_key(|place| place.live_blocks);
    fewest.ok_or_else(|| {
        lack.unwrap_or_else(|| {
            let why = "without NVM it needs an SSD that can be written anywhere, for a staging area, and none of its is there: shale device \
                       add MOUNTPOINT --ssd PATH:SIZE";
            refused(path, why)
        })
    })
}

impl Candidate<'_> {
    fn place(
        &self,
        volume: &Volume,
        (memory_bytes, staging): (u64, Option<u64>),
    ) -> Result<AreaPlace> {
        let (path, place) = (&self.file.path, &self.place);
        let bytes = self.device.bytes() / BLOCK * BLOCK;
        let staging_bytes = staging_bytes(path, staging, bytes)?;
        let layout = AreaLayout {
            memory_bytes,
            staging_bytes,
        };
        let (each, need) = (u64::from(place.zone_blocks), layout.bytes());
        let unit = self.device.unit().unwrap_or_else(|| Unit::of(path));
        let begins = |zones: u64| begin(&unit, place.zones_byte() + zones * each * BLOCK);
        // What is in use has to find another place, and a zone stays empty for cleaning.
        let lower = [TierId::Ssd, TierId::Hdd];
        let possible: u64 = lower.iter().map(|&t| volume.lower_possible(t, None)).sum();
        let least = place.zones() - (possible / each).min(place.zones() - 1);
        let free = bytes.saturating_sub(begins(least));
        let mut kept = (least..=place.zones()).rev();
        match kept.find(|&zones| begins(zones).saturating_add(need) <= bytes) {
            Some(kept) => {
                let keeps = place.first + kept * each;
                let zones = volume.lower_zones(TierId::Ssd).into_iter();
                let mine = zones.filter(|z| z.place.device == self.at && z.place.first >= keeps);
                Ok(AreaPlace {
                    device: path.clone(),
                    uuid: place.uuid,
                    nth: self.nth,
                    at_byte: begins(kept),
                    memory_bytes,
                    staging_bytes,
                    blocks: [place.blocks, kept * each],
                    live_blocks: mine.map(|z| z.live).sum(),
                    starts: self.starts,
                })
            }
            None => {
                let why = format!(
                    "without NVM the volume needs {need} bytes of it ({}: what is in NVM, {}, twice, and a staging area of {}), and {free} \
                     ({}) are free there for that: remove files, or add a device (shale device add MOUNTPOINT)",
                    shown(need),
                    shown(memory_bytes),
                    shown(staging_bytes),
                    shown(free)
                );
                Err(refused(path, why))
            }
        }
    }
}

/// The first byte from `least` on at which an area can begin: where a unit of the medium does, if that costs little.
fn begin(unit: &Unit, least: u64) -> u64 {
    let multiple = match unit.bytes <= ALIGN_MAX {
        true => unit.bytes.max(BLOCK),
        false => BLOCK,
    };
    let aligned = (least + unit.before).next_multiple_of(multiple) - unit.before;
    match aligned.is_multiple_of(BLOCK) {
        true => aligned,
        false => least.next_multiple_of(BLOCK),
    }
}
