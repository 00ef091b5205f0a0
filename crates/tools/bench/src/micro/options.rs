//! What to measure, and how long.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::target::Op;
use crate::{BenchError, Result};

/// What to measure, and how long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MicroOptions {
    /// Operations to measure.
    pub ops: Vec<Op>,
    /// Sizes in bytes.
    pub sizes: Vec<usize>,
    /// Rounds that count; one more warms up.
    pub rounds: u32,
    /// Most operations in a round.
    pub round_ops_max: usize,
    /// Bytes written or read in a round, at most, but one operation at least.
    pub round_bytes: u64,
    /// Rounds of overwriting between two digests; other operations have one after each
    /// round. A digest writes whole nodes of trees, so what it costs an operation depends on
    /// how many it brings together. (In use it brings some hundred thousand: 30% of a log.)
    pub digest_rounds: u32,
    /// Operations of a round that a target does before it is the next one's turn, 1 or more.
    pub turn_ops: usize,
    /// A round of one target ends after so many milliseconds.
    pub round_ms_max: u64,
    /// Bytes of the file that is overwritten and read. For times that mean anything it
    /// is larger than the last-level cache. A multiple of every size.
    pub working_set_bytes: u64,
    /// Of random offsets and contents.
    pub seed: u64,
    /// A directory on tmpfs for floor, volume and tmpfs itself; removed from it again.
    pub dir: PathBuf,
    /// An empty directory of a mounted volume (strict policy), made by the caller.
    pub mount: Option<PathBuf>,
    /// Directories for images of ext4: each is one target.
    pub ext4: Vec<PathBuf>,
    /// Where to draw plots.
    pub plots: Option<PathBuf>,
}

impl Default for MicroOptions {
    fn default() -> Self {
        MicroOptions {
            ops: Op::ALL.to_vec(),
            sizes: [
                64,
                128,
                1 << 10,
                4 << 10,
                16 << 10,
                64 << 10,
                256 << 10,
                1 << 20,
            ]
            .to_vec(),
            rounds: 15,
            round_ops_max: 2_000,
            round_bytes: 4 << 20,
            digest_rounds: 8,
            turn_ops: 50,
            round_ms_max: 100,
            working_set_bytes: 64 << 20,
            seed: 1,
            dir: PathBuf::from("/dev/shm"),
            mount: None,
            ext4: vec![PathBuf::from("/var/tmp"), PathBuf::from("/dev/shm")],
            plots: None,
        }
    }
}

impl MicroOptions {
    /// A run of about a second, for tests: its times mean little, its counts do.
    pub fn quick() -> Self {
        MicroOptions {
            sizes: vec![128, 4 << 10],
            rounds: 2,
            round_ops_max: 50,
            digest_rounds: 1,
            round_bytes: 256 << 10,
            working_set_bytes: 2 << 20,
            ext4: vec![],
            ..MicroOptions::default()
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
        let set = self.working_set_bytes;
        if let Some(size) = self
            .sizes
            .iter()
            .find(|&&size| size == 0 || !set.is_multiple_of(size as u64))
        {
            return bad("sizes", "divisors of the working set", size.to_string());
        }
        if set == 0 || !set.is_multiple_of(4_096) {
            return bad("working_set_bytes", "a multiple of 4096", set.to_string());
        }
        match (self.round_ops_max, self.turn_ops) {
            (0, _) => bad("round_ops_max", "at least 1", "0".to_owned()),
            (_, 0) => bad("turn_ops", "at least 1", "0".to_owned()),
            _ => Ok(()),
        }
    }
}
