//! `shale sync`: everything that programs have written is durable when it returns.
//!
//! For scripts: Linux tells a FUSE mount of neither sync(2) nor syncfs(2).

use crate::control::ask;
use crate::failure::{Failure, Result};
use crate::terminal::{Waiting, say};
use std::fs::File;
use std::path::PathBuf;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  shale sync /mnt/shale
  tar -xf tree.tar -C /mnt/shale && shale sync /mnt/shale

Returns when everything that any program had written survives a power cut: on the mount, under shale run and by libshale, also of \
programs that have ended. Linux does not tell a FUSE mount of sync and sync -f; under shale run these do the same. On a volume with \
NVM, and on a strict one, every call is durable when it returns, so there is hardly anything to do.";

/// Arguments of `sync`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The mount point
    mountpoint: PathBuf,
    /// What was done as JSON
    #[arg(long)]
    json: bool,
}

/// Makes everything durable.
pub fn run(args: &Args) -> Result<()> {
    let dir = ask::mount_at(&args.mountpoint)?;
    let place = dir.state.mountpoint.clone();
    let shown = place.display();
    let waiting = Waiting::start("waiting for the device");
    let begun = Instant::now();
    // The kernel first, which may hold pages that were changed through mappings.
    File::open(&place)
        .and_then(|at| Ok(rustix::fs::syncfs(at)?))
        .map_err(Failure::because(&shown))?;
    ask::harden_all(&dir)?;
    let seconds = begun.elapsed().as_secs_f64();
    drop(waiting);
    match args.json {
        true => say!(
            "{}",
            serde_json::json!({ "mountpoint": place, "seconds": seconds })
        ),
        false => say!("{shown}: everything that was written is durable ({seconds:.3} s)"),
    }
    Ok(())
}
