//! The shared side of a volume, as a library: clients, leases, migration, recovery (DESIGN §3, §5, §6, §9).
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`config`], `opening`, `services`, [`daemon`] | how it is started, opening and recovering, what it is made of, what it does |
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
pub mod config;
mod connections;
pub mod daemon;
mod device_manager;
mod digest_scheduler;
pub mod error;
mod opening;
mod rate_sampler;
pub mod recovery;
mod reservations;
pub mod scrub;
mod services;
mod space;
pub mod stats;
pub mod tiering;
mod whereis;

pub use coherence::lease_table::LeaseHook;
pub use config::{DaemonConfig, FixedLogs, LogMap};
pub use connections::limits::{Limits, RATE_MIN, Whose};
pub use connections::tally::Written;
pub use daemon::Daemon;
pub use device_manager::DeviceReport;
pub use error::{DaemonError, Result};
pub use opening::recover_only;
pub use rate_sampler::RateStatus;
pub use recovery::recover::RecoveryReport;
pub use scrub::{ScrubProgress, ScrubReport};
pub use stats::Status;
pub use stats::flash::FlashUse;
pub use stats::tiers::{DeviceStatus, MigrationStatus, TierStatus};
pub use tiering::{Holding, MigrateProgress, PinReport};
pub use whereis::{PARTS_MAX, WherePart};
