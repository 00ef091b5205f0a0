//! Daemons that are killed while a device comes, and while another is emptied and goes; and while the first
//! device comes to NVM alone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shale_check::{CheckOptions, check_volume_dir};
use shale_daemon::{Daemon, DaemonConfig};
use shale_format::TierId;
use shale_pool::DeviceKind;
use shale_pool::VolumeFile;
use shale_pool::volume_file::DeviceFile;
use shale_sys::SystemClock;

use crate::lower_tiers::devices::{DEVICE_BYTES, Three, ZONE_BYTES};
use crate::processes::child::{Point, Process, noted, was_killed};
use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::stage::Checked;
use shale_bench::BenchError;
use shale_bench::Result;

/// The device that comes.
const NEW: &str = "flash-2";
/// Longest that a device may take to be emptied.
const PATIENCE: Duration = Duration::from_secs(20);

/// Points, and the times that each is reached at which it is tried.
const POINTS: [(&str, &[u64]); 11] = [
    ("device-named", &[1]),
    ("device-added", &[1]),
    ("tiers-begun", &[1]),
    ("device-removed", &[1]),
    ("migrate-copied", &[1, 2]),
    ("migrate-flushed", &[1, 2]),
    ("migrate-committed", &[1, 2]),
    ("journal-begin", &[1, 2, 4]),
    ("journal-body", &[1, 2, 4]),
    ("journal-header", &[1, 2, 3, 4, 5]),
    ("journal-apply", &[1, 2, 3, 4, 5]),
];

fn config(place: &Path) -> Checked<DaemonConfig> {
    let path = place.join("VOLUME.toml");
    let volume = VolumeFile::load(&path).map_err(|e| e.to_string())?;
    Ok(DaemonConfig {
        volume_path: Some(path),
        digest_threads: 1,
        ..DaemonConfig::new(volume)
    })
}

/// Adds a device, empties another and takes it out, or moves files down if there is no other: what of
/// that is not done yet.
fn change(daemon: &Daemon, place: &Path) -> Checked<()> {
    let (new, old) = (place.join(NEW), place.join("flash-0"));
    let find = |path: &Path| {
        let path = path.display().to_string();
        daemon.devices().into_iter().find(|d| d.path == path)
    };
    if find(&new).is_none() {
        let file = DeviceFile {
            path: new,
            size_bytes: DEVICE_BYTES,
            zone_bytes: Some(ZONE_BYTES),
            model: None,
            kind: DeviceKind::Conventional,
            overprovision_percent: None,
        };
        let added = daemon.add_device(TierId::Ssd, &file, false);
        added.map_err(|e| format!("add: {e}"))?;
    }
    if !old.exists() {
        let moved = daemon.migrate(None);
        return moved.map(drop).map_err(|e| format!("migrate: {e}"));
    }
    if find(&old).is_none() {
        return Ok(());
    }
    let moving = daemon.evacuate_device(&old);
    moving.map_err(|e| format!("evacuate: {e}"))?;
    let begun = Instant::now();
    while find(&old).is_some_and(|d| d.live_bytes > 0) {
        if begun.elapsed() > PATIENCE {
            return Err(format!("not emptied: {:?}", find(&old)));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let removed = daemon.remove_device(&old);
    removed.map_err(|e| format!("remove: {e}"))
}

fn serve(place: &Path, f: impl FnOnce(&Arc<Daemon>) -> Checked<()>) -> Checked<()> {
    let daemon = Daemon::start(config(place)?, Arc::new(SystemClock::new()));
    let daemon = daemon.map_err(|e| format!("start: {e}"))?;
    let done = f(&daemon);
    let ended = daemon.shutdown().map_err(|e| format!("shutdown: {e}"));
    done.and(ended)
}

/// What a child does. Gives its exit status.
pub fn child(place: &Path) -> i32 {
    noted(serve(place, |daemon| change(daemon, place)))
}

/// What is in a directory: files, and their bytes.
struct Kept(Vec<(PathBuf, Vec<u8>)>);

impl Kept {
    fn of(dirs: &[&Path]) -> Result<Kept> {
        let mut files = Vec::new();
        for dir in dirs {
            for entry in std::fs::read_dir(dir).map_err(BenchError::file(dir, "list"))? {
                let path = entry.map_err(BenchError::file(dir, "list"))?.path();
                if path.is_file() {
                    let bytes = std::fs::read(&path).map_err(BenchError::file(&path, "read"))?;
                    files.push((path, bytes));
                }
            }
        }
        Ok(Kept(files))
    }

    fn put_back(&self) -> Result<()> {
        for (path, bytes) in &self.0 {
            // A new file: labels of segments are attributes, which are older with the bytes.
            std::fs::remove_file(path).map_err(BenchError::file(path, "remove"))?;
            std::fs::write(path, bytes).map_err(BenchError::file(path, "write"))?;
        }
        Ok(())
    }
}

/// After a kill: the tree is there, the rest of the change is done, and the volume file says what
/// is so.
fn goes_on(t: &mut Three, tree: &shale_model::Snapshot) -> Checked<()> {
    let place = t.place().to_path_buf();
    t.set_config(config(&place)?);
    t.as_before(tree)?;
    serve(&place, |daemon| change(daemon, &place))?;
    let done = config(&place)?;
    let named = |files: &[DeviceFile]| -> Vec<PathBuf> {
        let all = files.iter().map(|d| place.join(&d.path));
        all.collect()
    };
    let mut expected = vec![place.join(NEW)];
    if t.is_tiered() {
        expected.insert(0, place.join("flash-1"));
    }
    let found = named(&done.volume.ssd);
    if found != expected {
        return Err(format!("the volume file has {found:?}, not {expected:?}"));
    }
    t.set_config(done);
    t.as_before(tree)?;
    let nvm = place.join("nvm");
    let options = CheckOptions::of(&config(&place)?.volume);
    let report = check_volume_dir(&nvm, &options, &mut |_| ());
    let report = report.map_err(|e| format!("fsck: {e}"))?;
    match report.clean() {
        true => Ok(()),
        false => Err(format!("fsck:\n{report}")),
    }
}

/// The daemon is killed between the steps of adding, emptying and removing a device.
pub fn killed(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    match trial.armed() {
        true => killed_on(Three::new(trial)?, trial),
        false => Ok(Ok(())),
    }
}

/// The daemon is killed between the steps of adding a device to NVM alone.
pub fn first_killed(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    match trial.armed() {
        true => killed_on(Three::alone(trial)?, trial),
        false => Ok(Ok(())),
    }
}

fn killed_on(mut t: Three, trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let tree = kept!(t.fill(trial));
    let place = t.place().to_path_buf();
    let image = Kept::of(&[&place, &place.join("nvm")])?;
    let (mut kills, mut names) = (0, std::collections::BTreeSet::new());
    'points: for (name, numbers) in POINTS {
        for &number in numbers {
            if !trial.next_case() {
                break 'points;
            }
            image.put_back()?;
            // Not there yet the first time.
            let _ = std::fs::remove_file(place.join(NEW));
            let what = "kill";
            let point = Point { name, number, what };
            let mut child = Process::changer(t.stage(), &point, &place)?;
            let status = kept!(child.status());
            if !was_killed(status) && !status.success() {
                return Ok(Err(format!("{point}: {status}: {}", child.errors())));
            }
            let done = goes_on(&mut t, &tree);
            kept!(done.map_err(|wrong| format!("killed at {point}: {wrong}")));
            if was_killed(status) {
                kills += 1;
                names.insert(name);
            }
        }
    }
    trial.seen = format!(
        "{kills} kills at {} of {} points",
        names.len(),
        POINTS.len()
    );
    match kills {
        0 => Ok(Err("nobody was killed".to_owned())),
        _ => Ok(Ok(())),
    }
}
