//! How the media of a volume are divided: superblock and root block, journal, bitmap of NVM, devices and zones of lower tiers.

pub mod bitmap;
pub mod device_table;
pub mod journal;
pub mod superblock;
pub mod zone;
