//! Blocks that lie below NVM.

pub(crate) mod flash;
pub(crate) mod lower;
