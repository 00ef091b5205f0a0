//! Devices below NVM that fail, are full, forget, are not there, come and go.

pub mod device_changes;
pub mod devices;
pub mod failures;
pub mod inodes;
pub mod missing;
pub mod tiered_volume;
pub mod zones;
