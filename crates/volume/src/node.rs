//! Nodes of the trees, decoded.

use shale_format::{DirKey, Ino};

/// One directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirent {
    /// Key in the directory's tree, and cookie of `readdir`.
    pub key: DirKey,
    /// Inode that it names.
    pub ino: Ino,
    /// Type of the inode, as in `d_type`.
    pub kind: u8,
    /// Name; empty in the directory of orphans.
    pub name: Vec<u8>,
}
