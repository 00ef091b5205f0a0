//! Devices and zones of the lower tiers.

pub(crate) mod leaf_cache;
pub(crate) mod lower;
pub(crate) mod txn_lower;
pub(crate) mod zones;
