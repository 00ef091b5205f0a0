//! `shale umount`: takes a mount away and returns when everything is in the volume.

use crate::control::ask;
use crate::failure::{Failure, Result};
use crate::mounts::holders::{self, Holder};
use crate::mounts::mount_table::{self, Mount};
use crate::mounts::state::StateDir;
use crate::terminal::{Waiting, note, say};
use shale_fuse::FuseError;
use shale_pool::volume_file::VolumeFile;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  shale umount /mnt/shale
  shale umount --lazy /mnt/shale     the rest goes with the last open file";

/// How long a lazy unmount waits for a mount that nobody uses.
const LAZY_WAIT: Duration = Duration::from_secs(2);
/// How long the processes of a mount are waited for without a word.
const QUIET_WAIT: Duration = Duration::from_secs(2);
/// How long what keeps a file system in use that has lost its name is waited for.
const HELD_WAIT: Duration = Duration::from_secs(30);
/// How long the processes of a mount that nobody is seen to use are waited for.
const END_WAIT: Duration = Duration::from_secs(600);
/// How long a mount that nobody is seen to use is tried again: the kernel closes files of a program after its end.
const CLOSING_WAIT: Duration = Duration::from_millis(500);
const CLOSING_PAUSE: Duration = Duration::from_millis(10);
/// Between two looks at who uses it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Arguments of `umount`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The mount point
    mountpoint: PathBuf,
    /// Take the name away now and the mount when its last file is closed
    #[arg(long, short = 'l')]
    lazy: bool,
    /// What was done as JSON
    #[arg(long)]
    json: bool,
    /// Says nothing when it was done.
    #[arg(skip)]
    quiet: bool,
}

impl Args {
    /// As umount(8) has it done.
    pub fn of_helper(mountpoint: PathBuf, lazy: bool) -> Self {
        Self {
            mountpoint,
            lazy,
            json: false,
            quiet: true,
        }
    }

    /// Tells that it was done. `served`: somebody still uses it.
    fn done(&self, place: &Path, text: &str, served: bool) -> Result<()> {
        let place = place.to_string_lossy();
        let json =
            || serde_json::json!({ "mountpoint": place, "still_served": served, "text": text });
        match self.json {
            true => say!("{}", json()),
            false if self.quiet => {}
            false => say!("{place}: {text}"),
        }
        Ok(())
    }
}

/// Unmounts.
pub fn run(args: &Args) -> Result<()> {
    let place = mount_table::resolve(&args.mountpoint)?;
    let shown = place.display();
    let mount = mount_table::at(&place)?;
    let dir = StateDir::find(&place);
    let is_ours = mount.as_ref().is_some_and(|m| m.is_shale());
    // Looked at before, since unmounting ends what lives. A supervisor that has given up
    // is about to end.
    let was_stale = dir
        .as_ref()
        .is_none_or(|d| d.state.is_stale() || d.state.failure.is_some());
    // The server of a mount of which nothing is known here.
    let served = dir.is_none() && is_ours && ask::is_served(&place);
    if let (true, Some(mount)) = (served, &mount) {
        let device = Some(&mount.device);
        if StateDir::all()
            .iter()
            .any(|d| d.state.device.as_ref() == device)
        {
            return Err(ask::unknown(&place, Some(mount)));
        }
    }
    if let Some(mount) = mount.as_ref().filter(|m| m.is_shale()) {
        let known = dir.as_ref().and_then(|d| d.state.device.as_ref()) == Some(&mount.device);
        unmount(&place, mount, dir.as_ref(), args.lazy, was_stale && known)?;
    }
    match (mount, dir) {
        (Some(other), None) if !is_ours => {
            let text = format!(
                "{shown}: a {} is mounted there, not a shale volume",
                other.kind
            );
            Err(Failure::not_mounted(text).advise(format!("umount {shown}")))
        }
        (_, None) if served => {
            let text = "unmounted; the daemon that served it brings what is logged into the volume and ends";
            args.done(&place, text, false)
        }
        (_, None) if is_ours => {
            let text = "unmounted; its processes and their state were gone already";
            args.done(&place, text, false)
        }
        (_, None) => Err(Failure::not_mounted(format!(
            "{shown}: nothing is mounted there"
        ))),
        (_, Some(dir)) if was_stale => {
            dir.remove();
            // Of one that was given up that depends on what is mended.
            let text = match dir.state.given_up() {
                Some(why) => format!(
                    "unmounted; {why}. When that is mended, the next mount of {} recovers what had returned",
                    dir.state.volume.display()
                ),
                None => format!(
                    "unmounted; its supervisor (process {}) was gone. Nothing that had returned is lost: the next mount \
                     of {} recovers it",
                    dir.state.supervisor.pid,
                    dir.state.volume.display()
                ),
            };
            args.done(&place, &text, false)
        }
        (_, Some(dir)) => finish(&dir, args),
    }
}

/// Takes the mount's name away. One that is mounted at another place, too, stays as it is: its volume would go on
/// being served there. Of other mount namespaces the kernel takes it away with ours, if they follow ours.
/// `dead`: nobody serves it any more.
fn unmount(
    place: &Path,
    mount: &Mount,
    dir: Option<&StateDir>,
    lazy: bool,
    dead: bool,
) -> Result<()> {
    let mut elsewhere = holders::mounts_of(&mount.device, Some(place));
    elsewhere.retain(|m| matches!(m, Holder::Mount { seen_by: None, .. }));
    if let Some(named) = holders::name(&elsewhere).filter(|_| !lazy) {
        let text = format!("{}: the volume is also in use by {named}", place.display());
        return Err(Failure::new(text).advise("unmount that first; --lazy does not wait for it"));
    }
    let not = dir.map(own_processes).unwrap_or_default();
    let begun = Instant::now();
    loop {
        let done = match dead {
            true => shale_fuse::unmount_dead(place, lazy),
            false => shale_fuse::unmount(place, lazy),
        };
        let Err(error) = done else { return Ok(()) };
        let users = holders::of(&mount.device, Some(place), &not);
        if !users.is_empty() || !is_busy(&error) || begun.elapsed() > CLOSING_WAIT {
            return Err(refused(place, holders::name(&users).as_deref(), &error));
        }
        std::thread::sleep(CLOSING_PAUSE);
    }
}

/// The processes that serve a mount.
fn own_processes(dir: &StateDir) -> Vec<u32> {
    dir.state.processes().map(|p| p.pid).collect()
}

/// Waits for the processes of a mount that is gone. `Err`: what keeps them.
fn wait_for_end(dir: &StateDir, lazy: bool) -> Result<std::result::Result<(), Vec<Holder>>> {
    let waiting = Waiting::start("bringing every log into the volume");
    let (begun, mut reported) = (Instant::now(), None);
    for process in dir.state.processes() {
        let mut next = if lazy { LAZY_WAIT } else { QUIET_WAIT };
        while !process.wait(Some(next))? {
            next = LOOK_EVERY;
            let device = dir.state.device.as_deref().unwrap_or_default();
            let holders = holders::of(device, None, &own_processes(dir));
            let limit = match holders.is_empty() {
                true => END_WAIT,
                false => HELD_WAIT,
            };
            if lazy || begun.elapsed() >= limit {
                return Ok(Err(holders));
            }
            let now = holders::name(&holders);
            if let Some(named) = now.as_ref().filter(|_| reported != now) {
                waiting.at(&format!("still in use by {named}"));
                let shown = dir.state.mountpoint.display();
                note!("{shown}: unmounted, but still in use by {named}; waiting");
            }
            reported = now;
        }
    }
    Ok(Ok(()))
}

/// Waits for the processes of a mount that is gone, and tells what came of it.
fn finish(dir: &StateDir, args: &Args) -> Result<()> {
    let shown = dir.state.mountpoint.display();
    if let Err(holders) = wait_for_end(dir, args.lazy)? {
        let named = holders::name(&holders);
        let by = named.map_or(String::new(), |named| format!(" by {named}"));
        if args.lazy {
            let text = format!("unmounted; it is still in use{by}, and served until that ends");
            return args.done(&dir.state.mountpoint, &text, true);
        }
        let text = match by.as_str() {
            "" => format!(
                "{shown}: unmounted, but process {} has not ended after {} s",
                dir.state.supervisor.pid,
                END_WAIT.as_secs()
            ),
            by => format!("{shown}: unmounted, but still in use{by}, and served until that ends"),
        };
        return Err(Failure::new(text).advise("shale status names its log"));
    }
    // The directory is there only if something went wrong.
    let Some(left) = StateDir::load(dir.path().to_owned()) else {
        return args.done(&dir.state.mountpoint, "unmounted", false);
    };
    let log = left.last_lines(3);
    // A volume without NVM keeps in memory what its SSD has not taken.
    let advice = match VolumeFile::load(&left.state.volume) {
        Ok(file) if file.is_staged() => format!(
            "while the machine runs nothing that had returned is lost: what is not on the SSD stays in {}, and the \
             next mount recovers it",
            file.nvm_dir().display()
        ),
        _ => "nothing that had returned is lost: the next mount recovers it".to_owned(),
    };
    left.remove();
    let why = left.state.failure.unwrap_or_else(|| {
        format!("its processes were killed before every log was in the volume; last words: {log}")
    });
    Err(Failure::new(format!("{shown}: unmounted, but {why}")).advise(advice))
}

/// Whether somebody uses the mount.
fn is_busy(error: &FuseError) -> bool {
    matches!(error, FuseError::Unmount { source, .. } if source.raw_os_error() == Some(libc::EBUSY))
        || error.to_string().contains("busy")
}

fn refused(place: &Path, users: Option<&str>, error: &FuseError) -> Failure {
    if !is_busy(error) {
        return Failure::new(error.to_string());
    }
    let named = users.map_or(String::new(), |users| format!(" by {users}"));
    let shown = place.display();
    Failure::new(format!("{shown}: it is in use{named}")).advise(format!(
        "fuser -vm {shown} names all users; --lazy does not wait for them"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_mount_names_its_users() {
        let place = Path::new("/mnt/shale");
        let error = FuseError::Unmount {
            mountpoint: place.to_owned(),
            source: std::io::Error::from_raw_os_error(libc::EBUSY),
        };
        let failure = refused(place, Some("process 7 (sh; file /mnt/shale/f)"), &error).to_string();
        assert!(
            failure.contains("in use by process 7") && failure.contains("fuser -vm"),
            "{failure}"
        );
    }
}
