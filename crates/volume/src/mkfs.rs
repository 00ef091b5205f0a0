//! Making a volume.

use shale_format::Durability;
use shale_format::superblock::TierTable;

/// Properties of a new volume.
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Keys of the name hash; random, so that nobody can make names that collide.
    pub hash_seed: [u64; 2],
    /// Time of making, ns since 1970.
    pub created_ns: i64,
    /// Durability policy.
    pub durability: Durability,
    /// Owner of the volume and of its root directory.
    pub owner_uid: u32,
    /// Group of the root directory.
    pub owner_gid: u32,
    /// Permission bits of the root directory.
    pub root_mode: u32,
    /// Bytes of a client's update log unless it asks otherwise.
    pub log_bytes: u64,
    /// Flash tier; all zeros: none.
    pub ssd: TierTable,
    /// Disk tier; all zeros: none.
    pub hdd: TierTable,
}
