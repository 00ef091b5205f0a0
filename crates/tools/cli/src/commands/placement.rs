//! `shale where`: on which tiers, in which zones, a file lies, or the files of a tree.

use crate::commands::device::{Named, devices, named};
use crate::control::admin;
use crate::control::ask;
use crate::control::orders::Order;
use crate::failure::{Failure, Result};
use crate::mounts::mount_table;
use crate::mounts::state::StateDir;
use crate::terminal::{print_json, say};
use serde::Serialize;
use shale_daemon::{PARTS_MAX, PlacementPart};
use shale_status::fields::count;
use shale_sys::printable;
use shale_sys::size;
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  shale where /mnt/shale/film.mkv
  shale where /mnt/shale/film.mkv --offset 1G --json
  shale where /mnt/shale/films
  shale where /mnt/shale --device /dev/sdb   files that have something there

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
    /// The files below a directory that have something on this device, by path or identity
    #[arg(long, value_name = "DEVICE", conflicts_with = "offset")]
    device: Option<PathBuf>,
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
    while mount_table::shale_at(at)?.is_none() {
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

/// What a file has on a device.
#[derive(Debug, Serialize)]
struct OnDevice {
    /// A name of it.
    path: PathBuf,
    /// Bytes there.
    bytes: u64,
}

/// Shows which files of a tree have something on a device. What cannot be read of the tree is named.
fn show_device(
    dir: &StateDir,
    (place, fs): (&Path, u64),
    args: &Args,
    device: &Path,
) -> Result<()> {
    let shown = device.display();
    let wanted = devices(dir)?.last_of(&named(device));
    let wanted = wanted.ok_or_else(|| Failure::new(format!("{shown}: no device of the volume")))?;
    let (mut files, mut unread) = (BTreeMap::new(), Vec::new());
    let mut dirs = vec![place.to_owned()];
    while let Some(path) = dirs.pop() {
        match std::fs::symlink_metadata(&path) {
            Ok(meta) if meta.dev() != fs => {}
            Ok(meta) if meta.is_dir() => match children(&path) {
                Ok(all) => dirs.extend(all),
                Err(e) => unread.push(format!("{}: {e}", path.display())),
            },
            Ok(meta) if meta.is_file() => drop(files.insert(meta.ino(), path)),
            Ok(_) => {}
            Err(e) => unread.push(format!("{}: {e}", path.display())),
        }
    }
    let mut there = Vec::new();
    for (ino, path) in files {
        let parts = parts_of(dir, ino, 0, usize::MAX)?;
        let mine = parts
            .iter()
            .filter(|p| p.device.as_ref() == Some(&wanted.path));
        match mine.map(|p| p.bytes).sum() {
            0 => {}
            bytes => there.push(OnDevice { path, bytes }),
        }
    }
    there.sort_by(|a, b| a.path.cmp(&b.path));
    match args.json {
        true => print_json(&there)?,
        false => {
            for file in &there {
                let path = file.path.to_string_lossy();
                say!("{:>10}  {}", size::show(file.bytes), printable::name(&path));
            }
        }
    }
    match unread.as_slice() {
        [] => Ok(()),
        all => Err(Failure::damaged(format!(
            "not all could be looked at: {}",
            all.join("; ")
        ))),
    }
}

fn children(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let all = std::fs::read_dir(path)?;
    all.map(|entry| Ok(entry?.path())).collect()
}

/// The parts of one file from a byte on, as many as `most`.
fn parts_of(dir: &StateDir, ino: u64, mut from: u64, most: usize) -> Result<Vec<PlacementPart>> {
    let mut all: Vec<PlacementPart> = Vec::new();
    loop {
        let next: Vec<PlacementPart> = admin::order(dir, &Order::Where { ino, from })?;
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

/// Shows.
pub fn run(args: &Args) -> Result<()> {
    let shown = args.file.display();
    let meta = std::fs::metadata(&args.file).map_err(Failure::because(&shown))?;
    let place = args.file.canonicalize().map_err(Failure::because(&shown))?;
    let dir = ask::mount_at(&mount_of(&place)?)?;
    admin::digest(&dir)?;
    if let Some(device) = &args.device {
        return show_device(&dir, (&place, meta.dev()), args, device);
    }
    if meta.is_dir() {
        if args.offset.is_some() {
            let why = format!("{shown}: a directory has no offsets");
            return Err(Failure::usage(why).advise("name a file in it"));
        }
        return show_tree(&sums(&dir, &place, meta.dev())?, args.json);
    }
    let most = if args.offset.is_some() { 1 } else { usize::MAX };
    let parts = parts_of(&dir, meta.ino(), args.offset.unwrap_or(0), most)?;
    if args.json {
        return print_json(&parts);
    }
    for part in &parts {
        show(part);
    }
    Ok(())
}

fn show_tree(sums: &BTreeMap<String, Sum>, as_json: bool) -> Result<()> {
    if as_json {
        return print_json(sums);
    }
    for (tier, sum) in sums {
        let hot = size::show(sum.hot_bytes);
        say!(
            "{tier}  {:>10} of {}, {hot} hot",
            size::show(sum.bytes),
            count(sum.files, "file")
        );
    }
    Ok(())
}

fn show(part: &PlacementPart) {
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
