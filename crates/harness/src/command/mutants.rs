//! `shale-harness mutants`.

use std::path::PathBuf;
use std::time::Duration;

use shale_harness::Result;
use shale_harness::crash::campaign::Options;
use shale_harness::crash::explore::Depth;
use shale_harness::crash::mutants;
use shale_harness::crash::sequences::Kind;

/// Arguments of `mutants`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seconds for each at most
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Only those whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
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
    if !cfg!(feature = "mutants") {
        eprintln!("this program has no mutants: build it with --features mutants");
        return Ok(false);
    }
    std::panic::set_hook(Box::new(|_| ()));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options {
        dir: args.dir.clone(),
        kinds: vec![
            (Kind::Ones, Kind::Ones.count().unwrap_or(0)),
            (Kind::Pairs, 10_000),
            (Kind::Triples, 10_000),
            (Kind::Long, 10_000),
            (Kind::Two, 10_000),
        ],
        only: None,
        large: false,
        full: false,
        seed: args.seed,
        shard: (0, 1),
        threads: args.threads.unwrap_or(processors),
        time_limit: Duration::MAX,
        states_max: u64::MAX,
        failures_max: 1,
        minimise: false,
        mutant: None,
        depth: Depth::default(),
    };
    let limit = Duration::from_secs(args.seconds);
    let fates = mutants::run(&options, limit, &args.only, &|fate| {
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
