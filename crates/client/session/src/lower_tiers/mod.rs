//! Blocks on lower tiers, as a client reads them: a cache, direct reads of flash, requests to the daemon.
//!
//! Called by `client` when a call lacked blocks, outside of read section and locks; the call is tried again after
//! that. A block is known by its address and the erase count of its zone, which name the same bytes for ever, so
//! nothing is invalidated. What was read counts only if its checksum in NVM fits. Locks are leaves.

pub(crate) mod block_cache;
pub(crate) mod direct_device_read;
pub mod lower_blocks;
