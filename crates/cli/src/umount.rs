//! `shale umount`: takes a mount away and returns when everything is in the volume.

use crate::failure::{Failure, Result};
use crate::mounts;
use crate::state::StateDir;
use crate::terminal::{Waiting, say};
use shale_fuse::FuseError;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  shale umount /mnt/shale
  shale umount --lazy /mnt/shale     the name goes now, the rest with the last open file";

/// How long a lazy unmount waits for a mount that nobody uses.
const LAZY_WAIT: Duration = Duration::from_secs(2);
/// Most users of a busy mount that are named.
const USERS_MAX: usize = 5;

/// Arguments of `umount`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The mount point
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// Take the name away now and the mount when its last file is closed
    #[arg(long, short = 'l')]
    lazy: bool,
}

/// Unmounts.
pub fn run(args: &Args) -> Result<()> {
    let place = mounts::resolve(&args.mountpoint)?;
    let shown = place.display();
    let mount = mounts::at(&place)?;
    let dir = StateDir::find(&place);
    let is_ours = mount.as_ref().is_some_and(|m| m.is_shale());
    // Looked at before, since unmounting ends what lives. A supervisor that has given up
    // is about to end.
    let was_stale = dir
        .as_ref()
        .is_none_or(|d| d.state.is_stale() || d.state.failure.is_some());
    if is_ours {
        shale_fuse::unmount(&place, args.lazy).map_err(|error| refused(&place, &error))?;
    }
    match (mount, dir) {
        (Some(other), None) if !is_ours => {
            let text = format!(
                "{shown}: a {} is mounted there, not a shale volume",
                other.kind
            );
            Err(Failure::not_mounted(text).advise(format!("umount {shown}")))
        }
        (_, None) if is_ours => {
            say!("{shown}: unmounted; its processes and their state were gone already");
            Ok(())
        }
        (_, None) => Err(Failure::not_mounted(format!(
            "{shown}: nothing is mounted there"
        ))),
        (_, Some(dir)) if was_stale => {
            dir.remove();
            let gone = format!(
                "its supervisor (process {}) was gone",
                dir.state.supervisor.pid
            );
            say!(
                "{shown}: unmounted; {}. Nothing that had returned is lost: the next mount of {} \
                 recovers it",
                dir.state.given_up().unwrap_or(gone),
                dir.state.volume.display()
            );
            Ok(())
        }
        (_, Some(dir)) => finish(&dir, args.lazy),
    }
}

/// Waits for the processes of a mount that is gone.
fn finish(dir: &StateDir, lazy: bool) -> Result<()> {
    let shown = dir.state.mountpoint.display();
    let waiting = Waiting::start("bringing every log into the volume");
    let limit = lazy.then_some(LAZY_WAIT);
    let processes = [Some(dir.state.supervisor), dir.state.daemon];
    for process in processes.into_iter().flatten() {
        if !process.wait(limit)? {
            drop(waiting);
            say!("{shown}: unmounted; files are still open there and served until they are closed");
            return Ok(());
        }
    }
    drop(waiting);
    // The directory is there only if something went wrong.
    let Some(left) = StateDir::load(dir.path().to_owned()) else {
        say!("{shown}: unmounted");
        return Ok(());
    };
    let log = left.last_lines(3);
    left.remove();
    let why = left.state.failure.unwrap_or_else(|| {
        format!("its processes were killed before every log was in the volume; last words: {log}")
    });
    Err(Failure::new(format!("{shown}: unmounted, but {why}"))
        .advise("nothing that had returned is lost: the next mount recovers it"))
}

fn refused(place: &Path, error: &FuseError) -> Failure {
    let text = error.to_string();
    let busy = matches!(error, FuseError::Unmount { source, .. }
        if source.raw_os_error() == Some(libc::EBUSY))
        || text.contains("busy");
    if !busy {
        return Failure::new(text);
    }
    let users = users(place);
    let named = match users.as_slice() {
        [] => String::new(),
        users => format!(" by {}", users.join(", ")),
    };
    let shown = place.display();
    Failure::new(format!("{shown}: it is in use{named}")).advise(format!(
        "fuser -vm {shown} names all users; --lazy does not wait for them"
    ))
}

/// Processes that work in the mount, as far as this user may see. The kernel knows their
/// paths: the mount itself is not asked.
fn users(place: &Path) -> Vec<String> {
    let inside = |link: &Path| fs::read_link(link).is_ok_and(|to| to.starts_with(place));
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let process = entry.path();
        let is_number = entry.file_name().to_string_lossy().parse::<u32>().is_ok();
        if !is_number || found.len() == USERS_MAX {
            continue;
        }
        let directories = ["cwd", "root", "exe"]
            .iter()
            .any(|l| inside(&process.join(l)));
        let files = || {
            let open = fs::read_dir(process.join("fd"))
                .into_iter()
                .flatten()
                .flatten();
            open.into_iter().any(|fd| inside(&fd.path()))
        };
        if directories || files() {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            let pid = entry.file_name().to_string_lossy().into_owned();
            found.push(format!("process {pid} ({})", name.trim()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_files() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().canonicalize().unwrap();
        assert_eq!(users(&place), Vec::<String>::new());
        let _open = fs::File::create(place.join("file")).unwrap();
        let found = users(&place);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].contains(&std::process::id().to_string()),
            "{found:?}"
        );
        let error = FuseError::Unmount {
            mountpoint: place.clone(),
            source: std::io::Error::from_raw_os_error(libc::EBUSY),
        };
        let failure = refused(&place, &error).to_string();
        assert!(
            failure.contains("in use by process") && failure.contains("fuser -vm"),
            "{failure}"
        );
    }
}
