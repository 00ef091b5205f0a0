//! Versions and who may mount what.

/// Version that this program writes.
pub const VERSION: u32 = 1;
/// Compatible features known here: an unknown bit changes nothing for a reader or a writer.
pub const COMPATIBLE: u64 = 0;
/// Read-only-compatible features known here: with an unknown bit the volume may be read, not written.
pub const RO_COMPATIBLE: u64 = 0;
/// Incompatible features known here: with an unknown bit the volume may not be opened.
pub const INCOMPATIBLE: u64 = LOWER_TIERS
    | DEVICE_TABLE
    | TIERS_LATER
    | INODES_BELOW
    | DIRECTORIES_BELOW
    | EXTENTS_BELOW
    | ZONES_START
    | INODE_FLAGS
    | POSIX_ACLS
    | SYNC_FLAGS
    | NVM_GROWN;
/// Incompatible feature: the volume has lower tiers.
pub const LOWER_TIERS: u64 = 1;
/// Incompatible feature: the devices of the lower tiers stand in a device table.
pub const DEVICE_TABLE: u64 = 2;
/// Incompatible feature: made with NVM alone, with an empty device table; lower tiers may have come
/// since.
pub const TIERS_LATER: u64 = 4;
/// Incompatible feature: blocks of the inode file may lie below NVM. Set before the first one does.
pub const INODES_BELOW: u64 = 8;
/// Incompatible feature: leaves of directories may lie below NVM. Set before the first one does.
pub const DIRECTORIES_BELOW: u64 = 16;
/// Incompatible feature: leaves of files' extents may lie below NVM. Set before the first one does.
pub const EXTENTS_BELOW: u64 = 32;
/// Incompatible feature: zones of a device may begin elsewhere than at 1 MiB. Set before the first such device is
/// part of the volume.
pub const ZONES_START: u64 = 64;
/// Incompatible feature: inodes may be immutable, append-only, without dump or without access time. Set before the first one is.
pub const INODE_FLAGS: u64 = 128;
/// Incompatible feature: inodes may have access control lists, which decide who may do what. Set before the first one has.
pub const POSIX_ACLS: u64 = 256;
/// Incompatible feature: inodes may have flags that make each change of them durable at return. Set before the first one has.
pub const SYNC_FLAGS: u64 = 512;
/// Incompatible feature: NVM is larger than mkfs made it. Its bitmap and the device table lie at its end, before the second
/// superblock.
pub const NVM_GROWN: u64 = 1024;

/// What may be done with a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    ReadWrite,
    /// Reading only: features are in use that this program does not know how to keep.
    ReadOnly,
}

/// Why a volume may not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Made by a newer program.
    #[error(
        "version {found} is newer than {known}, the newest this program knows; use a newer shale"
    )]
    Newer {
        /// Version on media.
        found: u32,
        /// Newest version known.
        known: u32,
    },
    /// It uses features that this program does not know.
    #[error(
        "unknown incompatible features {bits:#x}; use the shale that made the volume, or a newer one"
    )]
    Features {
        /// The unknown bits.
        bits: u64,
    },
}

/// Decides what this program may do with a volume.
pub fn access(version: u32, ro_compatible: u64, incompatible: u64) -> Result<Access, Refusal> {
    if version > VERSION {
        return Err(Refusal::Newer {
            found: version,
            known: VERSION,
        });
    }
    match incompatible & !INCOMPATIBLE {
        0 if ro_compatible & !RO_COMPATIBLE != 0 => Ok(Access::ReadOnly),
        0 => Ok(Access::ReadWrite),
        bits => Err(Refusal::Features { bits }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_bits_restrict() {
        assert_eq!(access(VERSION, 0, 0), Ok(Access::ReadWrite));
        assert_eq!(access(VERSION, 1 << 40, 0), Ok(Access::ReadOnly));
        assert_eq!(
            access(VERSION, 0, 1 << 40),
            Err(Refusal::Features { bits: 1 << 40 })
        );
        assert!(matches!(
            access(VERSION + 1, 0, 0),
            Err(Refusal::Newer { .. })
        ));
    }
}
