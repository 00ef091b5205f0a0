//! `shale bench policy`: the strict and the buffered policy of NVM side by side.

use crate::failure::{Failure, Result};
use crate::terminal::{Waiting, say};
use shale_bench::policy::loads::Load;
use shale_bench::policy::{self, PolicyOptions, Way, keeper};
use shale_bench::tiers::device;
use shale_nvm::Model;
use shale_status::fields::count;
use shale_sys::size;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  shale bench policy --quick
  shale bench policy --threads 1,2,4 --svg plots --json policy.json
  shale bench policy --loads fileserver --io 64,1K,4K,16K,64K,1M --svg plots
  shale bench policy --loads usr0,usr1,lasr,facebook --models hinfs-50,hinfs-800

Of each list every value is measured with each of the others, in rounds in which the systems take turns, each \
measurement on a new volume. Shown are counts first: bytes that reached NVM for each byte written, requests for each \
operation; operations a second compare within a round only. As root, for mounts. Exit code 0 whatever the ratios, 1 where a measurement failed.";

/// What is not a volume.
const PEERS: [&str; 2] = ["tmpfs", "ext4"];

/// Arguments of `bench policy`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A run of half a minute on little memory: its counts mean something, its times do not
    #[arg(long)]
    quick: bool,
    /// Loads: fileserver, webserver, webproxy, varmail; postmark, tpcc, kernel-grep, kernel-make; usr0, usr1, lasr, facebook, which are synthetic [default: the first four]
    #[arg(long, value_name = "LOAD", value_delimiter = ',', value_parser = Load::named)]
    loads: Option<Vec<Load>>,
    /// Threads of a load [default: 1]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<Vec<u32>>,
    /// Sizes of a load's calls, for example 64,4K,1M [default: as published]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size::parse)]
    io: Option<Vec<u64>>,
    /// Models of NVM: hinfs, hinfs-50 to hinfs-800, strata, none [default: hinfs]
    #[arg(long, value_name = "MODEL", value_delimiter = ',', value_parser = parse_model)]
    models: Option<Vec<String>>,
    /// Sizes of a client's log, which is the buffer of the buffered policy [default: 256M]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size::parse)]
    log_bytes: Option<Vec<u64>>,
    /// Policies; the others are compared with the first; buffered-lazy and buffered-eager are without the benefit model [default: strict,buffered]
    #[arg(long, value_name = "POLICY", value_delimiter = ',', value_parser = parse_policy)]
    policies: Option<Vec<String>>,
    /// How loads come to a volume: through its mount, under shale run [default: mount,run]
    #[arg(long, value_name = "WAY", value_delimiter = ',', value_parser = parse_way)]
    ways: Option<Vec<Way>>,
    /// What is measured beside them: tmpfs, ext4 on a device as slow as the model, none [default: tmpfs,ext4]
    #[arg(long, value_name = "SYSTEM", value_delimiter = ',', value_parser = ["tmpfs", "ext4", "none"])]
    beside: Option<Vec<String>>,
    /// Rounds [default: 3]
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// Seconds of a measurement [default: 4]
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// Files of a load; 0: as published [default: 1000]
    #[arg(long, value_name = "N")]
    files: Option<u64>,
    /// Of a hundred bytes that a synthetic trace writes so many are synced [default: the trace's]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(..=100))]
    sync_percent: Option<u32>,
    /// Size of a volume, and of ext4's device [default: 2560M]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    volume: Option<u64>,
    /// Seed of the loads' choices [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// A directory on tmpfs for what is measured [default: /dev/shm]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Where to draw a plot of each thing that has several values
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Where to write all of it as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn parse_model(text: &str) -> std::result::Result<String, String> {
    let known = text == policy::NO_MODEL || Model::named(text).is_some();
    known.then(|| text.to_owned()).ok_or_else(|| {
        format!(
            "'{text}' is no model; known: {}, {}",
            Model::NAMES,
            policy::NO_MODEL
        )
    })
}

fn parse_policy(text: &str) -> std::result::Result<String, String> {
    let known = policy::is_policy(text);
    known.then(|| text.to_owned()).ok_or_else(|| {
        format!("'{text}' is none of strict, buffered, buffered-lazy, buffered-eager")
    })
}

fn parse_way(text: &str) -> std::result::Result<Way, String> {
    let found = Way::ALL.into_iter().find(|way| way.name() == text);
    let known = Way::ALL.map(Way::name).join(", ");
    found.ok_or_else(|| format!("'{text}' is none of {known}"))
}

/// Measures.
pub fn run(args: &Args) -> Result<()> {
    let program = std::env::current_exe().map_err(Failure::because("cannot find this program"))?;
    let options = options(args, program);
    let waiting = Waiting::for_progress(Some("{wide_bar} {pos}/{len} {msg}"));
    let report = policy::run_with_progress(&options, |what, done, all| {
        waiting.done(done, all);
        waiting.at(what);
    });
    drop(waiting);
    let report = report.map_err(super::mistake::failed)?;
    if let Some(file) = &args.json {
        let written = std::fs::write(file, report.to_json() + "\n");
        written.map_err(Failure::because(file.display()))?;
    }
    say!("{report}");
    match report.failed.first() {
        None => Ok(()),
        Some(first) => Err(Failure::new(format!(
            "{} failed: {first}",
            count(report.failed.len() as u64, "measurement")
        ))),
    }
}

fn options(args: &Args, program: PathBuf) -> PolicyOptions {
    let usual = match args.quick {
        true => PolicyOptions::quick(program),
        false => PolicyOptions::new(program),
    };
    let [tmpfs, ext4] = PEERS.map(|name| match &args.beside {
        Some(beside) => beside.iter().any(|named| named == name),
        None => true,
    });
    let files = match args.files {
        Some(0) => None,
        Some(files) => Some(files),
        None => usual.files,
    };
    PolicyOptions {
        loads: args.loads.clone().unwrap_or(usual.loads),
        threads: args.threads.clone().unwrap_or(usual.threads),
        io_bytes: args.io.clone().unwrap_or(usual.io_bytes),
        models: args.models.clone().unwrap_or(usual.models),
        log_bytes: args.log_bytes.clone().unwrap_or(usual.log_bytes),
        policies: args.policies.clone().unwrap_or(usual.policies),
        ways: args.ways.clone().unwrap_or(usual.ways),
        tmpfs,
        ext4,
        rounds: args.rounds.unwrap_or(usual.rounds),
        seconds: args.seconds.unwrap_or(usual.seconds),
        files,
        sync_percent: args.sync_percent,
        volume_bytes: args.volume.unwrap_or(usual.volume_bytes),
        seed: args.seed.unwrap_or(usual.seed),
        dir: args.dir.clone().unwrap_or(usual.dir),
        plots: args.svg.clone(),
        ..usual
    }
}

/// Arguments of `bench device`.
#[derive(Debug, clap::Args)]
pub struct Device {
    /// File that keeps it; made if there is none
    image: PathBuf,
    /// Size of a new one
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    bytes: u64,
    /// flash, disk, or a model of NVM [default: as fast as it is]
    #[arg(long, value_name = "MODEL", value_parser = device::model_named)]
    model: Option<shale_block::BlockModel>,
}

/// Serves a block device until the input ends.
pub fn serve_device(args: &Device) -> Result<()> {
    let options = device::Options {
        image: args.image.clone(),
        bytes: args.bytes,
        model: args.model.unwrap_or_default(),
    };
    let (input, output) = (std::io::stdin().lock(), std::io::stdout().lock());
    device::serve(&options, input, output).map_err(super::mistake::failed)
}

/// Arguments of `bench keeper`.
#[derive(Debug, clap::Args)]
pub struct Keeper {
    /// The measurement's directory
    dir: PathBuf,
}

/// Waits for the end of the input and takes away what is below the directory, and itself.
pub fn keep(args: &Keeper) -> Result<()> {
    let program = std::env::current_exe().map_err(Failure::because("cannot find this program"))?;
    keeper::keep(&program, &args.dir, std::io::stdin().lock()).map_err(super::mistake::failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(words: &[&str]) -> PolicyOptions {
        let words = ["policy"].iter().chain(words);
        options(&Only::parse_from(words).args, "shale".into())
    }

    #[test]
    fn lists_and_sizes_are_understood() {
        let found = parsed(&[
            "--loads=varmail,usr0",
            "--io=64,1K",
            "--threads=1,2",
            "--models=hinfs-50,none",
            "--ways=run",
            "--beside=ext4",
            "--files=0",
        ]);
        assert_eq!(found.loads, [Load::Varmail, Load::Usr0]);
        assert_eq!(
            (found.io_bytes, found.threads),
            (vec![64, 1_024], vec![1, 2])
        );
        assert_eq!(found.models, ["hinfs-50", "none"]);
        assert_eq!(
            (found.ways, found.tmpfs, found.ext4),
            (vec![Way::Run], false, true)
        );
        assert_eq!(found.files, None);
        let usual = parsed(&["--beside=none"]);
        assert!(!usual.tmpfs && !usual.ext4);
        assert_eq!(usual.loads, Load::SERVERS);
        assert_eq!(parsed(&["--quick"]).rounds, 1);
    }

    #[test]
    fn what_is_unknown_is_refused_with_what_is_known() {
        for (found, known) in [
            (parse_model("fly"), "hinfs"),
            (parse_policy("fly"), "strict"),
            (parse_way("fly").map(|way| way.name().to_owned()), "mount"),
        ] {
            let error = found.unwrap_err();
            assert!(error.contains(known), "{error}");
        }
        assert_eq!(parse_policy("buffered").as_deref(), Ok("buffered"));
    }
}
