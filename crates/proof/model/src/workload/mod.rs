//! Programs' patterns of calls, through LibFS or through any directory.
//!
//! | Module | Pattern |
//! | --- | --- |
//! | [`varmail`] | mail: small files made, appended to, synced, read and removed (MISSION D5, M8) |
//! | [`alphabet`], [`words`] | operations on a small tree, and sequences of them |
//! | [`huge`] | writes above 1 MiB |
//! | [`programs`] | what real programs did, recorded |
//! | [`million`] | one directory of very many names |
//!
//! The same seed gives the same calls on whatever is measured.

pub mod alphabet;
mod direct;
mod directory;
mod files;
pub mod huge;
pub mod million;
pub mod programs;
pub mod tiered;
pub mod varmail;
pub mod words;

pub use direct::DirectFiles;
pub use directory::Directory;
pub use files::{DigestCounts, Files, Handle};
