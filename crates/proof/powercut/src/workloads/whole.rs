//! Sets of workloads in parts: what each part found is kept in files, and added up.
//!
//! Part I of N leaves `SET-I-of-N.json`, its counts, and the hashes of the images and volumes that
//! it met: an image that two parts met counts once. A part that failed or was ended leaves nothing.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::explore::explorer::Known;
use crate::workloads::sequences::Kind;
use shale_bench::BenchError;
use shale_bench::Result;

/// Workloads that belong together, none of which is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// All of one and of two operations.
    Whole,
    /// All pairs, each with several third operations.
    Triples,
    /// Ten thousand long runs.
    Runs,
}

/// Long runs in their set.
const RUNS: u64 = 10_000;

impl Set {
    /// Its name in commands and files.
    pub fn name(self) -> &'static str {
        match self {
            Set::Whole => "whole",
            Set::Triples => "triples",
            Set::Runs => "runs",
        }
    }

    /// The kinds of workloads, and how many there are of each.
    pub fn kinds(self) -> Vec<(Kind, u64)> {
        let kinds: &[Kind] = match self {
            Set::Whole => &[Kind::Ones, Kind::Pairs],
            Set::Triples => &[Kind::Triples],
            Set::Runs => &[Kind::Runs],
        };
        let counted = |kind: &Kind| (*kind, kind.count().unwrap_or(RUNS));
        kinds.iter().map(counted).collect()
    }

    /// Workloads in part `i` of `of`.
    pub fn share(self, (i, of): (u64, u64)) -> u64 {
        let share = |kind: (Kind, u64)| kind.1 * (i + 1) / of - kind.1 * i / of;
        self.kinds().into_iter().map(share).sum()
    }

    fn path(self, dir: &Path, (i, of): (u64, u64), suffix: &str) -> PathBuf {
        dir.join(format!("{}-{i}-of-{of}.{suffix}", self.name()))
    }

    /// Whether part `(i, of)` was kept in `dir`.
    pub fn is_kept(self, dir: &Path, part: (u64, u64)) -> bool {
        self.path(dir, part, "json").exists()
    }
}

/// Counts of one part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Workloads looked at.
    pub workloads: u64,
    /// Points at which power was cut.
    pub cuts: u64,
    /// Different images recovered.
    pub states: u64,
    /// Of these, cut in a recovery.
    pub states_again: u64,
    /// Steps of long runs.
    #[serde(default)]
    pub steps: u64,
    /// Faults after which long runs went on.
    #[serde(default)]
    pub faults: u64,
    /// Seconds it took.
    pub seconds: u64,
}

/// What the parts that were kept come to.
#[derive(Debug, Default, Serialize)]
pub struct Sum {
    /// Parts there are, of how many.
    pub parts: (u64, u64),
    /// Their counts, added.
    pub part: Part,
    /// Different images in all of them.
    pub states: u64,
    /// Different volumes in all of them.
    pub volumes: u64,
}

const HASH_BYTES: usize = size_of::<u128>();

/// Keeps what a part of `set` found in `dir`.
///
/// # Errors
/// A file cannot be written.
pub fn keep(dir: &Path, set: Set, number: (u64, u64), part: &Part, known: &Known) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(BenchError::file(dir, "make"))?;
    let write = |suffix: &str, bytes: &[u8]| {
        let path = set.path(dir, number, suffix);
        std::fs::write(&path, bytes).map_err(BenchError::file(&path, "write"))
    };
    let bytes = |hashes: Vec<u128>| -> Vec<u8> {
        hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect()
    };
    write("states", &bytes(known.images()))?;
    write("volumes", &bytes(known.volumes()))?;
    write("json", &serde_json::to_vec(part).unwrap_or_default())
}

/// Adds up what is kept in `dir` of `of` parts of `set`.
///
/// # Errors
/// A file is there and cannot be read.
pub fn sum(dir: &Path, set: Set, of: u64) -> Result<Sum> {
    let mut sum = Sum {
        parts: (0, of),
        ..Sum::default()
    };
    let (mut states, mut volumes) = (HashSet::new(), HashSet::new());
    for i in 0..of {
        let path = |suffix: &str| set.path(dir, (i, of), suffix);
        let read = |suffix: &str| {
            let path = path(suffix);
            std::fs::read(&path).map_err(BenchError::file(&path, "read"))
        };
        if !path("json").exists() {
            continue;
        }
        let part: Part = serde_json::from_slice(&read("json")?).unwrap_or_default();
        sum.parts.0 += 1;
        sum.part.workloads += part.workloads;
        sum.part.cuts += part.cuts;
        sum.part.states += part.states;
        sum.part.states_again += part.states_again;
        sum.part.steps += part.steps;
        sum.part.faults += part.faults;
        sum.part.seconds += part.seconds;
        let hashes = |bytes: Vec<u8>| {
            let (hashes, _) = bytes.as_chunks::<HASH_BYTES>();
            hashes
                .iter()
                .map(|&h| u128::from_le_bytes(h))
                .collect::<Vec<_>>()
        };
        states.extend(hashes(read("states")?));
        volumes.extend(hashes(read("volumes")?));
    }
    sum.states = states.len() as u64;
    sum.volumes = volumes.len() as u64;
    Ok(sum)
}
