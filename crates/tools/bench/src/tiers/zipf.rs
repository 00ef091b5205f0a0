//! One large file of 4 KiB blocks, read and written by Zipf's law: the block of rank r is used with
//! a probability that goes with 1/r^s.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use super::{Stopwatch, Times, compare, fill};
use crate::BenchError;
use crate::Result;
use crate::chance::Chance;

const BLOCK: usize = 4096;
/// The file is written in pieces of this many bytes.
const FILL_BYTES: usize = 1 << 20;

/// What to do.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Operations that are not counted.
    pub warm: u64,
    /// Operations that are.
    pub count: u64,
    /// Of a hundred operations so many read.
    pub read_percent: u64,
    /// The exponent.
    pub s: f64,
    /// Blocks of neighbouring ranks lie anywhere in the file, not side by side.
    pub scattered: bool,
    /// A write is synced before the next operation.
    pub sync: bool,
    /// Seed of all choices.
    pub seed: u64,
}

/// What was done.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Report {
    /// Seconds of the operations that count.
    pub seconds: f64,
    /// Operations per second.
    pub per_s: f64,
    /// Reads.
    pub read: Times,
    /// Writes, synced if asked for.
    pub write: Times,
}

/// Ranks by Zipf's law, through a table of sums: exact, 8 bytes a rank.
struct Ranks(Vec<f64>);

impl Ranks {
    fn new(count: usize, s: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=count).map(|rank| {
            sum += (rank as f64).powf(-s);
            sum
        });
        Self(sums.collect())
    }

    fn next(&self, chance: &mut Chance) -> usize {
        let all = self.0.last().copied().unwrap_or(0.0);
        let at = chance.next_u64() as f64 / u64::MAX as f64 * all;
        self.0
            .partition_point(|sum| *sum < at)
            .min(self.0.len() - 1)
    }
}

/// The file, and how often each block was written.
struct Load {
    file: File,
    versions: Vec<u32>,
    /// Block of each rank.
    places: Vec<u32>,
    ranks: Ranks,
    chance: Chance,
    options: Options,
}

/// What a block holds: other words after each write.
fn content(block: usize, version: u32) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    fill(u64::from(version), (block * BLOCK / 8) as u64, &mut bytes);
    bytes
}

impl Load {
    fn new(at: &Path, options: Options) -> Result<Self> {
        let count = (options.file_bytes as usize / BLOCK).max(1);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(at)
            .map_err(BenchError::file(at, "make"))?;
        let mut piece = vec![0; FILL_BYTES];
        let mut done = 0;
        while done < count * BLOCK {
            let n = FILL_BYTES.min(count * BLOCK - done);
            fill(0, (done / 8) as u64, &mut piece[..n]);
            let written = file.write_all_at(&piece[..n], done as u64);
            written.map_err(BenchError::file(at, "fill"))?;
            done += n;
        }
        file.sync_all().map_err(BenchError::file(at, "sync"))?;
        let mut chance = Chance::new(options.seed);
        let mut places: Vec<u32> = (0..count as u32).collect();
        if options.scattered {
            chance.shuffle(&mut places);
        }
        Ok(Self {
            file,
            versions: vec![0; count],
            places,
            ranks: Ranks::new(count, options.s),
            chance,
            options,
        })
    }

    fn operations(&mut self, at: &Path, count: u64) -> Result<Report> {
        let (mut reads, mut writes) = (Stopwatch::new()?, Stopwatch::new()?);
        let begun = Instant::now();
        for _ in 0..count {
            let block = self.places[self.ranks.next(&mut self.chance)] as usize;
            let offset = (block * BLOCK) as u64;
            if self.chance.below(100) < self.options.read_percent {
                let (mut found, start) = ([0; BLOCK], Instant::now());
                let read = self.file.read_exact_at(&mut found, offset);
                read.map_err(BenchError::file(at, "read"))?;
                reads.note(start.elapsed());
                compare(at, offset, &found, &content(block, self.versions[block]))?;
            } else {
                let version = self.versions[block] + 1;
                let (bytes, start) = (content(block, version), Instant::now());
                let mut written = self.file.write_all_at(&bytes, offset);
                if self.options.sync {
                    written = written.and_then(|()| self.file.sync_data());
                }
                written.map_err(BenchError::file(at, "write"))?;
                writes.note(start.elapsed());
                self.versions[block] = version;
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        Ok(Report {
            seconds,
            per_s: count as f64 / seconds,
            read: reads.times(),
            write: writes.times(),
        })
    }

    /// Reads all of the file.
    fn check(&self, at: &Path) -> Result<()> {
        let mut found = [0; BLOCK];
        for (block, version) in self.versions.iter().enumerate() {
            let offset = (block * BLOCK) as u64;
            let read = self.file.read_exact_at(&mut found, offset);
            read.map_err(BenchError::file(at, "read"))?;
            compare(at, offset, &found, &content(block, *version))?;
        }
        Ok(())
    }
}

/// Makes `at`, uses it, and calls `between` before the operations that count and after them.
///
/// # Errors
/// A call fails, or a byte is another one than was written.
pub fn run(at: &Path, options: Options, mut between: impl FnMut()) -> Result<Report> {
    let mut load = Load::new(at, options)?;
    load.operations(at, options.warm)?;
    between();
    let report = load.operations(at, options.count)?;
    between();
    load.check(at)?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_the_law() {
        let (ranks, mut chance) = (Ranks::new(1000, 1.0), Chance::new(1));
        let mut seen = vec![0_u32; 1000];
        for _ in 0..200_000 {
            seen[ranks.next(&mut chance)] += 1;
        }
        let ratio = f64::from(seen[0]) / f64::from(seen[9]);
        assert!((8.0..12.0).contains(&ratio), "{ratio}");
        assert!(seen[999] > 0);
    }

    #[test]
    fn blocks_hold_what_was_written_last() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            file_bytes: 1 << 20,
            warm: 100,
            count: 1_000,
            read_percent: 80,
            s: 1.0,
            scattered: true,
            sync: false,
            seed: 1,
        };
        let report = run(&dir.path().join("file"), options, || ()).unwrap();
        assert_eq!(report.read.calls + report.write.calls, 1_000);
        assert!(report.write.calls > 100);
    }
}
