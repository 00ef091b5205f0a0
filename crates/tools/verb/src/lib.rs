//! Shale: what all verbs of the `shale` program have in common, and nothing of volumes: what they say, and what the system says.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`failure`] | how a verb fails: what, why, what to do, and the exit code |
//! | [`terminal`] | what goes to the user |
//! | [`holders`] | who uses a file system |
//! | [`mount_table`] | the kernel's table of mounts |
//! | [`process`] | processes by number and time of start |
//! | [`user`] | users by name or number |
#![forbid(unsafe_code)]

pub mod failure;
pub mod holders;
pub mod mount_table;
pub mod process;
pub mod terminal;
pub mod user;
