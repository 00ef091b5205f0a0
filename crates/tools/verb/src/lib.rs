//! Shale: what all verbs of the `shale` program have in common, and nothing of volumes.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`failure`] | how a verb fails: what, why, what to do, and the exit code |
//! | [`terminal`] | what goes to the user |
//! | [`process`] | processes by number and time of start |
#![forbid(unsafe_code)]

pub mod failure;
pub mod process;
pub mod terminal;
