//! All small workloads in parts: what each part found is kept in files, and added up.
//!
//! Part I of N leaves `I-of-N.json`, its counts, and the hashes of the images and volumes that
//! it met: an image that two parts met counts once. A part that failed or was ended leaves nothing.

use std::collections::HashSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::explore::Known;
use crate::{HarnessError, Result};

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
    /// Seconds it took.
    pub seconds: u64,
}

/// What the parts that were kept come to.
#[derive(Debug, Default)]
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

/// Keeps what part `(i, of)` found in `dir`.
///
/// # Errors
/// A file cannot be written.
pub fn keep(dir: &Path, (i, of): (u64, u64), part: &Part, known: &Known) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(HarnessError::file(dir, "make"))?;
    let write = |suffix: &str, bytes: &[u8]| {
        let path = dir.join(format!("{i}-of-{of}.{suffix}"));
        std::fs::write(&path, bytes).map_err(HarnessError::file(&path, "write"))
    };
    let bytes = |hashes: Vec<u128>| -> Vec<u8> {
        hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect()
    };
    write("states", &bytes(known.images()))?;
    write("volumes", &bytes(known.volumes()))?;
    write("json", &serde_json::to_vec(part).unwrap_or_default())
}

/// Adds up what is kept in `dir` of `of` parts.
///
/// # Errors
/// A file is there and cannot be read.
pub fn sum(dir: &Path, of: u64) -> Result<Sum> {
    let mut sum = Sum {
        parts: (0, of),
        ..Sum::default()
    };
    let (mut states, mut volumes) = (HashSet::new(), HashSet::new());
    for i in 0..of {
        let path = |suffix: &str| dir.join(format!("{i}-of-{of}.{suffix}"));
        let read = |suffix: &str| {
            let path = path(suffix);
            std::fs::read(&path).map_err(HarnessError::file(&path, "read"))
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
