//! Free blocks of NVM, blocks that programs map, inode numbers.

pub(crate) mod bitmap;
pub(crate) mod bitmap_runs;
pub(crate) mod inode_numbers;
pub(crate) mod pinned_blocks;
pub(crate) mod space;
