//! `shale-harness crash`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{parts, staged};
use crate::mutants::MUTANTS;
use indicatif::{ProgressBar, ProgressStyle};
use shale_bench::Result;
use shale_format::Durability;
use shale_model::workload::words::{Step, Workload};
use shale_powercut::explore::explorer::{Depth, Failure};
use shale_powercut::images::{ALL_SUBSETS, Caches};
use shale_powercut::staged::Case;
use shale_powercut::workloads::campaign::{self, Options, Summary};
use shale_powercut::workloads::sequences::Kind;
use shale_powercut::workloads::whole::Set;
use shale_record::BlockRules;

const EXAMPLES: &str = "\
Examples:
  shale-harness crash                            one minute of everything
  shale-harness crash --long --minutes 60        all pairs, then as many others as fit
  shale-harness crash --workload '12 D 40'       one workload, every cut
  shale-harness crash --tiers                    flash and disk below, a minute
  shale-harness crash --staged                   volumes without NVM, a minute
  shale-harness crash --whole                    every workload of one and two operations
  shale-harness crash --whole --part 3/16 --keep DIR   a part of them; sums of all parts in DIR
  shale-harness crash --triples --parts 400 --keep DIR --minutes 60
                                                 parts that are not in DIR yet, for an hour

The same seed gives the same states. Use a release build.";

/// Workloads of each kind in a short run, and in a long one.
const SHORT: [(Kind, u64); 11] = [
    (Kind::Mkfs, 1),
    (Kind::Ones, u64::MAX),
    (Kind::Pairs, 400),
    (Kind::Triples, 100),
    (Kind::Near, 60),
    (Kind::Long, 20),
    (Kind::Two, 60),
    (Kind::Requests, 60),
    (Kind::Clients, 60),
    (Kind::Programs, 4),
    (Kind::Runs, 4),
];
/// Threads need another tree, so they are never with the others.
const THREADS: (Kind, u64) = (Kind::Threads, 100_000);
const LONG: [(Kind, u64); 11] = [
    (Kind::Mkfs, 1),
    (Kind::Ones, u64::MAX),
    (Kind::Pairs, u64::MAX),
    (Kind::Triples, u64::MAX),
    (Kind::Near, 20_000),
    (Kind::Long, 10_000),
    (Kind::Two, 20_000),
    (Kind::Requests, 20_000),
    (Kind::Clients, 20_000),
    (Kind::Programs, 2_000),
    (Kind::Runs, 10_000),
];

/// How closely `--triples` and `--runs` look: the states of each pair are those of `--whole`, and there are
/// five times as many workloads.
const TRIPLES: Depth = Depth {
    images_per_cut: 6,
    all_subsets: 16,
    flip_every: 4096,
    ..WHOLE
};
/// How closely `--whole` looks: all workloads fit an hour of two processors.
const WHOLE: Depth = Depth {
    images_per_cut: 12,
    all_subsets: ALL_SUBSETS,
    again_every: 512,
    images_per_cut_again: 6,
    live_every: 512,
    flip_every: 512,
    caches: Caches::Volatile,
    devices: BlockRules { flush_lies: false },
};

/// Lower tiers need another volume, so they are never with the others either.
const TIERS: (Kind, u64) = (Kind::Tiers, 1_000_000);
/// States of writes above 1 MiB are large, so they are by themselves, too.
const HUGE: (Kind, u64) = (Kind::Huge, 1_000_000);
/// Arguments of `crash`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// All pairs, and many samples of the rest: hours
    #[arg(long)]
    long: bool,
    /// Only these kinds: ones, pairs, triples, near, long, two, mkfs, requests, clients,
    /// programs, runs; or threads, tiers or huge alone
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = parse_kind)]
    kinds: Option<Vec<Kind>>,
    /// How many workloads of each kind at most
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Only this workload: numbers of operations, b before one of the second
    /// client, D a digest; in front L: nothing is stolen, W: the log's ring ends
    /// soon, T: both are threads of one client, O: old records are in the logs,
    /// R: the first is a mount that survives its daemon, C: clients at the same
    /// time, P=NAME: operations of a recorded program; M alone: a volume is made
    #[arg(long, value_name = "STEPS")]
    workload: Option<Workload>,
    /// Seed of workloads and choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Ends after so many seconds
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Ends after so many minutes
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Ends after so many different states
    #[arg(long, value_name = "N", default_value_t = u64::MAX)]
    states: u64,
    /// Part I of N of the workloads, I from 0
    #[arg(long, visible_alias = "part", value_name = "I/N", default_value = "0/1",
        value_parser = parse_shard)]
    shard: (u64, u64),
    /// Every workload of one and of two operations, none left out: no limit of time, fewer
    /// images at a cut than elsewhere; about half an hour of two processors
    #[arg(long, conflicts_with_all = ["long", "kinds", "count", "workload", "states"])]
    whole: bool,
    /// Every pair of operations with 16 third ones each: 620,944 workloads
    #[arg(long, conflicts_with_all = ["whole", "long", "kinds", "count", "workload", "states"])]
    triples: bool,
    /// 10,000 runs of 1,000 operations of two to four clients, with faults after which they go on
    #[arg(long, conflicts_with_all = ["whole", "triples", "long", "kinds", "count", "workload", "states"])]
    runs: bool,
    /// Runs on a volume with lower tiers, whose devices lose power too
    #[arg(long, conflicts_with_all = ["whole", "triples", "runs", "kinds", "workload"])]
    tiers: bool,
    /// Volumes without NVM, by random operations; --seed is the number of the first case, --at-least is of cuts
    #[arg(long, conflicts_with_all = ["whole", "triples", "runs", "tiers", "kinds", "workload", "long"])]
    staged: bool,
    /// Clients are buffered: what was not followed by fsync or digested may be lost, as a suffix of the calls
    #[arg(long, conflicts_with_all = ["staged", "tiers", "runs", "whole", "triples", "long"])]
    buffered: bool,
    /// Clients are ordered: what was not digested may be lost, as a suffix of the calls, also what was followed by fsync
    #[arg(long, conflicts_with_all = ["buffered", "staged", "tiers", "runs", "whole", "triples", "long"])]
    ordered: bool,
    /// Devices below NVM lose what they said they had flushed: has to fail
    #[arg(long)]
    lying_flush: bool,
    /// With --whole, --triples or --runs: keep what a part finds in this directory, and add up all
    /// parts there
    #[arg(long, value_name = "DIR")]
    pub(super) keep: Option<PathBuf>,
    /// All parts of N, one after the other, that are not in --keep yet; --seconds or --minutes
    /// for all of them: the next command goes on
    #[arg(long, value_name = "N", requires = "keep", conflicts_with = "shard")]
    pub(super) parts: Option<u64>,
    /// Fails with fewer different states
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) at_least: u64,
    /// Threads [default: one per processor]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Images at one cut at most, where there are more [default: 160; whole: 12; triples: 6]
    #[arg(long, value_name = "N")]
    images_per_cut: Option<usize>,
    /// All subsets of what is uncertain at a cut where they are no more than N
    /// [default: 64; triples: 16]
    #[arg(long, value_name = "N")]
    all_subsets: Option<usize>,
    /// Cut again while one in so many images is recovered; 1: each, 0: none [default: 64; whole, triples: 512]
    #[arg(long, value_name = "N")]
    again_every: Option<u64>,
    /// Serve, fill and empty one in so many recovered volumes; 1: each, 0: none [default: 64; whole, triples: 512]
    #[arg(long, value_name = "N")]
    live_every: Option<u64>,
    /// Flip bits in one in so many recovered volumes; 1: each, 0: none [default: 64; whole, triples: 512]
    #[arg(long, value_name = "N")]
    flip_every: Option<u64>,
    /// Begin with a tree whose files and directories have trees of two levels; slower
    #[arg(long)]
    large: bool,
    /// Begin with a volume in which a dozen blocks are free
    #[arg(long, conflicts_with = "large")]
    full: bool,
    /// Caches survive a power cut (eADR)
    #[arg(long)]
    eadr: bool,
    /// Switch on this deliberate mistake, in a program that has them (feature mutants)
    #[arg(long, value_name = "NAME", value_parser = parse_mutant)]
    mutant: Option<&'static str>,
    /// Ends after so many failures
    #[arg(long, value_name = "N", default_value_t = 8)]
    failures: usize,
    /// Directory on tmpfs for volumes
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
    /// Print the summary as JSON
    #[arg(long)]
    pub(super) json: bool,
}

fn parse_mutant(text: &str) -> std::result::Result<&'static str, String> {
    if !cfg!(feature = "mutants") {
        return Err("this program has no mutants: build it with --features mutants".to_owned());
    }
    let mutant = MUTANTS.into_iter().find(|mutant| mutant.name == text);
    let found = mutant.map(|mutant| mutant.name);
    found.ok_or_else(|| format!("'{text}' is none of those that `mutants` switches on"))
}

fn parse_kind(text: &str) -> std::result::Result<Kind, String> {
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == text);
    kind.ok_or_else(|| {
        format!(
            "'{text}' is none of ones, pairs, triples, near, long, two, mkfs, threads, requests, \
             clients, programs, runs, tiers, huge"
        )
    })
}

pub(super) fn parse_shard(text: &str) -> std::result::Result<(u64, u64), String> {
    let parts = text.split_once('/');
    let parts = parts.and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
    parts
        .filter(|(i, n)| i < n)
        .ok_or_else(|| format!("'{text}' is no shard such as 0/4"))
}

impl Args {
    /// The set of workloads that was asked for, none left out.
    fn set(&self) -> Option<Set> {
        let sets = [
            (self.whole, Set::Whole),
            (self.triples, Set::Triples),
            (self.runs, Set::Runs),
        ];
        sets.into_iter().find(|set| set.0).map(|set| set.1)
    }

    fn kinds(&self) -> Vec<(Kind, u64)> {
        if let Some(set) = self.set() {
            return set.kinds();
        }
        let preset: &[(Kind, u64)] = match (self.long, self.policy().has_buffer()) {
            (true, _) => &LONG,
            (false, true) => &Kind::BUFFERED,
            (false, false) => &SHORT,
        };
        let wanted = |kind: &Kind| self.kinds.as_ref().is_none_or(|kinds| kinds.contains(kind));
        for (kind, count) in [THREADS, TIERS, HUGE] {
            let tiers = self.tiers && kind == Kind::Tiers;
            if tiers || self.kinds.as_deref() == Some(&[kind]) {
                return vec![(kind, self.count.unwrap_or(count))];
            }
        }
        let mut kinds: Vec<(Kind, u64)> = preset.iter().copied().filter(|k| wanted(&k.0)).collect();
        for (kind, count) in &mut kinds {
            *count = self
                .count
                .unwrap_or(*count)
                .min(kind.count().unwrap_or(u64::MAX));
        }
        kinds
    }

    fn policy(&self) -> Durability {
        match (self.buffered, self.ordered) {
            (true, _) => Durability::Buffered,
            (_, true) => Durability::Ordered,
            _ => Durability::Strict,
        }
    }

    fn options(&self) -> Options {
        let given = self.minutes.map(|m| m * 60).or(self.seconds);
        let default = if self.long { 3_600 } else { 60 };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            dir: self.dir.clone(),
            kinds: self.kinds(),
            only: self.workload.clone(),
            large: self.large,
            full: self.full,
            policy: self.policy(),
            seed: self.seed,
            shard: self.shard,
            in_order: self.set().is_some(),
            threads: self.threads.unwrap_or(processors),
            time_limit: match (given, self.set()) {
                (None, Some(_)) => Duration::MAX,
                _ => Duration::from_secs(given.unwrap_or(default)),
            },
            states_max: self.states,
            failures_max: self.failures,
            minimise: true,
            mutant: self.mutant,
            depth: self.depth(),
        }
    }

    fn depth(&self) -> Depth {
        let usual = match self.set() {
            Some(Set::Whole) => WHOLE,
            Some(Set::Triples | Set::Runs) => TRIPLES,
            None if self.has_tiers() => Depth::TIERS,
            None if self.is_huge() => Depth::HUGE,
            None => Depth::default(),
        };
        Depth {
            images_per_cut: self.images_per_cut.unwrap_or(usual.images_per_cut),
            all_subsets: self.all_subsets.unwrap_or(usual.all_subsets),
            again_every: self.again_every.unwrap_or(usual.again_every),
            live_every: self.live_every.unwrap_or(usual.live_every),
            flip_every: self.flip_every.unwrap_or(usual.flip_every),
            caches: match self.eadr {
                true => Caches::Persistent,
                false => Caches::Volatile,
            },
            devices: BlockRules {
                flush_lies: self.lying_flush,
            },
            ..usual
        }
    }

    fn has_tiers(&self) -> bool {
        let asked = self.kinds.as_deref() == Some(&[Kind::Tiers]);
        asked || self.tiers || self.workload.as_ref().is_some_and(|w| w.tiers)
    }

    fn is_huge(&self) -> bool {
        let asked = self.kinds.as_deref() == Some(&[Kind::Huge]);
        asked || self.workload.as_ref().is_some_and(|w| w.huge)
    }

    /// The command that shows a failure again.
    fn again(&self, failure: &Failure) -> String {
        let depth = self.depth();
        let mut words = format!(
            "shale-harness crash --workload '{}' --seed {} --images-per-cut {} --all-subsets {} \
             --again-every {} --live-every {} --flip-every {}",
            failure.workload,
            self.seed,
            depth.images_per_cut,
            depth.all_subsets,
            depth.again_every,
            depth.live_every,
            depth.flip_every,
        );
        let more = [
            (self.eadr, " --eadr"),
            (self.large, " --large"),
            (self.full, " --full"),
            (self.buffered, " --buffered"),
            (self.ordered, " --ordered"),
            (self.lying_flush, " --lying-flush"),
        ];
        for (given, word) in more {
            words += if given { word } else { "" };
        }
        if let Some(name) = self.mutant {
            words += &format!(" --mutant {name}");
        }
        words
    }

    pub(super) fn show(&self, summary: &Summary) {
        if self.json {
            println!(
                "{}",
                serde_json::to_string_pretty(summary).unwrap_or_default()
            );
        }
        let counts = &summary.counts;
        let count = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        for failure in &summary.failures {
            eprintln!("\nFAILED: {}", failure.wrong);
            for (number, step) in steps(&failure.workload).into_iter().enumerate() {
                eprintln!("    step {number}: {step}");
            }
            if let Some(event) = failure.event {
                let windows = &failure.windows;
                eprintln!("    cut at event {event}; steps returned and begun: {windows:?}");
            }
            eprintln!("    again: {}", self.again(failure));
        }
        eprintln!(
            "{} states ({} cut again in recovery) of {} cuts in {} workloads; {} volumes checked, {} lived on, {} databases; \
             {:.1} s, {:.0} states/s",
            summary.states,
            count(&counts.states_again),
            count(&counts.cuts),
            count(&counts.workloads),
            count(&counts.volumes),
            count(&counts.lived_on),
            count(&counts.databases),
            summary.seconds,
            summary.states_per_second,
        );
        let kinds = summary
            .workloads
            .iter()
            .map(|(name, n)| format!("{name} {n}"));
        eprintln!(
            "{}; {}; seed {}",
            kinds.collect::<Vec<_>>().join(", "),
            if summary.complete {
                "complete"
            } else {
                "ended by a limit"
            },
            summary.seed,
        );
        println!(
            "{} passed, {} failed",
            count(&counts.workloads) - summary.failures.len() as u64,
            summary.failures.len()
        );
    }
}

/// What the steps of a workload do.
fn steps(workload: &str) -> Vec<String> {
    let Ok(workload) = workload.parse::<Workload>() else {
        return Vec::new();
    };
    let shown = |(number, step): (usize, Step)| match step {
        Step::Digest => "digest".to_owned(),
        Step::Cut => "power fails in the step before".to_owned(),
        Step::Stop => "unmounted and mounted".to_owned(),
        Step::Kill(client) => format!("client {client} dies"),
        Step::Migrate(None) => "everything moves out of NVM".to_owned(),
        Step::Migrate(Some(item)) => {
            let act = workload.act(item, number);
            format!("everything moves out of NVM, meanwhile {act:?}")
        }
        Step::Item { client: 0, item } => format!("{:?}", workload.act(item, number)),
        Step::Item { client, item } => format!("client {client}: {:?}", workload.act(item, number)),
    };
    workload
        .steps
        .iter()
        .copied()
        .enumerate()
        .map(shown)
        .collect()
}

/// Runs it; whether nothing is wrong.
pub fn run(args: &Args) -> Result<bool> {
    let options = args.options();
    // A panic of Shale's is caught and reported with the workload.
    std::panic::set_hook(Box::new(|_| ()));
    if args.staged {
        let rules = options.depth.devices;
        return staged::Campaign {
            dir: &options.dir,
            first: options.seed,
            time: options.time_limit,
            threads: options.threads,
            case: &|case| Case {
                rules,
                mutant: options.mutant,
                ..case
            },
            failures_max: options.failures_max,
            cuts_least: args.at_least,
        }
        .run();
    }
    if let Some(set) = args.set() {
        return parts::run(args, set, options);
    }
    let bar = std::io::stderr().is_terminal().then(|| {
        let seconds = options.time_limit.as_secs();
        let style = ProgressStyle::with_template("{bar:30} {elapsed}/{len}s {msg}");
        ProgressBar::new(seconds).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    });
    let begin = std::time::Instant::now();
    let summary = campaign::run(&options, &|counts, failures| {
        if let Some(bar) = &bar {
            bar.set_position(begin.elapsed().as_secs());
            let (states, workloads) = (&counts.states, &counts.workloads);
            bar.set_message(format!(
                "{} states, {} workloads, {failures} failures",
                states.load(Ordering::Relaxed),
                workloads.load(Ordering::Relaxed),
            ));
        }
    })?;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    args.show(&summary);
    let enough = summary.states >= args.at_least;
    if !enough {
        let (found, least) = (summary.states, args.at_least);
        eprintln!("FAILED: {found} states, expected {least} at least");
    }
    Ok(summary.failures.is_empty() && enough)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &[&str]) -> Args {
        Line::try_parse_from([&["crash"], words].concat())
            .unwrap()
            .args
    }

    #[test]
    fn a_failure_is_repeated_by_its_command() {
        for words in [
            &["--whole", "--part", "3/16", "--seed", "9"][..],
            &["--long", "--eadr", "--again-every", "1"],
        ] {
            let first = args(words);
            let failure = Failure {
                workload: "L W O 3 D b17".to_owned(),
                event: None,
                windows: Vec::new(),
                survivors: None,
                wrong: String::new(),
            };
            let line = first.again(&failure);
            let (_, rest) = line.split_once("--workload '").unwrap();
            let (workload, rest) = rest.split_once('\'').unwrap();
            let words: Vec<&str> = rest.split_whitespace().collect();
            let again = args(&[&["--workload", workload], &words[..]].concat());
            assert_eq!(again.workload.as_ref().unwrap().to_string(), workload);
            assert_eq!(again.seed, first.seed);
            assert_eq!(
                format!("{:?}", again.depth()),
                format!("{:?}", first.depth())
            );
        }
    }
}
