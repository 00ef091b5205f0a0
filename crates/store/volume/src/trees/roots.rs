//! Roots of trees in an inode, and what is wrong with one.

use crate::error::{Result, VolumeError};
use shale_format::extent::{ExtentRoot, root_kind};
use shale_format::inode::Inode;
use shale_format::limits::TREE_LEVELS_MAX;
use shale_format::{BlockAddr, Ino};

/// Leaves that may come back at once: of a directory or a file with more none goes below.
pub const LEAVES_AT_ONCE: u64 = 1024;

/// The roots of an inode's trees.
pub(crate) fn trees(inode: &Inode) -> impl Iterator<Item = &ExtentRoot> {
    let roots = match inode.is_dir() {
        true => &inode.root[..1],
        false => &inode.root[..],
    };
    roots.iter().filter(|r| r.kind == root_kind::TREE)
}

/// Leaves of an inode that lie below NVM, as its roots count them.
pub fn leaves_below(inode: &Inode) -> u64 {
    trees(inode).map(|root| u64::from(root.len)).sum()
}

/// Root of the entries of a directory.
pub(crate) fn entries_root(dir: &Inode) -> &ExtentRoot {
    &dir.root[0]
}

/// The root of a tree whose top node is at `addr`.
pub(crate) fn tree_root(addr: BlockAddr, level: u16) -> ExtentRoot {
    ExtentRoot {
        addr: addr.raw(),
        kind: root_kind::TREE,
        level,
        ..ExtentRoot::EMPTY
    }
}

/// Address and level of a tree's top node.
pub(crate) fn top(root: &ExtentRoot, owner: Ino) -> Result<(BlockAddr, u16)> {
    if root.kind != root_kind::TREE || root.level > TREE_LEVELS_MAX {
        return Err(bad_root(root, owner));
    }
    Ok((BlockAddr::from_raw(root.addr), root.level))
}

/// The error of a root that is none of a tree.
pub(crate) fn bad_root(root: &ExtentRoot, owner: Ino) -> VolumeError {
    VolumeError::Damaged {
        what: "root of a tree of inode",
        at: owner.0,
        expected: root_kind::TREE.into(),
        found: u64::from(root.kind) | u64::from(root.level) << 8,
    }
}

/// The error of a node that is not at its level.
pub(crate) fn bad_level(addr: BlockAddr, owner: Ino) -> VolumeError {
    VolumeError::Damaged {
        what: "level of a node in a tree of inode",
        at: owner.0,
        expected: 0,
        found: addr.raw(),
    }
}
