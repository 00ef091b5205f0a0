//! Migration: demotes cold data, cleans zones, promotes what is read often (DESIGN §11, §32, Strata §3.3).
//!
//! What it asks of the rest of the daemon is in [`host`], as traits; of the daemon it knows nothing else.
//!
//! State, each of it in one module that knows none of the service:
//!
//! | Module | What it owns |
//! | --- | --- |
//! | `move_request` | blocks that are to move, and where to |
//! | `recency`, `read_regions`, `zone_choice` | which regions are cold, which are read often below NVM, which zones to clean |
//! | `zone_owners`, `bad_blocks` | which inodes have blocks in a zone; blocks that cannot be read |
//! | `inode_blocks`, `leaf_state`, `recent_promotions` | cold blocks of inodes and leaves; what was promoted for a lease stays a while |
//! | `rate_limit`, `stuck_devices`, `direct_rule`, `wakeup`, `counts` | the rate limit; devices that cannot be emptied; which new data goes directly to a lower tier; the thread; numbers |
//!
//! What [`Tiering`] does with it (`service`):
//!
//! | Module | What it does |
//! | --- | --- |
//! | `background`, `coldest` | the thread; demotion to the mark, for who waits, by command; what is coldest |
//! | `mover`, `copy`, `mover_lock` | moving data in batches, each as safe as a digest; reading and writing their blocks; one at a time |
//! | `inodes`, `leaves`, `structure_blocks` | demoting and promoting blocks of inodes, leaves of trees; what both share |
//! | `metadata_promotions`, `promoted_space` | metadata that a batch of data would promote; space for what comes back |
//! | `promotion` | promotion of what clients read often |
//! | `zone_contents`, `device_usage` | what lies in a zone or a tier; bytes on each device |
//! | `evacuation`, `pin` | evacuating devices; files that stay in a tier |
//! | `reclaim` | making space in a tier for calls that wait for it |
//! | `direct_placement`, `lower_read` | new data that a digest writes directly to a lower tier; reads of lower tiers for clients |
//!
//! Demotion begins when NVM is 95% full (a setting; of data in a memory tier that is staged 50%) and ends at 5 points less. A call that waits for space has it
//! reclaimed at once, whatever the rate limit. Called by its own thread, by `reservations` (space), `connections` (reads,
//! pins, leases on demoted metadata) and `digest_scheduler` (direct placement); it has logs digested through
//! `LogDigester`.
//!
//! One batch moves at a time, under `mover_lock`. Lock order: `mover_lock`, then the digester's commit barrier, then the volume's
//! transaction. While a batch is copied the daemon counts as one of its readers, so none of its blocks is reused; what
//! changed meanwhile is not moved. A power cut before a batch's transaction leaves copies that nothing refers to; after
//! it, the blocks are in their new place.
#![forbid(unsafe_code)]

mod bad_blocks;
mod counts;
mod direct_rule;
pub mod host;
mod inode_blocks;
mod leaf_state;
mod move_request;
mod rate_limit;
mod read_regions;
mod recency;
mod recent_promotions;
mod service;
mod stuck_devices;
mod wakeup;
mod zone_choice;
mod zone_owners;

pub use bad_blocks::{BadBlock, BadBlocks};
pub use counts::{MigrateProgress, MigrationCounts};
pub use direct_rule::DirectPlacement;
pub use inode_blocks::Stays;
pub use leaf_state::Of;
pub use move_request::MoveRequest;
pub use rate_limit::Speed;
pub use recency::Recency;
pub use recent_promotions::SPACE_WAIT;
pub use service::{
    DIRECT_PLACEMENT_MIN_BYTES, DirectWriteGuard, LogDigester, MoverGuard, Parts, Settings, Span,
    Tiering, Unsent, tier_name,
};
pub use service::{DeviceUsage, MIGRATE_AT_PERCENT, MIGRATE_STAGED_AT_PERCENT, PinReport};
