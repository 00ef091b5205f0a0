//! `shale fsck`: verifies every invariant of a volume that is not mounted, and repairs it
//! if asked; else it only reads.

use crate::failure::{Code, Failure, Result};
use crate::mounts::state::StateDir;
use crate::terminal::{Waiting, note, print_json, say};
use serde::Serialize;
use shale_check::{
    CheckOptions, Progress, check_copy, check_volume_dir, repair_copy, repair_volume_dir,
};
use shale_persist::staged::PersistError;
use shale_pool::growth;
use shale_pool::staged::{Found, StagedCopy, examine};
use shale_pool::{PoolError, VolumeFile};
use shale_status::fields::count;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  shale fsck VOLUME.toml
  shale fsck VOLUME.toml --json
  shale fsck VOLUME.toml --repair
  shale fsck VOLUME.toml --repair --without-missing   a device is gone

Exit code 0: the volume is as it should be, with --repair: now; 3: damage was found, a device is missing, or \
something could not be repaired. A repair tells by path what it repaired and what is lost. What has lost its \
name is in /lost+found afterwards. Records that wait in update logs, a batch that waits in the journal, and \
batches that wait in the staging area of a volume without NVM are no damage: the next mount applies them. While batches wait \
there such a volume is not repaired: mount it once.";

/// How long the daemon of a mount that has gone is waited for.
const END_WAIT: Duration = Duration::from_secs(30);

/// Arguments of `fsck`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume file; the volume must not be mounted
    #[arg(value_name = "VOLUME.toml")]
    volume: PathBuf,
    /// Repair what is wrong, as far as it can be read
    #[arg(long)]
    repair: bool,
    /// With --repair: what directories, inodes and lists of extents lie on devices that are missing is lost. Data of files
    /// there stays as it is: it cannot be read, unless the device comes back
    #[arg(long, requires = "repair")]
    without_missing: bool,
    /// With --repair: all of the volume, NVM directory and devices, was put back from one backup: believe it, whatever the
    /// labels of segments say
    #[arg(long, requires = "repair")]
    restored: bool,
    /// The whole report as JSON
    #[arg(long)]
    json: bool,
    /// List at most this many findings; the rest is counted
    #[arg(long, value_name = "N", default_value_t = CheckOptions::default().findings_max)]
    limit: usize,
}

/// Checks.
pub fn run(args: &Args) -> Result<()> {
    let shown = args.volume.display();
    let mut file = VolumeFile::load(&args.volume).map_err(Failure::of)?;
    if growth::resolve(&file, Some(&args.volume))
        .map_err(|error| refused(&file, &error))?
        .is_some()
    {
        note!("{shown}: growing NVM was cut short, and is finished or taken back");
        file = VolumeFile::load(&args.volume).map_err(Failure::of)?;
    }
    let mut options = CheckOptions {
        findings_max: args.limit,
        restored: args.restored,
        ..CheckOptions::of(&file)
    };
    if args.without_missing {
        options.below = options.below.without_missing();
    }
    if args.repair {
        wait_for_end(&file)?;
        let copy = copy_of(&file)?;
        return repair(args, (&file, copy.as_ref()), &options);
    }
    let report = check(&file, &options)?;
    print(args, &report)?;
    match &report.uuid {
        Some(uuid) if *uuid != file.uuid => Err(Failure::new(format!(
            "{shown}: the volume that was checked is {uuid}, expected {}",
            file.uuid
        ))
        .advise("correct nvm.dir, or staged, in the volume file")),
        _ if report.clean() => Ok(()),
        _ => Err(Failure::damaged(format!(
            "{shown}: {}, {}",
            count(report.errors, "error"),
            count(report.warnings, "warning")
        ))),
    }
}

/// Checks a volume that is not mounted.
///
/// # Errors
/// It is mounted, or its media cannot be read.
pub fn check(file: &VolumeFile, options: &CheckOptions) -> Result<shale_check::Report> {
    wait_for_end(file)?;
    let copy = copy_of(file)?;
    let bar = Waiting::for_progress(None);
    let progress = &mut |p| show(&bar, p);
    let report = match &copy {
        Some(copy) => Ok(check_copy(copy, options, progress)),
        None => check_volume_dir(file.nvm_dir(), options, progress),
    };
    drop(bar);
    report.map_err(|error| refused(file, &error))
}

/// What a volume without NVM keeps on its SSD, in memory of this process; none where its memory tier is still there, and of a volume
/// with NVM.
fn copy_of(file: &VolumeFile) -> Result<Option<StagedCopy>> {
    if !file.is_staged() {
        return Ok(None);
    }
    match examine(file).map_err(|error| refused(file, &error))? {
        Found::Copy(copy) => Ok(Some(copy)),
        Found::Memory => Ok(None),
    }
}

fn repair(
    args: &Args,
    (file, copy): (&VolumeFile, Option<&StagedCopy>),
    options: &CheckOptions,
) -> Result<()> {
    let bar = Waiting::for_progress(None);
    let progress = &mut |p| show(&bar, p);
    let report = match copy {
        Some(copy) => repair_copy(copy, file, options, progress),
        None => repair_volume_dir(file.nvm_dir(), &file.uuid, options, progress),
    };
    drop(bar);
    let report = report.map_err(|error| refused(file, &error))?;
    print(args, &report)?;
    match report.clean() {
        true => Ok(()),
        false => Err(Failure::damaged(format!(
            "{}: not everything could be repaired",
            args.volume.display()
        ))),
    }
}

fn show(bar: &Waiting, progress: Progress) {
    bar.at(&progress.stage.to_string());
    bar.done(progress.done, progress.of);
}

fn print(args: &Args, report: &(impl Serialize + Display)) -> Result<()> {
    if args.json {
        return print_json(report);
    }
    say!("{report}");
    Ok(())
}

/// After `umount(8)` the daemon of a mount brings its logs into the volume and ends: it is waited for.
fn wait_for_end(file: &VolumeFile) -> Result<()> {
    for dir in StateDir::all() {
        let state = &dir.state;
        let unmounted = state.device.is_some() && !state.is_mounted()?;
        if state.nvm_dir != file.nvm_dir() || state.is_stale() || !unmounted {
            continue;
        }
        let (place, pid) = (state.mountpoint.display(), state.supervisor.pid);
        note!("{place}: unmounted; waiting until process {pid} has finished");
        let deadline = Instant::now() + END_WAIT;
        for process in state.processes() {
            // One that does not end is named as what uses the volume.
            process.wait(Some(deadline.saturating_duration_since(Instant::now())))?;
        }
    }
    Ok(())
}

fn refused(file: &VolumeFile, error: &PoolError) -> Failure {
    let failure = Failure::of(error);
    let mounts = StateDir::all();
    let mounted = mounts
        .iter()
        .find(|m| m.state.nvm_dir == file.nvm_dir() && !m.state.is_stale());
    match (error, mounted) {
        (PoolError::InUse { .. }, Some(dir)) => {
            failure.advise(format!("shale umount {}", dir.state.mountpoint.display()))
        }
        (PoolError::Area { source, .. }, _) if is_damage(source) => Failure {
            code: Code::Damaged,
            ..failure
        },
        _ => failure,
    }
}

/// Whether an area is there and not as it was written.
fn is_damage(error: &PersistError) -> bool {
    matches!(
        error,
        PersistError::Damaged { .. } | PersistError::NoArea { .. }
    )
}
