//! Devices and zones of the lower tiers.

pub(crate) mod devices;
pub(crate) mod leaf_cache;
pub(crate) mod lower;
pub(crate) mod remote_reader;
pub(crate) mod tiers;
pub(crate) mod txn_lower;
pub(crate) mod zones;
