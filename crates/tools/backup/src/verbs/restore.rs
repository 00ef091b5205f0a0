//! `shale restore`: makes a tree equal to a backup.

use super::backup::failure;
use crate::restore::{self, Options};
use crate::store::Store;
use serde_json::json;
use shale_status::fields::count;
use shale_sys::{printable, size};
use shale_verb::failure::{Failure, Result};
use shale_verb::terminal::{Waiting, print_json};
use shale_verb::{note, say};
use std::path::PathBuf;
use std::time::Instant;

const EXAMPLES: &str = "\
TARGET is the mount point of a new volume, or any empty directory. With --in-place it may hold something: then what the backup does \
not have is removed, and of files only what differs is written; those that have not changed since the backup, on the volume that it is \
of, are not read. Owners, modes, times, extended attributes, access control lists, hard links, holes and flags of chattr are as they \
were. A restore that was cut off is run again with --in-place.

Examples:
  shale restore /backup/shale /mnt/new              the newest backup
  shale restore /backup/shale /mnt/new --at 0003    another one
  shale restore /backup/shale /mnt/shale --in-place";

/// Arguments of `restore`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory of backups
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// Where to; made if there is none
    target: PathBuf,
    /// Which backup, by its name or number; the newest one unless said
    #[arg(long, value_name = "BACKUP")]
    at: Option<String>,
    /// The target may hold something: what the backup does not have is REMOVED
    #[arg(long)]
    in_place: bool,
    /// What was done as JSON
    #[arg(long)]
    json: bool,
}

/// Restores.
///
/// # Errors
/// What failed, and what to do.
pub fn run(args: &Args) -> Result<()> {
    let begun = Instant::now();
    let store = Store::open(&args.dest).map_err(failure)?;
    let name = store.find(args.at.as_deref()).map_err(failure)?;
    let options = Options {
        in_place: args.in_place,
    };
    let waiting = Waiting::start("reading the backup");
    let restored = restore::restore(
        &store,
        &name,
        &args.target,
        &options,
        &mut |names, bytes| {
            waiting.at(&format!("{names} names, {} written", size::show(bytes)));
        },
    );
    drop(waiting);
    let restored = restored.map_err(failure)?;
    let shown = args.target.display();
    for (path, why) in &restored.failed {
        note!(
            "/{}: {why}",
            printable::name(&String::from_utf8_lossy(path))
        );
    }
    let failed = restored.failed.len() as u64;
    if args.json {
        print_json(&json!({
            "backup": name,
            "target": args.target,
            "names": restored.names,
            "unchanged": restored.unchanged,
            "written_bytes": restored.written_bytes,
            "removed": restored.removed,
            "failed": failed,
            "seconds": begun.elapsed().as_secs_f64(),
        }))?;
    } else {
        say!(
            "{shown}: restored from backup {name}: {}, {} written, {} removed",
            count(restored.names, "name"),
            size::show(restored.written_bytes),
            count(restored.removed, "name")
        );
    }
    match failed {
        0 => Ok(()),
        n => Err(Failure::new(format!(
            "{shown}: {} could not be restored",
            count(n, "name")
        ))),
    }
}
