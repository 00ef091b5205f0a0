//! What a file system should do, and whether it does.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`act`] | operations and what they answer |
//! | [`acl`] | access control lists, for the model and as values |
//! | [`memory`] | the model: a file system in memory |
//! | [`kernel`], [`shale`] | the same operations on a directory of the kernel's and on a volume |
//! | [`snapshot`] | whole trees compared |
//! | [`random`], [`compare`] | many operations on two sides at once |
//! | [`workload`] | programs' patterns of calls: a mail server, a directory of a million files |
#![forbid(unsafe_code)]

pub mod acl;
pub mod act;
pub mod compare;
pub mod kernel;
pub mod memory;
pub mod random;
pub mod shale;
pub mod snapshot;
pub mod workload;

pub use act::{Act, FileAct, Fill, Outcome, Said, Side, Stat};
pub use kernel::Kernel;
pub use memory::Memory;
pub use shale::Shale;
pub use snapshot::Snapshot;
