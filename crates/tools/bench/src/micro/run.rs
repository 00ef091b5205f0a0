//! A run: targets are set up, every operation is measured, targets are taken down.

use shale_persist::Domain;

use super::calls::{Calls, Sync};
use super::direct::Direct;
use super::ext4;
use super::floor::{Floor, NAME_RECORD_BYTES};
use super::options::MicroOptions;
use super::report::{MicroReport, Skipped};
use super::rounds;
use super::target::{MOUNT, TMPFS, Target};
use crate::chance::Chance;
use crate::machine::{Machine, commit, date, load};
use crate::table::size_text;
use crate::timer::Timer;
use crate::{BenchError, Result};

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
            progress(&format!("{op} {}", size_text(size as u64)));
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
        Domain::Staged => "memory, hardened on a device",
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
