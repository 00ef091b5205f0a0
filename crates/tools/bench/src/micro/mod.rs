//! Latency of single operations, in one run, side by side (MISSION M2; Strata Fig. 3).
//!
//! The targets take turns in short rounds. Medians of the same run may be compared with
//! each other, and with the budgets of DESIGN §13 ([`MicroReport::budgets`]);
//! times of different runs may not.

mod budget;
mod calls;
mod direct;
mod ext4;
mod floor;
mod plot;
mod report;
mod rounds;
mod table;
mod target;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use shale_persist::Domain;

pub use budget::{Budget, Verdict};
pub use floor::NAME_RECORD_BYTES;
pub use report::{Counts, MicroReport, Row, Skipped};
pub use target::{DeviceCounts, Op, Target, TargetCounts};

use crate::BenchError;
use crate::Result;
use crate::chance::Chance;
use crate::machine::{Machine, commit, date, load};
use crate::timer::Timer;
use calls::{Calls, Sync};
use direct::Direct;
use floor::Floor;

/// Name of the target that is NVM without a file system.
pub const FLOOR: &str = "floor";
/// Name of the target that is LibFS called directly.
pub const LIBFS: &str = "libfs";
/// Name of the target that is a mounted volume.
pub const MOUNT: &str = "mount";
/// Name of the target that is tmpfs.
pub const TMPFS: &str = "tmpfs";

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

    fn check(&self) -> Result<()> {
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

/// Measures everything. Takes some minutes with the default options.
///
/// # Errors
/// A target that cannot be set up where it should work everywhere, or an operation that
/// fails. Everything that was set up is taken down in any case.
pub fn run(options: &MicroOptions) -> Result<MicroReport> {
    run_with_progress(options, |_| {})
}

/// As [`run`]; calls `progress` with a line of text before each operation and size.
///
/// # Errors
/// As [`run`].
pub fn run_with_progress(
    options: &MicroOptions,
    mut progress: impl FnMut(&str),
) -> Result<MicroReport> {
    options.check()?;
    let load = load();
    let timer = Timer::new();
    let place = tempfile::Builder::new()
        .prefix("shale-bench-")
        .tempdir_in(&options.dir)
        .map_err(BenchError::file(&options.dir, "make a directory in"))?;
    let mut skipped = Vec::new();
    let (mut targets, device) = set_up(options, place.path(), &mut skipped)?;
    let buffer_bytes = options.sizes.iter().copied().max().unwrap_or(0);
    let buffer = Chance::new(options.seed).bytes(buffer_bytes);
    let mut rows = Vec::new();
    for &op in &options.ops {
        let sizes = if op.has_size() {
            &options.sizes[..]
        } else {
            &[0]
        };
        for &size in sizes {
            progress(&format!("{op} {}", table::size_text(size as u64)));
            rows.extend(rounds::measure(
                &mut targets,
                op,
                size,
                options,
                &timer,
                &buffer,
            )?);
        }
    }
    drop(targets);
    let mut report = MicroReport {
        machine: Machine::this(),
        commit: commit(),
        optimised: !cfg!(debug_assertions),
        date: date(),
        device,
        options: options.clone(),
        timer_overhead_ns: (timer.overhead_ns() * 1_000.0).round() / 1_000.0,
        timer_step_ns: timer.step_ns(),
        skipped,
        notes: notes(options, load),
        rows,
    };
    report.set_ratios();
    if let Some(dir) = &options.plots {
        report.plot(dir)?;
    }
    Ok(report)
}

fn set_up(
    options: &MicroOptions,
    place: &std::path::Path,
    skipped: &mut Vec<Skipped>,
) -> Result<(Vec<Box<dyn Target>>, String)> {
    let mut targets: Vec<Box<dyn Target>> = Vec::new();
    let floor = Floor::new(place, options.working_set_bytes as usize)?;
    let persistence = match floor.domain() {
        Domain::Dax => "survives a power cut (DAX)",
        Domain::Emulated => "emulated by memory, survives no power cut",
    };
    let device = format!("{}, {persistence}, no timing model", floor.instructions());
    targets.push(Box::new(floor));
    targets.push(Box::new(Direct::new(place, options.working_set_bytes)?));
    match &options.mount {
        Some(dir) => targets.push(Box::new(Calls::open(MOUNT, dir, Sync::OnReturn)?)),
        None => skipped.push(Skipped {
            target: MOUNT.to_owned(),
            why: "no mounted directory was given".to_owned(),
        }),
    }
    targets.push(Box::new(Calls::open(TMPFS, place, Sync::OnReturn)?));
    for dir in &options.ext4 {
        let name = format!("ext4:{}", dir.display());
        match ext4::mount(dir, 4 * options.working_set_bytes + (64 << 20)) {
            Ok(root) => targets.push(Box::new(Calls::of(&name, root, Sync::Fsync))),
            Err(why) => skipped.push(Skipped { target: name, why }),
        }
    }
    Ok((targets, device))
}

fn notes(options: &MicroOptions, load_before: f64) -> Vec<String> {
    let mut notes = vec![
        format!(
            "floor: a non-temporal copy and a fence of the same bytes, or a copy out; for create and unlink of {NAME_RECORD_BYTES} bytes"
        ),
        "libfs: called in this process, durable on return; system calls are not counted here".to_owned(),
        "tmpfs: pwrite and pread, durable never; ext4: every write, create and unlink followed by fsync; mount: pwrite and pread through FUSE, durable on return".to_owned(),
        "later ns: work put off (digest, sync), waited for after each round; not part of the latencies, and not seen for the mount".to_owned(),
    ];
    let cpus = Machine::this().cpus;
    if load_before > 0.5 * cpus as f64 {
        notes.push(format!(
            "the machine was busy with other work (load {load_before} on {cpus} processors): medians of one row may be compared, high percentiles say little"
        ));
    }
    let cache = Machine::this().last_level_cache_bytes;
    if options.working_set_bytes <= cache {
        notes.push(format!(
            "the file of {} bytes fits into the last-level cache of {cache}",
            options.working_set_bytes
        ));
    }
    notes
}

#[cfg(test)]
mod tests;
