//! `shale backup`: the state of one moment, of a volume that is in use.

use crate::error::BackupError;
use crate::manifest::Summary;
use crate::source::Source;
use crate::store::Store;
use crate::take::{self, Base, Options, Taken};
use crate::verify::{self, Seen};
use serde_json::{Value, json};
use shale_status::fields::count;
use shale_sys::{printable, size};
use shale_verb::failure::{Failure, Result};
use shale_verb::terminal::{Waiting, print_json};
use shale_verb::{note, say};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
A backup is the state of one moment: what a program wrote before something else is in it if that is, without fsync and whether the \
program runs on the mount or under shale run. Most is copied while programs go on; then calls that would change something wait while \
what has changed since is read, for --max-freeze at most. What was stored through shared mappings counts from msync on.

DEST is a directory on another file system, for backups of one volume. The first one is complete, others hold what no backup before \
had; files whose change time is as it was are not read (--full reads and writes everything). One that is cut off never counts, and \
the next one removes it. --list says which backups a backup needs.

Examples:
  shale backup /mnt/shale /backup/shale
  shale backup /etc/shale/data.toml /backup/shale   a volume that is not mounted
  shale backup --list /backup/shale
  shale backup --verify /backup/shale               exit code 3: damage found";

/// Arguments of `backup`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A mount point, or VOLUME.toml of a volume that is not mounted
    #[arg(value_name = "MOUNTPOINT|VOLUME", required_unless_present_any = ["list", "verify"])]
    source: Option<PathBuf>,
    /// The directory of backups; made if there is none
    #[arg(value_name = "DEST", required_unless_present_any = ["list", "verify"])]
    dest: Option<PathBuf>,
    /// Unchanged content is taken from this backup; the newest one unless said
    #[arg(long, value_name = "BACKUP", conflicts_with = "full")]
    base: Option<String>,
    /// Everything is read and written: the backup needs no other one
    #[arg(long)]
    full: bool,
    /// How long calls may wait, as 500ms, 5s or 1m, up to 10m
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    max_freeze: Duration,
    /// Shows the backups in this directory
    #[arg(long, value_name = "DEST", conflicts_with_all = ["source", "verify", "base", "full"])]
    list: Option<PathBuf>,
    /// Reads all backups in this directory, and compares hashes
    #[arg(long, value_name = "DEST", conflicts_with_all = ["source", "base", "full"])]
    verify: Option<PathBuf>,
    /// What was done as JSON
    #[arg(long)]
    json: bool,
}

fn time(text: &str) -> std::result::Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{text}: a time is like 500ms, 5s or 1m"))?;
    let ms = match &text[digits.len()..] {
        "ms" => number,
        "s" | "" => number.saturating_mul(1000),
        "m" => number.saturating_mul(60_000),
        unit => return Err(format!("{text}: {unit} is no unit of time: ms, s or m")),
    };
    match ms {
        1..=600_000 => Ok(Duration::from_millis(ms)),
        _ => Err(format!("{text}: from 1ms to 10m")),
    }
}

/// A failed backup or restore as a failed verb.
pub fn failure(error: BackupError) -> Failure {
    let failure = Failure::of(&error);
    match error {
        BackupError::Damaged { .. } => Failure::damaged(failure.text),
        BackupError::FreezeTooShort { .. } => {
            failure.advise("a larger --max-freeze, or a time when less is written")
        }
        BackupError::NotAStore { .. } | BackupError::NoBackup { .. } => {
            failure.advise("shale backup --list DEST")
        }
        _ => failure,
    }
}

/// Takes a backup, or shows or verifies those that there are. `mount_at`: the mount point that a user means by a path.
///
/// # Errors
/// What failed, and what to do.
pub fn run(args: &Args, mount_at: impl FnOnce(&Path) -> Result<PathBuf>) -> Result<()> {
    match (&args.list, &args.verify, &args.source, &args.dest) {
        (Some(dest), ..) => list(dest, args.json),
        (_, Some(dest), ..) => verify(dest, args.json),
        (_, _, Some(source), Some(dest)) => {
            let opened = match source.is_dir() {
                true => Source::mounted(&mount_at(source)?),
                false => Source::unmounted(source),
            };
            backup(args, &opened.map_err(failure)?, dest)
        }
        _ => Err(Failure::usage(
            "a volume and a directory of backups are needed",
        )),
    }
}

fn backup(args: &Args, source: &Source, dest: &Path) -> Result<()> {
    let begun = Instant::now();
    let store = Store::create(dest).map_err(failure)?;
    let on = std::fs::metadata(store.path())
        .map_err(Failure::because(dest.display()))?
        .dev();
    if source.device == Some(on) {
        let text = format!(
            "{}: it lies on the volume itself, which would wait for itself",
            dest.display()
        );
        return Err(Failure::usage(text).advise("a directory on another file system"));
    }
    let options = Options {
        base: match (&args.base, args.full) {
            (_, true) => Base::Nothing,
            (Some(name), _) => Base::Named(name.clone()),
            _ => Base::Newest,
        },
        longest_freeze: args.max_freeze,
    };
    let waiting = Waiting::start("reading the volume");
    let taken = take::take(source, &store, &options, &mut |names, bytes| {
        waiting.at(&format!("{names} names seen, {} read", size::show(bytes)));
    });
    drop(waiting);
    let taken = taken.map_err(failure)?;
    source.close().map_err(failure)?;
    print(args, dest, &taken, begun.elapsed())?;
    match taken.summary.unreadable {
        0 => Ok(()),
        n => Err(Failure::new(format!(
            "{}: {} could not be read and is not in the backup",
            dest.display(),
            count(n, "inode")
        ))),
    }
}

fn print(args: &Args, dest: &Path, taken: &Taken, elapsed: Duration) -> Result<()> {
    let shown = dest.display();
    for (path, errno) in &taken.unreadable {
        let why = std::io::Error::from_raw_os_error(*errno);
        note!("{}: {why}", printable::name(&String::from_utf8_lossy(path)));
    }
    if args.json {
        let mut answer = summary(&taken.summary);
        answer["backup"] = json!(taken.name);
        answer["destination"] = json!(dest);
        answer["base"] = json!(taken.base);
        answer["freezes"] = json!(taken.freezes);
        answer["seconds"] = json!(elapsed.as_secs_f64());
        return print_json(&answer);
    }
    let Summary {
        files,
        directories,
        bytes,
        new_bytes,
        frozen_ns,
        ..
    } = taken.summary;
    say!("{shown}: backup {}", taken.name);
    say!(
        "  {} and {}, {} of content, {} of them new",
        count(files, "file"),
        directories_text(directories),
        size::show(bytes),
        size::show(new_bytes)
    );
    match frozen_ns {
        0 => say!("  the volume was not mounted"),
        ns => say!(
            "  calls that change something waited for {} ms",
            ns.div_ceil(1_000_000)
        ),
    }
    Ok(())
}

fn directories_text(directories: u64) -> String {
    match directories {
        1 => "1 directory".to_owned(),
        n => format!("{n} directories"),
    }
}

fn summary(summary: &Summary) -> Value {
    json!({
        "taken_s": summary.taken_ns as f64 / 1e9,
        "frozen_ms": summary.frozen_ns as f64 / 1e6,
        "files": summary.files,
        "directories": summary.directories,
        "bytes": summary.bytes,
        "read_bytes": summary.read_bytes,
        "new_bytes": summary.new_bytes,
        "unreadable": summary.unreadable,
    })
}

fn list(dest: &Path, as_json: bool) -> Result<()> {
    let store = Store::open(dest).map_err(failure)?;
    let mut rows = Vec::new();
    for name in store.complete().map_err(failure)? {
        match store.manifest(&name) {
            Ok(manifest) => {
                let mut row = summary(&manifest.summary);
                row["backup"] = json!(name);
                row["volume"] = json!(manifest.header.name);
                let needs = manifest.header.packs.iter().filter(|pack| **pack != name);
                row["needs"] = json!(needs.collect::<Vec<_>>());
                row["state"] = json!("complete");
                rows.push(row);
            }
            Err(e) => {
                rows.push(json!({ "backup": name, "state": "damaged", "why": e.to_string() }))
            }
        }
    }
    for name in store.partial().map_err(failure)? {
        rows.push(json!({ "backup": name, "state": "incomplete" }));
    }
    if as_json {
        return print_json(&rows);
    }
    say!(
        "{:<22}{:>10}{:>12}{:>12}{:>10}  NEEDS",
        "BACKUP",
        "FILES",
        "CONTENT",
        "NEW",
        "FROZEN"
    );
    for row in &rows {
        let name = row["backup"].as_str().unwrap_or_default();
        if row["state"] != "complete" {
            say!("{name:<22}  {}", row["state"].as_str().unwrap_or_default());
            continue;
        }
        let bytes = |key: &str| size::show(row[key].as_u64().unwrap_or(0));
        let needs = row["needs"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let needs: Vec<&str> = needs.filter_map(|name| name.split('-').next()).collect();
        let frozen = format!("{:.0} ms", row["frozen_ms"].as_f64().unwrap_or(0.0).ceil());
        let line = format!(
            "{name:<22}{:>10}{:>12}{:>12}{frozen:>10}  {}",
            row["files"].as_u64().unwrap_or(0),
            bytes("bytes"),
            bytes("new_bytes"),
            needs.join(" ")
        );
        say!("{}", line.trim_end());
    }
    Ok(())
}

fn verify(dest: &Path, as_json: bool) -> Result<()> {
    let store = Store::open(dest).map_err(failure)?;
    let names = store.complete().map_err(failure)?;
    let bar = Waiting::for_progress(None);
    let (mut seen, mut bytes, mut damage) = (Seen::default(), 0, Vec::new());
    for (n, name) in names.iter().enumerate() {
        bar.done(n as u64, names.len() as u64);
        let verified = verify::verify(&store, name, &mut seen).map_err(failure)?;
        bytes += verified.bytes;
        damage.extend(
            verified
                .damage
                .into_iter()
                .map(|(path, why)| (name, path, why)),
        );
    }
    drop(bar);
    let shown = dest.display();
    if as_json {
        let damage: Vec<Value> = damage
            .iter()
            .map(|(name, path, why)| {
                json!({ "backup": name, "path": String::from_utf8_lossy(path), "why": why })
            })
            .collect();
        print_json(&json!({ "backups": names.len(), "bytes": bytes, "damage": damage }))?;
    } else {
        for (name, path, why) in &damage {
            say!(
                "{name}: /{}: {why}",
                printable::name(&String::from_utf8_lossy(path))
            );
        }
        let read = size::show(bytes);
        say!(
            "{shown}: {} read, {read} of content: {} damaged",
            count(names.len() as u64, "backup"),
            damage.len()
        );
    }
    match damage.len() {
        0 => Ok(()),
        n => Err(
            Failure::damaged(format!("{shown}: {} damaged", count(n as u64, "name")))
                .advise("take a backup with --full; the older ones are as damaged as they are"),
        ),
    }
}
