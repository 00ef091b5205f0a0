//! What a device of a tier below NVM is: a file or block device that can be written anywhere, or flash
//! that is written in order and erased; made, divided into zones and opened by its kind.

use crate::error::{DaemonError, Result};
use crate::volume_file::DeviceFile;
use serde::{Deserialize, Serialize};
use shale_device::zoned::{Behaviour, Geometry};
use shale_device::{BlockFile, DeviceError, FlashBlocks, TierDevice, Zoned};
use shale_format::device_table::device_kind;
use shale_format::limits::{BLOCK_BYTES, LABEL_AREA_BYTES, ZONE_BLOCKS};
use shale_format::superblock::DeviceEntry;
use std::path::Path;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Zones that a device has at least, where their size is not given.
const ZONES_WANTED: u64 = 32;
/// Bytes of a zone of a device that can be written anywhere, where none are given.
const ZONE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;

/// Kinds of devices below NVM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A file or block device that can be written anywhere.
    #[default]
    Conventional,
    /// The emulator of raw flash: a file.
    OpenChannel,
}

impl DeviceKind {
    /// All of them.
    pub const ALL: [DeviceKind; 2] = [DeviceKind::Conventional, DeviceKind::OpenChannel];

    /// Its name in volume files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Conventional => "conventional",
            DeviceKind::OpenChannel => "open-channel",
        }
    }

    pub(crate) fn is_usual(&self) -> bool {
        *self == DeviceKind::Conventional
    }

    pub(crate) fn number(self) -> u32 {
        match self {
            DeviceKind::Conventional => device_kind::CONVENTIONAL,
            DeviceKind::OpenChannel => device_kind::OPEN_CHANNEL,
        }
    }

    /// `None`: a kind that this program does not serve.
    pub(crate) fn of(number: u32) -> Option<DeviceKind> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

impl std::str::FromStr for DeviceKind {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| {
            let known = Self::ALL.map(DeviceKind::name).join(" or ");
            format!("'{text}' is no kind of device; expected {known}")
        })
    }
}

pub(crate) fn wrong(path: &Path, why: impl Into<String>) -> DaemonError {
    DaemonError::WrongDevice {
        path: path.to_path_buf(),
        why: why.into(),
    }
}

/// How flash of the asked size is divided.
fn geometry(file: &DeviceFile) -> Result<Geometry> {
    let geometry = Geometry::stagefs(file.size_bytes);
    match geometry.bytes() == file.size_bytes {
        true => Ok(geometry),
        false => Err(wrong(
            &file.path,
            format!(
                "flash of {} bytes: a multiple of {} is expected, an erase block of each unit",
                file.size_bytes,
                u64::from(geometry.units) * geometry.block_bytes()
            ),
        )),
    }
}

/// How a device is divided. Without identity.
pub(crate) fn divide(file: &DeviceFile) -> Result<DeviceEntry> {
    let (bytes, least, range) = match file.kind {
        DeviceKind::Conventional => {
            let bytes = file.size_bytes.saturating_sub(LABEL_AREA_BYTES);
            (bytes, 64 * BLOCK, ZONE_BYTES)
        }
        DeviceKind::OpenChannel => {
            let geometry = geometry(file)?;
            let erase_block = geometry.block_bytes();
            let widest = u64::from(geometry.units) * erase_block;
            (geometry.bytes(), erase_block, erase_block..=widest)
        }
    };
    let usual = (bytes / ZONES_WANTED).max(1).next_power_of_two();
    let usual = usual.clamp(*range.start(), *range.end());
    let zone_bytes = file.zone_bytes.unwrap_or(usual);
    let zone_blocks = u32::try_from(zone_bytes / BLOCK).unwrap_or(u32::MAX);
    if !zone_bytes.is_multiple_of(least) || !ZONE_BLOCKS.contains(&zone_blocks) {
        let why =
            format!("zones of {zone_bytes} bytes: a multiple of {least} up to 4 GiB is expected");
        return Err(wrong(&file.path, why));
    }
    let bytes = match file.kind {
        DeviceKind::Conventional => bytes / zone_bytes * zone_bytes,
        DeviceKind::OpenChannel => FlashBlocks::zoned_bytes(geometry(file)?, zone_bytes),
    };
    if bytes == 0 {
        let size = file.size_bytes;
        let why = format!("{size} bytes hold no zone of {zone_bytes} bytes");
        return Err(wrong(&file.path, why));
    }
    Ok(DeviceEntry {
        uuid: [0; 16],
        blocks: bytes / BLOCK,
        zone_blocks,
        kind: file.kind.number(),
    })
}

fn flash_blocks(path: &Path, flash: Zoned, zone_bytes: u64) -> Result<Arc<dyn TierDevice>> {
    let name = path.display().to_string();
    let blocks = FlashBlocks::open(&name, Arc::new(flash), LABEL_AREA_BYTES, zone_bytes)?;
    Ok(Arc::new(blocks))
}

/// Opens what is to be divided as `entry` says, and makes it if there is nothing. What is no flash, or of
/// another size, is made flash only with `force`.
pub(crate) fn make(
    file: &DeviceFile,
    entry: &DeviceEntry,
    force: bool,
) -> Result<Arc<dyn TierDevice>> {
    let path = &file.path;
    match file.kind {
        DeviceKind::Conventional => {
            BlockFile::create(path, file.size_bytes)?;
            file.open_conventional(file.size_bytes)
        }
        DeviceKind::OpenChannel => {
            let wanted = geometry(file)?;
            let there = path
                .exists()
                .then(|| Zoned::open(path, Behaviour::default()));
            let flash = match there {
                Some(Ok(flash)) if flash.geometry() == wanted => flash,
                Some(Err(e @ DeviceError::Os { .. })) => return Err(e.into()),
                Some(_) if !force => {
                    let why = "it is no image of flash of this size: force makes it one, and what it holds is lost";
                    return Err(wrong(path, why));
                }
                other => {
                    drop(other);
                    Zoned::create(path, wanted, Behaviour::default())?
                }
            };
            flash_blocks(path, flash, u64::from(entry.zone_blocks) * BLOCK)
        }
    }
}

/// Opens a device of a volume, which has it as `entry`.
pub(crate) fn open(file: &DeviceFile, entry: &DeviceEntry) -> Result<Arc<dyn TierDevice>> {
    let path = &file.path;
    let Some(kind) = DeviceKind::of(entry.kind) else {
        let why = format!(
            "devices of kind {} are not served by this shale",
            entry.kind
        );
        return Err(wrong(path, why));
    };
    if kind != file.kind {
        let (is, said) = (kind.name(), file.kind.name());
        let why = format!("it is {is}, and {said} in the volume file: set its kind to \"{is}\"");
        return Err(wrong(path, why));
    }
    let bytes = entry.blocks * BLOCK;
    match kind {
        DeviceKind::Conventional => file.open_conventional(LABEL_AREA_BYTES + bytes),
        DeviceKind::OpenChannel => {
            let flash = Zoned::open(path, Behaviour::default())?;
            let zone_bytes = u64::from(entry.zone_blocks) * BLOCK;
            let found = FlashBlocks::zoned_bytes(flash.geometry(), zone_bytes);
            if found < bytes {
                let why =
                    format!("it has {found} bytes in zones of {zone_bytes}, expected {bytes}");
                return Err(wrong(path, why));
            }
            flash_blocks(path, flash, zone_bytes)
        }
    }
}

/// Opens a device to look at its label only; `None`: it cannot be opened.
pub(crate) fn open_label(file: &DeviceFile) -> Option<Arc<dyn TierDevice>> {
    let path = &file.path;
    match file.kind {
        DeviceKind::Conventional => {
            let device = BlockFile::open(path, LABEL_AREA_BYTES).ok()?;
            Some(Arc::new(device))
        }
        DeviceKind::OpenChannel => {
            let flash = Zoned::open(path, Behaviour::default()).ok()?;
            let erase_block = flash.geometry().block_bytes();
            flash_blocks(path, flash, erase_block).ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flash(dir: &Path, size_bytes: u64, zone_bytes: Option<u64>) -> DeviceFile {
        DeviceFile {
            path: dir.join("flash.img"),
            size_bytes,
            zone_bytes,
            model: None,
            kind: DeviceKind::OpenChannel,
        }
    }

    #[test]
    fn flash_is_divided_into_zones_of_whole_erase_blocks() {
        let dir = Path::new("/none");
        let entry = divide(&flash(dir, 1 << 30, None)).unwrap();
        assert_eq!(entry.zone_blocks, 8192, "an erase block of each unit");
        assert_eq!(entry.blocks, 31 * 8192, "two erase blocks are for labels");
        let entry = divide(&flash(dir, 64 << 20, None)).unwrap();
        assert_eq!((entry.zone_blocks, entry.blocks), (512, 30 * 512));
        for (size, zone) in [(40 << 20, None), (64 << 20, Some(1 << 20))] {
            let said = divide(&flash(dir, size, zone)).unwrap_err().to_string();
            assert!(
                said.contains("flash.img") && said.contains("multiple"),
                "{said}"
            );
        }
    }

    #[test]
    fn what_is_no_flash_is_not_made_one_unasked() {
        let dir = tempfile::tempdir().unwrap();
        let file = flash(dir.path(), 64 << 20, None);
        let entry = divide(&file).unwrap();
        std::fs::write(&file.path, "a letter").unwrap();
        let said = make(&file, &entry, false).err().unwrap().to_string();
        assert!(said.contains("no image of flash"), "{said}");
        assert_eq!(std::fs::read(&file.path).unwrap(), b"a letter");
        drop(make(&file, &entry, true).unwrap());
        drop(make(&file, &entry, false).unwrap());
        let other = flash(dir.path(), 96 << 20, None);
        assert!(make(&other, &divide(&other).unwrap(), false).is_err());
        let opened = open(&file, &entry).unwrap();
        assert_eq!(opened.write_unit(), 8192);
        let larger = DeviceEntry {
            blocks: entry.blocks * 2,
            ..entry
        };
        drop(opened);
        assert!(open(&file, &larger).is_err());
    }
}
