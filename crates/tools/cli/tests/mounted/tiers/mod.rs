//! Volumes with flash and disk: data moves down, devices come, go and fail.

mod degraded;
mod devices;
mod direct_reads;
mod flash;
mod full_mapping;
mod grow;
mod grow_nvm;
mod inodes;
mod switch_nvm;
mod three_tiers;
