//! `shale bench micro`: single operations side by side.

use crate::failure::{Failure, Result};
use crate::terminal::{Waiting, say};
use shale_bench::micro::{self, MicroOptions, Op};
use shale_status::fields::count;
use shale_sys::size;
use std::fs;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  shale bench micro --quick
  shale bench micro --mount /mnt/shale --plots plots --json >micro.json

Times compare within one run only, counts on every machine. Use a release build: in another one \
budgets of times are not judged, with --quick none is. Exit code 1: a budget was not kept.";

/// Arguments of `bench micro`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A run of a second: its counts mean something, its times do not
    #[arg(long)]
    quick: bool,
    /// A directory on tmpfs for what is measured [default: /dev/shm]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// A mounted volume to measure too, or a directory in one
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// Directories for images of ext4, each measured [default: /var/tmp,/dev/shm]
    #[arg(long, value_name = "DIR", value_delimiter = ',')]
    ext4: Option<Vec<PathBuf>>,
    /// Operations, for example append,random-read [default: all]
    #[arg(long, value_name = "OP", value_delimiter = ',', value_parser = parse_op)]
    ops: Option<Vec<Op>>,
    /// Sizes, for example 128,4K [default: 64 to 1M]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size::parse)]
    sizes: Option<Vec<u64>>,
    /// Rounds that count
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// Operations that a target does before it is the next one's turn
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    turn: Option<u32>,
    /// Seed of offsets and contents
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Where to draw plots
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// The report as JSON
    #[arg(long)]
    json: bool,
}

fn parse_op(text: &str) -> std::result::Result<Op, String> {
    Op::ALL
        .into_iter()
        .find(|op| op.name() == text)
        .ok_or_else(|| format!("'{text}' is none of {}", Op::ALL.map(Op::name).join(", ")))
}

/// Measures.
pub fn run(micro: &Args) -> Result<()> {
    let inside = micro.mount.as_deref().map(Inside::make).transpose()?;
    let options = options(micro, inside.as_ref().map(|i| i.0.clone()));
    let waiting = Waiting::start("measuring");
    let report = micro::run_with_progress(&options, |what| waiting.at(what));
    drop(waiting);
    drop(inside);
    let report = report.map_err(super::mistake::failed)?;
    if micro.json {
        say!("{}", report.to_json());
    } else {
        say!("{report}");
    }
    match report.budgets_broken() {
        0 => Ok(()),
        broken => Err(Failure::new(format!(
            "{} not kept",
            count(broken as u64, "budget")
        ))),
    }
}

fn options(micro: &Args, mount: Option<PathBuf>) -> MicroOptions {
    let usual = match micro.quick {
        true => MicroOptions::quick(),
        false => MicroOptions::default(),
    };
    let sizes = |sizes: &Vec<u64>| sizes.iter().map(|&bytes| bytes as usize).collect();
    MicroOptions {
        ops: micro.ops.clone().unwrap_or(usual.ops),
        sizes: micro.sizes.as_ref().map_or(usual.sizes, sizes),
        rounds: micro.rounds.unwrap_or(usual.rounds),
        turn_ops: micro.turn.map_or(usual.turn_ops, |n| n as usize),
        seed: micro.seed.unwrap_or(usual.seed),
        dir: micro.dir.clone().unwrap_or(usual.dir),
        ext4: micro.ext4.clone().unwrap_or(usual.ext4),
        plots: micro.plots.clone(),
        mount,
        ..usual
    }
}

/// An empty directory in a mounted volume, for as long as is measured.
struct Inside(PathBuf);

impl Inside {
    fn make(mount: &Path) -> Result<Self> {
        let path = mount.join(format!("shale-bench-{}", std::process::id()));
        fs::create_dir(&path).map_err(Failure::because(path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("shale bench: {}: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_by_name() {
        for op in Op::ALL {
            assert_eq!(parse_op(op.name()), Ok(op));
        }
        assert!(parse_op("fly").unwrap_err().contains("append, overwrite"));
    }
}
