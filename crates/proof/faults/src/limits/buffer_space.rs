//! No space for the logs of a buffered client: in the directory in memory, in the NVM directory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use shale_daemon::{Daemon, DaemonConfig};
use shale_format::limits::{LOG_BYTES_MIN, NVM_BYTES_MIN};
use shale_format::log::RING_AT;
use shale_libfs::Session;
use shale_proto::message::PROTO_VERSION;
use shale_proto::{Reply, Request};
use tempfile::TempDir;

use crate::processes::child::{join, socket};
use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::stage::{Checked, Stage, attach_to, both, close_all, side, tree};
use shale_bench::BenchError;
use shale_bench::Result;
use shale_model::Memory;

/// Bytes of a log file.
const LOG_FILE_BYTES: u64 = RING_AT as u64 + LOG_BYTES_MIN;
/// Bytes that are left besides: less than a log.
const SPARE_BYTES: u64 = 2 << 20;
/// How long a client tries to become one.
const PATIENCE: Duration = Duration::from_secs(5);
/// Operations between what else happens.
const ACTS: usize = 60;

/// A small file system in memory. Unmounted when it is dropped.
struct Tmpfs {
    dir: TempDir,
}

impl Tmpfs {
    /// One of `bytes` bytes in `dir`; `None`: this user may not mount.
    fn mount(dir: &Path, bytes: u64) -> Result<Option<Tmpfs>> {
        let dir = tempfile::Builder::new()
            .prefix("shale-faults-tmpfs-")
            .tempdir_in(dir)
            .map_err(BenchError::file(dir, "make a directory in"))?;
        let size = format!("size={bytes},mode=700");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "shale-faults"]);
        let mounted = mount.arg(dir.path()).output();
        let mounted = mounted.is_ok_and(|done| done.status.success());
        Ok(mounted.then_some(Tmpfs { dir }))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Files that are still open keep it from going at once.
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.dir.path())
            .output();
    }
}

/// Names of all files in directories.
fn files(dirs: &[&Path]) -> Checked<Vec<PathBuf>> {
    let mut all = Vec::new();
    for dir in dirs {
        let list = std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        all.extend(list.flatten().map(|entry| entry.path()));
    }
    all.sort();
    Ok(all)
}

/// Another process asks to be a client: it is refused, by the name of the directory that is full and what it lacks.
fn refused(daemon: &Daemon, full: &Path) -> Checked<()> {
    let ask = Request::Attach {
        version: PROTO_VERSION,
        log_bytes: 0,
        durability: 0,
    };
    let (reply, _) = daemon.attach_as(0, &[]).handle(ask);
    let Reply::Refused { errno, why } = reply else {
        return Err(format!("not refused: {reply:?}"));
    };
    let named = why.contains(&full.display().to_string());
    let lacks = why.contains(&format!("{LOG_FILE_BYTES} bytes"));
    match errno == Errno::NOSPC.raw_os_error() && named && lacks {
        true => Ok(()),
        false => Err(format!("refused with {errno}: {why}")),
    }
}

/// There is space for a client again. The first that asks may find that the daemon is making a log ready for the next one there.
fn soon(stage: &Stage) -> Checked<Arc<Session>> {
    let begun = Instant::now();
    loop {
        match join(stage) {
            Err(_) if begun.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(10)),
            done => return done,
        }
    }
}

/// A client has its logs, there is no space for those of another one in the directory `full`; nothing of that is left, and the first goes on.
fn crowded(trial: &Trial<'_>, stage: &Stage, config: DaemonConfig, full: &Path) -> Checked<()> {
    let buffer_dir = config.volume.buffer_dir();
    let daemon = stage.start_with(config.clone())?;
    let session = attach_to(&daemon)?;
    let listening = daemon.listen(&socket(stage));
    listening.map_err(|e| format!("listen: {e}"))?;
    let (mut model, mut shale) = (Memory::new(0o755), side(&session));
    let mut acts = trial.filled.load.acts(trial.options.seed);
    for act in acts.by_ref().take(ACTS) {
        both(&mut model, &mut shale, &act)?;
    }
    let dirs = [&*stage.nvm(), &buffer_dir];
    let before = files(&dirs)?;
    for _ in 0..3 {
        refused(&daemon, full)?;
        match join(stage) {
            Err(why) if why.contains("No space left") => {}
            other => return Err(format!("another process: {:?}", other.map(|_| "a client"))),
        }
        let after = files(&dirs)?;
        if after != before {
            return Err(format!("{before:?} before it was refused, then {after:?}"));
        }
        for act in acts.by_ref().take(ACTS) {
            both(&mut model, &mut shale, &act)?;
        }
    }
    let clients = daemon.status_values().clients.len();
    if clients != 1 {
        return Err(format!("{clients} clients, expected the first alone"));
    }
    close_all(&mut shale);
    close_all(&mut model);
    let expected = tree(&mut model)?;
    drop(shale);
    session.detach().map_err(|e| format!("detach: {e}"))?;
    drop(session);
    let next = soon(stage)?;
    let right = tree(&mut side(&next))? == expected;
    next.detach().map_err(|e| format!("detach: {e}"))?;
    daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
    let report = stage.fsck()?;
    match right && report.clean() && !buffer_dir.exists() {
        true => Ok(()),
        false => Err(format!("tree as it should be: {right}; fsck:\n{report}")),
    }
}

/// Tries it with each volume and configuration that `make` gives in a small file system of `bytes` bytes.
fn each(
    trial: &mut Trial<'_>,
    bytes: u64,
    make: impl Fn(&Trial<'_>, &Path) -> Result<(Stage, DaemonConfig, PathBuf)>,
) -> Result<Checked<()>> {
    trial.buffered = true;
    while trial.next_case() {
        let Some(small) = Tmpfs::mount(&trial.options.dir, bytes)? else {
            trial.untried = true;
            trial.seen = "this user may not mount a tmpfs".to_owned();
            return Ok(Ok(()));
        };
        let (stage, config, full) = make(trial, small.dir.path())?;
        kept!(crowded(trial, &stage, config, &full));
    }
    trial.seen = format!("{} volumes: ENOSPC to the second client", trial.cases);
    Ok(Ok(()))
}

/// Shared memory is full.
pub fn memory(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    each(trial, LOG_FILE_BYTES + SPARE_BYTES, |trial, small| {
        let stage = trial.stage()?;
        let mut config = stage.config();
        let full = small.join("buffer");
        config.volume.buffer_dir = Some(full.clone());
        Ok((stage, config, full))
    })
}

/// The NVM directory is full.
pub fn nvm(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let bytes = NVM_BYTES_MIN + LOG_FILE_BYTES + SPARE_BYTES;
    let outside = tempfile::tempdir_in(&trial.options.dir);
    let outside = outside.map_err(BenchError::file(&trial.options.dir, "make a directory in"))?;
    each(trial, bytes, |_, small| {
        let stage = Stage::buffered(small)?;
        let mut config = stage.config();
        config.volume.buffer_dir = Some(outside.path().join("buffer"));
        let full = stage.nvm();
        Ok((stage, config, full))
    })
}
