//! What a scrub finds, and how far it is.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// One thing whose checksum does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// What it is about: a path where one leads there, else an inode number or the name
    /// of a structure.
    pub object: String,
    /// Number of the inode, if it is about one.
    pub ino: Option<u64>,
    /// What is wrong; of several blocks, with the first one.
    pub what: String,
    /// The bytes of the file that are damaged, from the first to behind the last, if it is data.
    #[serde(default)]
    pub bytes: Option<Range<u64>>,
}

/// What a scrub came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// Inodes read.
    pub inodes: u64,
    /// Tree nodes read.
    pub nodes: u64,
    /// Inodes whose extended attributes were read.
    pub attributes: u64,
    /// Blocks of data on lower tiers read.
    pub data_blocks: u64,
    /// Blocks of the bitmap read.
    pub bitmap_blocks: u64,
    /// Things whose checksum does not fit, listed or not.
    pub errors: u64,
    /// Blocks of data that did not fit and were rewritten from a copy in memory; no errors any more.
    pub repaired_blocks: u64,
    /// The first of them; adjoining blocks of a file are one.
    pub damage: Vec<Damage>,
    /// Everything was looked at.
    pub complete: bool,
}

/// How far a scrub is: blocks of the inode file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubProgress {
    /// Done.
    pub done: u64,
    /// Of so many, about.
    pub of: u64,
}
