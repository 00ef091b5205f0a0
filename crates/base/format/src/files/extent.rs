//! Extents: runs of file blocks on consecutive blocks of a tier.

use crate::layout::layout;
use crate::{BlockAddr, FileBlock};

/// Flag of an extent whose blocks are allocated and read as zeros.
pub const UNWRITTEN: u32 = 1;

/// Persisted numbers of [`ExtentRoot::kind`].
pub mod root_kind {
    /// No block in this tier.
    pub const EMPTY: u8 = 0;
    /// The root is itself one extent (Strata §3.1: an unfragmented root points directly at data).
    pub const DIRECT: u8 = 1;
    /// The root names the top node of a tree.
    pub const TREE: u8 = 2;
}

layout! {
    /// Root of a file's extents in one tier, or of a directory's entries
    pub struct ExtentRoot: 24 {
        /// first block of the extent, or the tree's top node
        pub addr: u64,
        /// direct: the first file block; tree: number of nodes in the tree
        pub file_block: u64,
        /// direct: blocks of the extent; tree: leaves that lie below NVM
        pub len: u32,
        /// 0 empty, 1 direct, 2 tree
        pub kind: u8,
        /// direct: 1 unwritten
        pub flags: u8,
        /// tree: level of the top node, 0 for a leaf
        pub level: u16,
    }
}

impl ExtentRoot {
    /// A root without blocks.
    pub const EMPTY: ExtentRoot = ExtentRoot {
        addr: 0,
        file_block: 0,
        len: 0,
        kind: root_kind::EMPTY,
        flags: 0,
        level: 0,
    };
}

layout! {
    /// One extent in a leaf of an extent tree; key: `file_block`
    pub struct Extent: 24 {
        /// first file block
        pub file_block: u64,
        /// its address
        pub addr: u64,
        /// blocks
        pub len: u32,
        /// 1 unwritten
        pub flags: u32,
    }
}

impl Extent {
    /// First file block.
    pub fn start(&self) -> FileBlock {
        FileBlock(self.file_block)
    }
    /// First file block behind the extent.
    pub fn end(&self) -> FileBlock {
        FileBlock(self.file_block + u64::from(self.len))
    }
    /// Address of file block `fb`, which has to be inside.
    pub fn addr_of(&self, fb: FileBlock) -> BlockAddr {
        debug_assert!(fb >= self.start() && fb < self.end());
        BlockAddr::from_raw(self.addr).plus(fb.0 - self.file_block)
    }
    /// Whether the blocks read as zeros.
    pub fn is_unwritten(&self) -> bool {
        self.flags & UNWRITTEN != 0
    }
}
