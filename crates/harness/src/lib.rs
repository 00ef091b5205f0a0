//! Shale: workloads, models, measurements.
//!
//! | Module | What it measures |
//! | --- | --- |
//! | [`micro`] | single operations by size, side by side: floor, LibFS, the mount, tmpfs, ext4 |
//! | [`workload`] | programs' patterns of calls: a mail server, a directory of a million files |
//! | [`scratch`] | a volume for as long as a measurement lasts |
//! | [`machine`] | on what |
//!
//! Counts compare between machines; times only within one run.
#![forbid(unsafe_code)]

pub mod chance;
mod error;
pub mod machine;
pub mod micro;
pub mod scratch;
mod timer;
pub mod workload;

pub use error::HarnessError;

/// What everything here returns.
pub type Result<T> = std::result::Result<T, HarnessError>;
