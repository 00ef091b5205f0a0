//! `shale-harness tiers`.

use std::io::BufRead;
use std::path::PathBuf;

use serde::Serialize;
use shale_bench::BenchError;
use shale_bench::Result;
use shale_bench::tiers::{device, grow, ratio, zipf};
use shale_block::BlockModel;

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
    /// Print two reports of grow side by side, as a table
    Ratio(Ratio),
    /// Be a block device as slow as a model: print the loop device, then counters for each line
    /// "counters" on the input; at its end everything is taken away again. Needs root
    Device(Device),
    /// Reads and writes of one file by Zipf's law
    Zipf(Zipf),
}

#[derive(Debug, clap::Args)]
struct Grow {
    /// An empty directory. Several, on file systems of their own: new files go to the first one, and
    /// whole files move on to the next by least recent use
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
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
    /// KiB of an append, on average (Filebench: 16)
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u64).range(1..=(1 << 20)))]
    append_kib: u64,
    /// No checker beside the load; it compares what it reads, and all is read at the end
    #[arg(long)]
    no_check: bool,
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
struct Ratio {
    /// Reports, each with its name
    #[arg(value_name = "NAME=FILE", num_args = 2, value_parser = named)]
    reports: Vec<(String, PathBuf)>,
}

#[derive(Debug, clap::Args)]
struct Device {
    /// File that keeps it; made if there is none
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// MiB of a new one
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u64).range(1..=(1 << 24)))]
    mib: u64,
    /// flash or disk [default: as fast as it is]
    #[arg(long, value_name = "MODEL", value_parser = device::model_named)]
    model: Option<BlockModel>,
}

fn named(text: &str) -> std::result::Result<(String, PathBuf), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let parts = parts.map(|(name, file)| (name.to_owned(), file.into()));
    parts.ok_or_else(|| format!("'{text}' is not NAME=FILE"))
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
        What::Ratio(args) => print_ratio(&args.reports)?,
        What::Device(args) => {
            let options = device::Options {
                image: args.image.clone(),
                bytes: args.mib << 20,
                model: args.model.unwrap_or_default(),
            };
            let (input, output) = (std::io::stdin().lock(), std::io::stdout().lock());
            device::serve(&options, input, output)?;
        }
    }
    Ok(true)
}

fn print(report: &impl Serialize) {
    println!(
        "{}",
        serde_json::to_string_pretty(report).unwrap_or_default()
    );
}

fn print_ratio(reports: &[(String, PathBuf)]) -> Result<()> {
    if let [(name, file), (other_name, other)] = reports {
        let (report, other) = (grow::Report::load(file)?, grow::Report::load(other)?);
        println!("{}", ratio::table((name, &report), (other_name, &other)));
    }
    Ok(())
}

fn grow(args: &Grow) -> Result<grow::Report> {
    let options = grow::Options {
        until_percent: args.until,
        bytes_max: args.mib_max.saturating_mul(1 << 20),
        file_bytes: args.file_kib << 10,
        append_bytes: args.append_kib << 10,
        remove_percent: args.remove,
        sync: args.sync,
        check: !args.no_check,
        seed: args.seed,
    };
    grow::run(args.dirs.clone(), options)
}

fn zipf(args: &Zipf) -> Result<zipf::Report> {
    if !(args.s > 0.0 && args.s < 10.0) {
        return Err(BenchError::Option {
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
