//! Loads for volumes of several tiers; any directory will do, so that file systems compare.
//!
//! | Module | What |
//! | --- | --- |
//! | [`grow`] | a file server whose files become more, while a checker reads them (Strata §5.2.3) |
//! | [`levels`] | what [`grow`] can use instead of a volume of tiers: whole files go from file system to file system |
//! | [`ratio`] | two reports of [`grow`] side by side |
//! | [`device`] | a block device as slow as a model, to put any file system on |
//! | [`zipf`] | 4 KiB reads and writes of one large file, few blocks most of the time |
//!
//! Every byte read is compared with what was written there.

pub mod device;
pub mod grow;
pub mod levels;
pub mod ratio;
pub mod zipf;

use std::path::Path;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::Result;

/// Longest time that is distinguished: ten minutes.
const NS_MAX: u64 = 600_000_000_000;

/// How long calls of one kind took, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Calls.
    pub calls: u64,
    /// The middle one.
    pub p50_us: f64,
    /// One of a hundred took longer.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
    /// All of them together.
    pub sum_us: f64,
}

/// Collects [`Times`].
struct Stopwatch(Histogram<u64>);

impl Stopwatch {
    fn new() -> Result<Self> {
        let made = Histogram::new_with_bounds(1, NS_MAX, 3);
        made.map(Self).map_err(|e| BenchError::Program {
            program: "the histogram".to_owned(),
            found: e.to_string(),
        })
    }

    fn note(&mut self, took: Duration) {
        self.0.saturating_record(took.as_nanos() as u64);
    }

    fn times(&self) -> Times {
        let us = |ns: u64| ns as f64 / 1e3;
        Times {
            calls: self.0.len(),
            p50_us: us(self.0.value_at_quantile(0.5)),
            p99_us: us(self.0.value_at_quantile(0.99)),
            max_us: us(self.0.max()),
            sum_us: self.0.mean() * self.0.len() as f64 / 1e3,
        }
    }
}

/// The word of a file at a place, 8 bytes each: another one in each file.
fn word(file: u64, at: u64) -> u64 {
    let n = (file << 40 ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (n ^ (n >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// What file `file` holds from word `from` on.
fn fill(file: u64, from: u64, into: &mut [u8]) {
    for (at, bytes) in (from..).zip(into.as_chunks_mut::<8>().0) {
        *bytes = word(file, at).to_le_bytes();
    }
}

/// Compares bytes that were read with what has to be there.
fn compare(place: &Path, at: u64, found: &[u8], expected: &[u8]) -> Result<()> {
    match found.iter().zip(expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(n) => Err(BenchError::Wrong {
            target: format!("{}, byte {}", place.display(), at + n as u64),
            what: "what was written there",
            expected: expected[n].into(),
            found: found[n].into(),
        }),
    }
}
