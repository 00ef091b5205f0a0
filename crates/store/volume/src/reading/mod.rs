//! What reads a volume: snapshots, lookups, walks.

pub(crate) mod lookup;
pub(crate) mod view;
pub(crate) mod walk;
