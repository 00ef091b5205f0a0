//! What can go wrong with a volume.

use shale_allocation::AllocationError;
use shale_format::{BlockAddr, DirKey, FormatError, Ino, TxId};

/// Result with [`VolumeError`].
pub type Result<T> = std::result::Result<T, VolumeError>;

/// An operation on a volume failed. Nothing was changed on the medium.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// Bytes on the medium that are not what they should be.
    #[error("damaged volume: {0}")]
    Format(#[from] FormatError),
    /// Structures that are whole each but do not fit one another.
    #[error("damaged volume: {what} at {at}: {found} where {expected} is expected")]
    Damaged {
        /// The structure.
        what: &'static str,
        /// Where: a block, an inode or a byte, as `what` says.
        at: u64,
        /// What should be there.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// Not enough free blocks.
    #[error("no space: {wanted} blocks wanted, {free} free")]
    NoSpace {
        /// Blocks wanted.
        wanted: u64,
        /// Blocks free.
        free: u64,
    },
    /// The transaction is larger than the journal: use several.
    #[error("transaction of {wanted} bytes does not fit the journal of {capacity} bytes")]
    JournalFull {
        /// Bytes that the transaction needs.
        wanted: u64,
        /// Bytes of the journal.
        capacity: u64,
    },
    /// The volume would grow by more than the transaction may make it grow.
    #[error("{wanted} blocks more in use, and {reserved} were reserved")]
    Growth {
        /// Blocks.
        wanted: u64,
        /// Blocks that it may be.
        reserved: u64,
    },
    /// A directory has an entry with this key already.
    #[error("directory {dir:?} has an entry {key:?} already")]
    Exists {
        /// The directory.
        dir: Ino,
        /// The key.
        key: DirKey,
    },
    /// A directory has no such entry, or one with another name.
    #[error("directory {dir:?} has no entry {key:?} of that name")]
    NoEntry {
        /// The directory.
        dir: Ino,
        /// The key.
        key: DirKey,
    },
    /// An inode number that cannot be used here.
    #[error("inode number {0:?} cannot be used here")]
    BadIno(Ino),
    /// A run of blocks that is outside the tier, or not in the state the call needs.
    #[error("blocks {first} to {last} (exclusive): {why}")]
    BadRun {
        /// First block, with its tier in the top byte.
        first: u64,
        /// Block behind the last one.
        last: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A range of file blocks that the call cannot work on.
    #[error("file blocks {from} to {to} (exclusive): {why}")]
    BadRange {
        /// First file block.
        from: u64,
        /// File block behind the last one.
        to: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Something to be freed still holds something.
    #[error("inode {0:?} still has blocks or entries")]
    NotEmpty(Ino),
    /// An earlier operation of the transaction failed half-way: it can only be dropped.
    #[error("transaction {0:?} failed before and cannot be committed")]
    Failed(TxId),
    /// The medium is too small or too large for a volume.
    #[error("a tier of {found} bytes: {expected} or more are needed")]
    TierSize {
        /// Bytes needed.
        expected: u64,
        /// Bytes there.
        found: u64,
    },
    /// A memory error: the block cannot be read or written.
    #[error("memory error in block {block}")]
    Unreadable {
        /// The block of the NVM tier.
        block: u64,
    },
    /// A block of a lower tier does not hold what was written to it.
    #[error("the checksum of block {} of the tier, on {device}, does not fit", BlockAddr::from_raw(*addr).index())]
    BadBlock {
        /// The block, with its tier in the top byte.
        addr: u64,
        /// The device.
        device: String,
    },
    /// A leaf below NVM that this reader has to be given first ([`crate::View::with_block_source`]).
    #[error("block {:#x} below NVM has to be got first", addr.raw())]
    Lacking {
        /// Where it lies.
        addr: BlockAddr,
        /// How often its zone was erased.
        generation: u32,
        /// Leaves of the directory from there on that follow one another, at least 1.
        blocks: u64,
    },
    /// A device of a lower tier fails or is not there.
    #[error("lower tier: {0}")]
    Lower(String),
    /// The file system that a device's image lies on has no space: as if the device were full, until it has.
    #[error(
        "lower tier: {0}; the file system below it is full, and it gets nothing new until that has space"
    )]
    LowerFull(String),
    /// A zone of a lower tier was found to be worn out. Its device goes on without it: what was to be written
    /// finds another place when it is tried again.
    #[error("lower tier: {0}; its device goes on without that zone")]
    WornZone(String),
    /// The copies of the superblock belong to two volumes.
    #[error("the superblocks are of two volumes, {} and {}: a segment is another volume's", shown(.first), shown(.second))]
    TwoVolumes {
        /// Identity in the first copy.
        first: [u8; 16],
        /// Identity in the second.
        second: [u8; 16],
    },
    /// The volume uses features that this program can only read.
    #[error("the volume may only be read: it uses features this program does not know")]
    ReadOnly,
}

impl From<AllocationError> for VolumeError {
    fn from(e: AllocationError) -> Self {
        match e {
            AllocationError::NoSpace { wanted, free } => Self::NoSpace { wanted, free },
            AllocationError::BadRun { first, last, why } => Self::BadRun { first, last, why },
        }
    }
}

impl VolumeError {
    /// Whether what is on the medium is wrong: a check tells more of it.
    pub fn is_damage(&self) -> bool {
        match self {
            VolumeError::Format(FormatError::Version(_)) => false,
            VolumeError::Format(_)
            | VolumeError::Damaged { .. }
            | VolumeError::Unreadable { .. }
            | VolumeError::BadBlock { .. } => true,
            _ => false,
        }
    }
}

fn shown(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}
