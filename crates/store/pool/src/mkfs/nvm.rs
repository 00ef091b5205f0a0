//! A volume in an NVM directory.

use super::checks::{Begun, check_file, check_name, check_tables, refused};
use super::contents::{self, log_bytes};
use super::options::{Made, MakeOptions};
use crate::buffer_dir;
use crate::devices::NewDevices;
use crate::error::{PoolError, Result};
use crate::host_space::{HostSpace, NvmNeed, check_space};
use crate::nvm_dir::{
    COPYING, GROWING, NvmLock, lock_path, make_nvm, remove, strangers, volume_files,
};
use crate::random::random;
use crate::volume_file::{NvmEntry, VolumeFile, shared_memory_dir};
use shale_format::limits::{BLOCK_BYTES, NVM_BYTES_MIN};
use shale_nvm::{Access, Map, MapOptions};
use shale_persist::Domain;
use shale_sys::Clock;
use shale_volume::View;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// Makes a volume whose memory tier is NVM.
pub(crate) fn make(options: &MakeOptions, nvm: &NvmEntry, clock: &dyn Clock) -> Result<Made> {
    let dir =
        std::path::absolute(&nvm.dir).map_err(|e| PoolError::file(&nvm.dir, "resolve it", e))?;
    let bytes = nvm.size_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    if bytes < NVM_BYTES_MIN {
        return Err(PoolError::VolumeFile {
            path: options.file.clone(),
            key: "nvm.size_bytes".to_owned(),
            why: format!("{bytes} is below the least of {NVM_BYTES_MIN}"),
        });
    }
    check_name(options)?;
    check_file(options)?;
    let there = check_dir(&dir, options)?;
    // Everything that could be refused is refused before anything is made, or lost.
    let tables = NewDevices::plan(&options.lower)?;
    check_tables(bytes, tables, options)?;
    let logs = log_bytes(options, bytes);
    let need = NvmNeed::new(bytes, logs.0, logs.1.unwrap_or(logs.0));
    if !options.force {
        let parent = dir.parent().unwrap_or(Path::new("/"));
        let at = if dir.exists() { &*dir } else { parent };
        check_space((&dir, at), &need, options.lower.tiers())?;
    }
    let mut begun = Begun::default();
    begun.expect(&dir);
    if !dir.is_dir() {
        // Nobody else has any business there: files have names, times and sizes.
        let made = std::fs::DirBuilder::new().mode(0o700).create(&dir);
        made.map_err(|e| PoolError::file(&dir, "make the NVM directory", e))?;
    }
    begun.expect(&lock_path(&dir));
    let lock = NvmLock::take(&dir)?;
    for device in options.lower.tiers().into_iter().flatten() {
        begun.expect(&device.path);
    }
    let devices = NewDevices::open(&options.lower, options.force)?;
    if let Some(uuid) = volume_in(&dir, &there) {
        // What was in memory of a volume that is destroyed goes with it.
        buffer_dir::remove_all(&shared_memory_dir(&uuid))?;
    }
    for name in there.iter().map(String::as_str).chain([GROWING, COPYING]) {
        remove(&dir.join(name))?;
    }
    let made = make_in(options, (&dir, bytes), logs, &devices, clock);
    if made.is_err() {
        devices.wipe();
        for name in volume_files(&dir)? {
            remove(&dir.join(name))?;
        }
    }
    drop(lock);
    let (map, file) = made?;
    begun.kept = true;
    Ok(Made {
        host: HostSpace::of(&dir)?,
        need,
        file,
        domain: Domain::of(&map),
        huge_pages: map.huge_pages(),
        segments: map.pieces().len(),
        divided: devices.divided(),
        area_bytes: 0,
    })
}

/// Identity of the volume of these files in a directory, if its superblock can be read.
fn volume_in(dir: &Path, files: &[String]) -> Option<[u8; 16]> {
    let segments = files.iter().filter(|name| name.starts_with("seg-"));
    let segments: Vec<_> = segments.map(|name| dir.join(name)).collect();
    let map = MapOptions::new()
        .open_files(&segments, Access::ReadOnly)
        .ok()?;
    let (view, _) = View::open_head(Arc::new(map)).ok()?;
    Some(view.superblock().uuid)
}

/// The files of a volume that are in the NVM directory. One that is missing can be made; in one that is there nothing else is.
fn check_dir(dir: &Path, options: &MakeOptions) -> Result<Vec<String>> {
    let parent = dir.parent().unwrap_or(Path::new("/"));
    let found = match dir.metadata() {
        Ok(found) => found,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && dir.symlink_metadata().is_err() => {
            return match parent.is_dir() {
                true => Ok(Vec::new()),
                false => {
                    let why = format!(
                        "{} is missing: only the last directory is made (is a file system not mounted?)",
                        parent.display()
                    );
                    Err(refused(dir, why))
                }
            };
        }
        Err(e) => return Err(PoolError::file(dir, "look at it", e)),
    };
    if !found.is_dir() {
        return Err(refused(dir, "it is not a directory"));
    }
    if found.mode() & 0o002 != 0 {
        let why = format!(
            "every user may write to it (mode {:04o}), and take names in it: give a directory in it, or chmod 700 it",
            found.mode() & 0o7777
        );
        return Err(refused(dir, why));
    }
    let there = volume_files(dir)?;
    let strangers = strangers(dir)?;
    if let (Some(first), true) = (strangers.first(), there.is_empty()) {
        let why = format!(
            "it holds other files ({first} and {} more): give an empty directory, or one that is to be made",
            strangers.len() - 1
        );
        return Err(refused(dir, why));
    }
    match (there.first(), options.force) {
        (Some(first), false) => Err(PoolError::Exists {
            path: dir.to_path_buf(),
            found: format!("{first} and {} more files", there.len() - 1),
        }),
        _ => Ok(there),
    }
}

fn make_in(
    options: &MakeOptions,
    (dir, bytes): (&Path, u64),
    logs: (u64, Option<u64>),
    devices: &NewDevices,
    clock: &dyn Clock,
) -> Result<(Arc<Map>, VolumeFile)> {
    let map = Arc::new(make_nvm(dir, bytes, &MapOptions::new())?);
    let nvm = NvmEntry {
        model: options.nvm.as_ref().and_then(|nvm| nvm.model.clone()),
        ..NvmEntry::new(dir, bytes)
    };
    let file = VolumeFile {
        nvm: vec![nvm],
        ..contents::volume_file(options, &random()?, logs, devices)?
    };
    contents::write(options, &file, &map, devices, clock)?;
    file.save(&options.file)?;
    Ok((map, file))
}
