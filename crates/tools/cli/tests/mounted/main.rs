//! The real program with real mounts: `/dev/fuse`, daemons, kills.
//!
//! Each test has a volume in memory and a mount point of its own, and takes both away
//! whatever happens.

mod backup;
mod coherence;
mod commands;
mod damaged;
#[path = "../../../../client/fuse/tests/takeover/directory_fs.rs"]
mod directory_fs;
mod linux;
mod processes;
mod requests;
mod tiers;
mod users;
mod volume;
