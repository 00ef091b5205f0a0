//! Free blocks of NVM, blocks that programs map, inode numbers.

pub(crate) mod bits;
pub(crate) mod held;
pub(crate) mod numbers;
pub(crate) mod space;
pub(crate) mod words;
