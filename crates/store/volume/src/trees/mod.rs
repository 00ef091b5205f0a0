//! B+ trees: nodes, extents, directories, attributes, inodes; leaves on lower tiers.

pub(crate) mod dir;
pub(crate) mod extent;
pub(crate) mod inode;
pub(crate) mod leaves;
pub(crate) mod node;
pub(crate) mod tree;
pub(crate) mod xattr;
