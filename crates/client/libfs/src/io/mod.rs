//! Reading, writing, and what changes ranges of a file; open files.

pub(crate) mod direct;
pub(crate) mod handle;
pub(crate) mod quick;
pub(crate) mod ranges;
pub(crate) mod read;
pub(crate) mod whole;
pub(crate) mod write;
