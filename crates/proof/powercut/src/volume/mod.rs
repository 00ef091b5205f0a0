//! The volume that every workload begins with, directories that hold it, daemons and clients on it.

pub mod base;
pub mod lower_tiers;
pub mod media;
pub mod place;
pub mod sessions;
pub mod shadow;
pub mod unrest;
