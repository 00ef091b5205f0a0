//! What a backup says of each file: the file `manifest`.
//!
//! A magic number, then frames: a length of four bytes, and as many bytes in postcard's encoding. The first is the
//! [`Header`], the last the [`Summary`], those between are the inodes of the tree, parents before what is in them, the root
//! first. A length of 0 ends them, and behind it is the BLAKE3 hash of everything before: a manifest without it is
//! not complete, and one that it does not fit is damaged.

use crate::error::{BackupError, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

/// Name of the file in a backup's directory.
pub const FILE: &str = "manifest";
/// Bytes of a file that are compared, written and verified together.
pub const CHUNK_BYTES: u64 = 128 << 10;
const MAGIC: [u8; 8] = *b"SHALEBK1";
/// Longest frame: an inode with 16 TiB of content is shorter.
const FRAME_BYTES_MAX: usize = 1 << 30;
/// Names of one tree lie no deeper.
pub const DEPTH_MAX: usize = 8192;

/// BLAKE3 hash of content.
pub type Hash = [u8; 32];

/// What a backup is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Identity of the volume.
    pub volume: String,
    /// Its name.
    pub name: String,
    /// The backups in which its content lies; the last is this one. Those before have to stay where it is.
    pub packs: Vec<String>,
    /// Nanoseconds since 1970 when it was begun.
    pub begun_ns: i64,
}

/// A point in time: seconds since 1970 and nanoseconds.
pub type Time = (i64, u32);

/// One chunk of content, or the part of one that is not a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub bytes: u32,
    /// Index in [`Header::packs`].
    pub pack: u32,
    /// First byte there.
    pub at: u64,
    /// Hash of the bytes.
    pub hash: Hash,
}

/// What an inode holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// Its entries come behind it.
    Directory,
    /// Target of a symbolic link.
    Symlink(Vec<u8>),
    /// A regular file; what no piece has is a hole.
    File(Vec<Piece>),
    /// A device, a FIFO or a socket.
    Special,
    /// Another name of this entry.
    SameAs(u64),
    /// It could not be read, with this errno.
    Unreadable(i32),
}

/// What `stat` and its like tell of an inode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Number in the volume.
    pub ino: u64,
    /// Distinguishes inodes that had the same number.
    pub generation: u32,
    /// Type and permissions.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, in the kernel's 32-bit encoding.
    pub rdev: u64,
    /// Bytes of a file.
    pub size: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Flags as chattr(1) sets them.
    pub flags: u32,
    /// Extended attributes, access control lists among them.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// One name of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Index of the directory that it is in; the root has its own, 0.
    pub parent: u64,
    /// Its name there.
    pub name: Vec<u8>,
    /// What it is.
    pub meta: Meta,
    /// `meta.ctime` was past when the content was read, by more than the clock's steps: a backup that finds the inode with the
    /// same time knows that it has not changed.
    pub settled: bool,
    /// What it holds.
    pub content: Content,
}

/// What a backup comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Nanoseconds since 1970 at the end of the freeze, when the tree was as the backup has it.
    pub taken_ns: i64,
    /// For so long calls that change something waited; 0: the volume was not mounted.
    pub frozen_ns: u64,
    /// Names that are no directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Bytes that the volume was read for.
    pub read_bytes: u64,
    /// Bytes of content that were not in the backup before.
    pub new_bytes: u64,
    /// Inodes that could not be read.
    pub unreadable: u64,
}

/// A whole backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// What it is of.
    pub header: Header,
    /// The tree.
    pub entries: Vec<Entry>,
    /// What it comes to.
    pub summary: Summary,
}

struct Hashed<W> {
    inner: W,
    hash: blake3::Hasher,
}

impl<W: Write> Hashed<W> {
    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.hash.update(bytes);
        self.inner.write_all(bytes)
    }

    fn frame<T: Serialize>(&mut self, value: &T) -> std::io::Result<()> {
        let bytes = postcard::to_stdvec(value).map_err(std::io::Error::other)?;
        let length = u32::try_from(bytes.len()).map_err(std::io::Error::other)?;
        self.put(&length.to_le_bytes())?;
        self.put(&bytes)
    }
}

impl Manifest {
    /// Writes it to `path`, durably.
    ///
    /// # Errors
    /// Those of the file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let write = || {
            let file = File::create_new(path)?;
            let mut out = Hashed {
                inner: BufWriter::new(&file),
                hash: blake3::Hasher::new(),
            };
            out.put(&MAGIC)?;
            out.frame(&self.header)?;
            for entry in &self.entries {
                out.frame(entry)?;
            }
            out.frame(&self.summary)?;
            out.put(&[0; 4])?;
            let hash = *out.hash.finalize().as_bytes();
            out.inner.write_all(&hash)?;
            out.inner.flush()?;
            drop(out);
            file.sync_all()
        };
        write().map_err(BackupError::file(path, "write the manifest"))
    }

    /// Reads it, and verifies it.
    ///
    /// # Errors
    /// [`BackupError::Damaged`], and those of the file.
    pub fn read(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(BackupError::file(path, "open the manifest"))?;
        let mut frames = Frames::new(path, file)?;
        let header = frames.next()?;
        let mut entries: Vec<Entry> = Vec::new();
        let mut held = frames.bytes()?;
        let mut summary = None;
        while let Some(bytes) = held {
            held = frames.bytes()?;
            match held {
                Some(_) => entries.push(frames.decoded(&bytes)?),
                None => summary = Some(frames.decoded(&bytes)?),
            }
        }
        frames.end()?;
        let summary = summary.ok_or_else(|| BackupError::damaged(path, "it has no summary"))?;
        let manifest = Self {
            header,
            entries,
            summary,
        };
        manifest.check(path)?;
        Ok(manifest)
    }

    /// Whether it is a tree, with names that lead nowhere else: what is restored goes by it.
    fn check(&self, path: &Path) -> Result<()> {
        let damaged =
            |n: usize, why: &str| Err(BackupError::damaged(path, format!("entry {n}: {why}")));
        let mut depth = vec![0usize; self.entries.len()];
        for (n, entry) in self.entries.iter().enumerate() {
            let parent = entry.parent as usize;
            if n == 0 {
                match entry.content {
                    Content::Directory if parent == 0 => continue,
                    _ => return damaged(n, "the root is no directory"),
                }
            }
            if parent >= n || self.entries[parent].content != Content::Directory {
                return damaged(n, "it is in no directory");
            }
            depth[n] = depth[parent] + 1;
            if depth[n] > DEPTH_MAX {
                return damaged(n, "it lies too deep");
            }
            let name = &entry.name;
            if name.is_empty() || name.len() > 255 || name == b"." || name == b".." {
                return damaged(n, "its name is none");
            }
            if name.iter().any(|b| matches!(b, b'/' | 0)) {
                return damaged(n, "its name is none");
            }
            match &entry.content {
                Content::SameAs(first) => {
                    let first = self
                        .entries
                        .get(*first as usize)
                        .filter(|_| (*first as usize) < n);
                    let is_link =
                        |e: &Entry| matches!(e.content, Content::Directory | Content::SameAs(_));
                    if first.is_none_or(is_link) {
                        return damaged(n, "it is another name of nothing");
                    }
                }
                Content::File(pieces) => {
                    let mut end = 0;
                    for piece in pieces {
                        if piece.offset < end || u64::from(piece.bytes) > CHUNK_BYTES {
                            return damaged(n, "its pieces overlap");
                        }
                        if piece.pack as usize >= self.header.packs.len() {
                            return damaged(n, "a piece is in no backup");
                        }
                        end = piece.offset.saturating_add(piece.bytes.into());
                    }
                    if end > entry.meta.size {
                        return damaged(n, "its pieces go beyond its end");
                    }
                }
                _ => {}
            }
        }
        match self.entries.is_empty() {
            true => damaged(0, "there is no root"),
            false => Ok(()),
        }
    }
}

/// A manifest on its way in.
struct Frames<'p> {
    path: &'p Path,
    inner: BufReader<File>,
    left: u64,
    hash: blake3::Hasher,
}

impl<'p> Frames<'p> {
    fn new(path: &'p Path, file: File) -> Result<Self> {
        let length = file
            .metadata()
            .map_err(BackupError::file(path, "ask for its size"))?
            .len();
        let mut frames = Self {
            path,
            inner: BufReader::new(file),
            left: length,
            hash: blake3::Hasher::new(),
        };
        match frames.take(MAGIC.len())? {
            magic if magic == MAGIC => Ok(frames),
            _ => Err(BackupError::damaged(
                path,
                "it is no manifest of this version",
            )),
        }
    }

    fn take(&mut self, bytes: usize) -> Result<Vec<u8>> {
        if bytes as u64 > self.left || bytes > FRAME_BYTES_MAX {
            return Err(BackupError::damaged(self.path, "it ends too early"));
        }
        let mut into = vec![0; bytes];
        self.inner
            .read_exact(&mut into)
            .map_err(BackupError::file(self.path, "read the manifest"))?;
        self.left -= bytes as u64;
        self.hash.update(&into);
        Ok(into)
    }

    /// The next frame; `None`: there is no more.
    fn bytes(&mut self) -> Result<Option<Vec<u8>>> {
        let length = self.take(4)?;
        let length = u32::from_le_bytes(length.try_into().unwrap_or_default());
        match length {
            0 => Ok(None),
            length => self.take(length as usize).map(Some),
        }
    }

    fn decoded<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T> {
        postcard::from_bytes(bytes).map_err(|e| BackupError::damaged(self.path, e.to_string()))
    }

    fn next<T: DeserializeOwned>(&mut self) -> Result<T> {
        let bytes = self.bytes()?;
        let bytes = bytes.ok_or_else(|| BackupError::damaged(self.path, "it is empty"))?;
        self.decoded(&bytes)
    }

    fn end(&mut self) -> Result<()> {
        let hash = *self.hash.finalize().as_bytes();
        if self.take(hash.len())? != hash || self.left > 0 {
            return Err(BackupError::damaged(self.path, "its hash does not fit"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(parent: u64, name: &str, content: Content) -> Entry {
        Entry {
            parent,
            name: name.into(),
            meta: Meta {
                size: 9,
                ..Meta::default()
            },
            settled: true,
            content,
        }
    }

    fn manifest() -> Manifest {
        let piece = Piece {
            offset: 4,
            bytes: 5,
            pack: 0,
            at: 0,
            hash: [7; 32],
        };
        Manifest {
            header: Header {
                volume: "u".to_owned(),
                name: "n".to_owned(),
                packs: vec!["0001".to_owned()],
                begun_ns: 1,
            },
            entries: vec![
                entry(0, "", Content::Directory),
                entry(0, "file", Content::File(vec![piece])),
                entry(0, "link", Content::SameAs(1)),
            ],
            summary: Summary::default(),
        }
    }

    #[test]
    fn what_is_written_is_read_and_every_changed_byte_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        manifest().write(&path).unwrap();
        assert_eq!(Manifest::read(&path).unwrap(), manifest());
        let bytes = std::fs::read(&path).unwrap();
        for n in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[n] ^= 0x10;
            std::fs::write(&path, &changed).unwrap();
            assert!(Manifest::read(&path).is_err(), "byte {n}");
            std::fs::write(&path, &bytes[..n]).unwrap();
            assert!(Manifest::read(&path).is_err(), "cut at {n}");
        }
    }

    #[test]
    fn a_tree_that_leads_elsewhere_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let wrong: [fn(&mut Manifest); 8] = [
            |m| m.entries[1].name = b"..".to_vec(),
            |m| m.entries[1].name = b"a/b".to_vec(),
            |m| m.entries[1].name = Vec::new(),
            |m| m.entries[1].parent = 2,
            |m| m.entries[2].content = Content::SameAs(2),
            |m| m.entries[2].parent = 1,
            |m| m.header.packs.clear(),
            |m| m.entries[1].meta.size = 8,
        ];
        for (n, spoil) in wrong.iter().enumerate() {
            let mut spoiled = manifest();
            spoil(&mut spoiled);
            let path = dir.path().join(n.to_string());
            spoiled.write(&path).unwrap();
            assert!(Manifest::read(&path).is_err(), "{n}");
        }
    }
}
