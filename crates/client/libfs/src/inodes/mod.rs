//! Inodes in memory: what the log and the volume say of them together.

pub(crate) mod allocated;
pub(crate) mod attr;
pub(crate) mod dir;
pub(crate) mod entries;
pub(crate) mod flags;
pub(crate) mod found;
pub(crate) mod kernel;
pub(crate) mod lately;
pub(crate) mod locked;
pub(crate) mod node;
