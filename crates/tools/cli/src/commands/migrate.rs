//! `shale migrate`: moves cold data to slower tiers now, or says how fast that may go.

use crate::commands::device::in_state;
use crate::control::admin;
use crate::control::ask;
use crate::control::orders::Order;
use crate::failure::Result;
use crate::mounts::state::StateDir;
use crate::terminal::{Waiting, note, say};
use shale_sys::size;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  shale migrate /mnt/shale                 as much as NVM holds now
  shale migrate /mnt/shale --bytes 1G      the coldest 1 GiB
  shale migrate /mnt/shale --pause         nothing moves until --resume
  shale migrate /mnt/shale --limit 100M    at most 100 MiB a second; 0: no limit

Migration begins by itself when NVM is 95% full, without NVM when the memory tier is half full (migrate_at_percent in the volume file). A call that waits for \
space that NVM does not have has it freed, also while it is paused, and as fast as it goes. So does this \
command move what it is asked to. Pause and limit hold until the volume is unmounted.";

/// Arguments of `migrate`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The mount point
    mountpoint: PathBuf,
    /// Move only so much
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with_all = ["pause", "resume", "limit"])]
    bytes: Option<u64>,
    /// Pause
    #[arg(long, conflicts_with = "resume")]
    pause: bool,
    /// Go on
    #[arg(long)]
    resume: bool,
    /// Bytes a second; 0: no limit
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    limit: Option<u64>,
    /// What was done as JSON
    #[arg(long)]
    json: bool,
}

/// Migrates, or changes the speed.
pub fn run(args: &Args) -> Result<()> {
    let dir = ask::mount_at(&args.mountpoint)?;
    if args.pause || args.resume || args.limit.is_some() {
        let paused = (args.pause || args.resume).then_some(args.pause);
        let limit = args.limit;
        let limit: u64 = admin::order(&dir, &Order::Speed { paused, limit })?;
        if args.json {
            say!("{}", serde_json::json!({ "limit_bytes": limit }));
        }
        return Ok(());
    }
    let bar = Waiting::for_progress(Some("{wide_bar} {bytes} of {total_bytes}"));
    let moved = admin::migrate(&dir, args.bytes, &mut |progress| {
        bar.done(progress.done, progress.of);
    });
    drop(bar);
    let moved = moved?;
    match args.json {
        true => say!("{}", serde_json::json!({ "moved_bytes": moved })),
        false => say!("{} moved", size::show(moved)),
    }
    for failing in failing_devices(&dir) {
        note!("{failing}");
    }
    Ok(())
}

/// Devices that get nothing new, with the reason: why less moved than was asked for.
fn failing_devices(dir: &StateDir) -> Vec<String> {
    in_state(dir, "failing")
        .into_iter()
        .map(|d| {
            let why = d.trouble.unwrap_or_default();
            format!("{}: nothing is moved to it: {why}", d.path)
        })
        .collect()
}
