//! The daemon as a library: the trusted process that owns a volume (DESIGN §3, §6, §9, §12).
//!
//! It admits clients, grants leases, decides when logs are digested, has data moved between tiers, and recovers what a
//! crash left. `cli` starts it for a mount, `bench` and the tests start it in their own process. It calls `clients`, `coherence`, `recovery`,
//! `hardening`, `digest`, `tiering`, `scrub`, `pool`, `volume`, `oplog` and the media, and never `libfs`: the two meet in messages (`proto`) and bytes on media.
//!
//! | Module | What it owns |
//! | --- | --- |
//! | [`daemon`], [`config`], `opening`, `services` | start and end of a daemon, its settings, its services and threads |
//! | `connections` | clients: attach, requests, permissions, logs, write accounting, rate limits |
//! | `digest_scheduler` | when a log is digested, and what follows from each chunk |
//! | `reservations` | space for records to come: ENOSPC comes at the call, never at digest (DESIGN §16) |
//! | `tiering_host` | what tiering asks of the other services |
//! | `device_manager`, `placement` | devices that come and go; where a file's blocks are |
//! | [`stats`], `rate_sampler` | what `status` shows |
//!
//! No service reaches all others: each is given the ones it needs when it is made (`services`), which also states the
//! order of locks; none of those is held while the daemon waits for calls of clients. Every change of the volume is one
//! transaction of `volume`, so a power cut leaves it as before or as after; all else here is in memory, and is built
//! again at the next start.
#![forbid(unsafe_code)]

pub mod config;
mod connections;
pub mod daemon;
mod device_manager;
mod digest_scheduler;
pub mod error;
mod opening;
mod placement;
mod rate_sampler;
mod reservations;
mod services;
pub mod stats;
mod tiering_host;
#[cfg(test)]
mod tiering_tests;
mod volume_freeze;

pub use shale_clients::tally::Written;
pub use shale_coherence::lease_table::LeaseHook;
pub use shale_recovery::recover::RecoveryReport;
pub use shale_scrub as scrub;
pub use shale_tiering as tiering;

pub use config::{DaemonConfig, FixedLogs, LogMap, WriteBackTimes};
pub use connections::limits::{Limits, RATE_MIN, Whose};
pub use daemon::Daemon;
pub use device_manager::DeviceReport;
pub use error::{DaemonError, Result};
pub use opening::recover_only;
pub use placement::{PARTS_MAX, PlacementPart};
pub use rate_sampler::RateStatus;
pub use scrub::{ScrubProgress, ScrubReport};
pub use shale_hardening::checkpointer::StagedStatus;
pub use stats::Status;
pub use stats::flash::FlashUse;
pub use stats::tiers::{DeviceStatus, MigrationStatus, TierStatus};
pub use tiering::{DeviceUsage, MigrateProgress, PinReport};
