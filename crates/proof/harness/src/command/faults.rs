//! `shale-harness faults`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use shale_bench::Result;
use shale_faults::Options;
use shale_faults::processes::child;
use shale_faults::table::ROWS;
use shale_faults::volume::load::Load;

const EXAMPLES: &str = "\
Examples:
  shale-harness faults                       every fault with three workloads
  shale-harness faults --only rot --seed 7   faults whose name contains 'rot'
  shale-harness faults --list                names and promises

Faults of running processes need a build with --features failpoints. Use a release build.";

/// Arguments of `faults`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only faults whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Only these workloads: random, mail, records
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_load)]
    loads: Option<Vec<Load>>,
    /// Seed of workloads and damages
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Ends after so many seconds; what was not tried by then has not passed
    #[arg(long, value_name = "N", default_value_t = 3_600)]
    seconds: u64,
    /// Seconds for one fault with one workload at most
    #[arg(long, value_name = "N", default_value_t = 10)]
    row_seconds: u64,
    /// A few cases of each: for tests
    #[arg(long)]
    quick: bool,
    /// Print names and promises only
    #[arg(long)]
    list: bool,
    /// Directory on tmpfs for volumes
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
    /// Print the outcomes as JSON
    #[arg(long)]
    json: bool,
}

fn parse_load(text: &str) -> std::result::Result<Load, String> {
    let load = Load::ALL.into_iter().find(|load| load.name() == text);
    load.ok_or_else(|| format!("'{text}' is none of random, mail, records"))
}

/// Arguments of a child that is a daemon.
#[derive(Debug, clap::Args)]
pub struct DaemonArgs {
    nvm: PathBuf,
    socket: PathBuf,
}

/// Arguments of a child that changes devices.
#[derive(Debug, clap::Args)]
pub struct DevicesArgs {
    place: PathBuf,
}

/// Arguments of a child that is a client.
#[derive(Debug, clap::Args)]
pub struct ClientArgs {
    socket: PathBuf,
    counter: PathBuf,
    #[arg(value_parser = parse_load)]
    load: Load,
    seed: u64,
    #[arg(long)]
    unsynced: bool,
}

/// Arguments of a child that is a client for a moment.
#[derive(Debug, clap::Args)]
pub struct GuestArgs {
    socket: PathBuf,
}

/// Arguments of a child that looks at damaged images.
#[derive(Debug, clap::Args)]
pub struct ImagesArgs {
    nvm: PathBuf,
    image: PathBuf,
    from: u64,
    to: u64,
}

/// Arguments of `golden-make`.
#[derive(Debug, clap::Args)]
pub struct GoldenArgs {
    /// Directory on tmpfs for volumes
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
}

/// Makes the images that are not there yet.
pub fn golden(args: &GoldenArgs) -> Result<bool> {
    shale_faults::media::golden::make(&args.dir).map(|()| true)
}

/// Is a client for a moment.
pub fn guest(args: &GuestArgs) -> ExitCode {
    ExitCode::from(child::visit(&args.socket) as u8)
}

/// Looks at damaged images.
pub fn images(args: &ImagesArgs) -> ExitCode {
    let seeds = args.from..args.to;
    ExitCode::from(
        shale_faults::metadata::damaged_images::look(&args.nvm, &args.image, seeds) as u8,
    )
}

/// Is a daemon.
pub fn daemon(args: &DaemonArgs) -> ExitCode {
    ExitCode::from(child::serve(&args.nvm, &args.socket) as u8)
}

/// Changes devices.
pub fn devices(args: &DevicesArgs) -> ExitCode {
    ExitCode::from(shale_faults::lower_tiers::device_changes::child(&args.place) as u8)
}

/// Is a client.
pub fn client(args: &ClientArgs) -> ExitCode {
    let acts = match args.unsynced {
        true => args.load.unsynced_acts(args.seed),
        false => args.load.acts(args.seed),
    };
    ExitCode::from(child::work(&args.socket, &args.counter, acts) as u8)
}

/// Runs it; whether every promise was kept.
pub fn run(args: &Args) -> Result<bool> {
    if args.list {
        for row in ROWS {
            println!("{:<24} {}", row.name, row.promise);
        }
        return Ok(true);
    }
    let options = Options {
        dir: args.dir.clone(),
        only: args.only.clone(),
        loads: args.loads.clone().unwrap_or(Load::ALL.to_vec()),
        seed: args.seed,
        row_limit: Duration::from_secs(args.row_seconds),
        time_limit: Duration::from_secs(args.seconds),
        quick: args.quick,
    };
    // A panic of Shale's is caught and reported with its case.
    std::panic::set_hook(Box::new(|_| ()));
    let rows = ROWS.iter().filter(|r| r.name.contains(&args.only)).count();
    let bar = std::io::stderr().is_terminal().then(|| {
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed}");
        let bar = ProgressBar::new((rows * options.loads.len()) as u64);
        bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    });
    let outcomes = shale_faults::run(&options, &|outcome| {
        let verdict = match &outcome.wrong {
            None if outcome.untried => format!("not tried: {}", outcome.seen),
            None => format!("kept    {}", outcome.seen),
            Some(wrong) => format!("BROKEN  {wrong}"),
        };
        let (fault, load) = (outcome.fault, outcome.load.name());
        let line = format!(
            "{fault:<24} {load:<8} {:>6} cases {:>6.1} s  {verdict}",
            outcome.cases, outcome.seconds
        );
        match &bar {
            None => eprintln!("{line}"),
            Some(bar) => {
                bar.println(line);
                bar.inc(1);
            }
        }
    })?;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&outcomes).unwrap_or_default()
        );
    }
    let broken = outcomes.iter().filter(|o| o.wrong.is_some());
    for outcome in broken.clone() {
        let (fault, load) = (outcome.fault, outcome.load.name());
        eprintln!(
            "again: shale-harness faults --only {fault} --loads {load} --seed {}",
            args.seed
        );
    }
    let untried = outcomes.iter().filter(|o| o.untried).count();
    let failed = broken.count();
    let passed = outcomes.len() - failed - untried;
    println!("{passed} passed, {failed} failed, {untried} not tried");
    Ok(failed == 0)
}
