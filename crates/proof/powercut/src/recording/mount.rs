//! A client as the mount is one: every change is one request with a number of its own, about
//! inodes that the kernel knows; a request that got no answer is sent again, just as it was.
//!
//! What the kernel does by itself (walking paths, open files, their offsets) is done here. An
//! operation sends one request that changes something at most.

use std::collections::HashSet;
use std::sync::Arc;

use rustix::io::Errno;
use shale_libfs::{Caller, OFlags, Session, SetAttr, Tree, WriteFlags};

use shale_model::act::SLOTS;
use shale_model::{Act, FileAct, Outcome, Said};

const KIND: u32 = 0o170_000;
const DIR: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const SOCKET: u32 = 0o140_000;
/// Symbolic links that opening follows.
const LINKS_FOLLOWED: usize = 8;
/// Numbers of requests are even in the kernel.
const REQUEST_STEP: u64 = 2;

type Found<T> = Result<T, Errno>;

/// A request that changes something.
#[derive(Debug, Clone)]
pub enum Ask {
    /// `MKDIR` in a directory.
    Mkdir(u64, Vec<u8>, u32),
    /// `MKNOD` in a directory.
    Mknod(u64, Vec<u8>, u32),
    /// `SYMLINK` in a directory: name, target.
    Symlink(u64, Vec<u8>, Vec<u8>),
    /// `LINK` of an inode into a directory.
    Link(u64, u64, Vec<u8>),
    /// `UNLINK` in a directory.
    Unlink(u64, Vec<u8>),
    /// `RMDIR` in a directory.
    Rmdir(u64, Vec<u8>),
    /// `RENAME2`: directory and name, twice.
    Rename((u64, Vec<u8>), (u64, Vec<u8>), u32),
    /// `CREATE` in a directory: name, mode, flags.
    Create(u64, Vec<u8>, u32, OFlags),
    /// `TMPFILE` in a directory: mode, flags.
    Tmpfile(u64, u32, OFlags),
    /// `SETATTR`.
    SetAttr(u64, SetAttr),
    /// `WRITE`: offset, bytes, whether at the end.
    Write(u64, u64, Vec<u8>, bool),
    /// `FALLOCATE`: mode, offset, length.
    Allocate(u64, u32, u64, u64),
    /// `COPY_FILE_RANGE`: from, to, length.
    Copy((u64, u64), (u64, u64), u64),
    /// `SETXATTR`: name, value, flags.
    SetXattr(u64, Vec<u8>, Vec<u8>, u32),
    /// `REMOVEXATTR`.
    RemoveXattr(u64, Vec<u8>),
}

/// What a request is answered with, of what has to be the same each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noted {
    /// Nothing more.
    Done,
    /// An inode.
    Inode(u64),
    /// Bytes written.
    Bytes(u64),
}

impl Ask {
    /// Sends it as request `request`.
    pub fn send(&self, session: &Session, request: u64) -> Found<Noted> {
        let caller = Caller {
            request,
            ..Caller::default()
        };
        let c = &caller;
        let made = |attr: shale_libfs::Attr| Noted::Inode(attr.ino);
        match self {
            Ask::Mkdir(dir, name, mode) => session.mkdir(c, *dir, name, *mode).map(made),
            Ask::Mknod(dir, name, mode) => session.mknod(c, *dir, name, *mode, 0).map(made),
            Ask::Symlink(dir, name, to) => session.symlink(c, *dir, name, to).map(made),
            Ask::Link(ino, dir, name) => session.link(c, *ino, *dir, name).map(made),
            Ask::Unlink(dir, name) => session.unlink(c, *dir, name).map(|()| Noted::Done),
            Ask::Rmdir(dir, name) => session.rmdir(c, *dir, name).map(|()| Noted::Done),
            Ask::Rename(from, to, flags) => session
                .rename(c, (from.0, &from.1), (to.0, &to.1), *flags)
                .map(|()| Noted::Done),
            Ask::Create(dir, name, mode, flags) => {
                session.create(c, *dir, name, *mode, flags.bits()).map(made)
            }
            Ask::Tmpfile(dir, mode, flags) => {
                session.tmpfile(c, *dir, *mode, flags.bits()).map(made)
            }
            Ask::SetAttr(ino, set) => session.setattr(c, *ino, set).map(made),
            Ask::Write(ino, at, data, append) => {
                let flags = WriteFlags {
                    append: *append,
                    kill_suidgid: false,
                    sync: false,
                };
                let written = session.write(c, *ino, *at, data, flags);
                written.map(|n| Noted::Bytes(n as u64))
            }
            Ask::Allocate(ino, mode, at, len) => session
                .fallocate(c, *ino, *mode, *at, *len)
                .map(|()| Noted::Done),
            Ask::Copy(from, to, len) => session
                .copy_file_range(c, *from, *to, *len)
                .map(Noted::Bytes),
            Ask::SetXattr(ino, name, value, flags) => session
                .setxattr(c, *ino, name, value, *flags)
                .map(|()| Noted::Done),
            Ask::RemoveXattr(ino, name) => session.removexattr(c, *ino, name).map(|()| Noted::Done),
        }
    }
}

/// A file that a program has open.
#[derive(Debug, Clone)]
struct Opened {
    ino: u64,
    flags: OFlags,
    offset: u64,
}

impl Opened {
    fn writes(&self) -> bool {
        let access = self.flags & OFlags::RWMODE;
        access == OFlags::WRONLY || access == OFlags::RDWR
    }
}

/// What an operation comes to before anything is changed.
enum Way {
    /// It sends a request.
    Ask(Ask, After),
    /// It is done, or refused.
    Known(Outcome),
}

/// What the kernel does with an answer.
enum After {
    Nothing,
    Open(usize, OFlags),
    Wrote(Option<usize>),
}

/// A request that was sent, and what came of it.
#[derive(Debug, Clone)]
pub struct Sent {
    /// Its number.
    pub request: u64,
    /// The request.
    pub ask: Ask,
    /// The answer.
    pub answer: Found<Noted>,
}

/// See the module.
pub struct Mount {
    session: Arc<Session>,
    tree: Tree,
    open: [Option<Opened>; SLOTS],
    next: u64,
    /// Files made without a name, which may get one.
    linkable: HashSet<u64>,
}

/// Directory and last name of a path.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&b| b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b".", path),
    }
}

impl Mount {
    /// The kernel behind `session`, with no file open.
    pub fn new(session: Arc<Session>) -> Mount {
        Mount {
            tree: session.tree(Caller::default()),
            session,
            open: Default::default(),
            next: REQUEST_STEP,
            linkable: HashSet::new(),
        }
    }

    /// Does an operation; gives the request that it sent as well.
    pub fn act(&mut self, act: &Act) -> (Outcome, Option<Sent>) {
        let before = self.may_go(act);
        let done = match self.way(act) {
            Err(errno) => (Err(errno), None),
            Ok(Way::Known(outcome)) => (outcome, None),
            Ok(Way::Ask(ask, after)) => {
                let request = self.next;
                self.next += REQUEST_STEP;
                let answer = ask.send(&self.session, request);
                let outcome = answer.and_then(|noted| self.take(noted, &ask, after));
                let sent = Sent {
                    request,
                    ask,
                    answer,
                };
                (outcome, Some(sent))
            }
        };
        before.into_iter().for_each(|ino| self.forget(ino));
        done
    }

    fn inode(&self, path: &[u8], follow: bool) -> Found<shale_libfs::Attr> {
        match follow {
            true => self.tree.stat(path),
            false => self.tree.lstat(path),
        }
    }

    /// The directory that the last name of a path is in, and the name.
    fn place(&self, path: &[u8]) -> Found<(u64, Vec<u8>)> {
        let (dir, name) = split(path);
        let dir = self.tree.stat(dir)?;
        match dir.mode & KIND {
            DIR => Ok((dir.ino, name.to_vec())),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn way(&mut self, act: &Act) -> Found<Way> {
        let ask = match act {
            Act::Mkdir(path, mode) => {
                let (dir, name) = self.place(path)?;
                Ask::Mkdir(dir, name, *mode)
            }
            Act::Socket(path, mode) => {
                let (dir, name) = self.place(path)?;
                Ask::Mknod(dir, name, SOCKET | mode)
            }
            Act::Symlink(target, path) => {
                let (dir, name) = self.place(path)?;
                Ask::Symlink(dir, name, target.clone())
            }
            Act::Link(old, new) => {
                let ino = self.inode(old, false)?.ino;
                let (dir, name) = self.place(new)?;
                Ask::Link(ino, dir, name)
            }
            Act::Unlink(path) => {
                let (dir, name) = self.place(path)?;
                Ask::Unlink(dir, name)
            }
            Act::Rmdir(path) => {
                let (dir, name) = self.place(path)?;
                Ask::Rmdir(dir, name)
            }
            Act::Rename(old, new, flags) => {
                let from = self.place(old)?;
                Ask::Rename(from, self.place(new)?, *flags)
            }
            Act::Chmod(path, mode) => {
                let mode = Some(*mode);
                self.set(path, true, |set| set.mode = mode)?
            }
            Act::Chown(path, uid, gid, follow) => self.set(path, *follow, |set| {
                (set.uid, set.gid, set.kill_suidgid) = (*uid, *gid, true);
            })?,
            Act::Truncate(path, size) => match self.inode(path, true)?.mode & KIND {
                FILE => self.set(path, true, |set| set.size = Some(*size))?,
                DIR => return Err(Errno::ISDIR),
                _ => return Err(Errno::INVAL),
            },
            Act::SetXattr(path, name, fill, flags) => {
                let ino = self.inode(path, true)?.ino;
                Ask::SetXattr(ino, name.clone(), fill.value(name), *flags)
            }
            Act::RemoveXattr(path, name) => {
                Ask::RemoveXattr(self.inode(path, true)?.ino, name.clone())
            }
            Act::Open(slot, path, flags, mode) => return self.opening(*slot, path, *flags, *mode),
            Act::File(slot, act) => return self.file(*slot, act),
            Act::Stat(path, follow) => {
                let attr = self.inode(path, *follow)?;
                return Ok(Way::Known(Ok(shale_model::shale::stat(&attr))));
            }
            Act::Readlink(_) | Act::List(_) | Act::GetXattr(..) => {
                return Err(Errno::OPNOTSUPP);
            }
        };
        Ok(Way::Ask(ask, After::Nothing))
    }

    fn set(&self, path: &[u8], follow: bool, change: impl FnOnce(&mut SetAttr)) -> Found<Ask> {
        let mut set = SetAttr::default();
        change(&mut set);
        Ok(Ask::SetAttr(self.inode(path, follow)?.ino, set))
    }

    fn opening(&mut self, slot: usize, path: &[u8], flags: OFlags, mode: u32) -> Found<Way> {
        self.open[slot] = None;
        let after = After::Open(slot, flags);
        if flags.contains(OFlags::TMPFILE) {
            let dir = self.tree.stat(path)?;
            return match dir.mode & KIND {
                DIR => Ok(Way::Ask(Ask::Tmpfile(dir.ino, mode, flags), after)),
                _ => Err(Errno::NOTDIR),
            };
        }
        let create = flags.contains(OFlags::CREATE);
        let follow = !(create && flags.contains(OFlags::EXCL));
        let mut path = path.to_vec();
        for _ in 0..LINKS_FOLLOWED {
            let found = match self.inode(&path, false) {
                Err(Errno::NOENT) if create => {
                    let (dir, name) = self.place(&path)?;
                    return Ok(Way::Ask(Ask::Create(dir, name, mode, flags), after));
                }
                found => found?,
            };
            if found.mode & KIND == LINK && follow {
                let target = self.tree.readlink(&path)?;
                path = match target.first() {
                    Some(b'/') => target,
                    _ => [split(&path).0, b"/", &target].concat(),
                };
                continue;
            }
            if !follow {
                return Err(Errno::EXIST);
            }
            let opened = Opened {
                ino: found.ino,
                flags,
                offset: 0,
            };
            match found.mode & KIND {
                FILE if flags.contains(OFlags::TRUNC) => {
                    let set = SetAttr {
                        size: Some(0),
                        ..SetAttr::default()
                    };
                    return Ok(Way::Ask(Ask::SetAttr(found.ino, set), after));
                }
                FILE => {
                    // The kernel holds a reference to what is open.
                    let (dir, name) = self.place(&path)?;
                    self.session.lookup(&Caller::default(), dir, &name)?;
                }
                DIR if create || opened.writes() => return Err(Errno::ISDIR),
                DIR => {}
                _ => return Err(Errno::NXIO),
            }
            self.open[slot] = Some(opened);
            return Ok(Way::Known(Ok(Said::Done)));
        }
        Err(Errno::LOOP)
    }

    fn file(&mut self, slot: usize, act: &FileAct) -> Found<Way> {
        if *act == FileAct::Close {
            self.open[slot] = None;
            return Ok(Way::Known(Ok(Said::Done)));
        }
        let open = self.open[slot].clone().ok_or(Errno::BADF)?;
        let append = open.flags.contains(OFlags::APPEND);
        let write = |at: u64, bytes: Vec<u8>, next| match open.writes() {
            true => {
                let ask = Ask::Write(open.ino, at, bytes, append);
                Ok(Way::Ask(ask, After::Wrote(next)))
            }
            false => Err(Errno::BADF),
        };
        let ask = match act {
            FileAct::Write(at, fill) => return write(*at, fill.bytes(), None),
            FileAct::WriteBytes(at, bytes) => return write(*at, bytes.clone(), None),
            FileAct::WriteNext(fill) => return write(open.offset, fill.bytes(), Some(slot)),
            FileAct::Truncate(_) if !open.writes() => return Err(Errno::INVAL),
            FileAct::Truncate(size) => {
                let set = SetAttr {
                    size: Some(*size),
                    ..SetAttr::default()
                };
                Ask::SetAttr(open.ino, set)
            }
            FileAct::Allocate(..) if !open.writes() => return Err(Errno::BADF),
            FileAct::Allocate(mode, at, len) => Ask::Allocate(open.ino, *mode, *at, *len),
            FileAct::Link(path) => {
                let (dir, name) = self.place(path)?;
                if self.inode(path, false).is_ok() {
                    return Err(Errno::EXIST);
                }
                let attr = self.session.getattr(&Caller::default(), open.ino)?;
                if attr.nlink == 0 && !self.linkable.contains(&open.ino) {
                    return Err(Errno::NOENT);
                }
                Ask::Link(open.ino, dir, name)
            }
            FileAct::Sync => {
                self.session.fsync(&Caller::default(), open.ino, false)?;
                return Ok(Way::Known(Ok(Said::Done)));
            }
            FileAct::Close | FileAct::Read(..) | FileAct::Stat => return Err(Errno::OPNOTSUPP),
        };
        Ok(Way::Ask(ask, After::Nothing))
    }

    /// What the program hears, and what the kernel remembers.
    fn take(&mut self, noted: Noted, ask: &Ask, after: After) -> Outcome {
        match (after, noted, ask) {
            (After::Open(slot, flags), Noted::Inode(ino), _) => {
                let exclusive = flags.contains(OFlags::EXCL);
                if matches!(ask, Ask::Tmpfile(..)) && !exclusive {
                    self.linkable.insert(ino);
                }
                self.open[slot] = Some(Opened {
                    ino,
                    flags,
                    offset: 0,
                });
                Ok(Said::Done)
            }
            (After::Wrote(slot), Noted::Bytes(bytes), Ask::Write(ino, at, _, append)) => {
                if let Some(open) = slot.and_then(|slot| self.open[slot].as_mut()) {
                    open.offset = at + bytes;
                    if *append {
                        let attr = self.session.getattr(&Caller::default(), *ino)?;
                        open.offset = attr.size;
                    }
                }
                Ok(Said::Count(bytes as usize))
            }
            _ => Ok(Said::Done),
        }
    }

    /// Inodes that the kernel may have no use for after an operation.
    fn may_go(&self, act: &Act) -> Vec<u64> {
        let named = |path: &[u8]| self.inode(path, false).ok().map(|attr| attr.ino);
        let slot = |slot: usize| self.open[slot].as_ref().map(|open| open.ino);
        let found = match act {
            Act::Unlink(path) | Act::Rmdir(path) | Act::Rename(_, path, _) => named(path),
            Act::Open(n, ..) | Act::File(n, FileAct::Close) => slot(*n),
            _ => None,
        };
        found.into_iter().collect()
    }

    /// The kernel forgets what has no name and is not open.
    fn forget(&mut self, ino: u64) {
        let used = self.open.iter().flatten().any(|open| open.ino == ino);
        let attr = self.session.getattr(&Caller::default(), ino);
        if !used && attr.is_ok_and(|attr| attr.nlink == 0) {
            self.session.unrefer(ino, u64::MAX);
            // An error would be seen as space that does not come back.
            let _ = self.session.forget(ino);
        }
    }
}
