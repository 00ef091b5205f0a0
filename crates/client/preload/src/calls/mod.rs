//! The calls that are served, by what they are about.
//!
//! Each function gets the registers of a call and returns the kernel's kind of result, or
//! [`PASS`](shale_interpose::outcome::PASS) to let the kernel do it. Permission to open was the kernel's
//! to give; what a descriptor allows is checked here, as the kernel would.

pub mod attributes;
pub mod data;
pub mod descriptors;
pub mod direct;
pub mod mapping;
pub mod names;
pub mod process;
pub mod route;
pub mod short_way;
pub mod vectors;
pub mod vfork;
