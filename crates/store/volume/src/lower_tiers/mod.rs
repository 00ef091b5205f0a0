//! Devices and zones of the tiers below NVM.

pub(crate) mod devices;
pub(crate) mod draft_lower;
pub(crate) mod leaf_cache;
pub(crate) mod lower;
pub(crate) mod tiers;
pub(crate) mod without_devices;
pub(crate) mod zones;
