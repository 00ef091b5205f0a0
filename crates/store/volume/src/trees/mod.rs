//! B+ trees: nodes, extents, directories, attributes, inodes; leaves on lower tiers.

pub(crate) mod cow_trees;
pub(crate) mod demoted;
pub(crate) mod extent;
pub(crate) mod inode;
pub(crate) mod node;
pub(crate) mod roots;
pub(crate) mod xattr;
