//! Making a tree equal to a backup, by the usual system calls: on a mounted volume, or on any file system.
//!
//! An empty directory is filled. A used one (in place) loses what the backup has not, and of files only those chunks are
//! written that differ; a file of the same volume that has not changed since the backup is not read. Names are only ever
//! looked up in directories that are open, and never through symbolic links, so a tree that others change meanwhile leads
//! nowhere else. A restore that was cut off is run again, in place.

mod attributes;
mod content;

use crate::error::{BackupError, Result};
use crate::manifest::{Content, Entry, Manifest, Meta};
use crate::store::{ContentReader, Store};
use crate::take::path_of;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::path::Path;

/// How a backup is restored.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The target may hold something: it is made equal to the backup.
    pub in_place: bool,
}

/// What a restore did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Names that are there as the backup has them.
    pub names: u64,
    /// Of these, files that had not changed, so that they were not read.
    pub unchanged: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Names that the backup does not have and that were removed.
    pub removed: u64,
    /// What could not be restored, or not all of it, and why.
    pub failed: Vec<(Vec<u8>, String)>,
}

/// Restores a backup to a directory. `progress` hears how many names and bytes are done.
///
/// # Errors
/// The backup or the target cannot be used at all. What goes wrong with single files is in the answer.
pub fn restore(
    store: &Store,
    name: &str,
    target: &Path,
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Restored> {
    let manifest = store.manifest(name)?;
    let content = store.content(&manifest.header)?;
    match std::fs::create_dir(target) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(BackupError::file(target, "make the directory")(e));
        }
        _ => {}
    }
    raise_open_files();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(target, flags, Mode::empty())
        .map_err(BackupError::file(target, "open the directory"))?;
    let used = !names_in(root.as_fd())
        .map_err(BackupError::file(target, "list it"))?
        .is_empty();
    if used && !options.in_place {
        return Err(BackupError::Target {
            path: target.to_owned(),
            why: "it is not empty".to_owned(),
        });
    }
    let mut children: HashMap<u64, Vec<usize>> = HashMap::new();
    for (n, entry) in manifest.entries.iter().enumerate().skip(1) {
        children.entry(entry.parent).or_default().push(n);
    }
    let mut tree = Tree {
        same_volume: is_volume(&root, &manifest),
        manifest: &manifest,
        content: &content,
        children,
        root: &root,
        claimed: HashSet::new(),
        done: Restored::default(),
        buffer: Vec::new(),
        progress,
    };
    tree.directory(root.as_fd(), 0);
    let done = tree.done;
    rustix::fs::syncfs(&root).map_err(BackupError::file(target, "make it durable"))?;
    Ok(done)
}

/// All directories on the way to a name are open, and there may be thousands.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let most = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, most);
}

/// A step that failed: what, and why.
type Step<T> = std::result::Result<T, String>;

fn tried<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> String {
    move |e| format!("{what}: {e}")
}

/// Whether the target is the root of the volume that the backup is of: then numbers of inodes say something.
fn is_volume(root: &OwnedFd, manifest: &Manifest) -> bool {
    let Some(socket) = shale_proto::mounts::socket_of(root) else {
        return false;
    };
    let ask = || -> Option<String> {
        use shale_proto::{Channel, Reply, Request, SocketChannel};
        let (reply, _) = SocketChannel::connect(&socket)
            .ok()?
            .call(Request::Status)
            .ok()?;
        let Reply::Status(text) = reply else {
            return None;
        };
        let status: serde_json::Value = serde_json::from_str(&text).ok()?;
        status["uuid"].as_str().map(str::to_owned)
    };
    ask().is_some_and(|uuid| uuid == manifest.header.volume)
}

fn names_in(dir: BorrowedFd<'_>) -> rustix::io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.as_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}

fn open_dir(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

fn look(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<Option<Stat>> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Removes a name and all below it. Gives how many names those were.
fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<u64> {
    let Some(stat) = look(parent, name)? else {
        return Ok(0);
    };
    let mut removed = 1;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if matches!(kind, FileType::RegularFile | FileType::Directory) {
        attributes::make_changeable(parent, name);
    }
    if kind == FileType::Directory {
        let dir = open_dir(parent, name)?;
        for inside in names_in(dir.as_fd())? {
            removed += remove(dir.as_fd(), inside.as_bytes())?;
        }
        rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?;
    } else {
        rustix::fs::unlinkat(parent, name, AtFlags::empty())?;
    }
    Ok(removed)
}

struct Tree<'a> {
    manifest: &'a Manifest,
    content: &'a ContentReader,
    /// Entries by the directory that they are in.
    children: HashMap<u64, Vec<usize>>,
    root: &'a OwnedFd,
    same_volume: bool,
    /// Inodes of the target that an entry has.
    claimed: HashSet<(u64, u64)>,
    done: Restored,
    buffer: Vec<u8>,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl Tree<'_> {
    fn failed(&mut self, n: usize, why: String) {
        let path = path_of(&self.manifest.entries, n);
        self.done.failed.push((path, why));
    }

    /// Makes what is in an open directory equal to entry `n`, then the directory itself.
    fn directory(&mut self, dir: BorrowedFd<'_>, n: usize) {
        let manifest = self.manifest;
        attributes::make_changeable(dir, b".");
        let children = self.children.remove(&(n as u64)).unwrap_or_default();
        if let Err(why) = self.remove_others(dir, &children) {
            self.failed(n, why);
        }
        for child in children {
            if let Err(why) = self.name(dir, child) {
                self.failed(child, why);
            }
        }
        let entry = &manifest.entries[n];
        if let Err(why) = attributes::set_all(dir, b".", &entry.meta) {
            self.failed(n, why);
        }
        (self.progress)(self.done.names, self.done.written_bytes);
    }

    /// Removes what the backup does not have.
    fn remove_others(&mut self, dir: BorrowedFd<'_>, children: &[usize]) -> Step<()> {
        let there = names_in(dir).map_err(tried("list the directory"))?;
        if there.is_empty() {
            return Ok(());
        }
        let entries = &self.manifest.entries;
        let wanted: HashSet<&[u8]> = children.iter().map(|&n| &entries[n].name[..]).collect();
        for name in there {
            if !wanted.contains(name.as_bytes()) {
                let removed = remove(dir, name.as_bytes());
                self.done.removed += removed.map_err(|e| {
                    format!("remove {}: {e}", String::from_utf8_lossy(name.as_bytes()))
                })?;
            }
        }
        Ok(())
    }

    /// Makes one name equal to entry `n`.
    fn name(&mut self, dir: BorrowedFd<'_>, n: usize) -> Step<()> {
        let manifest = self.manifest;
        let entry = &manifest.entries[n];
        let name = &entry.name[..];
        let there = look(dir, name).map_err(tried("look at it"))?;
        match &entry.content {
            Content::Unreadable(errno) => {
                let why = std::io::Error::from_raw_os_error(*errno);
                return Err(format!(
                    "the backup has it not: it could not be read: {why}"
                ));
            }
            Content::SameAs(first) => self.other_name(dir, name, *first as usize, there)?,
            Content::Directory => {
                let is_dir = |s: &Stat| FileType::from_raw_mode(s.st_mode) == FileType::Directory;
                if there.is_some() && !there.as_ref().is_some_and(is_dir) {
                    remove(dir, name).map_err(tried("remove what has its name"))?;
                }
                if !there.as_ref().is_some_and(is_dir) {
                    rustix::fs::mkdirat(dir, name, Mode::RWXU).map_err(tried("make it"))?;
                }
                let inside = open_dir(dir, name).map_err(tried("open it"))?;
                self.directory(inside.as_fd(), n);
            }
            _ => self.inode(dir, entry, there)?,
        }
        self.done.names += 1;
        Ok(())
    }

    /// Another name of an entry that was restored before.
    fn other_name(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        first: usize,
        there: Option<Stat>,
    ) -> Step<()> {
        let entries = &self.manifest.entries;
        let parent = path_of(entries, entries[first].parent as usize);
        let parent = match &parent[..] {
            b"" => b".".to_vec(),
            _ => parent,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let parent = rustix::fs::openat2(self.root, parent, flags, Mode::empty(), resolve)
            .map_err(tried("open the directory of its other name"))?;
        let of = &entries[first].name[..];
        let other = look(parent.as_fd(), of).map_err(tried("look at its other name"))?;
        let other = other.ok_or("its other name was not restored")?;
        if there
            .as_ref()
            .is_some_and(|s| (s.st_dev, s.st_ino) == (other.st_dev, other.st_ino))
        {
            return Ok(());
        }
        remove(dir, name).map_err(tried("remove what has its name"))?;
        let meta = &entries[first].meta;
        // Nothing gets another name that is immutable or append-only.
        let frozen = attributes::forbids_links(meta);
        if frozen {
            attributes::make_changeable(parent.as_fd(), of);
        }
        rustix::fs::linkat(&parent, of, dir, name, AtFlags::empty())
            .map_err(tried("link it to its other name"))?;
        match frozen {
            true => attributes::set_flags(dir, name, meta.flags).map_err(|e| e.to_string()),
            false => Ok(()),
        }
    }

    /// A file, a symbolic link, or something special, with its first name.
    fn inode(&mut self, dir: BorrowedFd<'_>, entry: &Entry, there: Option<Stat>) -> Step<()> {
        let (name, meta) = (&entry.name[..], &entry.meta);
        let there = match there {
            Some(stat) if self.is_usable(&stat, entry) => Some(stat),
            Some(_) => {
                remove(dir, name).map_err(tried("remove what has its name"))?;
                None
            }
            None => None,
        };
        if let Some(stat) = &there {
            self.claimed.insert((stat.st_dev, stat.st_ino));
            if self.same_volume && entry.settled && attributes::is_unchanged(stat, meta) {
                self.done.unchanged += 1;
                return Ok(());
            }
        }
        match &entry.content {
            Content::File(pieces) => {
                attributes::make_changeable(dir, name);
                let file = content::open(dir, name, there.is_none())?;
                let written =
                    content::fill(&file, meta.size, pieces, self.content, &mut self.buffer)?;
                self.done.written_bytes += written;
                drop(file);
            }
            Content::Symlink(target) if there.is_none() => {
                rustix::fs::symlinkat(&target[..], dir, name).map_err(tried("make it"))?;
            }
            Content::Symlink(target) => {
                let old = rustix::fs::readlinkat(dir, name, Vec::new());
                if old.map_err(tried("read it"))?.as_bytes() != &target[..] {
                    remove(dir, name).map_err(tried("remove the old one"))?;
                    rustix::fs::symlinkat(&target[..], dir, name).map_err(tried("make it"))?;
                }
            }
            _ if there.is_none() => {
                let kind = FileType::from_raw_mode(meta.mode);
                rustix::fs::mknodat(dir, name, kind, Mode::RUSR, attributes::device(meta))
                    .map_err(tried("make it"))?;
            }
            _ => {}
        }
        let made = look(dir, name).map_err(tried("look at it"))?;
        if let Some(stat) = made {
            self.claimed.insert((stat.st_dev, stat.st_ino));
        }
        attributes::set_all(dir, name, meta)
    }

    /// Whether what has the name can become the entry. With more names than the entry has, or as one that another
    /// entry has, it cannot: those would change with it.
    fn is_usable(&self, stat: &Stat, entry: &Entry) -> bool {
        let meta: &Meta = &entry.meta;
        let kind = |mode| FileType::from_raw_mode(mode);
        let special = matches!(entry.content, Content::Special);
        kind(stat.st_mode) == kind(meta.mode)
            && u64::from(meta.nlink) == stat.st_nlink
            && !self.claimed.contains(&(stat.st_dev, stat.st_ino))
            && (!special || stat.st_rdev == attributes::device(meta))
    }
}
