//! Work on a mounted volume that no daemon may have open: done between two daemons of the mount.
//!
//! The one that serves is killed, as it may be at any moment: what programs have written is in their logs, their calls wait, and who
//! writes to its own log goes on. The lock of the volume, taken before the next one has it, keeps that one waiting; the supervisor tries every
//! quarter of a second. Ended in the middle, the work lets go of the lock.

use crate::control::ask;
use crate::failure::{Failure, Result};
use crate::mounts::state::StateDir;
use shale_pool::PoolError;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long a daemon that was killed may take to end.
const END_MAX: Duration = Duration::from_secs(30);
/// How long the lock is tried after that: then the next daemon has it.
const LOCK_MAX: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(1);
/// How often a daemon is killed that was faster.
const TRIES: u32 = 5;
/// How long the next daemon may take to serve, before it is said that it does not yet.
const SERVES_MAX: Duration = Duration::from_secs(60);
const SERVES_LOOK: Duration = Duration::from_millis(20);
/// Since this Linux the kernel sends requests again that a killed daemon has not answered.
const RESENDS: (u32, u32) = (6, 9);
const RELEASE: &str = "/proc/sys/kernel/osrelease";

/// The mount of the volume whose NVM lies in `nvm_dir`, if it is mounted.
pub fn mount_of(nvm_dir: &Path) -> Option<StateDir> {
    let mut all = StateDir::all().into_iter();
    all.find(|dir| dir.state.nvm_dir == nvm_dir && !dir.state.is_stale())
}

/// Does `work`, which fails with [`PoolError::InUse`] as long as a daemon has the volume, and waits until the next daemon serves.
///
/// # Errors
/// What `work` fails with; the mount has no supervisor, or the kernel would fail what programs ask for meanwhile.
pub fn between_daemons<T>(
    dir: &StateDir,
    mut work: impl FnMut() -> shale_pool::Result<T>,
) -> Result<T> {
    let place = dir.state.mountpoint.display();
    let unmount = |why: &str| {
        let text = format!("{place}: not while it is mounted: {why}");
        Failure::new(text).advise(format!("shale umount {place}, and again"))
    };
    if !dir.state.supervisor.lives() {
        return Err(unmount(
            "the supervisor is gone, that would start the next daemon",
        ));
    }
    if !resends(&fs::read_to_string(RELEASE).unwrap_or_default()) {
        return Err(unmount("before Linux 6.9 calls fail when a daemon ends"));
    }
    for _ in 0..TRIES {
        let now = StateDir::load(dir.path().to_owned()).ok_or_else(|| unmount("it is ending"))?;
        if let Some(daemon) = now.state.daemon {
            daemon.kill()?;
            daemon.wait(Some(END_MAX))?;
        }
        let begun = Instant::now();
        while begun.elapsed() < LOCK_MAX {
            match work() {
                Err(PoolError::InUse { .. }) => thread::sleep(LOCK_PAUSE),
                done => {
                    wait_until_served(dir);
                    return done.map_err(Failure::of);
                }
            }
        }
    }
    Err(unmount("the next daemon was faster each time"))
}

/// Whether a kernel of this release keeps requests for the next daemon.
fn resends(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|n| n.parse::<u32>().ok());
    number().zip(number()).is_some_and(|found| found >= RESENDS)
}

fn wait_until_served(dir: &StateDir) {
    let begun = Instant::now();
    while ask::status(dir).is_err() && begun.elapsed() < SERVES_MAX {
        thread::sleep(SERVES_LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read() {
        for (release, expected) in [
            ("6.18.0-rc1+", true),
            ("6.9", true),
            ("10.0-x", true),
            ("6.8.12-amd64", false),
            ("5.15.0", false),
            ("unknown", false),
        ] {
            assert_eq!(resends(release), expected, "{release}");
        }
    }
}
