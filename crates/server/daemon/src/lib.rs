//! The shared side of a volume, as a library: digest, lease, recover (DESIGN §3, §5, §6, §9).
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`volume_file`], [`make`], [`nvm_dir`] | which media a volume has, making one, segment files and the lock |
//! | `labels`, `devices` | which segment is which, and which device below NVM |
//! | [`daemon`] | starting and stopping |
//! | `attach`, `spare`, `client`, `connection`, `listen` | clients: in this process, or over a socket |
//! | `log_bytes` | reading the log of somebody who may cut it short |
//! | `page`, `gate`, `release` | the two shared pages, and waiting until nobody uses what is freed |
//! | [`digest`], `digestion` | digesting a log, and when that happens |
//! | [`lease`], `revoke`, `idle`, `trim`, `rights`, `grants` | who may do what |
//! | `space` | a full volume is found out at the call |
//! | `accounts`, `limits` | who wrote what to which tier, and how fast a client may |
//! | [`recover`], `orphans` | what a crash left |
//! | [`migrate`], `lower_read` | moving data between tiers, reading what lies below NVM |
//! | [`check`], [`scrub`] | verifying a volume that is not mounted, or is; repair |
//! | [`stats`], `rates`, `holdings` | what `status` shows: counts, how fast they grow, what lies on each device |
#![forbid(unsafe_code)]

mod accounts;
mod asked;
mod attach;
mod barrier;
pub mod check;
mod client;
mod connection;
pub mod daemon;
mod device_change;
mod devices;
mod devices_there;
pub mod digest;
mod digestion;
pub mod error;
mod evict;
mod gate;
#[cfg(test)]
mod gate_tests;
mod grants;
mod halt;
mod holdings;
pub mod host_space;
mod idle;
mod labels;
mod last_blocks;
pub mod lease;
#[cfg(test)]
mod lease_tests;
mod left_log;
mod limits;
mod listen;
mod log_bytes;
mod lower_read;
pub mod make;
mod mappings;
pub mod medium;
mod message_rate;
pub mod migrate;
pub mod nvm_dir;
mod orphans;
mod page;
mod pass;
mod progress;
mod rates;
pub mod recover;
mod release;
mod revoke;
mod rights;
pub mod scrub;
mod shared;
mod space;
mod spare;
pub mod stats;
mod sync;
mod tier_stats;
mod trim;
pub mod volume_file;
mod whereis;

pub use accounts::Written;
pub use daemon::{Daemon, DaemonConfig, FixedLogs, LogMap, recover_only};
pub use device_change::DeviceReport;
pub use devices::{Divided, LowerTiers};
pub use error::{DaemonError, Result};
pub use holdings::Holding;
pub use lease::LeaseHook;
pub use limits::{Limits, RATE_MIN, Whose};
pub use make::{Made, MakeOptions, make_volume};
pub use medium::DeviceKind;
pub use migrate::{MigrateProgress, PinReport};
pub use nvm_dir::{NvmLock, open_nvm};
pub use rates::RateStatus;
pub use recover::RecoveryReport;
pub use scrub::{ScrubProgress, ScrubReport};
pub use stats::Status;
pub use tier_stats::{DeviceStatus, FlashUse, MigrationStatus, TierStatus};
pub use volume_file::VolumeFile;
pub use whereis::{PARTS_MAX, WherePart};
