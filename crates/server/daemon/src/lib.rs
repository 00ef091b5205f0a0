//! The shared side of a volume, as a library: clients, leases, migration, recovery (DESIGN §3, §5, §6, §9).
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`daemon`], `services` | starting and stopping; what a daemon is made of |
//! | `attach`, `spare`, `client`, `connection`, `listen` | clients: in this process, or over a socket |
//! | `log_bytes` | reading the log of somebody who may cut it short |
//! | `digest_scheduler` | when a log is digested |
//! | `clients` | who is attached, and what all of them are told |
//! | `coherence` | leases; waiting until nobody uses what is freed; cutting clients off |
//! | `rights`, `grants` | who may do what |
//! | `space`, `reservations` | a full volume is found out at the call |
//! | `accounts`, `limits` | who wrote what to which tier, and how fast a client may |
//! | [`recover`], `orphans` | what a crash left |
//! | [`tiering`] | moving data between tiers, reading what lies below NVM, what lies on each device |
//! | [`scrub`] | verifying a volume that is mounted |
//! | `device_manager` | devices come and go |
//! | [`stats`] | what `status` shows: counts, how fast they grow |
#![forbid(unsafe_code)]

mod coherence;
mod connections;
pub mod daemon;
mod device_manager;
mod digest_scheduler;
pub mod error;
pub mod recovery;
mod reservations;
pub mod scrub;
mod services;
mod space;
pub mod stats;
pub mod tiering;
mod whereis;

pub use coherence::lease_table::LeaseHook;
pub use connections::accounts::Written;
pub use connections::limits::{Limits, RATE_MIN, Whose};
pub use daemon::{Daemon, DaemonConfig, FixedLogs, LogMap, recover_only};
pub use device_manager::DeviceReport;
pub use error::{DaemonError, Result};
pub use recovery::recover::RecoveryReport;
pub use scrub::{ScrubProgress, ScrubReport};
pub use stats::Status;
pub use stats::rates::RateStatus;
pub use stats::tiers::{DeviceStatus, FlashUse, MigrationStatus, TierStatus};
pub use tiering::{Holding, MigrateProgress, PinReport};
pub use whereis::{PARTS_MAX, WherePart};
