//! What files are made of: inodes, extents, directory entries, attributes, and the trees that hold them.

pub mod acl;
pub mod dirent;
pub mod extent;
pub mod inode;
pub mod tree;
pub mod xattr;
