//! What a device of a lower tier is: a file or block device that can be written anywhere, or a
//! host-managed one or flash, which are written in order and erased; made, divided into zones and opened by
//! its kind.

use crate::device_kind::DeviceKind;
use crate::error::{PoolError, Result};
use crate::volume_file::DeviceFile;
use shale_block::{BlockError, BlockFile, ManagedBlocks, ManagedShape, TierDevice, Unit, lcm};
use shale_emulate::zoned::{Behaviour, Geometry};
use shale_emulate::{FlashZones, Zoned, host_managed};
use shale_format::device_table::DevicePlace;
use shale_format::limits::{BLOCK_BYTES, LABEL_AREA_BYTES, ZONE_BLOCKS};
use shale_format::superblock::DeviceEntry;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Fewest zones of a tier: two that are written, one that is cleaned, one in reserve.
pub(crate) const ZONES_MIN: u64 = 4;
/// Zones that a device has at least, where their size is not given.
const ZONES_WANTED: u64 = 32;
/// Bytes of a zone of a device that can be written anywhere, where none are given.
pub(crate) const ZONE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;

/// Bytes of which zones are a multiple.
const ZONE_UNIT: u64 = 64 * BLOCK;

/// The error of a device that is not the one that was expected: why.
pub fn wrong(path: &Path, why: impl Into<String>) -> PoolError {
    PoolError::WrongDevice {
        path: path.to_path_buf(),
        why: why.into(),
    }
}

/// Refuses what other users can read or change, whatever its mode will be, and what would be made where nobody looks for
/// files.
fn check_place(path: &Path) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let found = match path.symlink_metadata() {
        Ok(found) => found,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return check_parent(path),
        Err(e) => return Err(PoolError::file(path, "look at it", e)),
    };
    let uid = found.uid();
    if found.is_symlink() && uid != own && uid != 0 {
        let why = format!(
            "it is a symbolic link of user {uid}, who can have it lead anywhere: name what is meant"
        );
        return Err(wrong(path, why));
    }
    match std::fs::metadata(path) {
        Ok(file) if file.is_file() && file.uid() != own => {
            let why = format!(
                "it belongs to user {}, who could read and change all that it will hold: chown {own} {}",
                file.uid(),
                path.display()
            );
            Err(wrong(path, why))
        }
        Ok(_) => Ok(()),
        Err(e) => Err(wrong(
            path,
            format!("it is a symbolic link that leads nowhere: {e}"),
        )),
    }
}

/// Where an image is to be made.
fn check_parent(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let parent = parent.canonicalize().map_err(|e| {
        let why = format!("an image cannot be made in {}: {e}", parent.display());
        wrong(path, why)
    })?;
    if parent.starts_with("/dev") && !parent.starts_with("/dev/shm") {
        let why = "there is no such device, and no image is made below /dev";
        return Err(wrong(path, why));
    }
    Ok(())
}

/// What is at a path, in words; bytes of its zones, if it is host-managed.
fn look(path: &Path) -> Result<(String, Option<u64>)> {
    let zone_bytes = host_managed::zone_bytes_at(path)?;
    let kind = std::fs::metadata(path).map(|found| found.file_type());
    let words = match (zone_bytes, kind) {
        (Some(bytes), _) => format!("it is host-managed, with zones of {bytes} bytes"),
        (None, Ok(kind)) if kind.is_block_device() => {
            "it is a block device without zones that only the host may manage".to_owned()
        }
        (None, Ok(kind)) if kind.is_file() => "it is a file without zones".to_owned(),
        (None, Ok(_)) => "it is neither a file nor a block device".to_owned(),
        (None, Err(e)) => format!("it cannot be found: {e}"),
    };
    Ok((words, zone_bytes))
}

/// A device as it is found where it is to be: one that is host-managed need not be called so.
///
/// # Errors
/// It is not what it is said to be, it is another user's, or it would be made below `/dev`.
pub fn as_found(file: &DeviceFile) -> Result<DeviceFile> {
    check_place(&file.path)?;
    let (found, zone_bytes) = look(&file.path)?;
    let kind = match (file.kind, zone_bytes) {
        (DeviceKind::Conventional, Some(_)) => DeviceKind::HostManaged,
        (DeviceKind::HostManaged, None) | (DeviceKind::OpenChannel, Some(_)) => {
            let asked = file.kind.name();
            let why = format!("{found}, not {asked}: leave kind={asked} out to use what is there");
            return Err(wrong(&file.path, why));
        }
        (kind, _) => kind,
    };
    if let (DeviceKind::HostManaged, Some(model)) = (kind, &file.model) {
        let why = format!("{found}: model '{model}' cannot be put in front of it");
        return Err(wrong(&file.path, why));
    }
    Ok(DeviceFile {
        kind,
        ..file.clone()
    })
}

/// How a host-managed device is divided.
fn managed_shape(file: &DeviceFile) -> Result<ManagedShape> {
    let device = host_managed::open(&file.path)?;
    let (found, expected) = (device.bytes(), file.size_bytes);
    if found < expected {
        let why = format!("it has {found} bytes, expected {expected} at least");
        return Err(wrong(&file.path, why));
    }
    let shape = ManagedShape::of(&*device, expected, ZONE_UNIT)?;
    match file.zone_bytes.filter(|bytes| *bytes != shape.zone_bytes) {
        None => Ok(shape),
        Some(bytes) => {
            let why = format!(
                "zones of {bytes} bytes: those of the device have {} that can be used; leave their size out",
                shape.zone_bytes
            );
            Err(wrong(&file.path, why))
        }
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

/// How a device is divided: its entry, without identity, and the block where its zones begin, as in
/// [`shale_format::device_table::DevicePlace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// How it stands in the device table.
    pub entry: DeviceEntry,
    /// Block at which its zones begin.
    pub start: u32,
}

/// Zones of a device that can be written anywhere.
struct Zones {
    start: u64,
    each: u64,
    bytes: u64,
}

/// Divides a device that can be written anywhere: its zones begin where multiples of their size begin on the disk, and
/// are multiples of what the medium is best written in, so that no two of them share an erase block. A device too small
/// for that has zones of the usual size that begin as well as they can. `usual`: bytes of a zone, unless the unit asks for more.
fn conventional(file: &DeviceFile, unit: &Unit, usual: u64) -> Zones {
    let whole = match file.zone_bytes {
        Some(bytes) => bytes,
        None => usual.next_multiple_of(lcm(unit.bytes, ZONE_UNIT)),
    };
    let tries = [
        (whole, whole),
        (whole, unit.bytes),
        (usual, unit.bytes),
        (usual, BLOCK),
    ];
    let tries = tries.map(|(each, multiple)| {
        let start = unit.first_multiple(multiple, LABEL_AREA_BYTES);
        let bytes = file.size_bytes.saturating_sub(start) / each * each;
        Zones { start, each, bytes }
    });
    // The earlier the better, where that costs no zone that is needed.
    let worth = |zones: &Zones| (zones.bytes / zones.each).min(ZONES_MIN);
    let mut best = None;
    for zones in tries {
        if best.as_ref().is_none_or(|b| worth(b) < worth(&zones)) {
            best = Some(zones);
        }
    }
    best.unwrap_or(Zones {
        start: LABEL_AREA_BYTES,
        each: usual,
        bytes: 0,
    })
}

/// How a device is divided.
pub fn divide(file: &DeviceFile) -> Result<Division> {
    let (bytes, least, range) = match file.kind {
        DeviceKind::Conventional => {
            let bytes = file.size_bytes.saturating_sub(LABEL_AREA_BYTES);
            (bytes, ZONE_UNIT, ZONE_BYTES)
        }
        DeviceKind::HostManaged => {
            let shape = managed_shape(file)?;
            let each = shape.zone_bytes;
            (shape.zones * each, ZONE_UNIT, each..=each)
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
    let blocks_of = |bytes| u32::try_from(bytes / BLOCK).unwrap_or(u32::MAX);
    if !zone_bytes.is_multiple_of(least) || !ZONE_BLOCKS.contains(&blocks_of(zone_bytes)) {
        let why =
            format!("zones of {zone_bytes} bytes: a multiple of {least} up to 4 GiB is expected");
        return Err(wrong(&file.path, why));
    }
    let behind_labels = |bytes| Zones {
        start: LABEL_AREA_BYTES,
        each: zone_bytes,
        bytes,
    };
    let zones = match file.kind {
        DeviceKind::Conventional => conventional(file, &file.unit(), zone_bytes),
        DeviceKind::HostManaged => behind_labels(bytes / zone_bytes * zone_bytes),
        DeviceKind::OpenChannel => {
            behind_labels(FlashZones::zoned_bytes(geometry(file)?, zone_bytes))
        }
    };
    if zones.bytes == 0 {
        let (size, each) = (file.size_bytes, zones.each);
        let why = format!("{size} bytes hold no zone of {each} bytes");
        return Err(wrong(&file.path, why));
    }
    Ok(Division {
        entry: DeviceEntry {
            uuid: [0; 16],
            blocks: zones.bytes / BLOCK,
            zone_blocks: blocks_of(zones.each),
            kind: file.kind.number(),
        },
        // As older programs have it, where they can work with it.
        start: match zones.start {
            LABEL_AREA_BYTES => 0,
            start => blocks_of(start),
        },
    })
}

fn flash_blocks(path: &Path, flash: Zoned, zone_bytes: u64) -> Result<Arc<dyn TierDevice>> {
    let name = path.display().to_string();
    let blocks = FlashZones::open(&name, Arc::new(flash), LABEL_AREA_BYTES, zone_bytes)?;
    Ok(Arc::new(blocks))
}

fn managed_blocks(path: &Path, zone_bytes: u64) -> Result<Arc<dyn TierDevice>> {
    let (name, device) = (path.display().to_string(), host_managed::open(path)?);
    let zone = (zone_bytes, ZONE_UNIT);
    let blocks = ManagedBlocks::open(&name, device, LABEL_AREA_BYTES, zone)?;
    Ok(Arc::new(blocks))
}

/// Opens what is to be divided as `entry` says, and makes it if there is nothing. What is no flash, or of
/// another size, is made flash only with `force`.
pub fn make(file: &DeviceFile, entry: &DeviceEntry, force: bool) -> Result<Arc<dyn TierDevice>> {
    let path = &file.path;
    match file.kind {
        DeviceKind::Conventional => {
            BlockFile::create(path, file.size_bytes)?;
            file.open_conventional(file.size_bytes)
        }
        DeviceKind::HostManaged => managed_blocks(path, u64::from(entry.zone_blocks) * BLOCK),
        DeviceKind::OpenChannel => {
            let wanted = geometry(file)?;
            let there = path
                .exists()
                .then(|| Zoned::open(path, Behaviour::default()));
            let flash = match there {
                Some(Ok(flash)) if flash.geometry() == wanted => flash,
                Some(Err(e @ BlockError::Os { .. })) => return Err(e.into()),
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

/// Opens a device of a volume, which has it at `place`.
pub fn open(file: &DeviceFile, place: &DevicePlace) -> Result<Arc<dyn TierDevice>> {
    let path = &file.path;
    let Some(kind) = DeviceKind::of(place.kind) else {
        let why = format!(
            "devices of kind {} are not served by this shale",
            place.kind
        );
        return Err(wrong(path, why));
    };
    if kind != file.kind {
        let (is, said) = (kind.name(), file.kind.name());
        let why = format!("it is {is}, and {said} in the volume file: set its kind to \"{is}\"");
        return Err(wrong(path, why));
    }
    let (found, zones) = look(path)?;
    if zones.is_some() != (kind == DeviceKind::HostManaged) && path.exists() {
        let was = kind.name();
        let why = format!("{found}, and was {was} when it came to the volume: another device?");
        return Err(wrong(path, why));
    }
    let (bytes, zone_bytes) = (place.blocks * BLOCK, u64::from(place.zone_blocks) * BLOCK);
    let short = |found| {
        let why = format!("it has {found} bytes in zones of {zone_bytes}, expected {bytes}");
        wrong(path, why)
    };
    match kind {
        DeviceKind::Conventional => file.open_conventional(place.device_bytes()),
        DeviceKind::HostManaged => {
            let blocks = managed_blocks(path, zone_bytes)?;
            match blocks.bytes() - LABEL_AREA_BYTES {
                found if found < bytes => Err(short(found)),
                _ => Ok(blocks),
            }
        }
        DeviceKind::OpenChannel => {
            let flash = Zoned::open(path, Behaviour::default())?;
            match FlashZones::zoned_bytes(flash.geometry(), zone_bytes) {
                found if found < bytes => Err(short(found)),
                _ => flash_blocks(path, flash, zone_bytes),
            }
        }
    }
}

/// Opens a device to look at its label only; `None`: it cannot be opened.
pub fn open_label(file: &DeviceFile) -> Option<Arc<dyn TierDevice>> {
    let path = &file.path;
    match file.kind {
        DeviceKind::Conventional => {
            let device = BlockFile::open(path, LABEL_AREA_BYTES).ok()?;
            Some(Arc::new(device))
        }
        DeviceKind::HostManaged => {
            let shape = managed_shape(file).ok()?;
            managed_blocks(path, shape.zone_bytes).ok()
        }
        DeviceKind::OpenChannel => {
            let flash = Zoned::open(path, Behaviour::default()).ok()?;
            let erase_block = flash.geometry().block_bytes();
            flash_blocks(path, flash, erase_block).ok()
        }
    }
}

#[cfg(test)]
mod tests;
