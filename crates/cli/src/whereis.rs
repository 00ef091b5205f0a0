//! `shale where`: on which tiers, in which zones, a file lies.

use crate::ask;
use crate::control::{self, Order};
use crate::failure::{Failure, Result};
use crate::mounts;
use crate::size;
use crate::terminal::say;
use shale_daemon::WherePart;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  shale where /mnt/shale/film.mkv
  shale where /mnt/shale/film.mkv --json

What is in update logs only is brought into the volume first.";

/// Arguments of `where`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A file on a mount
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// The mount point above a path.
///
/// # Errors
/// No shale volume is mounted there.
pub fn mount_of(place: &Path) -> Result<PathBuf> {
    let mut at = place;
    while !mounts::at(at)?.is_some_and(|m| m.is_shale()) {
        at = at.parent().ok_or_else(|| {
            Failure::not_mounted(format!("{}: on no shale volume", place.display()))
        })?;
    }
    Ok(at.to_owned())
}

/// Shows.
pub fn run(args: &Args) -> Result<()> {
    let shown = args.file.display();
    let meta = std::fs::metadata(&args.file).map_err(Failure::because(shown))?;
    let place = args
        .file
        .canonicalize()
        .map_err(Failure::because(args.file.display()))?;
    let dir = ask::mount_at(&mount_of(&place)?)?;
    control::digest(&dir)?;
    let parts: Vec<WherePart> = control::order(&dir, &Order::Where(meta.ino()))?;
    if args.json {
        let text = serde_json::to_string_pretty(&parts);
        say!("{}", text.map_err(Failure::because("the answer"))?);
        return Ok(());
    }
    for part in &parts {
        let heat = if part.hot { "hot" } else { "cold" };
        let device = part.device.as_deref().unwrap_or("");
        let zone = match part.zone {
            Some(zone) => format!("zone {zone} ({heat}) {device}"),
            None => String::new(),
        };
        let pinned = part.pinned.as_ref();
        let pinned = pinned.map_or(String::new(), |t| format!(" pinned to {t}"));
        say!(
            "{:>14} {:>10}  {}  {zone}{pinned}",
            part.offset,
            size::show(part.bytes),
            part.tier
        );
    }
    Ok(())
}
