//! `shale-harness coherence`: many processes on one small tree, half of them clients
//! themselves, half through the mount; is there an order in which all they saw is right?

mod check;
mod drive;
mod log;
mod names;
mod pingpong;
mod plant;
mod register;
mod work;

use std::path::PathBuf;

use shale_bench::BenchError;
use shale_bench::Result;

/// Arguments of `coherence`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    /// Start workers on a new directory DIR of a mount, wait for them, and judge what they saw
    Drive(drive::Options),
    /// Judge logs that are there
    Check {
        /// Directory of the logs
        logs: PathBuf,
        /// The longest that a call may take
        #[arg(long, default_value_t = drive::LIMIT_MS)]
        limit_ms: u64,
    },
    /// One worker; `drive` starts it
    Work(drive::WorkerOptions),
    /// Two processes that take turns with a lock file
    Pingpong(pingpong::Options),
    /// One of the two; `pingpong` starts it
    Player(pingpong::PlayerOptions),
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> BenchError {
    move |source| BenchError::File {
        path: PathBuf::from("coherence"),
        what,
        source,
    }
}

/// Runs it; whether nothing is wrong.
pub fn run(args: &Args) -> Result<bool> {
    match &args.part {
        Part::Drive(options) => drive::drive(options).map_err(failed("drive workers of")),
        Part::Check { logs, limit_ms } => {
            drive::report(logs, *limit_ms).map_err(failed("judge logs of"))
        }
        Part::Work(options) => drive::work(options).map_err(failed("work in")),
        Part::Pingpong(options) => pingpong::drive(options).map_err(failed("play in")),
        Part::Player(options) => pingpong::play(options).map_err(failed("take turns in")),
    }
}
