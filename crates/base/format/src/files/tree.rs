//! Nodes of the copy-on-write B+-trees: extents and directory entries.
//!
//! A node is one block. It holds its own address (finds misdirected writes), the
//! inode it belongs to, the batch that wrote it, and a checksum over all of it.

use crate::checksum::crc32c;
use crate::checksummed::{self, Sealed, sealed};
use crate::layout::layout;
use crate::limits::{BLOCK_BYTES, TREE_LEVELS_MAX};
use crate::{BlockAddr, FormatError, Ino};

/// First bytes of a tree node: "SHLN".
pub const NODE_MAGIC: u32 = u32::from_le_bytes(*b"SHLN");
/// Bytes behind the header of a node.
pub const NODE_BODY_BYTES: usize = BLOCK_BYTES - NodeHeader::BYTES;
/// Most children of an inner node.
pub const CHILDREN_MAX: usize = NODE_BODY_BYTES / ChildEntry::BYTES;
/// Most extents of a leaf.
pub const EXTENTS_MAX: usize = NODE_BODY_BYTES / crate::files::extent::Extent::BYTES;

/// What a tree holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum TreeKind {
    /// Extents by file block.
    Extents = 1,
    /// Directory entries by key.
    Entries = 2,
}

layout! {
    /// Header of a tree node; an array of entries follows, ascending by key
    pub struct NodeHeader: 64 {
        /// "SHLN"
        pub magic: u32,
        /// CRC-32C of the block with this field 0
        pub crc: u32,
        /// address of this node
        pub addr: u64,
        /// inode that the tree belongs to
        pub owner: u64,
        /// batch that wrote the node
        pub txid: u64,
        /// 1 extents, 2 directory entries
        pub kind: u16,
        /// 0 for a leaf, else the level above the leaves
        pub level: u16,
        /// number of entries
        pub count: u16,
        /// directory leaf: lowest byte offset of the name heap; else 0
        pub heap: u16,
        /// 0
        pub reserved: [u8; 24],
    }
}

layout! {
    /// One child of an inner node
    pub struct ChildEntry: 16 {
        /// lowest key that may be below this child (the first child's counts as 0)
        pub key: u64,
        /// address of the child
        pub addr: u64,
    }
}

sealed!(NodeHeader, "tree node", NODE_MAGIC);

/// Sets the checksum of an encoded node.
pub fn seal(node: &mut [u8; BLOCK_BYTES]) {
    node[4..8].fill(0);
    let crc = crc32c(&node[..]);
    node[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Makes a node one that belongs at `to`.
pub fn readdress(node: &mut [u8; BLOCK_BYTES], to: BlockAddr) {
    node[8..16].copy_from_slice(&to.raw().to_le_bytes());
    seal(node);
}

/// Checks a node read at `addr` that should belong to `owner`, and gives its header.
/// The entries are checked by who knows their kind.
pub fn check(
    node: &[u8; BLOCK_BYTES],
    addr: BlockAddr,
    owner: Ino,
    kind: TreeKind,
) -> Result<NodeHeader, FormatError> {
    const WHAT: &str = NodeHeader::WHAT;
    let at = addr.index();
    let (h, rest) = checksummed::read::<NodeHeader>(&node[..], at)?;
    let field = |field, found| FormatError::Field {
        what: WHAT,
        at,
        field,
        found,
    };
    checksummed::verify(&h, rest, at)?;
    if h.addr != addr.raw() {
        return Err(FormatError::Misplaced {
            what: WHAT,
            at,
            found: BlockAddr::from_raw(h.addr).index(),
        });
    }
    if h.owner != owner.0 {
        return Err(field("owner", h.owner));
    }
    if h.kind != kind as u16 {
        return Err(field("kind", h.kind.into()));
    }
    if h.level > TREE_LEVELS_MAX {
        return Err(field("level", h.level.into()));
    }
    let most = match (h.level, kind) {
        (0, TreeKind::Extents) => EXTENTS_MAX,
        (0, TreeKind::Entries) => NODE_BODY_BYTES / crate::files::dirent::DirentEntry::BYTES,
        _ => CHILDREN_MAX,
    };
    if h.count as usize > most {
        return Err(field("count", h.count.into()));
    }
    Ok(h)
}
