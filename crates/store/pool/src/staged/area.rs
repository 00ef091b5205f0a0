//! The area of a volume without NVM, on the device that has it.

use crate::device_probe::wrong;
use crate::devices::label_of;
use crate::error::{PoolError, Result};
use crate::volume_file::{DeviceFile, StagedEntry, VolumeFile, uuid_text};
use shale_block::TierDevice;
use shale_persist::staged::{AreaLayout, PersistError, StagedArea};
use std::path::Path;
use std::sync::Arc;

/// How large the parts of the area are.
pub fn layout(entry: &StagedEntry) -> AreaLayout {
    AreaLayout {
        memory_bytes: entry.memory_bytes,
        staging_bytes: entry.staging_bytes,
    }
}

/// Opens the area of a volume on the device that has it, which is open.
///
/// # Errors
/// The volume has NVM; as [`StagedArea::open`].
pub fn open_area(file: &VolumeFile, device: Arc<dyn TierDevice>) -> Result<StagedArea> {
    let entry = entry_of(file)?;
    let area = StagedArea::open(device, entry.at_byte, layout(entry), file.uuid_bytes());
    area.map_err(|e| failed(&entry.device, e))
}

/// The error of an area on this device.
pub(crate) fn failed(device: &Path, source: PersistError) -> PoolError {
    PoolError::Area {
        device: device.to_path_buf(),
        source,
    }
}

/// What the volume file says of the area.
pub(crate) fn entry_of(file: &VolumeFile) -> Result<&StagedEntry> {
    file.staged.as_ref().ok_or_else(|| PoolError::VolumeFile {
        path: file.nvm_dir().to_path_buf(),
        key: "staged".to_owned(),
        why: "the volume has NVM, and no staging area".to_owned(),
    })
}

/// The device that has the area, as one that has no mount opens it, and the count on its label.
pub(crate) struct AreaDevice {
    pub(crate) device: Arc<dyn TierDevice>,
    /// Starts of the volume that the device has seen.
    pub(crate) starts: u64,
    /// Its identity.
    pub(crate) uuid: [u8; 16],
}

impl AreaDevice {
    /// Opens and locks it.
    ///
    /// # Errors
    /// It is missing, too short, in use, or none of the volume's.
    pub(crate) fn open(file: &VolumeFile) -> Result<AreaDevice> {
        let entry = entry_of(file)?;
        let named = |d: &&DeviceFile| d.path == entry.device;
        let Some(named) = file.ssd.iter().find(named) else {
            return Err(wrong(&entry.device, "it is none of the volume's [[ssd]]"));
        };
        let bytes = entry.at_byte.checked_add(layout(entry).bytes());
        let device = named.open_conventional(bytes.unwrap_or(u64::MAX))?;
        let Some(label) = label_of(&*device)? else {
            let why = "it has no label of a volume: another device, or an erased one";
            return Err(wrong(&entry.device, why));
        };
        if label.volume != file.uuid_bytes() {
            let found = uuid_text(&label.volume);
            let why = format!("it is of volume {found}, expected {}", file.uuid);
            return Err(wrong(&entry.device, why));
        }
        Ok(AreaDevice {
            device,
            starts: label.count,
            uuid: label.uuid,
        })
    }
}
