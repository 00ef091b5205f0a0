//! What is known of each mount while it lives: one directory in `/run/shale` (for users
//! other than root in `$XDG_RUNTIME_DIR/shale`) with state, socket and log.
//!
//! The supervisor makes and removes it. One that is left behind by processes that
//! were killed is taken away by the process that finds it.

use crate::failure::{Failure, Result};
use crate::mounts::mount_table;
use crate::mounts::settings;
use crate::process::Process;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use shale_sys::private;
use shale_sys::user_directory;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SYSTEM: &str = "/run/shale";
const STATE: &str = "state.json";
/// How long the daemon of a mount that has gone is waited for.
const ENDING_MAX: Duration = Duration::from_secs(30);
/// How long another mount that begins at this moment is waited for, and without a word.
const LOCK_MAX: Duration = Duration::from_secs(30);
const LOCK_QUIET: Duration = Duration::from_secs(1);
/// Time between two looks.
const ENDING_LOOK: Duration = Duration::from_millis(20);

/// State of one mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Mount point.
    pub mountpoint: PathBuf,
    /// Volume file.
    pub volume: PathBuf,
    /// Directory of the NVM tier: names the volume wherever its file is.
    pub nvm_dir: PathBuf,
    /// Number of the mount.
    pub connection: u64,
    /// Device number of the mount, once it is there.
    pub device: Option<String>,
    /// Keeps the mount alive.
    pub supervisor: Process,
    /// Serves it.
    pub daemon: Option<Process>,
    /// How often a daemon had to be started again.
    pub restarts: u32,
    /// Why the mount ended, if not because it was unmounted.
    pub failure: Option<String>,
    /// What the next daemon waits for, if it does.
    #[serde(default)]
    pub waiting: Option<String>,
}

impl State {
    /// What keeps and serves the mount.
    pub fn processes(&self) -> impl Iterator<Item = Process> {
        [Some(self.supervisor), self.daemon].into_iter().flatten()
    }

    /// Whether nobody keeps or serves the mount.
    pub fn is_stale(&self) -> bool {
        !self.processes().any(|p| p.lives())
    }

    /// Whether nobody needs this state any more when `new` comes: of a mount that was given
    /// up, its user learns why.
    fn is_over(&self, new: &Self) -> bool {
        let replaced = self.mountpoint == new.mountpoint || self.nvm_dir == new.nvm_dir;
        self.is_stale() && (self.failure.is_none() || replaced)
    }

    /// Why the mount was given up, if it was.
    pub fn given_up(&self) -> Option<String> {
        let why = self.failure.as_ref()?;
        Some(format!("the mount was given up: {why}"))
    }

    /// Whether it was there and is not any more.
    fn has_gone(&self) -> Result<bool> {
        Ok(self.device.is_some() && !self.is_mounted()?)
    }

    /// Whether the table of mounts still has it.
    ///
    /// # Errors
    /// The table cannot be read.
    pub fn is_mounted(&self) -> Result<bool> {
        let found = mount_table::at(&self.mountpoint)?;
        Ok(found.is_some_and(|m| m.is_shale() && Some(&m.device) == self.device.as_ref()))
    }
}

/// The directory of one mount.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
    /// As read, or as last saved.
    pub state: State,
}

impl StateDir {
    /// Takes the mount point and the volume for a new mount. Waits for a mount of them that
    /// has gone while its daemon is still busy, or being ended by the system. `tell`: hears what is waited for.
    ///
    /// # Errors
    /// One of them is taken already, or the directory cannot be made.
    pub fn claim(state: State, tell: &dyn Fn(&str)) -> Result<Self> {
        let base = own_base()?;
        make_dir(&base, true)?;
        check_base(&base)?;
        let begun = Instant::now();
        let _lock = loop {
            let lock = lock(&base, tell)?;
            match Self::clear(&state)? {
                None => break lock,
                Some(failure) if begun.elapsed() > ENDING_MAX => return Err(failure),
                Some(_) => {}
            }
            drop(lock);
            std::thread::sleep(ENDING_LOOK);
        };
        let path = base.join(shale_proto::mounts::name_of(state.connection));
        make_dir(&path, false)?;
        let dir = Self { path, state };
        dir.save()?;
        Ok(dir)
    }

    /// Takes away what nobody needs any more when `new` comes. `Some`: what it wants is
    /// taken by a mount that has gone, and will soon be free.
    fn clear(new: &State) -> Result<Option<Failure>> {
        for other in Self::all() {
            match other.refuse_same(new) {
                Err(failure) if other.state.has_gone()? => return Ok(Some(failure)),
                refused => refused?,
            }
            if other.state.is_over(new) && !other.state.is_mounted()? {
                other.remove();
            }
        }
        Ok(None)
    }

    fn refuse_same(&self, new: &State) -> Result<()> {
        let State {
            mountpoint,
            volume,
            supervisor,
            ..
        } = &self.state;
        let (place, volume) = (mountpoint.display(), volume.display());
        if self.state.is_stale() {
            return Ok(());
        }
        if *mountpoint == new.mountpoint {
            let text = format!("{place}: {volume} is mounted there already");
            return Err(Failure::new(text).advise(format!("shale umount {place}")));
        }
        if self.state.nvm_dir == new.nvm_dir {
            let text = format!(
                "{}: the volume is mounted on {place} already, by process {}",
                new.volume.display(),
                supervisor.pid
            );
            return Err(Failure::new(text).advise(format!("shale umount {place}")));
        }
        Ok(())
    }

    /// The directory of volume files of volumes that were found on devices; made if it is missing.
    ///
    /// # Errors
    /// It cannot be made, or could be another user's.
    pub fn volume_files() -> Result<PathBuf> {
        let base = own_base()?;
        make_dir(&base, true)?;
        check_base(&base)?;
        let path = base.join("volumes");
        make_dir(&path, true)?;
        check_base(&path)?;
        Ok(path)
    }

    /// The mounts of this user and of root. What cannot be read is passed over: it may
    /// be going away at this moment.
    pub fn all() -> Vec<Self> {
        let bases = [Some(PathBuf::from(SYSTEM)), own_base().ok()];
        let mut found: Vec<Self> = Vec::new();
        for base in bases.into_iter().flatten() {
            // What somebody else could have put there is not believed.
            if check_base(&base).is_err() {
                continue;
            }
            for entry in fs::read_dir(base).into_iter().flatten().flatten() {
                match Self::load(entry.path()) {
                    Some(dir) if found.iter().all(|f| f.path != dir.path) => found.push(dir),
                    _ => {}
                }
            }
        }
        found
    }

    /// The mount on `mountpoint`, rather one that lives than one that is stale.
    pub fn find(mountpoint: &Path) -> Option<Self> {
        let mut all = Self::all();
        all.retain(|d| d.state.mountpoint == mountpoint);
        all.sort_by_key(|d| d.state.is_stale());
        all.into_iter().next()
    }

    /// Reads the state in a directory.
    pub fn load(path: PathBuf) -> Option<Self> {
        let text = fs::read(path.join(STATE)).ok()?;
        let state = serde_json::from_slice(&text).ok()?;
        Some(Self { path, state })
    }

    /// Writes the state, all of it or nothing.
    ///
    /// # Errors
    /// The directory is gone or full.
    pub fn save(&self) -> Result<()> {
        let path = self.path.join(STATE);
        let text = serde_json::to_vec_pretty(&self.state)
            .map_err(Failure::because("cannot write the state of the mount"))?;
        // A user of the mount finds it by this.
        settings::replace(&path, &text, 0o644).map_err(Failure::because(format!(
            "{}: cannot write it",
            path.display()
        )))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the daemon listens.
    pub fn socket(&self) -> PathBuf {
        self.path.join("socket")
    }

    /// What supervisor and daemon write.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Opens the log for the end of it.
    ///
    /// # Errors
    /// The directory is gone or full.
    pub fn open_log(&self) -> Result<File> {
        let path = self.log();
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(private::MODE)
            .open(&path)
            .map_err(Failure::because(format!(
                "{}: cannot open it",
                path.display()
            )))
    }

    /// Last lines of the log, for a message.
    pub fn last_lines(&self, lines: usize) -> String {
        last_of(&fs::read(self.log()).unwrap_or_default(), lines)
    }

    /// The same, with those of the log before it.
    pub fn last_lines_of_both(&self, lines: usize) -> String {
        let old = fs::read(self.log().with_extension("old")).unwrap_or_default();
        let new = fs::read(self.log()).unwrap_or_default();
        last_of(&[old, new].concat(), lines)
    }

    /// Takes the directory away; what cannot be removed is left for the next one.
    pub fn remove(&self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn last_of(text: &[u8], lines: usize) -> String {
    let text = String::from_utf8_lossy(text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Makes a directory. `may_exist`: it, and those above it, may be missing or there; else it must be new.
fn make_dir(path: &Path, may_exist: bool) -> Result<()> {
    let mut made = fs::DirBuilder::new();
    let made = made.recursive(may_exist).mode(0o755).create(path);
    made.map_err(Failure::because(format!(
        "{}: cannot make it",
        path.display()
    )))
}

fn own_base() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(SYSTEM.into());
    }
    let own = user_directory::of_session().map(|dir| dir.join("shale"));
    own.ok_or_else(|| {
        Failure::new("XDG_RUNTIME_DIR: it names no directory")
            .advise("set it to a directory of yours that ends with the session")
    })
}

/// Refuses a directory that another user may have made, or may write to: he could take names in it before we do.
fn check_base(base: &Path) -> Result<()> {
    let shown = base.display();
    let found = base
        .symlink_metadata()
        .map_err(Failure::because(format!("{shown}: cannot look at it")))?;
    let own = rustix::process::geteuid().as_raw();
    let why = match found {
        ref f if !f.is_dir() => "it is not a directory".to_owned(),
        ref f if f.uid() != own && f.uid() != 0 => format!("it belongs to user {}", f.uid()),
        ref f if f.mode() & 0o022 != 0 => {
            format!(
                "users other than its owner may write to it (mode {:04o})",
                f.mode() & 0o7777
            )
        }
        _ => return Ok(()),
    };
    Err(Failure::new(format!("{shown}: {why}")).advise(format!(
        "remove it, or set XDG_RUNTIME_DIR to another directory: what is known of mounts is kept in {shown}"
    )))
}

/// Waits for the lock of a directory of states.
fn lock(base: &Path, tell: &dyn Fn(&str)) -> Result<File> {
    let path = base.join("lock");
    let shown = path.display();
    let failed = format!("{shown}: cannot lock it");
    let file = private::open_lock(&path).map_err(Failure::because(&failed))?;
    let (begun, mut reported) = (Instant::now(), false);
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(error) => return Err(Failure::because(&failed)(error)),
        }
        let holder = || match private::lock_holder(&file) {
            Some(pid) => format!("process {pid}"),
            None => "another process".to_owned(),
        };
        if begun.elapsed() > LOCK_MAX {
            let text = format!(
                "{shown}: {} has kept it locked for {} s",
                holder(),
                LOCK_MAX.as_secs()
            );
            return Err(Failure::new(text)
                .advise("only another shale mount should, for a moment: end that process"));
        }
        if begun.elapsed() > LOCK_QUIET && !reported {
            tell(&format!(
                "{shown}: waiting for {}, which has locked it",
                holder()
            ));
            reported = true;
        }
        std::thread::sleep(ENDING_LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(mountpoint: &str, nvm_dir: &str) -> State {
        State {
            mountpoint: mountpoint.into(),
            volume: "/v/VOLUME.toml".into(),
            nvm_dir: nvm_dir.into(),
            connection: 7,
            device: Some("0:77".to_owned()),
            supervisor: Process::this(),
            daemon: None,
            restarts: 0,
            failure: None,
            waiting: None,
        }
    }

    #[test]
    fn saved_and_loaded() {
        let base = tempfile::tempdir().unwrap();
        let mut dir = StateDir {
            path: base.path().to_owned(),
            state: state("/m", "/n"),
        };
        dir.state.restarts = 3;
        dir.save().unwrap();
        let loaded = StateDir::load(base.path().to_owned()).unwrap();
        assert_eq!(loaded.state, dir.state);
        assert!(!loaded.state.is_stale() && !loaded.state.is_mounted().unwrap());
        fs::write(dir.log(), "a\nb\nc\n").unwrap();
        assert_eq!(dir.last_lines(2), "b\nc");
    }

    #[test]
    fn one_mount_per_place_and_volume() {
        let mut dir = StateDir {
            path: "/nowhere".into(),
            state: state("/m", "/n"),
        };
        let place = dir.refuse_same(&state("/m", "/other")).unwrap_err();
        assert!(
            place
                .to_string()
                .contains("/m: /v/VOLUME.toml is mounted there already")
        );
        let volume = dir.refuse_same(&state("/other", "/n")).unwrap_err();
        let pid = std::process::id().to_string();
        assert!(
            volume
                .to_string()
                .contains(&format!("on /m already, by process {pid}"))
        );
        dir.refuse_same(&state("/other", "/other")).unwrap();
        dir.state.supervisor.started = 1;
        dir.refuse_same(&state("/m", "/n")).unwrap();
    }

    #[test]
    fn why_a_mount_was_given_up_is_kept_until_it_is_mounted_again() {
        let mut old = state("/m", "/n");
        let other = state("/other", "/other");
        assert!(!old.is_over(&other), "it lives");
        old.supervisor.started = 1;
        assert!(old.is_over(&other));
        old.failure = Some("why".to_owned());
        assert!(!old.is_over(&other));
        assert!(old.is_over(&state("/m", "/other")) && old.is_over(&state("/other", "/n")));
    }
}
