//! The directory that backups are in.
//!
//! ```text
//! DEST/shale-backup                    says what the directory is
//! DEST/lock                            held by who takes a backup
//! DEST/0001-20261129T225012Z/manifest  the tree
//! DEST/0001-20261129T225012Z/content   the content that no backup before had
//! DEST/0002-20261129T235012Z.partial/  one that is being taken, or was cut off
//! ```
//!
//! A backup is complete when its directory has lost its ending: content and manifest are durable before. Nothing that is
//! complete is ever changed, so one that is cut off takes nothing from those before it.

use crate::error::{BackupError, Result};
use crate::manifest::{FILE, Hash, Header, Manifest, Piece};
use rustix::fs::FlockOperation;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MARKER: &str = "shale-backup";
const MARKER_TEXT: &str =
    "Backups of a Shale volume, format 1: shale backup --list, shale restore.\n";
const LOCK: &str = "lock";
const CONTENT: &str = "content";
const PARTIAL: &str = ".partial";

/// A directory of backups.
#[derive(Clone, Debug)]
pub struct Store(PathBuf);

/// Held while a backup is taken.
#[derive(Debug)]
pub struct StoreLock {
    _file: File,
}

impl Store {
    /// The directory at `path`, which is made if there is none or if it is empty.
    ///
    /// # Errors
    /// It holds something else; those of the file system.
    pub fn create(path: &Path) -> Result<Self> {
        match fs::create_dir(path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(BackupError::file(path, "make the directory")(e));
            }
            _ => {}
        }
        if Self::open(path).is_err() {
            let mut inside = fs::read_dir(path).map_err(BackupError::file(path, "list it"))?;
            if inside.next().is_some() {
                return Err(BackupError::NotAStore {
                    path: path.to_owned(),
                    why: "it is not empty, and no directory of backups",
                });
            }
            let marker = path.join(MARKER);
            fs::write(&marker, MARKER_TEXT).map_err(BackupError::file(&marker, "write it"))?;
        }
        Self::open(path)
    }

    /// The directory at `path`.
    ///
    /// # Errors
    /// It is not one of backups.
    pub fn open(path: &Path) -> Result<Self> {
        match fs::read_to_string(path.join(MARKER)) {
            Ok(text) if text == MARKER_TEXT => Ok(Self(path.to_owned())),
            Ok(_) => Err(BackupError::NotAStore {
                path: path.to_owned(),
                why: "its backups are of another version",
            }),
            Err(_) => Err(BackupError::NotAStore {
                path: path.to_owned(),
                why: "it is no directory of backups",
            }),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Nobody else takes a backup as long as the lock is held.
    ///
    /// # Errors
    /// [`BackupError::Busy`].
    pub fn lock(&self) -> Result<StoreLock> {
        let path = self.0.join(LOCK);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path);
        let file = file.map_err(BackupError::file(&path, "open it"))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(StoreLock { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(BackupError::Busy(self.0.clone())),
            Err(e) => Err(BackupError::file(&path, "lock it")(e)),
        }
    }

    fn named(&self, is_partial: bool) -> Result<Vec<String>> {
        let inside = fs::read_dir(&self.0).map_err(BackupError::file(&self.0, "list it"))?;
        let mut names = Vec::new();
        for entry in inside {
            let entry = entry.map_err(BackupError::file(&self.0, "list it"))?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let is_backup = name.as_bytes().first().is_some_and(u8::is_ascii_digit);
            if is_backup && name.ends_with(PARTIAL) == is_partial {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Names of the complete backups, oldest first.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn complete(&self) -> Result<Vec<String>> {
        self.named(false)
    }

    /// Names of directories of backups that were cut off, or are being taken.
    ///
    /// # Errors
    /// As there.
    pub fn partial(&self) -> Result<Vec<String>> {
        self.named(true)
    }

    /// The complete backup that `name` is, or begins: `None`: the newest one.
    ///
    /// # Errors
    /// [`BackupError::NoBackup`].
    pub fn find(&self, name: Option<&str>) -> Result<String> {
        let complete = self.complete()?;
        let found = match name {
            None => complete.last(),
            Some(name) => complete
                .iter()
                .find(|n| *n == name || n.split('-').next() == Some(name)),
        };
        found.cloned().ok_or_else(|| BackupError::NoBackup {
            store: self.0.clone(),
            name: name.unwrap_or_default().to_owned(),
        })
    }

    /// What a complete backup says.
    ///
    /// # Errors
    /// It is damaged; those of the file.
    pub fn manifest(&self, name: &str) -> Result<Manifest> {
        let path = self.0.join(name).join(FILE);
        let manifest = Manifest::read(&path)?;
        match manifest.header.packs.last().is_some_and(|own| own == name) {
            true => Ok(manifest),
            false => Err(BackupError::damaged(&path, "it is that of another backup")),
        }
    }

    /// Removes what backups that were cut off have left. With the lock held.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove_partial(&self, _lock: &StoreLock) -> Result<()> {
        for name in self.partial()? {
            let path = self.0.join(name);
            fs::remove_dir_all(&path).map_err(BackupError::file(&path, "remove it"))?;
        }
        Ok(())
    }

    /// Begins a backup, now. With the lock held.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn begin(&self, _lock: &StoreLock, now_s: i64) -> Result<NewBackup> {
        let last = self.complete()?.pop();
        let last = last.and_then(|name| name.split('-').next()?.parse::<u32>().ok());
        let name = format!("{:04}-{}", last.unwrap_or(0).saturating_add(1), utc(now_s));
        let dir = self.0.join(format!("{name}{PARTIAL}"));
        fs::create_dir(&dir).map_err(BackupError::file(&dir, "make the directory"))?;
        let path = dir.join(CONTENT);
        let content = File::create_new(&path).map_err(BackupError::file(&path, "make it"))?;
        Ok(NewBackup {
            store: self.0.clone(),
            name,
            dir,
            path,
            content: BufWriter::with_capacity(1 << 20, content),
            written: 0,
            finished: false,
        })
    }

    /// The content of a backup.
    ///
    /// # Errors
    /// A backup that has some of it is not there.
    pub fn content(&self, header: &Header) -> Result<ContentReader> {
        let open = |name: &String| {
            let path = self.0.join(name).join(CONTENT);
            let file = File::open(&path).map_err(BackupError::file(&path, "open it"))?;
            Ok((path, file))
        };
        let packs = header.packs.iter().map(open);
        Ok(ContentReader(packs.collect::<Result<_>>()?))
    }
}

/// A backup that is being taken. Removed when it is dropped before [`Self::finish`].
#[derive(Debug)]
pub struct NewBackup {
    store: PathBuf,
    /// Its name when it is complete.
    pub name: String,
    dir: PathBuf,
    path: PathBuf,
    content: BufWriter<File>,
    written: u64,
    finished: bool,
}

impl NewBackup {
    /// Adds content. Gives where it lies.
    ///
    /// # Errors
    /// Those of the file.
    pub fn add(&mut self, bytes: &[u8]) -> Result<u64> {
        let at = self.written;
        self.content
            .write_all(bytes)
            .map_err(BackupError::file(&self.path, "write to it"))?;
        self.written += bytes.len() as u64;
        Ok(at)
    }

    /// Makes it complete: from when this returns it survives a power cut as a whole.
    ///
    /// # Errors
    /// Those of the file system; then it is not complete.
    pub fn finish(mut self, manifest: &Manifest) -> Result<String> {
        let written = self
            .content
            .flush()
            .and_then(|()| self.content.get_ref().sync_all());
        written.map_err(BackupError::file(&self.path, "write to it"))?;
        manifest.write(&self.dir.join(FILE))?;
        sync_dir(&self.dir)?;
        let complete = self.store.join(&self.name);
        fs::rename(&self.dir, &complete).map_err(BackupError::file(&self.dir, "name it"))?;
        self.finished = true;
        sync_dir(&self.store)?;
        Ok(self.name.clone())
    }
}

impl Drop for NewBackup {
    fn drop(&mut self) {
        if !self.finished {
            // Else the next backup does it.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

fn sync_dir(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|dir| dir.sync_all());
    synced.map_err(BackupError::file(path, "make it durable"))
}

/// The content that a backup names.
#[derive(Debug)]
pub struct ContentReader(Vec<(PathBuf, File)>);

impl ContentReader {
    /// Reads a piece, and verifies it.
    ///
    /// # Errors
    /// [`BackupError::Damaged`], and those of the file.
    pub fn read(&self, piece: &Piece, into: &mut Vec<u8>) -> Result<()> {
        let missing = || BackupError::damaged(Path::new(CONTENT), "a piece is in no backup");
        let (path, file) = self.0.get(piece.pack as usize).ok_or_else(missing)?;
        into.resize(piece.bytes as usize, 0);
        match file.read_exact_at(into, piece.at) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(BackupError::damaged(
                    path,
                    format!("it ends before byte {}", piece.at),
                ));
            }
            Err(e) => return Err(BackupError::file(path, "read it")(e)),
        }
        match hash_of(into) == piece.hash {
            true => Ok(()),
            false => Err(BackupError::damaged(
                path,
                format!(
                    "{} bytes at {}: their hash does not fit",
                    piece.bytes, piece.at
                ),
            )),
        }
    }
}

/// Hash of content.
pub fn hash_of(bytes: &[u8]) -> Hash {
    *blake3::hash(bytes).as_bytes()
}

/// The pieces of a file by offset.
pub fn by_offset(pieces: &[Piece]) -> BTreeMap<u64, Piece> {
    pieces.iter().map(|piece| (piece.offset, *piece)).collect()
}

/// A time in seconds since 1970 as `20261129T225012Z`.
pub fn utc(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days of the era that begins on 1 March 0000.
    let z = days + 719_468;
    let (era, day) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{date:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Content, Entry, Meta, Summary};

    #[test]
    fn times_are_as_date_says() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (951_868_800, "20000301T000000Z"),
            (1_796_000_000, "20261130T005320Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    fn manifest(name: &str) -> Manifest {
        Manifest {
            header: Header {
                volume: String::new(),
                name: String::new(),
                packs: vec![name.to_owned()],
                begun_ns: 0,
            },
            entries: vec![Entry {
                parent: 0,
                name: Vec::new(),
                meta: Meta::default(),
                settled: false,
                content: Content::Directory,
            }],
            summary: Summary::default(),
        }
    }

    #[test]
    fn what_is_cut_off_is_never_complete_and_goes_with_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(&dir.path().join("new")).unwrap();
        let lock = store.lock().unwrap();
        assert!(matches!(store.lock(), Err(BackupError::Busy(_))));
        let mut cut = store.begin(&lock, 5).unwrap();
        cut.add(b"some").unwrap();
        std::mem::forget(cut);
        assert_eq!(store.complete().unwrap(), Vec::<String>::new());
        assert_eq!(store.partial().unwrap().len(), 1);
        store.remove_partial(&lock).unwrap();
        let mut whole = store.begin(&lock, 5).unwrap();
        assert_eq!(whole.add(b"some").unwrap(), 0);
        assert_eq!(whole.add(b"more").unwrap(), 4);
        let name = whole.name.clone();
        assert_eq!(
            whole.finish(&manifest(&name)).unwrap(),
            "0001-19700101T000005Z"
        );
        drop(store.begin(&lock, 9).unwrap());
        assert_eq!(store.complete().unwrap(), std::slice::from_ref(&name));
        assert_eq!(store.partial().unwrap(), Vec::<String>::new());
        assert_eq!(store.find(Some("0001")).unwrap(), name);
        assert_eq!(store.find(None).unwrap(), name);
        assert!(store.find(Some("0002")).is_err());
        let content = store
            .content(&store.manifest(&name).unwrap().header)
            .unwrap();
        let piece = Piece {
            offset: 0,
            bytes: 4,
            pack: 0,
            at: 4,
            hash: hash_of(b"more"),
        };
        let mut read = Vec::new();
        content.read(&piece, &mut read).unwrap();
        assert_eq!(read, b"more");
        let other = Piece { at: 0, ..piece };
        assert!(matches!(
            content.read(&other, &mut read),
            Err(BackupError::Damaged { .. })
        ));
        let behind = Piece { at: 5, ..piece };
        assert!(matches!(
            content.read(&behind, &mut read),
            Err(BackupError::Damaged { .. })
        ));
    }

    #[test]
    fn other_directories_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(matches!(
            Store::create(dir.path()),
            Err(BackupError::NotAStore { .. })
        ));
        assert!(matches!(
            Store::open(dir.path()),
            Err(BackupError::NotAStore { .. })
        ));
        assert!(!dir.path().join(MARKER).exists());
    }
}
