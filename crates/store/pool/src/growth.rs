//! An NVM directory that gets more segments, between mounts.
//!
//! A file `growing` in the directory says from how many bytes to how many, from before the first segment changes until the volume
//! file names the new size. Which of both the tier has, its first superblock says ([`tier`]). So a process that
//! opens the volume next, whatever has ended growing on the way, takes back what was begun or finishes it ([`resolve`]).

pub mod tier;

use crate::error::{PoolError, Result};
use crate::host_space::{HostSpace, free_memory, shown};
use crate::labels;
use crate::nvm_dir::{GROWING, NvmLock, open_nvm, remove, segment_name, segment_sizes};
use crate::nvm_target::{has_note, resolve_note};
use crate::volume_file::VolumeFile;
use rustix::fs::{FallocateFlags, fallocate};
use serde::Serialize;
use shale_format::limits::BLOCK_BYTES;
use shale_format::superblock::{SUPER_BLOCK, Superblock};
use shale_nvm::{Access, MapOptions};
use shale_sys::{failpoints, private};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tier::{OldTier, superblock_at, write_first};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What growing did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Grown {
    /// The NVM directory.
    pub dir: PathBuf,
    /// Its bytes before.
    pub from_bytes: u64,
    /// Its bytes now.
    pub to_bytes: u64,
    /// Its segments now.
    pub segments: usize,
}

/// Where growing was cut short: what the tier has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Bytes of the tier.
    pub bytes: u64,
    /// It was finished; else it was taken back.
    pub is_grown: bool,
}

/// Has the NVM of a volume grow to `bytes` bytes. Nobody may have it mounted. Records that wait in logs go on waiting. `reached`
/// hears of every step, for tests.
///
/// # Errors
/// It is in use, has no NVM, cannot grow so, or there is no space: the volume is as before.
pub fn grow_nvm(path: &Path, bytes: u64, reached: &dyn Fn(&'static str)) -> Result<Grown> {
    let (mut file, bytes) = to_grow(path, bytes)?;
    let dir = file.nvm_dir().to_path_buf();
    let _lock = NvmLock::take(&dir)?;
    if let Some(resolved) = resolve_locked(&dir, Some(path))? {
        file.nvm[0].size_bytes = resolved.bytes;
    }
    let from = file.nvm_bytes();
    let old = read_old(&file)?;
    let new = old.superblock_of(bytes).map_err(|why| refused(path, why))?;
    check_space(&dir, bytes - from)?;
    for n in segment_sizes(from).len()..segment_sizes(bytes).len() {
        let path = dir.join(segment_name(n));
        if path.symlink_metadata().is_ok() {
            let why = "it is in the way of a new segment: see what it is, and move it away";
            return Err(PoolError::Refused {
                path,
                why: why.to_owned(),
            });
        }
    }
    write_note(&dir, (from, bytes))?;
    reached("grow-noted");
    let made = make_segments(&dir, (from, bytes), reached)
        .and_then(|()| open_nvm(&dir, bytes, &MapOptions::new()))
        .and_then(|map| old.grow(&map, &new));
    if let Err(error) = made {
        // The first failure is the one to report.
        if let Err(second) = resolve_locked(&dir, Some(path)) {
            tracing::warn!("{second}");
        }
        return Err(error);
    }
    reached("grow-written");
    finish(&dir, Some(path), bytes)?;
    Ok(Grown {
        dir,
        from_bytes: from,
        to_bytes: bytes,
        segments: segment_sizes(bytes).len(),
    })
}

/// What [`grow_nvm`] would refuse, as far as that can be seen while the volume is in use.
///
/// # Errors
/// As there.
pub fn may_grow(path: &Path, bytes: u64) -> Result<()> {
    let (file, bytes) = to_grow(path, bytes)?;
    let dir = file.nvm_dir();
    let map = open_nvm(dir, file.nvm_bytes(), &MapOptions::new())?;
    let superblock = superblock_at(&map, SUPER_BLOCK)?;
    file.check_superblock(&superblock)?;
    tier::grown(&superblock, bytes).map_err(|why| refused(path, why))?;
    check_space(dir, bytes - file.nvm_bytes())
}

/// The volume file of a volume that has NVM, and the bytes of whole blocks.
fn to_grow(path: &Path, bytes: u64) -> Result<(VolumeFile, u64)> {
    let file = VolumeFile::load(path)?;
    if file.is_staged() {
        let why = "the volume has no NVM, and its memory tier stays as mkfs made it";
        return Err(refused(path, why.to_owned()));
    }
    Ok((file, bytes / BLOCK * BLOCK))
}

fn refused(path: &Path, why: String) -> PoolError {
    PoolError::Refused {
        path: path.to_path_buf(),
        why,
    }
}

/// The tier as it is, if it is that of this volume.
fn read_old(file: &VolumeFile) -> Result<OldTier> {
    let dir = file.nvm_dir();
    let map = Arc::new(open_nvm(dir, file.nvm_bytes(), &MapOptions::new())?);
    labels::check(dir, &file.uuid_bytes(), map.pieces().len())?;
    let old = OldTier::read(&map)?;
    file.check_superblock(&old.superblock)?;
    Ok(old)
}

fn check_space(dir: &Path, more: u64) -> Result<()> {
    let host = HostSpace::of(dir)?;
    let memory = free_memory().filter(|_| host.is_memory);
    let free = memory.map_or(host.free_bytes, |memory| memory.min(host.free_bytes));
    if more <= free {
        return Ok(());
    }
    let (more, free) = (shown(more), shown(free));
    let why = format!(
        "the segments to be made take {more}, and {free} are free there ({})",
        host.kind
    );
    Err(PoolError::Refused {
        path: dir.to_path_buf(),
        why,
    })
}

fn note_path(dir: &Path) -> PathBuf {
    dir.join(GROWING)
}

/// Makes what was written in a directory durable: names of files.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|e| PoolError::file(dir, "sync it", e))
}

fn write_note(dir: &Path, (from, to): (u64, u64)) -> Result<()> {
    let path = note_path(dir);
    let beside = dir.join(format!("{GROWING}.new"));
    let _ = std::fs::remove_file(&beside);
    let written = private::create_new(&beside)
        .and_then(|mut file| {
            writeln!(file, "{from} {to}")?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&beside, &path));
    written.map_err(|e| PoolError::file(&path, "write it", e))?;
    sync_dir(dir)
}

/// What a note says; none: nothing is growing.
fn read_note(dir: &Path) -> Result<Option<(u64, u64)>> {
    let path = note_path(dir);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(PoolError::file(&path, "read it", e)),
    };
    let sizes = text.trim().split_once(' ');
    let sizes = sizes.and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let is_size = |(from, to): &(u64, u64)| *from > 0 && from < to && to.is_multiple_of(BLOCK);
    sizes
        .filter(is_size)
        .map(Some)
        .ok_or_else(|| PoolError::NvmDir {
            dir: dir.to_path_buf(),
            why: format!(
                "{GROWING} says '{}', expected two sizes in bytes",
                text.trim()
            ),
        })
}

/// Makes the last segment as long as it has to be, and those behind it.
pub(crate) fn make_segments(
    dir: &Path,
    (from, to): (u64, u64),
    reached: &dyn Fn(&'static str),
) -> Result<()> {
    let (old, new) = (segment_sizes(from), segment_sizes(to));
    let last = old.len() - 1;
    if new[last] > old[last] {
        let path = dir.join(segment_name(last));
        let grown = failpoints::io()
            .map_err(std::io::Error::from)
            .and_then(|()| {
                let file = File::options().write(true).open(&path)?;
                fallocate(&file, FallocateFlags::empty(), 0, new[last])?;
                file.sync_all()
            });
        grown.map_err(|e| PoolError::file(&path, format!("allocate {} bytes", new[last]), e))?;
    }
    reached("grow-last");
    let files: Vec<_> = { new.iter().enumerate().skip(old.len()) }
        .map(|(n, &size)| (dir.join(segment_name(n)), size as usize))
        .collect();
    if !files.is_empty() {
        MapOptions::new().create_files(&files)?.prepare()?;
    }
    reached("grow-segments");
    Ok(())
}

/// Takes back what was made for a larger tier.
fn take_back(dir: &Path, (from, to): (u64, u64)) -> Result<()> {
    let (old, new) = (segment_sizes(from), segment_sizes(to));
    for n in (old.len()..new.len()).rev() {
        remove(&dir.join(segment_name(n)))?;
    }
    let last = old.len() - 1;
    let path = dir.join(segment_name(last));
    let cut = File::options().write(true).open(&path).and_then(|file| {
        // One that is shorter is not what growing has left.
        match file.metadata()?.len() > old[last] {
            true => file.set_len(old[last]),
            false => Ok(()),
        }
    });
    cut.map_err(|e| PoolError::file(&path, "take back what it grew by", e))?;
    forget(dir)
}

fn forget(dir: &Path) -> Result<()> {
    sync_dir(dir)?;
    remove(&note_path(dir))?;
    sync_dir(dir)
}

/// The tier is the larger one: the volume file says so, and then nothing is growing.
fn finish(dir: &Path, path: Option<&Path>, bytes: u64) -> Result<()> {
    if let Some(path) = path {
        VolumeFile::edit(path, |_, file| {
            file.nvm.iter_mut().for_each(|nvm| nvm.size_bytes = bytes);
        })?;
    }
    failpoints::reach("grow-named");
    forget(dir)
}

/// Where growing the NVM of a volume was cut short, takes it back or finishes it; where a volume was getting NVM, or losing it, wipes the
/// staging area that is none. `path`: the volume file, which names the size then.
///
/// # Errors
/// Somebody has it mounted, or neither size is what the segments hold: nothing has changed then.
pub fn resolve(file: &VolumeFile, path: Option<&Path>) -> Result<Option<Resolved>> {
    let dir = file.nvm_dir();
    let is_growing = || note_path(dir).symlink_metadata().is_ok();
    if file.is_staged() || !(is_growing() || has_note(dir)) {
        return Ok(None);
    }
    let _lock = NvmLock::take(dir)?;
    resolve_locked(dir, path)
}

pub(crate) fn resolve_locked(dir: &Path, path: Option<&Path>) -> Result<Option<Resolved>> {
    resolve_note(dir)?;
    let Some((from, to)) = read_note(dir)? else {
        return Ok(None);
    };
    let blocks = |superblock: Superblock| superblock.tier[0].blocks * BLOCK;
    let first = MapOptions::new().open_files(&[dir.join(segment_name(0))], Access::ReadOnly)?;
    let first = superblock_at(&first, SUPER_BLOCK).map(blocks);
    match first {
        Ok(bytes) if bytes == from => {
            take_back(dir, (from, to))?;
            Ok(Some(Resolved {
                bytes: from,
                is_grown: false,
            }))
        }
        Ok(bytes) if bytes != to => Err(PoolError::NvmDir {
            dir: dir.to_path_buf(),
            why: format!(
                "it was growing from {from} to {to} bytes, and its superblock says {bytes}: were segments put back from a backup?"
            ),
        }),
        found => {
            if found.is_err() {
                write_first(&open_nvm(dir, to, &MapOptions::new())?)?;
            }
            finish(dir, path, to)?;
            Ok(Some(Resolved {
                bytes: to,
                is_grown: true,
            }))
        }
    }
}

#[cfg(test)]
mod tests;
