//! What reads a volume: blocks, snapshots, lookups, walks.

pub(crate) mod block_reader;
pub(crate) mod patience;
pub(crate) mod view;
