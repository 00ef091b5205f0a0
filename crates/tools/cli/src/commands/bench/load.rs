//! `shale bench load`: one load of `shale bench policy` on any directory, in this process.
//!
//! A verb of its own so that `shale run -- shale bench load …` is a program like others.

use crate::failure::{Failure, Result};
use crate::terminal::say;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use shale_bench::policy::loads::{self, Limit, Load, LoadOptions};
use shale_sys::size;
use std::io::Read;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  shale bench load varmail /mnt/shale/mail --seconds 2
  shale run -- shale bench load fileserver /mnt/shale/files --files 200

What it did is one line of JSON.";

/// Arguments of `bench load`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The load
    #[arg(value_parser = Load::named)]
    load: Load,
    /// The directory, made if it is missing; its files stay there
    dir: PathBuf,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    threads: u32,
    /// Seconds
    #[arg(long, value_name = "N", default_value_t = 4.0)]
    seconds: f64,
    /// Operations, instead of seconds
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    operations: Option<u64>,
    /// Files [default: as published]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    files: Option<u64>,
    /// Bytes of a call [default: as published]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    io: Option<u64>,
    /// Of a hundred bytes that a synthetic trace writes so many are synced [default: the trace's]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(..=100))]
    sync_percent: Option<u32>,
    /// Seed of all choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Say "ready" when the files are made, wait for a byte of input, and end with the process that started this one
    #[arg(long)]
    wait: bool,
}

/// Runs the load.
pub fn run(args: &Args) -> Result<()> {
    if args.wait {
        let parent = getppid();
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(Failure::because(
            "cannot follow the process that started this",
        ))?;
        if getppid() != parent {
            return Err(Failure::new("the process that started this has ended"));
        }
    }
    let options = LoadOptions {
        threads: args.threads,
        limit: match args.operations {
            Some(operations) => Limit::Operations(operations),
            None => Limit::Seconds(args.seconds),
        },
        files: args.files,
        io_bytes: args.io,
        sync_percent: args.sync_percent,
        seed: args.seed,
    };
    let ready = || {
        if args.wait {
            say!("ready");
            let mut byte = [0];
            let read = std::io::stdin().read_exact(&mut byte);
            return read.map_err(shale_bench::BenchError::file("standard input", "read"));
        }
        Ok(())
    };
    let found =
        loads::run(args.load, &args.dir, &options, ready).map_err(super::mistake::failed)?;
    let text = serde_json::to_string(&found).map_err(Failure::because("the answer"))?;
    say!("{text}");
    Ok(())
}
