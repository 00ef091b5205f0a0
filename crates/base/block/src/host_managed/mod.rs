//! Host-managed zoned block devices: SMR disks and ZNS SSDs. A zone is written at its write
//! pointer and nowhere else, and reset as a whole.
//!
//! [`HostManaged`] is what the kernel offers of one. [`KernelZones`] asks the kernel; `EmulatedZones` of
//! `shale-emulate` is a file that obeys the same rules, and answers with reports ([`report`]) of the same bytes.
//! [`crate::ManagedBlocks`] makes a device of a tier of either.

mod kernel;
pub mod report;

pub use kernel::KernelZones;
pub use report::{Zone, ZoneState, zones_of};

use crate::BlockDevice;
use crate::error::BlockError;
use std::path::Path;

/// Bytes of a sector, in which the kernel counts.
pub const SECTOR: u64 = 512;

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
    /// which says at which sector to begin and how many zones the buffer holds.
    ///
    /// # Errors
    /// What the kernel says.
    fn report(&self, into: &mut [u8]) -> Result<(), BlockError>;

    /// Makes the zone that begins at byte `at` full as it is.
    ///
    /// # Errors
    /// What the kernel says.
    fn finish(&self, at: u64) -> Result<(), BlockError>;

    /// How it is accessed, in words.
    fn access(&self) -> &'static str;

    /// What is wrong with it as a whole, if anything is.
    fn trouble(&self) -> Option<String>;
}
