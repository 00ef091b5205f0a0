//! Shale: measurements, side by side with other file systems.
//!
//! | Module | What it measures |
//! | --- | --- |
//! | [`micro`] | single operations by size, side by side: floor, LibFS, the mount, tmpfs, ext4 |
//! | [`policy`] | the strict and the buffered policy of NVM side by side, by the loads of HiNFS's evaluation |
//! | [`digest`] | how fast logs are digested, and how long writers wait for it |
//! | [`flash`] | other file systems on the emulated flash, with its counters |
//! | [`tiers`] | loads for volumes of several tiers |
//! | [`scratch`] | a volume for as long as a measurement lasts |
//! | [`chance`] | seeded numbers |
//! | [`machine`] | on what |
//!
//! Counts compare between machines; times only within one run.
#![forbid(unsafe_code)]

pub mod chance;
pub mod digest;
mod error;
pub mod flash;
pub mod machine;
pub mod micro;
mod plot;
pub mod policy;
mod programs;
pub mod scratch;
mod table;
pub mod tiers;
mod timer;

pub use error::BenchError;

/// What everything here returns.
pub type Result<T> = std::result::Result<T, BenchError>;
