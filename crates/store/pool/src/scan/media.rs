//! What of a volume is at one path: an NVM directory, a device of a lower tier, or nothing.
//!
//! Files and block devices are read without their locks and are not changed. Only host-managed devices and images of emulated ones are
//! opened as a mount opens them, for a moment: their labels are found by their zones.

use super::head::{Head, ReadTier};
use crate::device_kind::DeviceKind;
use crate::device_probe::{open_label, wrong};
use crate::devices::label_of;
use crate::error::{PoolError, Result};
use crate::nvm_dir::{segment_name, segment_sizes, volume_files};
use crate::nvm_target::has_note;
use crate::volume_file::DeviceFile;
use shale_block::{BlockDevice, ReadOnlyBlocks, TierDevice};
use shale_emulate::zoned::{Behaviour, is_image};
use shale_emulate::{Zoned, host_managed};
use shale_format::limits::{BLOCK_BYTES, SEGMENT_BYTES};
use shale_format::superblock::{SUPER_BLOCK, Superblock};
use shale_format::zone::DeviceLabel;
use shale_persist::staged::MEMORY_BYTES_MAX;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What was found at a path.
pub(super) enum Medium {
    /// A directory with segments of a volume.
    Segments(Box<FoundSegments>),
    /// A device with a label.
    Device(FoundDevice),
    /// Something that is none of a volume's.
    Other,
}

/// A directory with segments: of NVM, or of a memory tier.
#[derive(Clone, Debug)]
pub struct FoundSegments {
    /// The directory.
    pub dir: PathBuf,
    /// Bytes of all segments, as the superblock has it.
    pub bytes: u64,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// The head, or why it cannot be read.
    pub head: std::result::Result<Head, String>,
    /// Segments that are missing or have another length, with what is wrong.
    pub wrong: Vec<String>,
    /// It has a note that it is copied to, or goes.
    pub is_copy: bool,
}

/// A device of a lower tier.
#[derive(Clone, Debug)]
pub struct FoundDevice {
    /// File or block device.
    pub path: PathBuf,
    /// Its label, the newer copy.
    pub label: DeviceLabel,
    /// What it is.
    pub kind: DeviceKind,
    /// Bytes that a volume file may say of it.
    pub bytes: u64,
}

/// Looks at a path.
///
/// # Errors
/// It cannot be opened or read; it is in use, and of a kind that has to be opened; a superblock is damaged.
pub(super) fn look_at(path: &Path) -> Result<Medium> {
    if path.is_dir() {
        // One that cannot be listed says why.
        volume_files(path)?;
        return match has_segments(path) {
            true => FoundSegments::look(path).map(|found| Medium::Segments(Box::new(found))),
            false => Ok(Medium::Other),
        };
    }
    let found = match kind_at(path)? {
        DeviceKind::Conventional => {
            let device = ReadOnlyBlocks::open(path)?;
            let bytes = device.bytes();
            label(&device)?.map(|label| (label, bytes))
        }
        kind => with_own_labels(path, kind)?,
    };
    Ok(match found {
        Some((label, bytes)) => Medium::Device(FoundDevice {
            path: path.to_path_buf(),
            kind: DeviceKind::of(label.kind).unwrap_or_default(),
            label,
            bytes,
        }),
        None => Medium::Other,
    })
}

/// Whether a directory holds segments.
pub(super) fn has_segments(dir: &Path) -> bool {
    let files = volume_files(dir).unwrap_or_default();
    files.iter().any(|name| name.starts_with("seg-"))
}

fn label(device: &dyn TierDevice) -> Result<Option<DeviceLabel>> {
    match device.bytes() < 2 * BLOCK {
        true => Ok(None),
        false => label_of(device),
    }
}

fn kind_at(path: &Path) -> Result<DeviceKind> {
    if host_managed::zone_bytes_at(path)?.is_some() {
        return Ok(DeviceKind::HostManaged);
    }
    Ok(match path.is_file() && is_image(path) {
        true => DeviceKind::OpenChannel,
        false => DeviceKind::Conventional,
    })
}

/// The label of a device whose labels lie in zones, and the bytes of the device.
fn with_own_labels(path: &Path, kind: DeviceKind) -> Result<Option<(DeviceLabel, u64)>> {
    let size_bytes = match kind {
        DeviceKind::HostManaged => host_managed::open(path)?.bytes(),
        _ => Zoned::open(path, Behaviour::default())?.geometry().bytes(),
    };
    let file = DeviceFile {
        path: path.to_path_buf(),
        size_bytes,
        zone_bytes: None,
        model: None,
        kind,
        overprovision_percent: None,
    };
    let found = open_label(&file)
        .map(|device| label(&*device))
        .transpose()?;
    Ok(found.flatten().map(|label| (label, size_bytes)))
}

impl FoundSegments {
    fn look(dir: &Path) -> Result<FoundSegments> {
        let superblock = superblock_in(dir)?;
        let bytes = superblock.tier[0].blocks.saturating_mul(BLOCK);
        if bytes > MEMORY_BYTES_MAX {
            return Err(unfit(dir, format!("its superblock says {bytes} bytes")));
        }
        let sizes = segment_sizes(bytes);
        let wrong = { sizes.iter().enumerate() }
            .filter_map(|(n, expected)| wrong_segment(dir, n, *expected))
            .collect();
        let mut segments = Segments { dir, open: None };
        let read: ReadTier<'_> = &mut |at, into| segments.read(at, into);
        Ok(FoundSegments {
            dir: dir.to_path_buf(),
            bytes,
            uuid: superblock.uuid,
            head: Head::read(bytes, read).map_err(|e| e.to_string()),
            wrong,
            is_copy: has_note(dir),
        })
    }
}

fn unfit(dir: &Path, why: String) -> PoolError {
    PoolError::NvmDir {
        dir: dir.to_path_buf(),
        why,
    }
}

fn wrong_segment(dir: &Path, n: usize, expected: u64) -> Option<String> {
    let name = segment_name(n);
    match std::fs::metadata(dir.join(&name)) {
        Ok(found) if found.len() == expected => None,
        Ok(found) => {
            let found = found.len();
            Some(format!("{name} has {found} bytes, expected {expected}"))
        }
        Err(_) => Some(format!("{name} is missing")),
    }
}

/// The first copy of the superblock, or else the second one, which ends the last segment.
fn superblock_in(dir: &Path) -> Result<Superblock> {
    let mut segments = Segments { dir, open: None };
    let mut block = [0; BLOCK_BYTES];
    let first = segments.read(0, &mut block).and_then(|()| {
        let decoded = Superblock::decode(&block, SUPER_BLOCK);
        decoded.map_err(|e| unfit(dir, e.to_string()))
    });
    first.map(|(superblock, _)| superblock).or_else(|error| {
        let files = volume_files(dir)?;
        let last = files.iter().rfind(|name| name.starts_with("seg-"));
        let number = last.and_then(|name| name[4..].parse::<u64>().ok());
        let bytes = last.and_then(|name| Some(std::fs::metadata(dir.join(name)).ok()?.len()));
        let end = number
            .zip(bytes)
            .and_then(|(n, bytes)| n.checked_mul(SEGMENT_BYTES)?.checked_add(bytes));
        let Some(at) = end.and_then(|end| end.checked_sub(BLOCK)) else {
            return Err(error);
        };
        segments.read(at, &mut block).map_err(|_| &error).ok();
        let second = Superblock::decode(&block, at / BLOCK);
        second.map(|(superblock, _)| superblock).map_err(|_| error)
    })
}

/// The segment files of a directory, read as one range of bytes.
struct Segments<'d> {
    dir: &'d Path,
    /// The one that was read last.
    open: Option<(u64, File)>,
}

impl Segments<'_> {
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<()> {
        let mut at = at;
        let mut rest = into;
        while !rest.is_empty() {
            let (n, offset) = (at / SEGMENT_BYTES, at % SEGMENT_BYTES);
            let bytes = (SEGMENT_BYTES - offset).min(rest.len() as u64) as usize;
            let (part, behind) = rest.split_at_mut(bytes);
            let path = self.dir.join(segment_name(n as usize));
            let failed = |e| PoolError::file(&path, format!("read {bytes} bytes at {offset}"), e);
            let file = match self.open.take() {
                Some((number, file)) if number == n => Ok(file),
                // A pipe of that name would have to be waited for.
                _ => OpenOptions::new()
                    .read(true)
                    .custom_flags(libc::O_NONBLOCK)
                    .open(&path),
            };
            let file = file.map_err(failed)?;
            file.read_exact_at(part, offset).map_err(failed)?;
            self.open = Some((n, file));
            at += bytes as u64;
            rest = behind;
        }
        Ok(())
    }
}

/// The device of an area, to be read.
pub(super) fn reader(device: &FoundDevice) -> Result<Arc<dyn TierDevice>> {
    let reader = ReadOnlyBlocks::open(&device.path)?;
    match reader.bytes() < device.bytes {
        true => Err(wrong(&device.path, "it has become shorter")),
        false => Ok(Arc::new(reader)),
    }
}
