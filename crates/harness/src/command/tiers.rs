//! `shale-harness tiers`.

use std::io::BufRead;
use std::path::PathBuf;

use serde::Serialize;
use shale_harness::tiers::{grow, zipf};
use shale_harness::{HarnessError, Result};

/// Arguments of `tiers`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// A file server that grows, and a checker that reads everything, until DIR is full enough
    Grow(Grow),
    /// Reads and writes of one file by Zipf's law
    Zipf(Zipf),
}

#[derive(Debug, clap::Args)]
struct Grow {
    /// An empty directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// End when so many percent of the file system are in use
    #[arg(long, value_name = "N", default_value_t = 90.0)]
    until: f64,
    /// End after so many MiB written, too
    #[arg(long, value_name = "N", default_value_t = u64::MAX >> 20)]
    mib_max: u64,
    /// KiB of a new file, on average (Filebench: 128)
    #[arg(long, value_name = "N", default_value_t = 128,
          value_parser = clap::value_parser!(u64).range(1..=(1 << 20)))]
    file_kib: u64,
    /// Of a hundred rounds so many remove a file
    #[arg(long, value_name = "N", default_value_t = 25)]
    remove: u64,
    /// Sync each file before it is closed
    #[arg(long)]
    sync: bool,
    /// Seed of all choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, clap::Args)]
struct Zipf {
    /// The file; it must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// MiB of the file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=(1 << 24)))]
    mib: u64,
    /// Operations before counting
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    warm: u64,
    /// Operations that count
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    count: u64,
    /// Of a hundred operations so many read
    #[arg(long, value_name = "N", default_value_t = 80)]
    reads: u64,
    /// The exponent
    #[arg(long, default_value_t = 1.0)]
    s: f64,
    /// Blocks that are used much do not lie side by side
    #[arg(long)]
    scattered: bool,
    /// Sync each write
    #[arg(long)]
    sync: bool,
    /// Print "mark" before and after what counts, and wait for a line of input
    #[arg(long)]
    marks: bool,
    /// Seed of all choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs it; the report is JSON.
pub fn run(args: &Args) -> Result<bool> {
    match &args.what {
        What::Grow(args) => print(&grow(args)?),
        What::Zipf(args) => print(&zipf(args)?),
    }
    Ok(true)
}

fn print(report: &impl Serialize) {
    println!(
        "{}",
        serde_json::to_string_pretty(report).unwrap_or_default()
    );
}

fn grow(args: &Grow) -> Result<grow::Report> {
    let options = grow::Options {
        until_percent: args.until,
        bytes_max: args.mib_max.saturating_mul(1 << 20),
        file_bytes: args.file_kib << 10,
        remove_percent: args.remove,
        sync: args.sync,
        seed: args.seed,
    };
    grow::run(&args.dir, options)
}

fn zipf(args: &Zipf) -> Result<zipf::Report> {
    if !(args.s > 0.0 && args.s < 10.0) {
        return Err(HarnessError::Option {
            option: "--s",
            expected: "more than 0, less than 10".to_owned(),
            found: args.s.to_string(),
        });
    }
    let options = zipf::Options {
        file_bytes: args.mib << 20,
        warm: args.warm,
        count: args.count,
        read_percent: args.reads,
        s: args.s,
        scattered: args.scattered,
        sync: args.sync,
        seed: args.seed,
    };
    zipf::run(&args.file, options, || {
        if args.marks {
            println!("mark");
            let mut line = String::new();
            // At the end of the input it goes on.
            let _ = std::io::stdin().lock().read_line(&mut line);
        }
    })
}
