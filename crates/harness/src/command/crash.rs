//! `shale-harness crash`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use shale_harness::Result;
use shale_harness::crash::campaign::{self, Options, Summary};
use shale_harness::crash::explore::{Depth, Failure};
use shale_harness::crash::images::Caches;
use shale_harness::crash::mutants::MUTANTS;
use shale_harness::crash::sequences::Kind;
use shale_harness::crash::whole::{self, Part};
use shale_harness::workload::words::{Step, Workload};

const EXAMPLES: &str = "\
Examples:
  shale-harness crash                            one minute of everything
  shale-harness crash --long --minutes 60        all pairs, then as many others as fit
  shale-harness crash --workload '12 D 40'       one workload, every cut
  shale-harness crash --whole                    every workload of one and two operations
  shale-harness crash --whole --part 3/16 --keep DIR   a part of them; sums of all parts in DIR

The same seed gives the same states. Use a release build.";

/// Workloads of each kind in a short run, and in a long one.
const SHORT: [(Kind, u64); 10] = [
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
];
/// Threads need another tree, so they are never with the others.
const THREADS: (Kind, u64) = (Kind::Threads, 100_000);
const LONG: [(Kind, u64); 10] = [
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
];

/// How closely `--whole` looks: all workloads fit an hour of two processors.
const WHOLE: Depth = Depth {
    images_per_cut: 12,
    again_every: 512,
    images_per_cut_again: 6,
    live_every: 512,
    flip_every: 512,
    caches: Caches::Volatile,
};

/// Arguments of `crash`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// All pairs, and many samples of the rest: hours
    #[arg(long)]
    long: bool,
    /// Only these kinds: ones, pairs, triples, near, long, two, mkfs, requests, clients,
    /// programs; or threads alone
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
    #[arg(long, conflicts_with_all = ["long", "kinds", "count", "workload", "seconds", "minutes", "states"])]
    whole: bool,
    /// With --whole: keep what a part finds in this directory, and add up all parts there
    #[arg(long, value_name = "DIR", requires = "whole")]
    keep: Option<PathBuf>,
    /// Fails with fewer different states
    #[arg(long, value_name = "N", default_value_t = 0)]
    at_least: u64,
    /// Threads [default: one per processor]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Images at one cut at most, where there are more [default: 160; whole: 12]
    #[arg(long, value_name = "N")]
    images_per_cut: Option<usize>,
    /// Cut again while one in so many images is recovered; 1: each, 0: none [default: 64; whole: 512]
    #[arg(long, value_name = "N")]
    again_every: Option<u64>,
    /// Serve, fill and empty one in so many recovered volumes; 1: each, 0: none [default: 64; whole: 512]
    #[arg(long, value_name = "N")]
    live_every: Option<u64>,
    /// Flip bits in one in so many recovered volumes; 1: each, 0: none [default: 64; whole: 512]
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
    json: bool,
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
             clients, programs"
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
    fn kinds(&self) -> Vec<(Kind, u64)> {
        if self.whole {
            let kinds = [Kind::Ones, Kind::Pairs];
            return kinds.map(|k| (k, k.count().unwrap_or(0))).to_vec();
        }
        let preset = if self.long { LONG } else { SHORT };
        let wanted = |kind: &Kind| self.kinds.as_ref().is_none_or(|kinds| kinds.contains(kind));
        if self.kinds.as_deref() == Some(&[Kind::Threads]) {
            return vec![(Kind::Threads, self.count.unwrap_or(THREADS.1))];
        }
        let mut kinds: Vec<(Kind, u64)> = preset.into_iter().filter(|k| wanted(&k.0)).collect();
        for (kind, count) in &mut kinds {
            *count = self
                .count
                .unwrap_or(*count)
                .min(kind.count().unwrap_or(u64::MAX));
        }
        kinds
    }

    fn options(&self) -> Options {
        let default = if self.long { 3_600 } else { 60 };
        let seconds = self
            .minutes
            .map(|m| m * 60)
            .or(self.seconds)
            .unwrap_or(default);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            dir: self.dir.clone(),
            kinds: self.kinds(),
            only: self.workload.clone(),
            large: self.large,
            full: self.full,
            seed: self.seed,
            shard: self.shard,
            in_order: self.whole,
            threads: self.threads.unwrap_or(processors),
            time_limit: match self.whole {
                true => Duration::MAX,
                false => Duration::from_secs(seconds),
            },
            states_max: self.states,
            failures_max: self.failures,
            minimise: true,
            mutant: self.mutant,
            depth: self.depth(),
        }
    }

    fn depth(&self) -> Depth {
        let usual = match self.whole {
            true => WHOLE,
            false => Depth::default(),
        };
        Depth {
            images_per_cut: self.images_per_cut.unwrap_or(usual.images_per_cut),
            again_every: self.again_every.unwrap_or(usual.again_every),
            live_every: self.live_every.unwrap_or(usual.live_every),
            flip_every: self.flip_every.unwrap_or(usual.flip_every),
            caches: match self.eadr {
                true => Caches::Persistent,
                false => Caches::Volatile,
            },
            ..usual
        }
    }

    /// The command that shows a failure again.
    fn again(&self, failure: &Failure) -> String {
        let depth = self.depth();
        let mut words = format!(
            "shale-harness crash --workload '{}' --seed {} --images-per-cut {} --again-every {} \
             --live-every {} --flip-every {}",
            failure.workload,
            self.seed,
            depth.images_per_cut,
            depth.again_every,
            depth.live_every,
            depth.flip_every,
        );
        let more = [
            (self.eadr, " --eadr"),
            (self.large, " --large"),
            (self.full, " --full"),
        ];
        for (given, word) in more {
            words += if given { word } else { "" };
        }
        if let Some(name) = self.mutant {
            words += &format!(" --mutant {name}");
        }
        words
    }

    fn show(&self, summary: &Summary) {
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

impl Args {
    /// Whether no workload was left out, in this part or, once all are there, in all parts.
    fn show_whole(&self, summary: &Summary) -> Result<bool> {
        let all: u64 = self.kinds().iter().map(|kind| kind.1).sum();
        let (i, of) = self.shard;
        let share = |kind: &(Kind, u64)| kind.1 * (i + 1) / of - kind.1 * i / of;
        let asked: u64 = self.kinds().iter().map(share).sum();
        let count = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        let counts = &summary.counts;
        let part = Part {
            workloads: summary.workloads.iter().map(|kind| kind.1).sum(),
            cuts: count(&counts.cuts),
            states: summary.states,
            states_again: count(&counts.states_again),
            seconds: summary.seconds as u64,
        };
        let none_left = summary.complete && part.workloads == asked;
        println!("part {i} of {of}: {} of {asked} workloads", part.workloads);
        let Some(dir) = self.keep.as_ref().filter(|_| none_left) else {
            return Ok(none_left);
        };
        if summary.failures.is_empty() {
            whole::keep(dir, self.shard, &part, &summary.known)?;
        }
        let sum = whole::sum(dir, of)?;
        println!(
            "{} of {of} parts: {} of {all} workloads, {} cuts, {} different states ({} cut again), \
             {} different volumes, {} s",
            sum.parts.0,
            sum.part.workloads,
            sum.part.cuts,
            sum.states,
            sum.part.states_again,
            sum.volumes,
            sum.part.seconds,
        );
        Ok(sum.parts.0 < of || sum.part.workloads == all)
    }
}

/// What the steps of a workload do.
fn steps(workload: &str) -> Vec<String> {
    let Ok(workload) = workload.parse::<Workload>() else {
        return Vec::new();
    };
    let shown = |(number, step): (usize, Step)| match step {
        Step::Digest => "digest".to_owned(),
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
    // A panic of Shale's is caught and told with the workload.
    std::panic::set_hook(Box::new(|_| ()));
    let bar = (std::io::stderr().is_terminal() && !args.whole).then(|| {
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
    let whole = !args.whole || args.show_whole(&summary)?;
    let enough = summary.states >= args.at_least;
    if !enough {
        let (found, least) = (summary.states, args.at_least);
        eprintln!("FAILED: {found} states, expected {least} at least");
    }
    Ok(summary.failures.is_empty() && whole && enough)
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
