//! Every limit has a name, and the relations between limits hold at compile time.

/// Bytes of one block of any tier and of one tree node.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes of one inode slot.
pub const INODE_BYTES: usize = 256;
/// Inode slots in one block; inode numbers are granted in runs of this many (Strata §3.1).
pub const INODES_PER_BLOCK: u64 = (BLOCK_BYTES / INODE_BYTES) as u64;
/// Bytes of one NVM segment file.
pub const SEGMENT_BYTES: u64 = 64 << 20;
/// Every record begins at a multiple of this and fills a multiple of it.
pub const RECORD_ALIGN: usize = 64;
/// Longest record in bytes, header and payload. Longer calls split.
pub const RECORD_BYTES_MAX: usize = 2 << 20;
/// Smallest ring of an update log, in bytes.
pub const LOG_BYTES_MIN: u64 = 16 << 20;
/// Default ring of an update log, in bytes.
pub const LOG_BYTES_DEFAULT: u64 = 256 << 20;
/// Most bytes of the update log of a process other than the mount, unless the volume or the process says otherwise:
/// a write of 8 MiB fits into a quarter of it.
pub const CLIENT_LOG_BYTES_DEFAULT: u64 = 64 << 20;
/// Largest ring of an update log, in bytes.
pub const LOG_BYTES_MAX: u64 = 4 << 30;
/// Number of update logs that can exist at once.
pub const LOG_SLOTS: u32 = 256;
/// Longest name of a directory entry in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest path in bytes, without the final NUL.
pub const PATH_BYTES_MAX: usize = 4095;
/// Longest symbolic link target in bytes.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Longest value of an extended attribute in bytes.
pub const XATTR_VALUE_BYTES_MAX: usize = 65536;
/// Longest name of an extended attribute in bytes.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Most bytes that the extended attributes of one inode fill together, encoded.
pub const XATTR_TOTAL_BYTES_MAX: usize = 128 << 10;
/// Longest access control list in bytes, as the kernel hands it to a mount: 511 entries.
pub const ACL_BYTES_MAX: usize = 4096;
/// Largest file in bytes (16 TiB).
pub const FILE_BYTES_MAX: u64 = 16 << 40;
/// Most hard links to one inode.
pub const LINKS_MAX: u32 = 65_000;
/// Most directories between the root and a directory that another one moves into: each is looked
/// at, for each move.
pub const DEPTH_MAX: u32 = 4096;
/// Most tiers of a volume.
pub const TIERS_MAX: usize = 3;
/// Most devices of one tier.
pub const DEVICES_MAX: usize = 8;
/// Blocks of a zone of a lower tier: 256 KiB to 4 GiB.
pub const ZONE_BLOCKS: std::ops::RangeInclusive<u32> = 64..=1 << 20;
/// Most blocks of one lower tier (1 PiB).
pub const TIER_BLOCKS_MAX: u64 = 1 << 38;
/// Highest kind of device.
pub const DEVICE_KIND_MAX: u32 = 2;
/// Bytes at the start of a device of a lower tier that are its label's; zones begin behind them.
pub const LABEL_AREA_BYTES: u64 = 1 << 20;
/// Smallest NVM tier in bytes.
pub const NVM_BYTES_MIN: u64 = 32 << 20;
/// Levels of the deepest tree that is accepted.
pub const TREE_LEVELS_MAX: u16 = 12;
/// Payloads above this many bytes are ordered by a second fence instead of being
/// covered by the record's checksum: there the second fence is the cheaper one.
pub const CHECKSUM_BYTES_MAX: usize = 12 << 10;

const _: () = assert!(
    LOG_BYTES_MIN >= 4 * RECORD_BYTES_MAX as u64,
    "digest must overlap append"
);
const _: () = assert!(BLOCK_BYTES.is_multiple_of(INODE_BYTES));
const _: () = assert!(XATTR_VALUE_BYTES_MAX + XATTR_NAME_BYTES_MAX + 128 < RECORD_BYTES_MAX);
const _: () = assert!(XATTR_VALUE_BYTES_MAX < XATTR_TOTAL_BYTES_MAX);
const _: () = assert!(SEGMENT_BYTES.is_multiple_of(BLOCK_BYTES as u64));
