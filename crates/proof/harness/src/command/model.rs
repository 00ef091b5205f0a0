//! `shale-harness model`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use shale_bench::BenchError;
use shale_bench::Result;
use shale_bench::scratch::{Scratch, ScratchOptions};
use shale_model::random::Abilities;
use shale_model::{Kernel, Memory, Shale, Side, compare};

const NVM_BYTES: u64 = 128 << 20;
const LOG_BYTES: u64 = 16 << 20;
const TREES_EVERY: u64 = 2_000;
/// Operations on one fresh side; then the next seed begins with another.
const ROUND: u64 = 20_000;

/// Arguments of `model`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Operations on each side
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A directory on tmpfs; a volume is made there too
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    tmpfs: PathBuf,
    /// A directory on ext4
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    ext4: PathBuf,
    /// Only these: tmpfs, ext4, shale
    #[arg(long, value_name = "SIDE", value_delimiter = ',')]
    sides: Option<Vec<String>>,
}

fn kernel(dir: &Path) -> Result<(tempfile::TempDir, Kernel)> {
    let failed = |source| BenchError::File {
        path: dir.to_path_buf(),
        what: "make a directory in",
        source,
    };
    let place = tempfile::tempdir_in(dir).map_err(failed)?;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.path(), mode).map_err(failed)?;
    let kernel = Kernel::new(place.path().to_path_buf());
    Ok((place, kernel))
}

impl Args {
    fn round(&self, side: &str, seed: u64, count: u64) -> Result<Option<String>> {
        let ranges = Abilities {
            ranges: side != "tmpfs",
        };
        let against = |found: &mut dyn Side| {
            let mut model = Memory::new(0o755);
            let done = compare::run(&mut model, found, (seed, count), ranges, TREES_EVERY);
            done.err().map(|wrong| wrong.to_string())
        };
        match side {
            "tmpfs" | "ext4" => {
                let dir = if side == "tmpfs" {
                    &self.tmpfs
                } else {
                    &self.ext4
                };
                let (place, mut side) = kernel(dir)?;
                let wrong = against(&mut side);
                drop(place);
                Ok(wrong)
            }
            _ => {
                let options = ScratchOptions {
                    nvm_bytes: NVM_BYTES,
                    log_bytes: LOG_BYTES,
                };
                let scratch = Scratch::new(&self.tmpfs, options)?;
                Ok(against(&mut Shale::new(scratch.tree())))
            }
        }
    }
}

/// Runs it; whether nothing is wrong.
pub fn run(args: &Args) -> Result<bool> {
    let all = ["tmpfs", "ext4", "shale"].map(str::to_owned).to_vec();
    let sides = args.sides.as_ref().unwrap_or(&all);
    let mut failed = 0;
    for side in sides {
        let begin = std::time::Instant::now();
        let rounds = args.operations.div_ceil(ROUND);
        let mut wrong = None;
        for round in 0..rounds {
            let count = ROUND.min(args.operations - round * ROUND);
            let seed = args.seed + round;
            if let Some(how) = args.round(side, seed, count)? {
                wrong = Some(format!("seed {seed}: {how}"));
                break;
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        match wrong {
            None => println!(
                "{side}: {} operations like the model, {seconds:.1} s",
                args.operations
            ),
            Some(how) => {
                failed += 1;
                println!("{side} is not the model: {how}");
            }
        }
    }
    println!("{} passed, {failed} failed", sides.len() - failed);
    Ok(failed == 0)
}
