//! Checks the volume in an NVM directory: maps segments and logs read-only.
//!
//! Nothing is made and nothing is written there. While the check runs no daemon can
//! begin to serve the volume, and a volume that is served is not checked.

use super::{
    CheckOptions, Finding, LogFile, Progress, RepairReport, Report, Severity, check, repair,
};
use rustix::fs::FlockOperation;
use shale_format::limits::{LOG_SLOTS, SEGMENT_BYTES};
use shale_format::log::{LEFT_FILE, file_name};
use shale_nvm::{Access, Map, MapOptions};
use shale_pool::device_assembly;
use shale_pool::error::PoolError;
use shale_pool::labels;
use shale_pool::nvm_dir::{NvmLock, holder_of, segment_name, volume_files};
use shale_pool::staged::StagedCopy;
use shale_pool::volume_file::VolumeFile;
use shale_volume::View;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a volume could not be checked at all.
pub type CheckError = PoolError;

const LOCK: &str = "lock";

/// Checks the volume whose NVM directory is `nvm_dir`, read-only. What is wrong with
/// the volume is in the report.
///
/// # Errors
/// A daemon serves the volume; there are no segments, one between others is missing or
/// has another size than segments have; the files cannot be read.
pub fn check_volume_dir(
    nvm_dir: &Path,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, CheckError> {
    let lock = hold(nvm_dir)?;
    let files = volume_files(nvm_dir)?;
    let map = segments(nvm_dir, &files, Access::ReadOnly)?;
    let logs = logs(nvm_dir, options, &files, Access::ReadOnly);
    let map = Arc::new(map);
    // Before the check opens devices, and locks them.
    let old = options
        .volume
        .as_ref()
        .and_then(|file| what_is_old(file, &map));
    let mut report = check(map, &logs, options, progress);
    if let Some(error) = old {
        report.push(too_old(error.to_string()), options.findings_max);
    }
    for name in files.iter().filter(|name| name.starts_with("log-")) {
        if *name != LEFT_FILE && !(0..LOG_SLOTS).any(|slot| *name == file_name(slot)) {
            report.push(put_aside(name), options.findings_max);
        }
    }
    drop(lock);
    Ok(report)
}

/// Repairs the volume whose NVM directory is `nvm_dir`, if it is the one with this identity.
///
/// # Errors
/// As [`check_volume_dir`]; the volume is another one, or neither superblock can be read; too
/// few blocks are free for what has to be written. Then nothing was written.
pub fn repair_volume_dir(
    nvm_dir: &Path,
    uuid: &str,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<RepairReport, CheckError> {
    let lock = NvmLock::take(nvm_dir)?;
    let files = volume_files(nvm_dir)?;
    let map = Arc::new(segments(nvm_dir, &files, Access::ReadWrite)?);
    let logs = logs(nvm_dir, options, &files, Access::ReadWrite);
    is_volume(&map, uuid).map_err(|why| wrong(nvm_dir, why))?;
    let mut report = repair(&map, &logs, options, progress)?;
    let wrong = options
        .volume
        .as_ref()
        .and_then(|file| what_is_old(file, &map));
    if options.restored && wrong.is_some() {
        labels::forget(nvm_dir, map.pieces().len())?;
    }
    // What is old still, with the segments believed.
    let left = options
        .volume
        .as_ref()
        .and_then(|file| what_is_old(file, &map));
    if let Some(error) = left {
        report
            .after
            .push(too_old(error.to_string()), options.findings_max);
    }
    drop(lock);
    Ok(report)
}

/// Checks the newest image of a volume without NVM, whose memory tier is gone. What was staged since is no part of it, and is
/// reported.
pub fn check_copy(
    copy: &StagedCopy,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Report {
    let options = CheckOptions {
        logs_staged: true,
        ..options.clone()
    };
    // Before the check opens devices, and locks them.
    let old = { options.volume.as_ref() }.and_then(|file| old_devices(file, &copy.map, 0, None));
    let mut report = check(copy.map.clone(), &[], &options, progress);
    if let Some(error) = old {
        report.push(too_old(error.to_string()), options.findings_max);
    }
    if copy.batches > 0 {
        report.push(waiting(copy.batches), options.findings_max);
    }
    report
}

/// Repairs the newest image of a volume without NVM, whose memory tier is gone, and writes a checkpoint of it.
///
/// # Errors
/// Batches wait to be replayed; as [`repair_volume_dir`]; the checkpoint cannot be written. Then the volume is as it was.
pub fn repair_copy(
    copy: &StagedCopy,
    file: &VolumeFile,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<RepairReport, CheckError> {
    let options = CheckOptions {
        logs_staged: true,
        ..options.clone()
    };
    copy.may_be_repaired(file)?;
    is_volume(&copy.map, &file.uuid).map_err(|why| wrong(file.nvm_dir(), why))?;
    let mut report = repair(&copy.map, &[], &options, progress)?;
    if !report.mended.is_empty() {
        copy.write_back(file, report.after.txid)?;
    }
    if let Some(error) = old_devices(file, &copy.map, 0, None) {
        let found = too_old(error.to_string());
        report.after.push(found, options.findings_max);
    }
    Ok(report)
}

/// Batches that the next mount replays are no damage.
fn waiting(batches: u64) -> Finding {
    Finding {
        severity: Severity::Info,
        object: "staging area".to_owned(),
        ino: None,
        block: None,
        what: "batches wait to be replayed by the next mount".into(),
        expected: String::new(),
        found: batches.to_string(),
    }
}

/// Whether the volume on `map` is the one with this identity; else why nothing is changed.
fn is_volume(map: &Arc<Map>, uuid: &str) -> Result<(), String> {
    let heads_only = CheckOptions {
        findings_max: 0,
        ..CheckOptions::default()
    };
    let why = match check(map.clone(), &[], &heads_only, &mut |_| ()).uuid {
        Some(found) if found == uuid => return Ok(()),
        Some(found) => format!("the volume there is {found}, expected {uuid}"),
        None => "no superblock can be used".to_owned(),
    };
    Err(format!("{why}: nothing was changed"))
}

/// What a mount would refuse as older than the rest of the volume.
fn what_is_old(file: &VolumeFile, map: &Arc<Map>) -> Option<PoolError> {
    let dir = file.nvm_dir();
    let starts = match labels::check(dir, &file.uuid_bytes(), map.pieces().len()) {
        Ok(starts) => starts,
        Err(error) => return Some(error),
    };
    old_devices(file, map, starts, Some(map.pieces().len()))
}

/// The same of devices. `segments`: how many there are, if they have labels.
fn old_devices(
    file: &VolumeFile,
    map: &Arc<Map>,
    starts: u64,
    segments: Option<usize>,
) -> Option<PoolError> {
    // What cannot be read is reported by the check.
    let superblock = *View::open_head(map.clone()).ok()?.0.superblock();
    let view = View::open(map.clone()).ok()?.0.of_quiet_volume();
    let table = view.device_table().ok()?;
    let txid = view.root().ok()?.txid;
    let content = segments.map(|segments| (segments, txid));
    device_assembly::what_is_old(file, &superblock, &table, starts, content)
}

fn too_old(why: String) -> Finding {
    Finding {
        severity: Severity::Error,
        object: "labels".to_owned(),
        ino: None,
        block: None,
        what: "the volume is not of one time, and is not mounted".into(),
        expected: String::new(),
        found: why,
    }
}

/// The logs that a recovery would read: of a buffered client the one in memory, while it is there.
fn logs(nvm_dir: &Path, options: &CheckOptions, files: &[String], access: Access) -> Vec<LogFile> {
    let volume = options.volume.as_ref().filter(|file| !file.is_staged());
    let buffer_dir = volume.map(VolumeFile::buffer_dir);
    let path = |slot| {
        let in_memory = buffer_dir.as_ref().map(|dir| dir.join(file_name(slot)));
        let there = in_memory.filter(|path| path.is_file());
        there.unwrap_or_else(|| nvm_dir.join(file_name(slot)))
    };
    (0..LOG_SLOTS)
        .filter(|&slot| files.contains(&file_name(slot)))
        .map(|slot| LogFile {
            slot,
            map: MapOptions::new()
                .open_files(&[path(slot)], access)
                .map(Arc::new)
                .map_err(|e| e.to_string()),
        })
        .collect()
}

/// Recovery puts a log aside when one of its records is refused.
fn put_aside(name: &str) -> Finding {
    Finding {
        severity: Severity::Info,
        object: name.to_owned(),
        ino: None,
        block: None,
        what: "log put aside: what it held from the refused record on is not in the volume".into(),
        expected: String::new(),
        found: String::new(),
    }
}

fn wrong(dir: &Path, why: String) -> CheckError {
    PoolError::NvmDir {
        dir: dir.to_path_buf(),
        why,
    }
}

/// Keeps daemons away. `None`: no daemon ever served this directory.
fn hold(dir: &Path) -> Result<Option<File>, CheckError> {
    let path = dir.join(LOCK);
    // Never through a link, and without waiting for a writer of a FIFO in its place.
    let mut options = File::options();
    let options = options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let mut file = match options.open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(PoolError::file(&path, "open the lock", e)),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(PoolError::InUse {
            dir: dir.to_path_buf(),
            holder: holder_of(&mut file),
        }),
        Err(e) => Err(PoolError::file(&path, "lock it", e)),
    }
}

/// Maps the segments side by side. That the last ones are missing shows in the
/// superblock only.
fn segments(dir: &Path, files: &[String], access: Access) -> Result<Map, CheckError> {
    let count = files.iter().filter(|name| name.starts_with("seg-")).count();
    if count == 0 {
        return Err(wrong(dir, "there are no segments of a volume".to_owned()));
    }
    let mut paths: Vec<PathBuf> = Vec::with_capacity(count);
    for n in 0..count {
        let name = segment_name(n);
        if !files.contains(&name) {
            return Err(wrong(dir, format!("{name} is missing")));
        }
        let path = dir.join(&name);
        let meta = std::fs::metadata(&path);
        let found = meta
            .map_err(|e| PoolError::file(&path, "read its attributes", e))?
            .len();
        if found != SEGMENT_BYTES && (n + 1 < count || found > SEGMENT_BYTES || found == 0) {
            return Err(wrong(
                dir,
                format!("{name} has {found} bytes, expected {SEGMENT_BYTES}"),
            ));
        }
        paths.push(path);
    }
    Ok(MapOptions::new().open_files(&paths, access)?)
}
