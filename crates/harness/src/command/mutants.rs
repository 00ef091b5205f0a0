//! `shale-harness mutants`.

use std::path::PathBuf;
use std::time::Duration;

use shale_harness::crash::campaign::Options;
use shale_harness::crash::explore::Depth;
use shale_harness::crash::mutants::{self, Fate};
use shale_harness::crash::sequences::Kind;
use shale_harness::{HarnessError, Result};

/// Arguments of `mutants`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seconds for each at most
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Only those whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Part I of N of them, I from 0
    #[arg(long, value_name = "I/N", default_value = "0/1", value_parser = super::crash::parse_shard)]
    part: (u64, u64),
    /// Run nothing: print the table of docs/TESTING.md from what --json printed
    #[arg(long, value_name = "FILE", num_args = 1..)]
    table: Vec<PathBuf>,
    /// Seed of workloads and choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads [default: one per processor]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Directory on tmpfs for volumes
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
    /// Print the fates as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it; whether all were killed.
pub fn run(args: &Args) -> Result<bool> {
    if !args.table.is_empty() {
        return table(&args.table);
    }
    if !cfg!(feature = "mutants") {
        eprintln!("this program has no mutants: build it with --features mutants");
        return Ok(false);
    }
    std::panic::set_hook(Box::new(|_| ()));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options {
        dir: args.dir.clone(),
        // Kinds take turns in these proportions: what a single operation shows comes soon.
        kinds: vec![
            (Kind::Mkfs, 1),
            (Kind::Ones, Kind::Ones.count().unwrap_or(0)),
            (Kind::Pairs, 1_500),
            (Kind::Triples, 1_500),
            (Kind::Near, 3_000),
            (Kind::Long, 1_000),
            (Kind::Two, 1_500),
            (Kind::Requests, 1_000),
            (Kind::Clients, 500),
        ],
        only: None,
        large: false,
        full: false,
        seed: args.seed,
        shard: (0, 1),
        in_order: false,
        threads: args.threads.unwrap_or(processors),
        time_limit: Duration::MAX,
        states_max: u64::MAX,
        failures_max: 1,
        minimise: false,
        mutant: None,
        depth: Depth::default(),
    };
    let limit = Duration::from_secs(args.seconds);
    let fates = mutants::run(&options, limit, &args.only, args.part, &|fate| {
        let found = match (&fate.killed_by, &fate.workload) {
            (Some(wrong), Some(workload)) => format!("killed: '{workload}': {wrong}"),
            _ => "LIVES".to_owned(),
        };
        eprintln!(
            "{:<22} {:>6.1} s {:>9} states  {found}",
            fate.name, fate.seconds, fate.states
        );
    })?;
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&fates).unwrap_or_default()
        );
    }
    let alive = fates.iter().filter(|fate| fate.killed_by.is_none()).count();
    println!("{} passed, {alive} failed", fates.len() - alive);
    Ok(alive == 0)
}

/// Prints what runs found as one table; whether each mutant is in it and was killed.
fn table(files: &[PathBuf]) -> Result<bool> {
    let mut fates: Vec<Fate> = Vec::new();
    for path in files {
        let failed = |e: &dyn std::fmt::Display| HarnessError::Program {
            program: path.display().to_string(),
            found: e.to_string(),
        };
        let text = std::fs::read(path).map_err(|e| failed(&e))?;
        // The last line, which counts, is behind it.
        let mut found = serde_json::Deserializer::from_slice(&text).into_iter::<Vec<Fate>>();
        let found = found.next().transpose().map_err(|e| failed(&e))?;
        fates.extend(found.unwrap_or_default());
    }
    println!("| Mutant | What is wrong | Killed by | Seconds |\n| --- | --- | --- | --- |");
    let mut killed = 0;
    for mutant in mutants::MUTANTS {
        let fate = fates.iter().find(|fate| fate.name == mutant.name);
        println!(
            "{}",
            fate.map_or(format!("| {} | not run | | |", mutant.name), Fate::row)
        );
        killed += usize::from(fate.is_some_and(|fate| fate.killed_by.is_some()));
    }
    println!("\n{killed} of {} are killed.", mutants::MUTANTS.len());
    Ok(killed == mutants::MUTANTS.len())
}
