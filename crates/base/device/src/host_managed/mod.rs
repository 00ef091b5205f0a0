//! Host-managed zoned block devices: SMR disks and ZNS SSDs. A zone is written at its write
//! pointer and nowhere else, and reset as a whole.
//!
//! [`HostManaged`] is what the kernel offers of one. [`KernelZones`] asks the kernel;
//! [`EmulatedZones`] is a file that obeys, and enforces, the same rules, answers with reports of the
//! same bytes, and loses in a power cut what such a device may lose.
//! [`crate::block::ManagedBlocks`] makes a device of a tier of either.

mod emulated;
mod kernel;
mod report;

pub use emulated::{EmulatedZones, ZoneShape};
pub use kernel::KernelZones;
pub use report::{Zone, ZoneState, zones_of};

use crate::block_device::BlockDevice;
use crate::error::DeviceError;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a sector, in which the kernel counts.
const SECTOR: u64 = 512;

/// A host-managed device. Writes are whole blocks of 4 KiB at a zone's write pointer, anywhere only in
/// conventional zones. [`BlockDevice::discard`] resets the sequential zones that the range
/// consists of.
pub trait HostManaged: BlockDevice {
    /// Where it is.
    fn path(&self) -> &Path;

    /// Bytes of all its zones but the last one, which may be shorter.
    fn zone_bytes(&self) -> u64;

    /// Zones that may be written and not full at a time; 0: no limit.
    fn max_active(&self) -> u64;

    /// Answers as `BLKREPORTZONE`: takes `into` as a `struct blk_zone_report` with its zones behind it,
    /// which says at which sector to begin and how many zones there is room for.
    ///
    /// # Errors
    /// What the kernel says.
    fn report(&self, into: &mut [u8]) -> Result<(), DeviceError>;

    /// Makes the zone that begins at byte `at` full as it is.
    ///
    /// # Errors
    /// What the kernel says.
    fn finish(&self, at: u64) -> Result<(), DeviceError>;

    /// How it is accessed, in words.
    fn access(&self) -> &'static str;

    /// What is wrong with it as a whole, if anything is.
    fn trouble(&self) -> Option<String>;
}

/// Bytes of the zones of a host-managed device, or of an image of an emulated one; `None`: whatever is
/// there can be written anywhere, or nothing is there.
///
/// # Errors
/// It cannot be opened to look.
pub fn zone_bytes_at(path: &Path) -> Result<Option<u64>, DeviceError> {
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
pub fn open(path: &Path) -> Result<Arc<dyn HostManaged>, DeviceError> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(Arc::new(EmulatedZones::open(path)?)),
        _ => Ok(Arc::new(KernelZones::open(path)?)),
    }
}

#[cfg(test)]
mod tests;
