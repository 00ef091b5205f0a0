//! Shale: workloads, models, measurements.
//!
//! | Module | What it measures |
//! | --- | --- |
//! | [`micro`] | single operations by size, side by side: floor, LibFS, the mount, tmpfs, ext4 |
//! | [`workload`] | programs' patterns of calls: a mail server, a directory of a million files |
//! | [`model`] | what a file system should do: a model in memory, compared with kernel and volume |
//! | [`crash`] | power cuts at every fence, recovered and compared with the model |
//! | [`digest`] | how fast logs are digested, and how long writers wait for it |
//! | [`faults`] | what is promised of every fault, and whether it is kept |
//! | [`flash`] | other file systems on the emulated flash, with its counters |
//! | [`fuzz`] | bytes that anybody could have written |
//! | [`hostile`] | clients that lie |
//! | [`tiers`] | loads for volumes of several tiers |
//! | [`scratch`] | a volume for as long as a measurement lasts |
//! | [`machine`] | on what |
//!
//! Counts compare between machines; times only within one run.
#![forbid(unsafe_code)]

pub mod chance;
pub mod crash;
pub mod digest;
mod error;
pub mod faults;
pub mod flash;
pub mod fuzz;
pub mod hostile;
pub mod machine;
pub mod micro;
pub mod model;
mod programs;
pub mod scratch;
pub mod tiers;
mod timer;
pub mod workload;

pub use error::HarnessError;

/// What everything here returns.
pub type Result<T> = std::result::Result<T, HarnessError>;
