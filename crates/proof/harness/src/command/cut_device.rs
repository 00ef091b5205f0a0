//! `shale-harness cut-device`: a block device for real programs, with a write cache that a power cut by command empties.
//!
//! Prints the loop device as JSON, as `flash serve` does; then each line of the input is a command, answered by one line of JSON:
//!
//! * `hold`: power begins to fail, writes and flushes are answered no more;
//! * `cut SEED PERCENT`: power is off; of each sector that was not flushed, and of what was on its way, the new content
//!   survives with PERCENT. Everything fails;
//! * `on`: power is there again;
//! * `counters`: what was done.
//!
//! `scripts/crash/power.py` runs programs on it.

use std::io::{stdin, stdout};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use shale_bench::Result;
use shale_bench::flash::serve::serve_device;
use shale_block::{BlockDevice, FileDevice};
use shale_record::WriteCache;

/// Options of `shale-harness cut-device`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File that keeps it, made if it is not there [default: memory]
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// MiB of the device
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u64).range(1..=(1 << 20)))]
    mib: u64,
    /// Say that flushes are done, and do none: a control that losses are found
    #[arg(long)]
    no_flush: bool,
}

/// What a line of input asks for; `None`: there is no such command.
fn obey<D: BlockDevice>(device: &WriteCache<D>, line: &str) -> Option<Value> {
    let words = Vec::from_iter(line.split_whitespace());
    match words[..] {
        ["hold"] => device.hold(),
        ["on"] => device.power_on(),
        ["counters"] => {
            let counts = device.counts();
            return Some(json!({
                "writes": counts.writes,
                "durable_writes": counts.durable_writes,
                "flushes": counts.flushes,
            }));
        }
        ["cut", seed, percent] => {
            let (seed, percent) = (seed.parse().ok()?, percent.parse().ok()?);
            return Some(match device.cut(seed, percent) {
                Ok(emptied) => json!({"unflushed": emptied.unflushed, "lost": emptied.lost}),
                Err(e) => json!({"error": e.to_string()}),
            });
        }
        _ => return None,
    }
    Some(json!({}))
}

/// Serves it until the input ends.
///
/// # Errors
/// The image, the mount or the loop device cannot be made.
pub fn run(args: &Args) -> Result<bool> {
    let bytes = args.mib << 20;
    let device = match &args.image {
        Some(path) if path.exists() => FileDevice::open(path)?,
        Some(path) => FileDevice::create(path, bytes)?,
        None => FileDevice::memory(bytes)?,
    };
    let device = Arc::new(WriteCache::before(device).lying(args.no_flush));
    let answer = |line: &str| {
        let unknown =
            || json!({"error": format!("{line}: not hold, cut SEED PERCENT, on, counters")});
        Some(obey(&device, line).unwrap_or_else(unknown))
    };
    serve_device(&device, answer, stdin().lock(), stdout().lock())?;
    Ok(true)
}
