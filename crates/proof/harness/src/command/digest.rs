//! `shale-harness digest`.

use std::path::PathBuf;

use shale_bench::Result;
use shale_bench::digest::{Load, Options, run as measure};

/// Arguments of `digest`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A directory on tmpfs for the volumes
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
    /// Loads: random-4k, random-128, append-4k, mail [default: all]
    #[arg(long, value_name = "LOAD", value_delimiter = ',', value_parser = load)]
    only: Option<Vec<Load>>,
    /// MiB of the file
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u64).range(1..=(1 << 20)))]
    file_mib: u64,
    /// MiB of NVM [default: seven times the file]
    #[arg(long, value_name = "N")]
    nvm_mib: Option<u64>,
    /// Calls in a round whose digest is waited for
    #[arg(long, value_name = "N", default_value_t = 16384,
          value_parser = clap::value_parser!(u64).range(1..=(1 << 24)))]
    calls: u64,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 9)]
    rounds: u32,
    /// MiB of the log that fills
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u64).range(1..=4096))]
    log_mib: u64,
    /// Seconds of writing to a log that fills; 0: not measured
    #[arg(long, value_name = "N", default_value_t = 5.0)]
    seconds: f64,
    /// Each transaction is digested by itself, to see what is saved by digesting many together
    #[arg(long)]
    apart: bool,
    /// Seed of offsets
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The report as JSON, one line a load
    #[arg(long)]
    json: bool,
}

fn load(text: &str) -> std::result::Result<Load, String> {
    let known = || Load::ALL.map(Load::name).join(", ");
    let found = Load::ALL.into_iter().find(|load| load.name() == text);
    found.ok_or_else(|| format!("'{text}' is none of {}", known()))
}

/// Measures.
pub fn run(args: &Args) -> Result<bool> {
    let options = Options {
        file_bytes: args.file_mib << 20,
        nvm_bytes: args.nvm_mib.unwrap_or(args.file_mib * 7) << 20,
        calls: args.calls,
        rounds: args.rounds,
        log_bytes: args.log_mib << 20,
        seconds: args.seconds,
        seed: args.seed,
        apart: args.apart,
    };
    if !args.json {
        println!(
            "{:<11} {:>12} {:>10} {:>10} | {:>10} {:>10} {:>8} {:>8} {:>10} {:>6} {:>6} {:>6}",
            "load",
            "records/s",
            "cpu ns/rec",
            "nvm B/rec",
            "calls/s",
            "records/s",
            "p50 us",
            "p99.9 us",
            "longest ms",
            ">20 ms",
            "paused",
            "stops"
        );
    }
    for load in args.only.clone().unwrap_or(Load::ALL.to_vec()) {
        let report = measure(&args.dir, load, &options)?;
        if args.json {
            let line = serde_json::to_string(&report).expect("a report is JSON");
            println!("{line}");
            continue;
        }
        let alone = report.alone;
        print!(
            "{:<11} {:>12.0} {:>10.0} {:>10.0} |",
            load.name(),
            alone.records_per_s,
            alone.cpu_ns_per_record,
            alone.nvm_bytes_per_record
        );
        match report.full {
            Some(full) => println!(
                " {:>10.0} {:>10.0} {:>8.2} {:>8.1} {:>10.1} {:>6} {:>5.0}% {:>6}",
                full.calls_per_s,
                full.records_per_s,
                full.p50_us,
                full.p999_us,
                full.longest_ms,
                full.above_20ms,
                full.paused * 100.0,
                full.stops
            ),
            None => println!(),
        }
    }
    Ok(true)
}
