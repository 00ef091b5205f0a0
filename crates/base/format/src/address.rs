//! Addresses as types: a number of one kind cannot be used as another.

use crate::limits::BLOCK_BYTES;

/// One kind of medium of a volume, fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TierId {
    /// Byte-addressable non-volatile memory.
    Nvm = 0,
    /// Flash.
    Ssd = 1,
    /// Disk.
    Hdd = 2,
}

impl TierId {
    /// All tiers, fastest first.
    pub const ALL: [TierId; 3] = [TierId::Nvm, TierId::Ssd, TierId::Hdd];

    /// The tier with this persisted number, if there is one.
    pub fn from_number(n: u8) -> Option<Self> {
        Self::ALL.get(n as usize).copied()
    }
}

/// An inode number. 0 names nothing; 1 is the root directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ino(pub u64);

impl Ino {
    /// Names nothing.
    pub const NONE: Ino = Ino(0);
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
    /// The hidden directory of inodes without a name that are still in use.
    pub const ORPHANS: Ino = Ino(2);
    /// First number that is granted to clients.
    pub const FIRST_GRANTED: Ino = Ino(16);
    /// Largest number: 2^48 - 1.
    pub const MAX: Ino = Ino((1 << 48) - 1);

    /// Whether the number can name a user's inode (root included).
    pub fn is_user(self) -> bool {
        self == Self::ROOT || (self >= Self::FIRST_GRANTED && self <= Self::MAX)
    }
}

/// Index of a 4 KiB block within a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FileBlock(pub u64);

impl FileBlock {
    /// The block that holds byte `offset` of a file.
    pub fn containing(offset: u64) -> Self {
        FileBlock(offset / BLOCK_BYTES as u64)
    }
    /// The first block at or after byte `offset` of a file.
    pub fn at_or_after(offset: u64) -> Self {
        FileBlock(offset.div_ceil(BLOCK_BYTES as u64))
    }
    /// Byte offset of the block's first byte in the file.
    pub fn byte(self) -> u64 {
        self.0 * BLOCK_BYTES as u64
    }
}

/// A 4 KiB block of a tier: the tier in the top 8 bits, the block's index below.
/// The value 0 (block 0 of NVM, a superblock) names nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BlockAddr(u64);

impl BlockAddr {
    /// Names nothing.
    pub const NONE: BlockAddr = BlockAddr(0);
    const INDEX_MASK: u64 = (1 << 56) - 1;

    /// Block `index` of `tier`. Panics if `index` needs more than 56 bits.
    pub fn new(tier: TierId, index: u64) -> Self {
        assert!(
            index <= Self::INDEX_MASK,
            "block index {index} needs more than 56 bits"
        );
        BlockAddr(((tier as u64) << 56) | index)
    }
    /// Block `index` of the NVM tier.
    pub fn nvm(index: u64) -> Self {
        Self::new(TierId::Nvm, index)
    }
    /// From its persisted form; the tier may be unknown (see [`Self::tier`]).
    pub fn from_raw(raw: u64) -> Self {
        BlockAddr(raw)
    }
    /// The persisted form.
    pub fn raw(self) -> u64 {
        self.0
    }
    /// The tier, or `None` if the number is not one.
    pub fn tier(self) -> Option<TierId> {
        TierId::from_number((self.0 >> 56) as u8)
    }
    /// The index within the tier.
    pub fn index(self) -> u64 {
        self.0 & Self::INDEX_MASK
    }
    /// Byte offset of the block within its tier.
    pub fn byte(self) -> u64 {
        self.index() * BLOCK_BYTES as u64
    }
    /// Whether it names nothing.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
    /// The block `n` further on in the same tier.
    pub fn plus(self, n: u64) -> Self {
        BlockAddr((self.0 & !Self::INDEX_MASK) | ((self.index() + n) & Self::INDEX_MASK))
    }
}

impl std::fmt::Debug for BlockAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.tier() {
            Some(t) => write!(f, "{t:?}:{}", self.index()),
            None => write!(f, "tier {}?:{}", self.0 >> 56, self.index()),
        }
    }
}

/// A position in an update log: bytes appended since the log began. It never
/// wraps; its place in the ring is the position modulo the ring's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogPos(pub u64);

/// Number of an atomic batch on the volume's structure; each commit adds one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TxId(pub u64);

/// Key of a directory entry in its directory's tree, and the cookie of `readdir`.
///
/// 57 bits of the name's keyed hash, then 6 bits that tell apart names whose
/// hashes are equal. Bit 63 is 0 so that a key fits `off_t`. Keys below
/// [`DirKey::FIRST`] are cookies of `.` and `..`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DirKey(pub u64);

impl DirKey {
    /// Number of entries with one hash that can be distinguished.
    pub const COLLISIONS: u64 = 64;
    /// Lowest key of an entry.
    pub const FIRST: DirKey = DirKey(Self::COLLISIONS);

    /// First key of the group for a name hash.
    pub fn group(hash: u64) -> Self {
        let top = (hash >> 1) & !(Self::COLLISIONS - 1);
        DirKey(top.max(Self::COLLISIONS))
    }
    /// First key of the group that this key is in.
    pub fn group_start(self) -> Self {
        DirKey(self.0 & !(Self::COLLISIONS - 1))
    }
    /// The key of the group with number `twin` (0 to 63).
    pub fn with_twin(self, twin: u8) -> Self {
        DirKey(self.group_start().0 | (u64::from(twin) % Self::COLLISIONS))
    }
    /// Which of the entries with the same hash this is.
    pub fn twin(self) -> u8 {
        (self.0 % Self::COLLISIONS) as u8
    }
}
