//! `shale where`: on which tiers, in which zones, a file lies, or the files of a tree.

use crate::ask;
use crate::control::{self, Order};
use crate::failure::{Failure, Result};
use crate::mounts;
use crate::size;
use crate::state::StateDir;
use crate::terminal::say;
use serde::Serialize;
use shale_daemon::{PARTS_MAX, WherePart};
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  shale where /mnt/shale/film.mkv
  shale where /mnt/shale/film.mkv --offset 1G --json
  shale where /mnt/shale/films

What is in update logs only is brought into the volume first.";

/// Arguments of `where`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A file on a mount, or a directory: then sums over all files below it
    #[arg(value_name = "PATH")]
    file: PathBuf,
    /// Only what this byte of the file lies in, or what comes after it
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    offset: Option<u64>,
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

/// Calls `f` with the attributes of every file and directory below a path, itself included, on the
/// same mount.
pub fn tree(path: &Path, device: u64, f: &mut dyn FnMut(&Metadata)) -> Result<()> {
    let failed = || Failure::because(path.display());
    let meta = std::fs::symlink_metadata(path).map_err(failed())?;
    if meta.dev() != device {
        return Ok(());
    }
    if meta.is_file() || meta.is_dir() {
        f(&meta);
    }
    if meta.is_dir() {
        for entry in std::fs::read_dir(path).map_err(failed())? {
            tree(&entry.map_err(failed())?.path(), device, f)?;
        }
    }
    Ok(())
}

/// The parts of one file from a byte on, as many as `most`.
fn parts_of(dir: &StateDir, ino: u64, mut from: u64, most: usize) -> Result<Vec<WherePart>> {
    let mut all: Vec<WherePart> = Vec::new();
    loop {
        let next: Vec<WherePart> = control::order(dir, &Order::Where { ino, from })?;
        let ends = next.len() < PARTS_MAX;
        all.extend(next);
        match all.last() {
            Some(last) if !ends && all.len() < most => from = last.offset + last.bytes,
            _ => break,
        }
    }
    all.truncate(most);
    Ok(all)
}

/// What a tree has in one tier.
#[derive(Debug, Default, Serialize)]
struct Sum {
    /// Bytes.
    bytes: u64,
    /// Of these, where hot data is.
    hot_bytes: u64,
    /// Files with something there.
    files: u64,
}

fn sums(dir: &StateDir, place: &Path, device: u64) -> Result<BTreeMap<String, Sum>> {
    let mut inos = Vec::new();
    tree(place, device, &mut |meta| {
        if meta.is_file() {
            inos.push(meta.ino());
        }
    })?;
    // A file with several names lies in one place.
    inos.sort_unstable();
    inos.dedup();
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for ino in inos {
        let mut met: Vec<String> = Vec::new();
        for part in parts_of(dir, ino, 0, usize::MAX)? {
            let sum = sums.entry(part.tier.clone()).or_default();
            sum.bytes += part.bytes;
            sum.hot_bytes += if part.hot { part.bytes } else { 0 };
            if !met.contains(&part.tier) {
                sum.files += 1;
                met.push(part.tier);
            }
        }
    }
    Ok(sums)
}

fn json(what: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(what);
    say!("{}", text.map_err(Failure::because("the answer"))?);
    Ok(())
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
    if meta.is_dir() {
        if args.offset.is_some() {
            let why = format!("{}: a directory has no offsets", args.file.display());
            return Err(Failure::usage(why).advise("name a file in it"));
        }
        return show_tree(&sums(&dir, &place, meta.dev())?, args.json);
    }
    let most = if args.offset.is_some() { 1 } else { usize::MAX };
    let parts = parts_of(&dir, meta.ino(), args.offset.unwrap_or(0), most)?;
    if args.json {
        return json(&parts);
    }
    for part in &parts {
        show(part);
    }
    Ok(())
}

fn show_tree(sums: &BTreeMap<String, Sum>, as_json: bool) -> Result<()> {
    if as_json {
        return json(sums);
    }
    for (tier, sum) in sums {
        let hot = size::show(sum.hot_bytes);
        say!(
            "{tier}  {:>10} of {} files, {hot} hot",
            size::show(sum.bytes),
            sum.files
        );
    }
    Ok(())
}

fn show(part: &WherePart) {
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
