//! The inode file and its free numbers.
