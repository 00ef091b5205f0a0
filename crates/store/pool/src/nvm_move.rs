//! An NVM directory that goes to another file system, between mounts: copied, compared, and then named by the volume file.
//!
//! Until the volume file names the new directory the old one is the volume, and what is in the new one belongs to nobody: a file `copying`
//! there says of which volume it is, so that the next try may begin again. From then on the new one is the volume, and the old files
//! go. What programs have mapped of them stays theirs until it is unmapped.

use crate::error::{PoolError, Result};
use crate::growth;
use crate::labels;
use crate::nvm_dir::{COPYING, MAPPING_PREFIX, NvmLock, remove, volume_files};
use crate::nvm_target::{Note, Wanted, clear, prepare, refused};
use crate::volume_file::VolumeFile;
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use serde::Serialize;
use shale_sys::{failpoints, private};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Bytes that are copied at once.
const PART: usize = 1 << 20;

/// What was moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// The directory before.
    pub from: PathBuf,
    /// The directory now.
    pub to: PathBuf,
    /// Files that were copied: segments and update logs.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// One that copies and compares, and tells how far it is.
struct Copy<'c> {
    from: &'c Path,
    to: &'c Path,
    names: Vec<String>,
    /// Bytes that are done, of twice those of all files.
    done: u64,
    of: u64,
    progress: &'c mut dyn FnMut(u64, u64),
}

/// Moves the NVM of a volume to the directory `to`, which is made, or empty. Nobody may have it mounted. Records that wait in logs go
/// with it. `progress` hears what is done, and of how much; `reached` of every step, for tests.
///
/// # Errors
/// It is in use or has no NVM, or something else is there, or no space; what was copied is not what was there: the volume is as before.
pub fn move_nvm(
    path: &Path,
    to: &Path,
    progress: &mut dyn FnMut(u64, u64),
    reached: &dyn Fn(&'static str),
) -> Result<Moved> {
    let file = VolumeFile::load(path)?;
    if file.is_staged() {
        return Err(refused(path, "the volume has no NVM"));
    }
    let to = std::path::absolute(to).map_err(|e| PoolError::file(to, "resolve it", e))?;
    let from = file.nvm_dir().to_path_buf();
    let _lock = NvmLock::take(&from)?;
    growth::resolve_locked(&from, Some(path))?;
    let names = volume_files(&from)?;
    let names: Vec<String> = { names.into_iter() }
        .filter(|name| !name.starts_with(MAPPING_PREFIX))
        .collect();
    let sizes = names.iter().map(|name| bytes_of(&from.join(name)));
    let bytes: u64 = sizes.sum::<Result<u64>>()?;
    prepare(&Wanted {
        to: &to,
        from: Some(&from),
        uuid: &file.uuid,
        bytes,
        what: "segments and update logs",
    })?;
    let _lock = NvmLock::take(&to)?;
    Note::of(&file.uuid).write(&to)?;
    reached("move-noted");
    let mut copy = Copy {
        from: &from,
        to: &to,
        names,
        done: 0,
        of: bytes * 2,
        progress,
    };
    let copied = copy.all(reached);
    if let Err(error) = copied {
        // The first failure is the one to report.
        let _ = clear(&to);
        let _ = std::fs::remove_dir(&to);
        return Err(error);
    }
    reached("move-copied");
    VolumeFile::edit(path, |_, file| {
        file.nvm.iter_mut().for_each(|nvm| nvm.dir = to.clone());
    })?;
    failpoints::reach("move-named");
    reached("move-named");
    remove(&to.join(COPYING))?;
    let moved = Moved {
        files: copy.names.len(),
        bytes,
        from: from.clone(),
        to: to.clone(),
    };
    clear(&from)?;
    // Of a file system's root, or with somebody's files in it, it stays.
    let _ = std::fs::remove_dir(&from);
    Ok(moved)
}

fn bytes_of(path: &Path) -> Result<u64> {
    let found = path.symlink_metadata();
    let found = found.map_err(|e| PoolError::file(path, "read its attributes", e))?;
    match found.is_file() {
        true => Ok(found.len()),
        false => Err(refused(path, "it is no file")),
    }
}

impl Copy<'_> {
    fn all(&mut self, reached: &dyn Fn(&'static str)) -> Result<()> {
        let names = self.names.clone();
        for name in &names {
            self.copy(name)?;
        }
        let synced = File::open(self.to).and_then(|dir| dir.sync_all());
        synced.map_err(|e| PoolError::file(self.to, "sync it", e))?;
        reached("move-written");
        names.iter().try_for_each(|name| self.compare(name))
    }

    fn is_done(&mut self, bytes: usize) {
        self.done += bytes as u64;
        (self.progress)(self.done, self.of);
    }

    fn open(&self, name: &str) -> Result<File> {
        let path = self.from.join(name);
        File::open(&path).map_err(|e| PoolError::file(&path, "open it", e))
    }

    /// Copies a file and its label, durably, with all its space.
    fn copy(&mut self, name: &str) -> Result<()> {
        let (path, mut old) = (self.to.join(name), self.open(name)?);
        let failed = |e: std::io::Error| PoolError::file(&path, "copy it there", e);
        let bytes = bytes_of(&self.from.join(name))?;
        let mut new = private::create_new(&path).map_err(failed)?;
        if bytes > 0 {
            let made = fallocate(&new, FallocateFlags::empty(), 0, bytes);
            made.map_err(|e| failed(e.into()))?;
        }
        let mut part = vec![0; PART];
        loop {
            let n = old.read(&mut part).map_err(failed)?;
            if n == 0 {
                break;
            }
            new.write_all(&part[..n]).map_err(failed)?;
            self.is_done(n);
        }
        labels::copy(&self.from.join(name), &path)?;
        new.sync_all().map_err(failed)
    }

    /// Reads both, the new one from its medium where the system lets that be asked for.
    fn compare(&mut self, name: &str) -> Result<()> {
        let path = self.to.join(name);
        let failed = |e: std::io::Error| PoolError::file(&path, "read it again", e);
        let (mut old, mut new) = (self.open(name)?, File::open(&path).map_err(failed)?);
        let _ = fadvise(&new, 0, None, Advice::DontNeed);
        let (mut part, mut other) = (vec![0; PART], vec![0; PART]);
        loop {
            let n = old.read(&mut part).map_err(failed)?;
            let same = match n {
                0 => new.read(&mut other[..1]).map_err(failed)? == 0,
                n => {
                    new.read_exact(&mut other[..n]).map_err(failed)?;
                    part[..n] == other[..n]
                }
            };
            if !same {
                let why = "it is not what was copied there: is the medium damaged?";
                return Err(refused(&path, why));
            }
            if n == 0 {
                return Ok(());
            }
            self.is_done(n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvm_dir::{open_nvm, segment_name};
    use crate::volume_file::NvmEntry;
    use crate::{MakeOptions, make_volume};
    use shale_format::Durability;
    use shale_format::limits::LOG_BYTES_MIN;
    use shale_nvm::MapOptions;
    use shale_sys::SystemClock;
    use shale_volume::Volume;
    use std::os::unix::fs::FileExt;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    const BYTES: u64 = 70 << 20;

    struct Place {
        dir: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Place {
            let dir = tempfile::tempdir_in("/dev/shm").unwrap();
            let place = Place { dir };
            let options = MakeOptions {
                file: place.at("V.toml"),
                name: "v".to_owned(),
                nvm: Some(NvmEntry::new(place.at("old"), BYTES)),
                staged: Default::default(),
                lower: Default::default(),
                log_bytes: LOG_BYTES_MIN,
                durability: Durability::Strict,
                owner_uid: 0,
                owner_gid: 0,
                root_mode: 0o755,
                trusted_uids: vec![],
                force: false,
            };
            make_volume(&options, &SystemClock::new()).unwrap();
            std::fs::write(place.at("old/log-003"), vec![3; 10_000]).unwrap();
            std::fs::write(place.at("old/map-7"), b"mapped").unwrap();
            place
        }

        fn at(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn moved(&self, to: &str) -> Result<Moved> {
            move_nvm(&self.at("V.toml"), &self.at(to), &mut |_, _| (), &|_| ())
        }

        /// The volume is whole where its file says that it is.
        fn is_in(&self, dir: &str) {
            let file = VolumeFile::load(&self.at("V.toml")).unwrap();
            assert_eq!(file.nvm_dir(), self.at(dir));
            let map = Arc::new(open_nvm(file.nvm_dir(), BYTES, &MapOptions::new()).unwrap());
            assert_eq!(
                labels::check(file.nvm_dir(), &file.uuid_bytes(), 2).unwrap(),
                0
            );
            Volume::open(map).unwrap();
            let log = std::fs::read(self.at(dir).join("log-003")).unwrap();
            assert!(log == vec![3; 10_000]);
        }
    }

    #[test]
    fn all_of_it_goes_and_nothing_is_left() {
        let place = Place::new();
        let mut last = (0, 0);
        let moved = move_nvm(
            &place.at("V.toml"),
            &place.at("new"),
            &mut |done, of| last = (done, of),
            &|_| (),
        );
        let moved = moved.unwrap();
        assert_eq!((moved.files, moved.bytes), (3, BYTES + 10_000));
        assert_eq!(last, (2 * moved.bytes, 2 * moved.bytes));
        place.is_in("new");
        assert!(!place.at("old").exists());
        assert!(!place.at("new/map-7").exists() && !place.at("new/copying").exists());
        place.moved("old").unwrap();
        place.is_in("old");
    }

    #[test]
    fn what_is_refused_changes_nothing() {
        let place = Place::new();
        std::fs::create_dir(place.at("full")).unwrap();
        std::fs::write(place.at("full/mine"), b"x").unwrap();
        std::fs::write(place.at("file"), b"x").unwrap();
        for (to, part) in [
            ("old", "there already"),
            ("full", "mine"),
            ("file", "not a directory"),
            ("none/new", "make the NVM directory"),
        ] {
            let why = place.moved(to).unwrap_err().to_string();
            assert!(why.contains(part), "{to}: {why}");
            place.is_in("old");
        }
        assert_eq!(std::fs::read(place.at("full/mine")).unwrap(), b"x");
        let lock = NvmLock::take(&place.at("old")).unwrap();
        assert!(place.moved("new").unwrap_err().is_busy());
        drop(lock);
    }

    #[test]
    fn what_is_read_back_otherwise_is_no_copy() {
        let place = Place::new();
        let damage = |step: &str| {
            if step == "move-written" {
                let path = place.at("new").join(segment_name(1));
                let file = File::options().write(true).open(path).unwrap();
                file.write_all_at(&[1], 4711).unwrap();
            }
        };
        let moved = move_nvm(
            &place.at("V.toml"),
            &place.at("new"),
            &mut |_, _| (),
            &|step| damage(step),
        );
        let why = moved.unwrap_err().to_string();
        assert!(why.contains("seg-0001: it is not what was copied"), "{why}");
        assert!(!place.at("new").exists());
        place.is_in("old");
    }

    #[test]
    fn a_move_that_was_cut_short_can_begin_again() {
        for (step, is_in) in [
            ("move-noted", "old"),
            ("move-written", "old"),
            ("move-copied", "old"),
            ("move-named", "new"),
        ] {
            let place = Place::new();
            let quiet = std::panic::take_hook();
            std::panic::set_hook(Box::new(|_| ()));
            let cut = catch_unwind(AssertUnwindSafe(|| {
                let (file, to) = (place.at("V.toml"), place.at("new"));
                move_nvm(&file, &to, &mut |_, _| (), &|at| assert!(at != step))
            }));
            std::panic::set_hook(quiet);
            assert!(cut.is_err(), "{step} is not reached");
            place.is_in(is_in);
            let to = if is_in == "old" { "new" } else { "third" };
            place.moved(to).unwrap();
            place.is_in(to);
        }
    }
}
