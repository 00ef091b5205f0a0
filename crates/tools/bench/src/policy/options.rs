//! What to measure, and how long.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::loads::Load;
use crate::{BenchError, Result};

/// How a load comes to a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Through its mount.
    Mount,
    /// Under `shale run`.
    Run,
}

impl Way {
    /// Both.
    pub const ALL: [Way; 2] = [Way::Mount, Way::Run];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Way::Mount => "mount",
            Way::Run => "run",
        }
    }
}

/// The name of NVM that is not slowed.
pub const NO_MODEL: &str = "none";

/// What to measure, and how long. Of each list every value is measured with each of the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyOptions {
    /// The loads.
    pub loads: Vec<Load>,
    /// Threads of a load.
    pub threads: Vec<u32>,
    /// Bytes of a load's calls; empty: as published.
    pub io_bytes: Vec<u64>,
    /// Models of NVM (and of ext4's device), or [`NO_MODEL`].
    pub models: Vec<String>,
    /// Bytes of a client's log, which is the buffer of the buffered policy.
    pub log_bytes: Vec<u64>,
    /// Policies of volumes; the others are compared with the first.
    pub policies: Vec<String>,
    /// How the loads come to the volumes; empty: no volume is measured.
    pub ways: Vec<Way>,
    /// Whether tmpfs is measured too.
    pub tmpfs: bool,
    /// Whether ext4 on a device as slow as the model is measured too.
    pub ext4: bool,
    /// Rounds; in each, every system has one turn, on a new volume.
    pub rounds: u32,
    /// Seconds of a turn.
    pub seconds: f64,
    /// Files of a load; `None`: as published.
    pub files: Option<u64>,
    /// Of a hundred bytes that a synthetic trace writes so many are synced; `None`: as the load says.
    pub sync_percent: Option<u32>,
    /// Bytes of NVM of a volume.
    pub volume_bytes: u64,
    /// Seed of all choices of the loads; the same in all rounds.
    pub seed: u64,
    /// A directory on tmpfs for volumes, images, and tmpfs itself.
    pub dir: PathBuf,
    /// The `shale` program.
    pub program: PathBuf,
    /// Where to draw plots.
    pub plots: Option<PathBuf>,
}

impl PolicyOptions {
    /// The four servers as HiNFS's Figure 7 has them, with fewer files and less time: some seven minutes.
    pub fn new(program: PathBuf) -> Self {
        PolicyOptions {
            loads: Load::SERVERS.to_vec(),
            threads: vec![1],
            io_bytes: vec![],
            models: vec!["hinfs".to_owned()],
            log_bytes: vec![256 << 20],
            policies: vec!["strict".to_owned(), "buffered".to_owned()],
            ways: Way::ALL.to_vec(),
            tmpfs: true,
            ext4: true,
            rounds: 3,
            seconds: 4.0,
            files: Some(1_000),
            sync_percent: None,
            volume_bytes: 2_560 << 20,
            seed: 1,
            dir: PathBuf::from("/dev/shm"),
            program,
            plots: None,
        }
    }

    /// A run of less than a minute: its counts mean something, its times little.
    pub fn quick(program: PathBuf) -> Self {
        PolicyOptions {
            loads: vec![Load::Fileserver, Load::Varmail],
            log_bytes: vec![64 << 20],
            rounds: 1,
            seconds: 0.3,
            files: Some(100),
            volume_bytes: 512 << 20,
            ..PolicyOptions::new(program)
        }
    }

    /// Whether this can be measured.
    pub(crate) fn check(&self) -> Result<()> {
        let bad = |option, expected: &str, found: String| {
            Err(BenchError::Option {
                option,
                expected: expected.to_owned(),
                found,
            })
        };
        for (option, empty) in [
            ("--loads", self.loads.is_empty()),
            ("--threads", self.threads.is_empty()),
            ("--models", self.models.is_empty()),
            ("--log-bytes", self.log_bytes.is_empty()),
            ("--policies", self.policies.is_empty()),
        ] {
            if empty {
                return bad(option, "at least one", "none".to_owned());
            }
        }
        if self.rounds == 0 {
            return bad("--rounds", "at least 1", "0".to_owned());
        }
        if !(self.seconds > 0.0 && self.seconds <= 86_400.0) {
            return bad("--seconds", "more than 0", self.seconds.to_string());
        }
        Ok(())
    }
}
