//! What is to be made, and what was made.

use crate::devices::{Divided, LowerTiers};
use crate::host_space::{HostSpace, NvmNeed};
use crate::volume_file::{NvmEntry, VolumeFile};
use shale_format::Durability;
use shale_persist::Domain;
use std::path::PathBuf;

/// What to make.
#[derive(Clone, Debug)]
pub struct MakeOptions {
    /// The volume file to write.
    pub file: PathBuf,
    /// Name for people.
    pub name: String,
    /// The NVM tier: a directory, which is made if missing, but not the one above it, on a DAX file system, or on
    /// tmpfs, which survives processes but no power cut; and its bytes, rounded down to whole blocks. `None`: a volume
    /// without NVM, which needs a conventional SSD.
    pub nvm: Option<NvmEntry>,
    /// Sizes of a volume without NVM.
    pub staged: StagedSizes,
    /// Lower tiers; empty: none.
    pub lower: LowerTiers,
    /// Bytes of each client's log; 0: a size for the mount and a smaller one for other processes, by the size
    /// of NVM.
    pub log_bytes: u64,
    /// Durability policy.
    pub durability: Durability,
    /// Owner of volume and root directory.
    pub owner_uid: u32,
    /// Group of the root directory.
    pub owner_gid: u32,
    /// Permission bits of the root directory.
    pub root_mode: u32,
    /// Users beside the owner and root whose processes may map the volume; see [`VolumeFile::trusted_uids`].
    pub trusted_uids: Vec<u32>,
    /// Destroy a volume that is there; make one that takes more than there is of memory or of a file system.
    pub force: bool,
}

/// Sizes of a volume without NVM, where other ones are wanted than those that it would get. Rounded down to whole blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagedSizes {
    /// Bytes of the memory tier, at least [`NVM_BYTES_MIN`](shale_format::limits::NVM_BYTES_MIN). Default: a 128th of the lower tiers, at
    /// least 64 MiB, at most a quarter of the machine's memory and what is free in `/dev/shm`.
    pub memory_bytes: Option<u64>,
    /// Bytes of the staging area: 32 to 512 MiB. Default: 128 MiB, less on an SSD below 1 GiB.
    pub staging_bytes: Option<u64>,
}

/// What was made.
#[derive(Clone, Debug)]
pub struct Made {
    /// The volume file as written.
    pub file: VolumeFile,
    /// What a fence is worth there.
    pub domain: Domain,
    /// Whether the kernel took the advice to use huge pages.
    pub huge_pages: bool,
    /// Number of segment files.
    pub segments: usize,
    /// How the devices of ssd and hdd are divided.
    pub divided: [Vec<Divided>; 2],
    /// The file system of the memory tier: of the NVM directory, or that of shared memory.
    pub host: HostSpace,
    /// What the memory tier takes, with logs.
    pub need: NvmNeed,
    /// Bytes that the area of a volume without NVM takes of its SSD; 0: it has NVM.
    pub area_bytes: u64,
}
