//! `shale-harness mutants`.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::hunt::{Fate, hunt};
use crate::mutants::{self, Mutant};
use shale_bench::BenchError;
use shale_bench::Result;
use shale_powercut::explore::explorer::Depth;
use shale_powercut::workloads::campaign::Options;
use shale_powercut::workloads::sequences::Kind;

/// Arguments of `mutants`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seconds for each at most
    #[arg(long, value_name = "N", default_value_t = 300)]
    seconds: u64,
    /// Only those whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Part I of N of them, I from 0
    #[arg(long, value_name = "I/N", default_value = "0/1", value_parser = super::crash::parse_shard)]
    part: (u64, u64),
    /// Run nothing: print a table for docs/runs from what --json printed
    #[arg(long, value_name = "FILE", num_args = 1..)]
    table: Vec<PathBuf>,
    /// This one, in this process
    #[arg(long, value_name = "NAME", hide = true)]
    one: Option<String>,
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
    if let Some(name) = &args.one {
        return one(args, name);
    }
    let mine = |n: usize| n as u64 % args.part.1 == args.part.0;
    let chosen = mutants::MUTANTS.into_iter();
    let chosen = chosen.filter(|m| m.name.contains(&args.only)).enumerate();
    let mut fates = Vec::new();
    for (_, mutant) in chosen.filter(|(n, _)| mine(*n)) {
        let fate = apart(args, mutant)?;
        let found = match (&fate.killed_by, &fate.workload) {
            (Some(wrong), Some(workload)) => format!("killed: '{workload}': {wrong}"),
            _ => "LIVES".to_owned(),
        };
        eprintln!(
            "{:<22} {:>6.1} s {:>9} states  {found}",
            fate.name, fate.seconds, fate.states
        );
        fates.push(fate);
    }
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&fates).unwrap_or_default()
        );
    }
    let alive = fates.iter().filter(|fate| fate.killed_by.is_none()).count();
    if !args.json {
        println!("{HEAD}");
        fates.iter().for_each(|fate| println!("{}", fate.row()));
    }
    println!("{} passed, {alive} failed", fates.len() - alive);
    Ok(alive == 0 && !fates.is_empty())
}

/// Hunts a mutant in a process of its own: what it does may end that process, or hang.
fn apart(args: &Args, mutant: Mutant) -> Result<Fate> {
    let failed = |e: std::io::Error| BenchError::Program {
        program: "a child process".to_owned(),
        found: e.to_string(),
    };
    let begun = Instant::now();
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["mutants", "--one", mutant.name]);
    command.args(["--seconds", &args.seconds.to_string()]);
    command.args(["--seed", &args.seed.to_string()]);
    if let Some(threads) = args.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    command.arg("--dir").arg(&args.dir);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    // Looking for it ends by itself in twice the time.
    let limit = Duration::from_secs(args.seconds) * 2 + SLACK;
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break Some(status),
            None if begun.elapsed() > limit => break None,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let Some(status) = status else {
        child.kill().and_then(|()| child.wait()).map_err(failed)?;
        return Ok(Fate::of_process(mutant, begun, "it hangs".to_owned()));
    };
    let output = child.wait_with_output().map_err(failed)?;
    let fate = serde_json::from_slice(&output.stdout).ok();
    match fate {
        Some(fate) => Ok(fate),
        None if status.signal().is_some() => {
            Ok(Fate::of_process(mutant, begun, status.to_string()))
        }
        None => Err(BenchError::Program {
            program: format!("mutants --one {}", mutant.name),
            found: status.to_string(),
        }),
    }
}

/// Hunts a mutant in this process and prints what became of it, as JSON.
fn one(args: &Args, name: &str) -> Result<bool> {
    std::panic::set_hook(Box::new(|_| ()));
    let mutant = mutants::MUTANTS.into_iter().find(|m| m.name == name);
    let mutant = mutant.ok_or_else(|| BenchError::Program {
        program: name.to_owned(),
        found: "there is no such mutant".to_owned(),
    })?;
    let fate = hunt(&options(args), Duration::from_secs(args.seconds), mutant)?;
    println!("{}", serde_json::to_string(&fate).unwrap_or_default());
    Ok(fate.killed_by.is_some())
}

fn options(args: &Args) -> Options {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    Options {
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
            (Kind::Runs, 600),
        ],
        only: None,
        large: false,
        full: false,
        policy: shale_format::Durability::Strict,
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
    }
}

/// Time that a process may take beyond its own limits.
const SLACK: Duration = Duration::from_secs(120);

const HEAD: &str = "| Mutant | What is wrong | Killed by | Seconds |\n| --- | --- | --- | --- |";

/// Prints what runs found as one table; whether each mutant is in it and was killed.
fn table(files: &[PathBuf]) -> Result<bool> {
    let mut fates: Vec<Fate> = Vec::new();
    for path in files {
        let failed = |e: &dyn std::fmt::Display| BenchError::Program {
            program: path.display().to_string(),
            found: e.to_string(),
        };
        let text = std::fs::read(path).map_err(|e| failed(&e))?;
        // The last line, which counts, is behind it.
        let mut found = serde_json::Deserializer::from_slice(&text).into_iter::<Vec<Fate>>();
        let found = found.next().transpose().map_err(|e| failed(&e))?;
        fates.extend(found.unwrap_or_default());
    }
    println!("{HEAD}");
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
