//! Inodes: 256 bytes, in the hidden inode file (Strata §3.1).

use crate::checksum::{crc32c, crc32c_parts};
use crate::files::extent::ExtentRoot;
use crate::layout::layout;
use crate::limits::{BLOCK_BYTES, INODE_BYTES, TIERS_MAX};
use crate::{FileBlock, FormatError, Ino, TierId};
use zerocopy::{FromBytes, IntoBytes};

/// Indexes of [`Inode::time_s`] and [`Inode::time_ns`].
pub mod time {
    /// Last read.
    pub const ACCESS: usize = 0;
    /// Last change of content.
    pub const MODIFY: usize = 1;
    /// Last change of the inode.
    pub const CHANGE: usize = 2;
    /// Creation.
    pub const BIRTH: usize = 3;
}

/// Bits of [`Inode::flags`].
pub mod flag {
    /// The inode has no name left; it is freed when its last user goes.
    pub const ORPHAN: u32 = 1;
    /// Two bits: the tier that the inode is pinned to, and 1; 0: it is not. New files of a
    /// directory inherit them.
    pub const PIN: u32 = 0b110;
    /// Nothing of it changes: content, attributes, names of it, names in it.
    pub const IMMUTABLE: u32 = 1 << 3;
    /// Content is added at its end, names to a directory; nothing else changes.
    pub const APPEND_ONLY: u32 = 1 << 4;
    /// Backup programs leave it out.
    pub const NO_DUMP: u32 = 1 << 5;
    /// Reading notes no access time.
    pub const NO_ATIME: u32 = 1 << 6;
    /// Calls that change it are followed by what fsync(2) does, as if it were open with `O_SYNC`; of a directory: those that change names in it.
    pub const SYNC: u32 = 1 << 7;
    /// Of a directory: calls that change names in it are. What is made in it, but for directories, does not inherit that.
    pub const DIR_SYNC: u32 = 1 << 8;
    /// Both. A volume with one of them has the feature `SYNC_FLAGS`.
    pub const SYNCS: u32 = SYNC | DIR_SYNC;
    /// Those that users change, with chattr(1). A volume with one of them that is not of [`SYNCS`] has the feature `INODE_FLAGS`.
    pub const CHANGEABLE: u32 = IMMUTABLE | APPEND_ONLY | NO_DUMP | NO_ATIME | SYNCS;
    /// Those that a directory which gets its first name in a directory has from that.
    pub const INHERITED: u32 = PIN | NO_DUMP | NO_ATIME | SYNCS;
    /// Everything known.
    pub const ALL: u32 = ORPHAN | PIN | CHANGEABLE;
}

/// The flags that what is made in a directory with flags `dir` has from it, by the type in its `mode`: as on ext4.
pub fn inherited(dir: u32, mode: u32) -> u32 {
    dir & match mode & 0o170_000 {
        0o040_000 => flag::INHERITED,
        0o100_000 => flag::INHERITED & !flag::DIR_SYNC,
        _ => flag::INHERITED & !flag::SYNCS,
    }
}

/// Bit of [`Inode::xattr_bytes`]: the extended attributes lie in single blocks which a
/// list names, since no run was free that could hold them.
pub const XATTR_SCATTERED: u32 = 1 << 31;

layout! {
    /// One inode
    pub struct Inode: 256 {
        /// its number
        pub ino: u64,
        /// type and permission bits; 0 in a free slot
        pub mode: u32,
        /// owner
        pub uid: u32,
        /// group
        pub gid: u32,
        /// number of names; a directory: 2 + its subdirectories
        pub nlink: u32,
        /// bytes of the file, of the link target; number of entries of a directory
        pub size: u64,
        /// 4 KiB blocks of data in all tiers, tree nodes not counted
        pub blocks: u64,
        /// access, modify, change, birth: seconds since 1970
        pub time_s: [i64; 4],
        /// access, modify, change, birth: nanoseconds, 0 to 999,999,999
        pub time_ns: [u32; 4],
        /// device number of a device node
        pub rdev: u64,
        /// a directory: its parent; else 0
        pub parent: u64,
        /// first block of the extended attributes, or their list; 0: none
        pub xattr_addr: u64,
        /// bytes of the extended attributes, encoded; bit 31: their blocks stand in a list at `xattr_addr`
        pub xattr_bytes: u32,
        /// differs between uses of the same number
        pub generation: u32,
        /// bit 0: orphan; bits 1 and 2: pinned to 1 nvm, 2 ssd, 3 hdd; bit 3: immutable; 4: append-only; 5: no dump; 6: no access time; 7: changes are followed by fsync; 8: of a directory, likewise those of names
        pub flags: u32,
        /// measure of use, fed by digest
        pub heat: u32,
        /// batch that wrote the slot
        pub txid: u64,
        /// extents per tier; a directory keeps its entries' tree in root 0
        pub root: [ExtentRoot; TIERS_MAX],
        /// a symbolic link: bit 32, and CRC-32C of its number (8 bytes) and target; 0: none was stored
        pub target_checksum: u64,
        /// 0
        pub reserved: [u8; 36],
        /// CRC-32C of the slot with this field 0
        pub crc: u32,
    }
}

const _: () = assert!(Inode::BYTES == INODE_BYTES);

/// Bit of [`Inode::target_checksum`]: there is one. Links of a version that stored none have 0.
const TARGET_HAS_CHECKSUM: u64 = 1 << 32;

/// [`Inode::target_checksum`] of the symbolic link `ino` to `target`.
pub fn target_checksum(ino: Ino, target: &[u8]) -> u64 {
    TARGET_HAS_CHECKSUM | u64::from(crc32c_parts(&[&ino.0.to_le_bytes(), target]))
}

impl Inode {
    /// A free slot.
    pub fn free() -> Self {
        Self::new_zeroed_slot()
    }

    /// The tier that it is pinned to.
    pub fn pin(&self) -> Option<TierId> {
        let number = (self.flags & flag::PIN) >> flag::PIN.trailing_zeros();
        TierId::from_number((number as u8).checked_sub(1)?)
    }

    /// Pins it, or not.
    pub fn set_pin(&mut self, tier: Option<TierId>) {
        let number = tier.map_or(0, |t| t as u32 + 1);
        self.flags = self.flags & !flag::PIN | number << flag::PIN.trailing_zeros();
    }

    fn new_zeroed_slot() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }

    /// Bytes with the checksum set.
    pub fn encode(&self) -> [u8; INODE_BYTES] {
        let mut s = *self;
        s.crc = 0;
        s.crc = crc32c(s.as_bytes());
        zerocopy::transmute!(s)
    }

    /// Reads the slot of inode `ino`. A slot of zeros is a free one.
    pub fn decode(bytes: &[u8], ino: Ino) -> Result<Self, FormatError> {
        const WHAT: &str = "inode";
        let at = ino.0;
        let (s, _) = Self::read_from_prefix(bytes).map_err(|_| FormatError::Short {
            what: WHAT,
            expected: INODE_BYTES,
            found: bytes.len(),
        })?;
        if s.as_bytes().iter().all(|&b| b == 0) {
            return Ok(s);
        }
        let zeroed = Self { crc: 0, ..s };
        let crc = crc32c(zeroed.as_bytes());
        if crc != s.crc {
            return Err(FormatError::Checksum {
                what: WHAT,
                at,
                expected: crc,
                found: s.crc,
            });
        }
        if s.ino != ino.0 {
            return Err(FormatError::Misplaced {
                what: WHAT,
                at,
                found: s.ino,
            });
        }
        Ok(s)
    }

    /// Whether the slot holds no inode.
    pub fn is_free(&self) -> bool {
        self.mode == 0
    }
    /// Bytes of the extended attributes, encoded; 0: none.
    pub fn xattr_length(&self) -> usize {
        (self.xattr_bytes & !XATTR_SCATTERED) as usize
    }
    /// Whether the extended attributes lie in blocks that a list names.
    pub fn xattr_scattered(&self) -> bool {
        self.xattr_bytes & XATTR_SCATTERED != 0
    }
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }
    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }
    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.mode & 0o170_000 == 0o120_000
    }
    /// Checks the target of a symbolic link. Links of a version that stored no checksum pass.
    pub fn check_target(&self, target: &[u8]) -> Result<(), FormatError> {
        let expected = target_checksum(Ino(self.ino), target);
        if self.target_checksum == 0 || self.target_checksum == expected {
            return Ok(());
        }
        Err(FormatError::Checksum {
            what: "target of symbolic link",
            at: self.ino,
            expected: expected as u32,
            found: self.target_checksum as u32,
        })
    }

    /// Whether it has blocks of content: a regular file's data, or the target of a symbolic link.
    pub fn has_content(&self) -> bool {
        self.is_file() || self.is_symlink()
    }
    /// Sets a time from nanoseconds since 1970 (index from [`time`]).
    pub fn set_time_ns(&mut self, which: usize, ns: i64) {
        self.time_s[which] = ns.div_euclid(1_000_000_000);
        self.time_ns[which] = ns.rem_euclid(1_000_000_000) as u32;
    }
}

/// Where the slot of `ino` lies in the inode file: its block, and the byte in the block.
pub fn slot_of(ino: Ino) -> (FileBlock, usize) {
    let byte = ino.0 * INODE_BYTES as u64;
    (
        FileBlock::containing(byte),
        (byte % BLOCK_BYTES as u64) as usize,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_free_and_damage() {
        let mut i = Inode::free();
        assert!(Inode::decode(i.as_bytes(), Ino(77)).unwrap().is_free());
        i.ino = 77;
        i.mode = 0o100_644;
        i.set_time_ns(time::MODIFY, -1);
        assert_eq!((i.time_s[1], i.time_ns[1]), (-1, 999_999_999));
        let mut b = i.encode();
        assert!(Inode::decode(&b, Ino(77)).unwrap().is_file());
        assert!(matches!(
            Inode::decode(&b, Ino(78)),
            Err(FormatError::Misplaced { .. })
        ));
        b[9] ^= 4;
        assert!(matches!(
            Inode::decode(&b, Ino(77)),
            Err(FormatError::Checksum { .. })
        ));
    }

    #[test]
    fn what_is_inherited_goes_by_the_type() {
        let all = flag::ALL;
        assert_eq!(inherited(all, 0o040_755), flag::INHERITED);
        let file = flag::PIN | flag::NO_DUMP | flag::NO_ATIME | flag::SYNC;
        assert_eq!(inherited(all, 0o100_644), file);
        for other in [0o120_777, 0o010_644, 0o020_600, 0o060_600, 0o140_755] {
            assert_eq!(inherited(all, other), file & !flag::SYNC);
        }
        assert_eq!(inherited(flag::IMMUTABLE | flag::ORPHAN, 0o040_755), 0);
    }

    #[test]
    fn every_bit_of_a_target_counts() {
        let mut link = Inode::free();
        (link.ino, link.mode) = (77, 0o120_777);
        link.check_target(b"of a version without").unwrap();
        let target = b"../over/there".to_vec();
        link.target_checksum = target_checksum(Ino(77), &target);
        link.check_target(&target).unwrap();
        for bit in 0..target.len() * 8 {
            let mut bad = target.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(
                link.check_target(&bad),
                Err(FormatError::Checksum { at: 77, .. })
            ));
        }
        // The target of another link, and a shorter one.
        link.ino = 78;
        assert!(link.check_target(&target).is_err());
        link.ino = 77;
        assert!(link.check_target(&target[..5]).is_err());
        // No target has the checksum that stands for none.
        assert_ne!(target_checksum(Ino(0), b""), 0);
    }
}
