//! A run: all combinations of what is varied, each in rounds, in which the systems take turns.

use std::path::Path;

use super::keeper::{Keeper, PREFIX};
use super::loads::Load;
use super::options::PolicyOptions;
use super::report::{Cell, PolicyReport, Row};
use super::systems::{Measured, System, measure, why_no_ext4};
use crate::machine::{Machine, commit, date, load};
use crate::micro::Skipped;
use crate::{BenchError, Result};

/// Measures everything; calls `progress` with a line of text before each measurement, with how many are done, of how many.
///
/// Of a combination in which a measurement fails nothing is reported but that ([`PolicyReport::failed`]); the others go on.
///
/// # Errors
/// Options that make no sense; a directory or a plot that cannot be made. Everything that was set up is taken away in any case, also if
/// this process is killed.
pub fn run_with_progress(
    options: &PolicyOptions,
    mut progress: impl FnMut(&str, u64, u64),
) -> Result<PolicyReport> {
    options.check()?;
    let load_before = load();
    let place = tempfile::Builder::new()
        .prefix(PREFIX)
        .tempdir_in(&options.dir)
        .map_err(BenchError::file(&options.dir, "make a directory in"))?;
    // After the directory, so that it goes before it.
    let keeper = Keeper::start(&options.program, place.path())?;
    let mut skipped = Vec::new();
    let systems = systems(options, &mut skipped);
    let cells = cells(options);
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    let each = u64::from(options.rounds) * systems.len() as u64;
    for (number, cell) in (0..).zip(&cells) {
        let mut progress = |system: &System, done: u64| {
            let what = format!("{cell}: {system}");
            progress(&what, number * each + done, cells.len() as u64 * each);
        };
        match measure_cell(cell, &systems, place.path(), options, &mut progress) {
            Ok(measured) => rows.extend(Row::of(cell, &systems, &measured)),
            Err(error) => failed.push(error.to_string()),
        }
    }
    drop(place);
    drop(keeper);
    let report = PolicyReport {
        machine: Machine::this(),
        commit: commit(),
        optimised: !cfg!(debug_assertions),
        date: date(),
        options: options.clone(),
        skipped,
        notes: notes(options, load_before),
        failed,
        rows,
    };
    if let Some(dir) = &options.plots {
        report.plot(dir)?;
    }
    Ok(report)
}

/// All rounds of one combination: of each system what it did in each.
fn measure_cell(
    cell: &Cell,
    systems: &[System],
    place: &Path,
    options: &PolicyOptions,
    progress: &mut impl FnMut(&System, u64),
) -> Result<Vec<Vec<Measured>>> {
    let mut measured = vec![Vec::new(); systems.len()];
    let mut done = 0;
    for round in 0..options.rounds as usize {
        // Another one begins in each round.
        for turn in 0..systems.len() {
            let which = (round + turn) % systems.len();
            progress(&systems[which], done);
            measured[which].push(measure_one(&systems[which], cell, place, options)?);
            done += 1;
        }
    }
    Ok(measured)
}

/// As [`measure`]; an error says what was measured.
fn measure_one(
    system: &System,
    cell: &Cell,
    place: &Path,
    options: &PolicyOptions,
) -> Result<Measured> {
    measure(system, cell, place, options).map_err(|error| BenchError::Program {
        program: format!("{cell}: {system}"),
        found: error.to_string(),
    })
}

/// What is measured in each round: the first policy of each way before the others, which are compared with it.
fn systems(options: &PolicyOptions, skipped: &mut Vec<Skipped>) -> Vec<System> {
    let shale = options.ways.iter().flat_map(|way| {
        let policies = options.policies.iter();
        policies.map(|policy| System::Shale(*way, policy.clone()))
    });
    let mut systems: Vec<System> = shale.collect();
    if options.tmpfs {
        systems.push(System::Tmpfs);
    }
    if options.ext4 {
        match why_no_ext4() {
            None => systems.push(System::Ext4),
            Some(why) => skipped.push(Skipped {
                target: System::Ext4.to_string(),
                why,
            }),
        }
    }
    systems
}

fn cells(options: &PolicyOptions) -> Vec<Cell> {
    let sizes: Vec<Option<u64>> = match options.io_bytes.is_empty() {
        true => vec![None],
        false => options.io_bytes.iter().copied().map(Some).collect(),
    };
    let mut cells = Vec::new();
    for &load in &options.loads {
        for model in &options.models {
            for &log_bytes in &options.log_bytes {
                for &threads in &options.threads {
                    for &io_bytes in &sizes {
                        let cell = Cell {
                            load,
                            model: model.clone(),
                            log_bytes,
                            threads,
                            io_bytes: io_bytes.filter(|_| load.has_io_size()),
                        };
                        if !cells.contains(&cell) {
                            cells.push(cell);
                        }
                    }
                }
            }
        }
    }
    cells
}

fn notes(options: &PolicyOptions, load_before: f64) -> Vec<String> {
    let mut notes = vec![
        "counts are from when a load's files are made until all that it did is digested or synced; operations a second are of the load alone".to_owned(),
        "a ratio is that of one round to the first policy on the same way (tmpfs and ext4: on the first way): median (range)".to_owned(),
    ];
    if options.ext4 {
        notes.push("ext4: a loop device over a process, which every request takes the way to besides the model's time; its page cache is not cleared".to_owned());
    }
    let mut caveats: Vec<(Load, &str)> = Vec::new();
    for &load in &options.loads {
        caveats.extend(load.caveat().map(|caveat| (load, caveat)));
    }
    notes.extend(
        caveats
            .iter()
            .map(|(load, caveat)| format!("{load}: {caveat}")),
    );
    let cpus = Machine::this().cpus;
    if load_before > 0.5 * cpus as f64 {
        notes.push(format!(
            "the machine was busy with other work (load {load_before} on {cpus} processors)"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Way;

    fn options() -> PolicyOptions {
        PolicyOptions::quick("/bin/false".into())
    }

    #[test]
    fn every_value_with_every_other_but_no_load_twice() {
        let options = PolicyOptions {
            loads: vec![Load::Fileserver, Load::Tpcc],
            threads: vec![1, 2],
            io_bytes: vec![64, 4_096, 1 << 20],
            models: vec!["hinfs".to_owned(), "none".to_owned()],
            ..options()
        };
        let cells = cells(&options);
        // Pages have one size.
        assert_eq!(cells.len(), 2 * 2 * 3 + 2 * 2);
        assert_eq!(cells[0].io_bytes, Some(64));
        assert_eq!(cells[12].io_bytes, None);
    }

    #[test]
    fn policies_of_a_way_stand_together() {
        let options = PolicyOptions {
            ext4: false,
            ..options()
        };
        let names: Vec<String> = systems(&options, &mut Vec::new())
            .iter()
            .map(System::to_string)
            .collect();
        assert_eq!(
            names,
            [
                "mount strict",
                "mount buffered",
                "run strict",
                "run buffered",
                "tmpfs"
            ]
        );
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        for (wrong, name) in [
            (
                PolicyOptions {
                    loads: vec![],
                    ..options()
                },
                "--loads",
            ),
            (
                PolicyOptions {
                    rounds: 0,
                    ..options()
                },
                "--rounds",
            ),
            (
                PolicyOptions {
                    seconds: f64::NAN,
                    ..options()
                },
                "--seconds",
            ),
        ] {
            let error = run_with_progress(&wrong, |_, _, _| {}).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn a_measurement_that_fails_says_which_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let options = PolicyOptions {
            ways: vec![Way::Mount],
            dir: dir.path().to_owned(),
            ..options()
        };
        let report = run_with_progress(&options, |_, _, _| {}).unwrap();
        assert!(report.rows.is_empty());
        assert_eq!(report.failed.len(), 2, "the other load is tried, too");
        let text = &report.failed[0];
        assert!(
            text.contains("fileserver") && text.contains("mount strict"),
            "{text}"
        );
        assert!(report.to_string().contains(text));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
