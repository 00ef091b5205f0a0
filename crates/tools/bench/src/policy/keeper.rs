//! A process that takes away what a measurement has set up, however the measuring process ended.
//!
//! A volume is served by processes that outlive the one that mounted it. So the measuring process starts this one and keeps the
//! write end of its input; when that closes (by the last statement, a signal, or a kill), everything below the measurement's
//! directory is unmounted and the directory removed. It is in a process group of its own: Ctrl-C reaches the measurement alone.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::programs::run;
use crate::{BenchError, Result};

/// First letters of the names of directories that [`keep`] takes away.
pub(crate) const PREFIX: &str = "shale-policy-";
/// Looks in a row that find nothing mounted before the directory goes: what was about to be mounted may still come.
const QUIET_LOOKS: u32 = 3;
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Looks at all: what cannot be unmounted for so long is left.
const LOOKS_MAX: u32 = 300;

/// The running process; it takes everything away when this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper(Child);

impl Keeper {
    /// Starts it for a directory.
    pub fn start(program: &Path, dir: &Path) -> Result<Self> {
        let started = Command::new(program)
            .args(["bench", "keeper"])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn();
        started
            .map(Keeper)
            .map_err(BenchError::file(program, "start"))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Mounts below a directory, the last one first.
fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let mut below: Vec<PathBuf> = places
        .map(PathBuf::from)
        .filter(|place| place.starts_with(dir))
        .collect();
    below.reverse();
    below
}

/// Waits for the end of `input`, then unmounts what is mounted below `dir` and removes it. Gives what could not be done.
///
/// # Errors
/// `dir` is not a directory of a measurement; it cannot be removed.
pub fn keep(program: &Path, dir: &Path, mut input: impl Read) -> Result<()> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    if !name.starts_with(PREFIX) {
        return Err(BenchError::Option {
            option: "DIR",
            expected: format!("a directory whose name begins with {PREFIX}"),
            found: dir.display().to_string(),
        });
    }
    let mut ignored = Vec::new();
    // An error is an end too.
    let _ = input.read_to_end(&mut ignored);
    let mut quiet = 0;
    for _ in 0..LOOKS_MAX {
        if !dir.exists() {
            return Ok(());
        }
        let mounts = mounts_below(dir);
        quiet = if mounts.is_empty() { quiet + 1 } else { 0 };
        if quiet == QUIET_LOOKS {
            break;
        }
        for place in mounts {
            if run(Command::new(program).arg("umount").arg(&place)).is_err() {
                // Not a volume, or one whose daemon is dead.
                let _ = run(Command::new("umount").arg("-l").arg(&place));
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
    std::fs::remove_dir_all(dir).map_err(BenchError::file(dir, "remove"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_removes_its_own_directories_and_no_others() {
        let place = tempfile::tempdir().unwrap();
        let own = place.path().join(format!("{PREFIX}1"));
        std::fs::create_dir_all(own.join("volume/nvm")).unwrap();
        let other = place.path().join("other");
        std::fs::create_dir(&other).unwrap();
        let program = Path::new("/bin/false");
        keep(program, &own, std::io::empty()).unwrap();
        assert!(!own.exists());
        let refused = keep(program, &other, std::io::empty()).unwrap_err();
        assert!(refused.to_string().contains(PREFIX), "{refused}");
        assert!(other.exists());
        // What has gone already is no error.
        keep(program, &own, std::io::empty()).unwrap();
    }
}
