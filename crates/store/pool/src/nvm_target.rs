//! A directory that NVM is made in, of a volume that there is already: prepared, noted, cleared.
//!
//! A file `copying` in an NVM directory says of which volume it is; until the volume file names the directory nothing in it counts. Where the
//! volume goes from a staging area to NVM, or back, the note has a second line: "AT STARTS DEVICE", the byte of the device at which the
//! area begins, the count on the device's label, and the device. A process that opens an NVM directory which the volume file names, and finds such a
//! note, wipes the area, which is none any more, or not yet, before the note goes ([`resolve_note`]).

use crate::devices::label_of;
use crate::error::{PoolError, Result};
use crate::host_space::{HostSpace, free_memory, shown};
use crate::labels::{self, PUT_BACK};
use crate::nvm_dir::{COPYING, NvmLock, lock_path, remove, strangers, volume_files};
use crate::staged::area::failed;
use crate::staged::memory_tier::unlock;
use crate::volume_file::{parse_uuid, shared_memory_dir};
use shale_block::BlockFile;
use shale_persist::staged::wipe_area;
use shale_sys::private;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

pub(crate) fn refused(path: &Path, why: impl Into<String>) -> PoolError {
    PoolError::Refused {
        path: path.to_path_buf(),
        why: why.into(),
    }
}

/// What a directory is to hold.
pub(crate) struct Wanted<'w> {
    pub(crate) to: &'w Path,
    /// Where the volume's NVM is now; none: it has none.
    pub(crate) from: Option<&'w Path>,
    pub(crate) uuid: &'w str,
    pub(crate) bytes: u64,
    /// What these bytes are, for a message.
    pub(crate) what: &'w str,
}

/// Makes the directory if it is not there. One that is there must be empty, or have what an earlier try has left.
pub(crate) fn prepare(wanted: &Wanted<'_>) -> Result<()> {
    let Wanted { to, bytes, .. } = *wanted;
    match to.metadata() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let made = std::fs::DirBuilder::new().mode(0o700).create(to);
            made.map_err(|e| PoolError::file(to, "make the NVM directory", e))?;
        }
        Err(e) => return Err(PoolError::file(to, "look at it", e)),
        Ok(found) if !found.is_dir() => return Err(refused(to, "it is not a directory")),
        Ok(found) if found.mode() & 0o002 != 0 => {
            let why = "every user may write to it: give a directory in it, or chmod 700 it";
            return Err(refused(to, why));
        }
        Ok(found) => {
            let old = wanted.from.and_then(|from| from.metadata().ok());
            if old.is_some_and(|old| (old.dev(), old.ino()) == (found.dev(), found.ino())) {
                return Err(refused(to, "the NVM of the volume is there already"));
            }
        }
    }
    let began = Note::read(to)?.is_some_and(|note| note.uuid == wanted.uuid);
    if began {
        clear(to)?;
    }
    let there = [strangers(to)?, volume_files(to)?].concat();
    if let Some(first) = there.first() {
        let why = format!(
            "it holds other files ({first} and {} more): give an empty directory, or one that is to be made",
            there.len() - 1
        );
        return Err(refused(to, why));
    }
    let host = HostSpace::of(to)?;
    let memory = free_memory().filter(|_| host.is_memory);
    let free = memory.map_or(host.free_bytes, |memory| memory.min(host.free_bytes));
    if bytes > free {
        let why = format!(
            "{} take {}, and {} are free there ({})",
            wanted.what,
            shown(bytes),
            shown(free),
            host.kind
        );
        return Err(refused(to, why));
    }
    Ok(())
}

/// Takes away all files of a volume. The note goes last: while one of the others is there, it says that nothing counts.
pub(crate) fn clear(dir: &Path) -> Result<()> {
    for name in volume_files(dir)? {
        remove(&dir.join(name))?;
    }
    for path in [dir.join(COPYING), lock_path(dir)] {
        remove(&path)?;
    }
    Ok(())
}

/// An area that counts as long as the volume file does not name the NVM directory with the note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotedArea {
    pub(crate) device: PathBuf,
    pub(crate) at_byte: u64,
    /// Starts of the volume that the device had seen.
    pub(crate) starts: u64,
}

/// What the file `copying` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    uuid: String,
    area: Option<NotedArea>,
}

impl Note {
    /// That all of the directory is the volume's that is copied to it.
    pub(crate) fn of(uuid: &str) -> Note {
        Note {
            uuid: uuid.to_owned(),
            area: None,
        }
    }

    pub(crate) fn with_area(self, area: NotedArea) -> Note {
        Note {
            area: Some(area),
            ..self
        }
    }

    /// What is noted in a directory; none: nothing.
    fn read(dir: &Path) -> Result<Option<Note>> {
        let path = dir.join(COPYING);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(PoolError::file(&path, "read it", e)),
        };
        let mut lines = text.lines();
        let uuid = lines.next().unwrap_or_default().to_owned();
        let area = lines.next().and_then(|line| {
            let mut words = line.splitn(3, ' ');
            Some(NotedArea {
                at_byte: words.next()?.parse().ok()?,
                starts: words.next()?.parse().ok()?,
                device: PathBuf::from(words.next()?),
            })
        });
        Ok(Some(Note { uuid, area }))
    }

    /// Writes it, durably, in place of one that is there. Half of one is as none: what it would protect is not there yet.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(COPYING);
        remove(&path)?;
        let written = private::create_new(&path)
            .and_then(|mut file| {
                writeln!(file, "{}", self.uuid)?;
                if let Some(area) = &self.area {
                    let NotedArea {
                        device,
                        at_byte,
                        starts,
                    } = area;
                    writeln!(file, "{at_byte} {starts} {}", device.display())?;
                }
                file.sync_all()
            })
            .and_then(|()| std::fs::File::open(dir)?.sync_all());
        written.map_err(|e| PoolError::file(&path, "write it", e))
    }
}

/// Whether a directory has a note.
pub(crate) fn has_note(dir: &Path) -> bool {
    dir.join(COPYING).symlink_metadata().is_ok()
}

/// Of an NVM directory that the volume file names, and that is locked: where it has a note, the area that it names is wiped, and the note
/// goes. A device that cannot be opened keeps the note; the volume can be used.
///
/// # Errors
/// The area was in use since the note was written: the volume file is an old one.
pub(crate) fn resolve_note(dir: &Path) -> Result<bool> {
    let Some(note) = Note::read(dir)? else {
        return Ok(false);
    };
    if let (Some(area), Some(uuid)) = (&note.area, parse_uuid(&note.uuid)) {
        // A version that knows no such notes may have mounted it since: then its segments tell so.
        let segments = volume_files(dir)?;
        let segments = segments.iter().filter(|name| name.starts_with("seg-"));
        let starts = labels::check(dir, &uuid, segments.count()).unwrap_or(0);
        match area.wipe(uuid, starts.max(area.starts)) {
            Ok(()) => {}
            Err(e @ PoolError::NvmDir { .. }) => return Err(e),
            Err(e) => {
                tracing::warn!(
                    "{e}: its staging area is of no use any more, and stays until the device can be opened"
                );
                return Ok(false);
            }
        }
    }
    if let Some(uuid) = parse_uuid(&note.uuid) {
        forget_memory(&shared_memory_dir(&uuid));
    }
    remove(&dir.join(COPYING))?;
    Ok(true)
}

/// Removes a directory of shared memory that was only locked when a process was killed. What is in use, or holds anything, stays.
fn forget_memory(dir: &Path) {
    let own = rustix::process::geteuid().as_raw();
    let found = dir.symlink_metadata();
    if found.is_ok_and(|found| found.is_dir() && found.uid() == own)
        && let Ok(lock) = NvmLock::take(dir)
    {
        // It is only tidy.
        let _ = unlock(dir, lock);
    }
}

impl NotedArea {
    /// Wipes the area of this volume. `starts`: how often the volume was started, as its NVM tells.
    fn wipe(&self, uuid: [u8; 16], starts: u64) -> Result<()> {
        let device = BlockFile::open(&self.device, self.at_byte)?;
        match label_of(&device)? {
            Some(label) if label.volume == uuid && label.count > starts => {
                let (found, expected) = (label.count, starts);
                Err(PoolError::NvmDir {
                    dir: self.device.clone(),
                    why: format!(
                        "the volume has no NVM any more, or this is an old copy of it (label {found}, expected {expected}): is \
                         the volume file an old one? {PUT_BACK}"
                    ),
                })
            }
            Some(label) if label.volume == uuid => {
                let wiped = wipe_area(&device, self.at_byte, uuid);
                wiped.map(drop).map_err(|e| failed(&self.device, e))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Note::read(dir.path()).unwrap(), None);
        let plain = Note::of("7");
        let area = NotedArea {
            device: "/srv/an ssd.img".into(),
            at_byte: 4096,
            starts: 6,
        };
        for note in [plain.clone(), plain.with_area(area)] {
            note.write(dir.path()).unwrap();
            assert_eq!(Note::read(dir.path()).unwrap(), Some(note));
        }
        assert!(has_note(dir.path()) && strangers(dir.path()).unwrap().is_empty());
    }
}
