//! Hunting a deliberate mistake: how long it takes to find it, by power cuts, by the table of faults, by hostile clients.

mod names;

use std::time::{Duration, Instant};

use crate::mutants::{Hunter, Mutant};
use shale_bench::Result;
use shale_faults::volume::load::Load;
use shale_format::Durability;
use shale_hostile::campaign as hostile;
use shale_powercut::explore::explorer::Depth;
use shale_powercut::staged::{self, Case, FailingCase, FullCase, explore_failing, explore_full};
use shale_powercut::workloads::campaign::{self, Options, Switched};
use shale_powercut::workloads::sequences::Kind;

/// Cuts of one case of a volume without NVM.
const STAGED_CUTS: usize = 12;
/// As much of what is wrong is kept.
const WRONG_CHARS: usize = 160;
/// Mutants that only requests can show.
const OF_REQUESTS: &str = "requests-";

/// What became of a mutant.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Fate {
    /// Its name.
    pub name: String,
    /// What is wrong with it.
    pub what: String,
    /// The failure that showed it; none: it lives.
    pub killed_by: Option<String>,
    /// Workload of that failure.
    pub workload: Option<String>,
    /// Seconds until then.
    pub seconds: f64,
    /// States looked at until then.
    pub states: u64,
}

impl Fate {
    /// One row of a table for docs/runs.
    pub fn row(&self) -> String {
        const WORKLOAD_CHARS: usize = 40;
        let (name, what) = (&self.name, &self.what);
        let (Some(wrong), Some(workload)) = (&self.killed_by, &self.workload) else {
            return format!("| {name} | {what} | lives | |");
        };
        let mut words = workload.clone();
        if words.len() > WORKLOAD_CHARS {
            words.truncate(WORKLOAD_CHARS);
            words.truncate(words.rfind(' ').unwrap_or(0));
            words += " …";
        }
        let (by, seconds) = (kind_of(wrong), self.seconds);
        format!("| {name} | {what} | `{words}`: {by} | {seconds:.1} |")
    }
}

/// What showed it, in a word or two.
fn kind_of(wrong: &str) -> &'static str {
    let kinds = [
        ("process: ", "the process ends"),
        ("faults: ", "faults"),
        ("hostile: ", "hostile"),
        ("names: ", "coherence of names"),
        ("before any cut", "the model, without a cut"),
        ("bit rot", "a flipped bit"),
        ("mkfs", "a cut in mkfs"),
        ("cut again", "a second cut"),
        ("a panic", "a panic"),
        ("after recovery", "what is done after recovery"),
        ("recovery:", "recovery refuses"),
        ("the recovered tree", "the tree cannot be read"),
        ("fsck", "fsck"),
        ("everything deleted", "space does not come back"),
        (" again, ", "a request sent again"),
        ("the restore: ", "the restore refuses"),
        ("the tree is none that", "another tree"),
        ("the tree is that after", "another tree"),
        ("no order of the calls", "another tree"),
        ("no calls that may be kept", "another tree"),
        ("as after", "another tree"),
        ("no order", "no order of the calls"),
        ("is not known", "a request sent again"),
        (" again, ", "a request sent again"),
    ];
    let found = kinds.into_iter().find(|kind| wrong.contains(kind.0));
    found.map_or("the model, without a cut", |kind| kind.1)
}

/// Switches on a mutant and hunts it until it is found, for at most `limit` (twice that, where
/// threads have to be tried, too).
///
/// # Errors
/// It could not be done. Without the feature `mutants` nothing is wrong, and all live.
pub fn hunt(options: &Options, limit: Duration, mutant: Mutant) -> Result<Fate> {
    match mutant.hunter {
        Hunter::Crash
        | Hunter::Threads
        | Hunter::Full
        | Hunter::Tiers
        | Hunter::Huge
        | Hunter::Buffered
        | Hunter::Ordered => by_crash(options, limit, mutant),
        Hunter::Staged => by_staged(options, limit, mutant),
        Hunter::Faults(row) => by_faults(options, limit, mutant, row),
        Hunter::Hostile(case) => Ok(by_hostile(limit, mutant, case)),
        Hunter::Names => names::hunt(options, limit, mutant),
    }
}

impl Fate {
    /// The process in which a mutant was hunted has come to an end of another kind.
    pub fn of_process(mutant: Mutant, begun: Instant, end: String) -> Fate {
        fate(
            mutant,
            begun,
            0,
            Some(("any".to_owned(), format!("process: {end}"))),
        )
    }
}

/// What it came to, `begun` so long ago; `found`: workload and what is wrong.
fn fate(mutant: Mutant, begun: Instant, states: u64, found: Option<(String, String)>) -> Fate {
    Fate {
        name: mutant.name.to_owned(),
        what: mutant.what.to_owned(),
        workload: found.as_ref().map(|f| f.0.clone()),
        killed_by: found.map(|f| f.1.chars().take(WRONG_CHARS).collect()),
        seconds: begun.elapsed().as_secs_f64(),
        states,
    }
}

/// A power cut of a volume without NVM shows it.
fn by_staged(options: &Options, limit: Duration, mutant: Mutant) -> Result<Fate> {
    let begun = Instant::now();
    let (mut cuts, mut found) = (0, None);
    for number in options.seed.. {
        if begun.elapsed() >= limit || found.is_some() {
            break;
        }
        let case = Case::numbered(number, STAGED_CUTS, Some(mutant.name));
        match staged::explore(&case, &options.dir)? {
            Ok(tally) => cuts += tally.cuts,
            Err(wrong) => found = Some((format!("staged {number}"), wrong)),
        }
        let failing = FailingCase::numbered(number, Some(mutant.name));
        if let Err(wrong) = explore_failing(&failing, &options.dir)? {
            found = found.or(Some((format!("staged {number}, failing"), wrong)));
        }
        let full = FullCase::numbered(number, Some(mutant.name));
        match explore_full(&full, &options.dir)? {
            Ok(tally) => cuts += tally.cuts,
            Err(wrong) => found = found.or(Some((format!("staged {number}, full"), wrong))),
        }
    }
    Ok(fate(mutant, begun, cuts, found))
}

/// The row of faults breaks its promise with it.
fn by_faults(options: &Options, limit: Duration, mutant: Mutant, row: &str) -> Result<Fate> {
    let begun = Instant::now();
    let loads = Load::ALL;
    let options = shale_faults::Options {
        dir: options.dir.clone(),
        only: row.to_owned(),
        loads: loads.to_vec(),
        seed: options.seed,
        row_limit: limit / loads.len() as u32,
        time_limit: limit,
        quick: false,
    };
    let (mut cases, mut found) = (0, None);
    for load in loads {
        let options = shale_faults::Options {
            loads: vec![load],
            ..options.clone()
        };
        let switched = Switched::on(Some(mutant.name), false);
        let outcomes = shale_faults::run(&options, &|_| ());
        drop(switched);
        for outcome in outcomes? {
            cases += outcome.cases;
            let wrong = outcome.wrong.map(|wrong| format!("faults: {wrong}"));
            let workload = format!("{} with {}", outcome.fault, load.name());
            found = found.or(wrong.map(|wrong| (workload, wrong)));
        }
        if found.is_some() {
            break;
        }
    }
    Ok(fate(mutant, begun, cases, found))
}

/// A hostile case does harm with it.
fn by_hostile(limit: Duration, mutant: Mutant, case: &str) -> Fate {
    let begun = Instant::now();
    let options = hostile::Options {
        only: case.to_owned(),
        pairs: hostile::Pairs::None,
        time_limit: limit,
        first: true,
    };
    let switched = Switched::on(Some(mutant.name), false);
    let summary = hostile::run(&options, &|_| ());
    drop(switched);
    let tried = summary.sum().tried;
    let found = summary.failures.into_iter().next();
    let found = found.map(|f| (f.cases.join(" and "), format!("hostile: {}", f.wrong)));
    fate(mutant, begun, tried, found)
}

/// A workload is not recovered to what it has to be with it.
fn by_crash(options: &Options, limit: Duration, mutant: Mutant) -> Result<Fate> {
    let begun = Instant::now();
    let options = Options {
        time_limit: limit,
        failures_max: 1,
        mutant: Some(mutant.name),
        full: mutant.hunter == Hunter::Full,
        policy: match mutant.hunter {
            Hunter::Buffered => Durability::Buffered,
            Hunter::Ordered => Durability::Ordered,
            _ => options.policy,
        },
        depth: match mutant.hunter {
            Hunter::Tiers => Depth::TIERS,
            Hunter::Huge => Depth::HUGE,
            _ => options.depth,
        },
        kinds: match mutant.hunter {
            Hunter::Tiers => vec![(Kind::Tiers, 100_000)],
            Hunter::Huge => vec![(Kind::Huge, 100_000)],
            Hunter::Buffered | Hunter::Ordered => Kind::BUFFERED.to_vec(),
            Hunter::Threads => vec![(Kind::Threads, 100_000)],
            _ if mutant.name.starts_with(OF_REQUESTS) => vec![(Kind::Requests, 10_000)],
            _ => options.kinds.clone(),
        },
        ..options.clone()
    };
    let mut summary = campaign::run(&options, &|_, _| ())?;
    if summary.failures.is_empty() && matches!(mutant.hunter, Hunter::Crash | Hunter::Full) {
        // What only several threads can show.
        let threads = Options {
            kinds: vec![(Kind::Threads, 100_000)],
            ..options
        };
        summary = campaign::run(&threads, &|_, _| ())?;
    }
    let found = summary.failures.into_iter().next();
    let found = found.map(|f| (f.workload, f.wrong));
    Ok(fate(mutant, begun, summary.states, found))
}
