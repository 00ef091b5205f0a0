//! How a check is done, and how far it is.

use crate::lower_metadata::Below;
use serde::Serialize;
use shale_nvm::Map;
use shale_pool::volume_file::VolumeFile;
use std::fmt;
use std::sync::Arc;

/// How to check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Findings listed at most; the rest is counted. Default 1000.
    pub findings_max: usize,
    /// Devices below NVM, for inodes and leaves of trees that lie there. Default none: those are reported as
    /// not readable, with the devices that are missing.
    pub below: Below,
    /// The volume file, to tell what is older than the rest. Default none: nothing is compared.
    pub volume: Option<VolumeFile>,
    /// A repair believes that all of the volume was put back from one backup.
    pub restored: bool,
    /// It is the newest image of a volume without NVM: logs that the log table has are not there, the next mount makes them again from the
    /// staging area.
    pub logs_staged: bool,
}

impl CheckOptions {
    /// With the devices that a volume file names.
    pub fn of(file: &VolumeFile) -> Self {
        CheckOptions {
            below: Below::named(file),
            volume: Some(file.clone()),
            ..CheckOptions::default()
        }
    }
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions {
            findings_max: 1000,
            below: Below::default(),
            volume: None,
            restored: false,
            logs_staged: false,
        }
    }
}

/// One file of an update log.
#[derive(Debug)]
pub struct LogFile {
    /// Number of its slot in the log table.
    pub slot: u32,
    /// The file, mapped; or why it cannot be.
    pub map: Result<Arc<Map>, String>,
}

/// What a check is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Superblocks, journal, logs.
    Head,
    /// Inode slots.
    Slots,
    /// Blocks and entries of inodes.
    Inodes,
    /// Link counts.
    Links,
    /// Bitmap.
    Bitmap,
    /// First owners of blocks used twice.
    Owners,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Head => "superblocks, journal and logs",
            Stage::Slots => "inode slots",
            Stage::Inodes => "inodes and directories",
            Stage::Links => "link counts",
            Stage::Bitmap => "bitmap",
            Stage::Owners => "owners of blocks used twice",
        })
    }
}

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// What it is doing.
    pub stage: Stage,
    /// Blocks of the inode file done in this stage.
    pub done: u64,
    /// Blocks of the inode file; 0 where they do not measure the stage.
    pub of: u64,
}
