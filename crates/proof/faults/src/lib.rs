//! Faults: what is promised of each, and whether it is kept.
//!
//! | Folder or file | What it holds |
//! | --- | --- |
//! | [`table`] | the rows: fault, promise, how it is tried |
//! | [`trial`] | one row with one workload: cases, time, what was seen |
//! | [`volume`] | the workloads; a volume that is filled, damaged, served, checked, repaired; what it shows: each path as before, or EIO |
//! | [`metadata`] | structures that rot, writes that went elsewhere or nowhere, logs that a crash left, images damaged in many places, power cuts while repair works |
//! | [`media`] | segments that are missing, others', older; images of each release; pages of NVM that cannot be read any more |
//! | [`lower_tiers`] | devices that fail, are full, rot, are not there, come and go |
//! | [`processes`] | processes killed and stopped at each point; calls that go on while others free what they see |
//! | [`limits`] | no space, no inode numbers, a log that is full; a system that says no |
//! | [`fuzz`] | bytes that anybody could have written |
//!
//! A row passes if the rest of the volume is untouched, the error names what is damaged, and
//! nothing that returned is lost unless the row says so.
#![forbid(unsafe_code)]

pub mod fuzz;
pub mod limits;
pub mod lower_tiers;
pub mod media;
pub mod metadata;
pub mod processes;
mod run;
pub mod table;
pub mod trial;
pub mod volume;

pub use run::run;
pub use trial::{Options, Outcome};
