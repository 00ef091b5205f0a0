//! Host-managed zoned block devices in files, and which kind of device a path names.
//!
//! [`EmulatedZones`] is a file that obeys, and enforces, the rules of [`HostManaged`], answers with reports of the
//! bytes that the kernel's have, and loses in a power cut what such a device may lose.

mod emulated;

pub use emulated::{EmulatedZones, ZoneShape};

use shale_block::BlockError;
use shale_block::host_managed::{HostManaged, KernelZones};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes of the zones of a host-managed device, or of an image of an emulated one; `None`: whatever is
/// there can be written anywhere, or nothing is there.
///
/// # Errors
/// It cannot be opened to look.
pub fn zone_bytes_at(path: &Path) -> Result<Option<u64>, BlockError> {
    let found = std::fs::metadata(path).map(|found| found.file_type());
    match found {
        Ok(kind) if kind.is_file() => EmulatedZones::zone_bytes_at(path),
        Ok(kind) if kind.is_block_device() => KernelZones::zone_bytes_at(path),
        _ => Ok(None),
    }
}

/// Opens and locks a host-managed device, or an image of an emulated one.
///
/// # Errors
/// It is none, or in use; it wants to be written in larger units than ours.
pub fn open(path: &Path) -> Result<Arc<dyn HostManaged>, BlockError> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(Arc::new(EmulatedZones::open(path)?)),
        _ => Ok(Arc::new(KernelZones::open(path)?)),
    }
}

#[cfg(test)]
mod tests;
