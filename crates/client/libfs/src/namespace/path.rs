//! The file system by path, as one caller sees it: every permission is checked here.
//!
//! A call walks its paths, checks what the caller may, and does the operation on the inodes it
//! found, all in one run ([`make_where`]): so it never meets another inode that
//! has got the number of one that was removed meanwhile.

use crate::client::call::CallContext;
mod path_xattrs;

pub(crate) use path_xattrs::permitted_of;

use crate::client::call_runner::CallRunner;
use crate::client::session::Session;
use crate::io::content::wrong_type;
use crate::io::handle::{File, open_file};
use crate::io::truncate_fallocate::truncate_where;
use crate::namespace::access::{EXECUTE, WRITE, may_set, may_take_from, owns};
use crate::namespace::acl::{deciding_acl, may_access};
use crate::namespace::attributes::{StatFs, readlink_where, set_attributes_where};
use crate::namespace::create_lookup::{Fresh, make_where};
use crate::namespace::path_cache::PathCache;
use crate::namespace::rename::{
    Ask, RENAME_EXCHANGE, RENAME_NOREPLACE, is_kind, no_cycle, rename_where,
};
use crate::namespace::unlink_link::{link_where, may_link, remove_where};
use crate::namespace::walk::{Last, Origin, Target, split, walk, walk_to_change};
use rustix::fs::OFlags;
use shale_format::Ino;
use shale_format::limits::{NAME_BYTES_MAX, PATH_BYTES_MAX};
use shale_inodes::attr::{Attr, SetAttr, SetTime};
use shale_inodes::dirents::{KIND_DIR, check_length, check_new};
use shale_session::caller::Caller;
use shale_session::errno::{BY_KERNEL, Errno, Result, Stop};
use shale_session::log::client_log::Need;
use shale_sys::mutants;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entries that [`ReadDir`] fetches at a time.
const FETCH: usize = 256;

/// The tree of names, for one caller.
#[derive(Clone)]
pub struct Tree {
    session: Arc<Session>,
    caller: Caller,
    start: u64,
    mounted: bool,
    takes: bool,
    kernel_has_start: bool,
}

impl Tree {
    pub(crate) fn new(session: Arc<Session>, caller: Caller) -> Self {
        let caller = Caller {
            request: 0,
            ..caller
        };
        Self {
            session,
            caller,
            start: Ino::ROOT.0,
            mounted: false,
            takes: true,
            kernel_has_start: false,
        }
    }

    /// The same tree as a program sees it that has it mounted: paths without a slash at their beginning begin in directory `start`, and
    /// what leads out of the tree (an absolute symbolic link, `..` of the root) is [`BY_KERNEL`](crate::BY_KERNEL). Unless it `takes` leases,
    /// so is what does not lead through a directory that this client has alone.
    #[must_use]
    pub fn mounted_at(self, start: u64, takes: bool) -> Self {
        let mounted = true;
        Self {
            start,
            mounted,
            takes,
            ..self
        }
    }

    /// The kernel has the directory too in which paths begin, as a working directory or open. Where that has no name any more, they are
    /// [`BY_KERNEL`](crate::BY_KERNEL), not `ENOENT`: the kernel knows it still, and what was above it.
    #[must_use]
    pub fn with_start_of_kernel(self, kernel_has_start: bool) -> Self {
        Self {
            kernel_has_start,
            ..self
        }
    }

    fn calls(&self) -> &CallRunner {
        &self.session.calls
    }

    fn paths(&self) -> &PathCache {
        &self.session.names.paths
    }

    fn from(&self) -> Origin<'_> {
        Origin {
            paths: self.paths(),
            start: self.start,
            mounted: self.mounted,
            takes: self.takes,
            kernel_has_start: self.kernel_has_start,
        }
    }

    fn look<T>(
        &self,
        f: impl FnMut(&mut CallContext<'_>) -> std::result::Result<T, Stop>,
    ) -> Result<T> {
        self.calls().run(&self.caller, Need::default(), f)
    }

    /// Makes what `path` is to name.
    fn make(&self, path: &[u8], slash_ok: bool, fresh: &Fresh<'_>) -> Result<()> {
        let place = |op: &CallContext<'_>| vacant(op, self.from(), path, slash_ok);
        let made = make_where(self.calls(), &self.caller, fresh, NAME_BYTES_MAX, place);
        made.map(|_| ())
    }

    /// Opens a file; see [`Session::open`].
    pub fn open(&self, path: &[u8], flags: OFlags, mode: u32) -> Result<File> {
        open_file(&self.session, self.from(), &self.caller, path, flags, mode)
    }

    /// Attributes of what `path` leads to. Errors of all walks: `ENOENT`, `ENOTDIR`,
    /// `EACCES`, `ELOOP`, `ENAMETOOLONG`.
    pub fn stat(&self, path: &[u8]) -> Result<Attr> {
        self.attr(path, true)
    }

    /// As [`Self::stat`], of a symbolic link itself.
    pub fn lstat(&self, path: &[u8]) -> Result<Attr> {
        self.attr(path, false)
    }

    fn attr(&self, path: &[u8], follow: bool) -> Result<Attr> {
        self.look(|op| {
            let target = walk(op, self.from(), path, follow)?;
            let node = op.node(target.ino()?)?;
            let state = op.read(&node)?;
            Ok(Attr::of(&state.inode, state.blocks))
        })
    }

    /// Makes a directory. Errors: as [`Session::mkdir`] and of the walk.
    pub fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        self.make(path, true, &Fresh::directory(&self.caller, mode))
    }

    /// Makes a file, FIFO, socket or (superuser only, `EPERM`) device node.
    pub fn mknod(&self, path: &[u8], mode: u32, rdev: u64) -> Result<()> {
        // A whiteout may be made by everybody, as Linux has it since 5.8.
        let whiteout = mode & libc::S_IFMT == libc::S_IFCHR && rdev == 0;
        let device = matches!(mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFBLK) && !whiteout;
        if device && self.caller.uid != 0 {
            // Only where nothing is missing to it but the right.
            self.look(|op| vacant(op, self.from(), path, false))?;
            return Err(Errno::PERM);
        }
        self.make(path, false, &Fresh::node(&self.caller, mode, rdev)?)
    }

    /// Makes a symbolic link at `path` to `target`.
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        self.make(path, false, &Fresh::link(target)?)
    }

    /// Target of a symbolic link. Errors: `EINVAL` for anything else.
    pub fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        let place = |op: &CallContext<'_>| Ok(walk(op, self.from(), path, false)?.ino()?);
        readlink_where(self.calls(), &self.caller, place)
    }

    /// Gives the file at `old` (a symbolic link is not followed) the name `new`.
    pub fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        self.link_into(old, self, new)
    }

    /// As [`Self::link`], to a path of `tree`: the same one that begins elsewhere.
    pub fn link_into(&self, old: &[u8], tree: &Self, new: &[u8]) -> Result<()> {
        self.link_where(|op| {
            let ino = walk(op, self.from(), old, false)?.ino()?;
            if self.mounted {
                protected_link(op, ino)?;
            }
            let (dir, name) = vacant(op, tree.from(), new, false)?;
            Ok((ino, dir, name))
        })
    }

    /// Gives an open file the name `new`.
    pub(crate) fn link_open(&self, ino: u64, new: &[u8]) -> Result<()> {
        self.link_where(|op| {
            let node = op.node(ino)?;
            // Asked before a name is followed: it may be one that gets none again.
            let may = may_link(op, &*op.read(&node)?);
            let (dir, name) = vacant(op, self.from(), new, false)?;
            may.map(|()| (ino, dir, name))
        })
    }

    fn link_where(
        &self,
        place: impl Fn(&CallContext<'_>) -> std::result::Result<(u64, u64, Vec<u8>), Stop>,
    ) -> Result<()> {
        let linked = link_where(self.calls(), &self.caller, NAME_BYTES_MAX, place);
        linked.map(|_| ())
    }

    /// Removes a name. Errors: `EISDIR`, `EPERM` in a sticky directory.
    pub fn unlink(&self, path: &[u8]) -> Result<()> {
        self.remove(false, |op| {
            let target = walk_bare(op, self.from(), path)?;
            let name = name_of(&target, Errno::ISDIR)?;
            let (ino, kind) = target.found.ok_or(Errno::NOENT)?;
            if target.slash {
                return Err(if kind == KIND_DIR {
                    Errno::ISDIR
                } else {
                    Errno::NOTDIR
                }
                .into());
            }
            may_take(op, target.dir, ino)?;
            Ok((target.dir, name, Some(ino)))
        })
    }

    fn remove(
        &self,
        want_dir: bool,
        place: impl Fn(&CallContext<'_>) -> std::result::Result<(u64, Vec<u8>, Option<u64>), Stop>,
    ) -> Result<()> {
        let (calls, paths) = (self.calls(), self.paths());
        remove_where(calls, paths, &self.caller, NAME_BYTES_MAX, want_dir, place)
    }

    /// Removes an empty directory. Errors: `ENOTEMPTY`, `ENOTDIR`, `EINVAL` for `.`,
    /// `EBUSY` for the root.
    pub fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.remove(true, |op| {
            let target = walk_bare(op, self.from(), path)?;
            let name = match &target.last {
                Last::Name(_) => name_of(&target, Errno::INVAL)?,
                Last::DotDot => return Err(Errno::NOTEMPTY.into()),
                Last::Dot if is_root(path) => return Err(Errno::BUSY.into()),
                Last::Dot => return Err(Errno::INVAL.into()),
            };
            let (ino, _) = target.found.ok_or(Errno::NOENT)?;
            may_take(op, target.dir, ino)?;
            Ok((target.dir, name, Some(ino)))
        })
    }

    /// Moves a name; `flags` as [`Session::rename`], which tells the errors too.
    pub fn rename(&self, old: &[u8], new: &[u8], flags: u32) -> Result<()> {
        self.rename_into(old, self, new, flags)
    }

    /// As [`Self::rename`], to a path of `tree`: the same one that begins elsewhere.
    pub fn rename_into(&self, old: &[u8], tree: &Self, new: &[u8], flags: u32) -> Result<()> {
        if !is_kind(flags) {
            return Err(Errno::INVAL);
        }
        let place = |op: &CallContext<'_>| {
            let old = walk_bare(op, self.from(), old)?;
            let new = walk_bare(op, tree.from(), new)?;
            let dots = if flags & RENAME_NOREPLACE != 0 {
                Errno::EXIST
            } else {
                Errno::BUSY
            };
            let names = (old.name(Errno::BUSY)?.to_vec(), new.name(dots)?.to_vec());
            check_length(&names.0)?;
            let source = old.found.ok_or(Errno::NOENT)?;
            check_length(&names.1)?;
            let left = self.from().mounted && !mutants::is_on("directory-moved");
            if left && moves_a_directory(&old, &new, flags) {
                return Err(BY_KERNEL.into());
            }
            may_rename(op, source, &old, &new, flags)?;
            check_new(&names.1)?;
            Ok(Ask {
                from: (old.dir, names.0),
                to: (new.dir, names.1),
                flags,
                expected: Some((source.0, new.found.map(|t| t.0))),
            })
        };
        let (calls, names) = (self.calls(), &self.session.names);
        rename_where(calls, names, &self.caller, 2 * NAME_BYTES_MAX, place)
    }

    /// Sets the permission bits.
    pub fn chmod(&self, path: &[u8], mode: u32) -> Result<()> {
        self.set(
            path,
            true,
            &SetAttr {
                mode: Some(mode),
                ..SetAttr::default()
            },
        )
    }

    /// Sets owner and group, `None` leaves one; `follow`: of what a symbolic link names.
    /// Set-id bits of a file go even if both stay.
    pub fn chown(
        &self,
        path: &[u8],
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> Result<()> {
        self.set(
            path,
            follow,
            &SetAttr {
                uid,
                gid,
                kill_suidgid: true,
                ..SetAttr::default()
            },
        )
    }

    /// Sets the times of last access and change, `None` leaves one.
    pub fn utimens(
        &self,
        path: &[u8],
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
        follow: bool,
    ) -> Result<()> {
        self.set(
            path,
            follow,
            &SetAttr {
                atime,
                mtime,
                ..SetAttr::default()
            },
        )
    }

    fn set(&self, path: &[u8], follow: bool, set: &SetAttr) -> Result<()> {
        self.set_found(|op| Ok(walk(op, self.from(), path, follow)?.ino()?), set)
    }

    /// Sets attributes of the inode that `find` finds.
    pub(crate) fn set_found(
        &self,
        find: impl Fn(&CallContext<'_>) -> std::result::Result<u64, Stop>,
        set: &SetAttr,
    ) -> Result<()> {
        let place = |op: &CallContext<'_>| {
            let ino = find(op)?;
            let node = op.node(ino)?;
            let state = op.read(&node)?;
            let acl = deciding_acl(op, &state)?;
            // By what the kernel knows of owner and mode it decides without asking whose a call is to change them.
            let is_kernels = self.mounted && node.used_elsewhere.load(Ordering::Acquire);
            if is_kernels && (set.mode.is_some() || set.uid.is_some() || set.gid.is_some()) {
                return Err(BY_KERNEL.into());
            }
            let set = may_set(op.caller, &state.inode, acl.as_ref(), set)?;
            if let Some(gid) = set.gid.filter(|&gid| gid != state.inode.gid) {
                op.may_use_group(gid)?;
            }
            Ok((ino, set))
        };
        let done = set_attributes_where(self.calls(), self.paths(), &self.caller, place);
        done.map(|_| ())
    }

    /// Sets the size of the file at `path`.
    pub fn truncate(&self, path: &[u8], size: u64) -> Result<()> {
        let place = |op: &CallContext<'_>| {
            let ino = walk(op, self.from(), path, true)?.ino()?;
            let node = op.node(ino)?;
            let state = op.read(&node)?;
            if !state.inode.is_file() {
                return Err(wrong_type(&state).into());
            }
            may_access(op, &state, WRITE)?;
            Ok(ino)
        };
        let kill = self.caller.uid != 0;
        // What the kernel keeps of a file that others use on the mount is not known here.
        let kept = || if self.mounted { u64::MAX } else { 0 };
        truncate_where(self.calls(), &self.caller, size, kill, &kept, place)
    }

    /// Checks permissions as access(2): bits 4 read, 2 write, 1 execute; 0: existence.
    pub fn access(&self, path: &[u8], want: u32) -> Result<()> {
        if want > 7 {
            return Err(Errno::INVAL);
        }
        self.look(|op| {
            let node = op.node(walk(op, self.from(), path, true)?.ino()?)?;
            let state = op.read(&node)?;
            may_access(op, &state, want)?;
            if want & WRITE != 0 {
                crate::inodes::flags::may_write(&state.inode, true)?;
            }
            Ok(())
        })
    }

    /// The entries of the directory at `path`, without `.` and `..`.
    pub fn read_dir(&self, path: &[u8]) -> Result<ReadDir> {
        self.open(path, OFlags::RDONLY | OFlags::DIRECTORY, 0)?
            .read_dir()
    }

    /// Sizes of the file system.
    pub fn statfs(&self) -> Result<StatFs> {
        self.session.statfs()
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<()> {
        self.session.sync_all()
    }
}

fn is_root(path: &[u8]) -> bool {
    path.iter().all(|&b| b == b'/')
}

/// Leaves to the kernel what it may refuse to link: the file of another user (`fs.protected_hardlinks`, proc_sys_fs(5)).
fn protected_link(op: &CallContext<'_>, ino: u64) -> std::result::Result<(), Stop> {
    let node = op.node(ino)?;
    match owns(op.caller, &op.read(&node)?.inode) {
        true => Ok(()),
        false => Err(BY_KERNEL.into()),
    }
}

/// Walks to where a name is to be made: directory and name. `slash_ok`: for a directory.
fn vacant(
    op: &CallContext<'_>,
    from: Origin<'_>,
    path: &[u8],
    slash_ok: bool,
) -> std::result::Result<(u64, Vec<u8>), Stop> {
    let target = walk_bare(op, from, path)?;
    let name = name_of(&target, Errno::EXIST)?;
    if target.found.is_some() {
        return Err(Errno::EXIST.into());
    }
    if target.slash && !slash_ok {
        return Err(Errno::NOENT.into());
    }
    may_change(op, target.dir)?;
    Ok((target.dir, name))
}

/// Walks to a name itself: a symbolic link at the end is not followed, slash or not. A
/// name that is too long is found to be that only after its directory was found.
fn walk_bare(
    op: &CallContext<'_>,
    from: Origin<'_>,
    path: &[u8],
) -> std::result::Result<Target, Stop> {
    let (prefix, last, slash) = split(path);
    if check_length(last).is_ok() || path.len() > PATH_BYTES_MAX {
        let bare = &path[..prefix.len() + last.len()];
        let bare = if bare.is_empty() { path } else { bare };
        return Ok(Target {
            slash,
            ..walk_to_change(op, from, bare)?
        });
    }
    let parent = walk(op, from, &[prefix, b"."].concat(), false)?;
    Ok(Target {
        last: Last::Name(last.into()),
        slash,
        found: None,
        ..parent
    })
}

/// The name that an operation makes, moves or removes; `other` if it is none.
fn name_of(target: &Target, other: Errno) -> Result<Vec<u8>> {
    let name = target.name(other)?;
    check_length(name)?;
    Ok(name.to_vec())
}

fn may_change(op: &CallContext<'_>, dir: u64) -> std::result::Result<(), Stop> {
    let node = op.node(dir)?;
    may_access(op, &*op.read(&node)?, WRITE | EXECUTE)
}

/// Whether the caller may take a name of inode `ino` out of directory `dir`.
fn may_take(op: &CallContext<'_>, dir: u64, ino: u64) -> std::result::Result<(), Stop> {
    may_change(op, dir)?;
    let dir = op.node(dir)?;
    let dir = op.read(&dir)?.inode;
    let child = op.node_to_change(ino)?;
    let child = op.read(&child)?.inode;
    Ok(may_take_from(op.caller, &dir, &child)?)
}

/// Whether a rename brings a directory into another one. The kernel knows a directory in one place only, and may know this one in
/// its old place: then a program on the mount that renames something else onto it or away from there, with no look before that, gets
/// `ESTALE` (`__d_unalias`, fs/dcache.c of Linux). So who has the tree mounted leaves such a rename to the kernel.
fn moves_a_directory(old: &Target, new: &Target, flags: u32) -> bool {
    let is_dir = |target: &Target| matches!(target.found, Some((_, KIND_DIR)));
    old.dir != new.dir && (is_dir(old) || flags == RENAME_EXCHANGE && is_dir(new))
}

fn may_rename(
    op: &CallContext<'_>,
    source: (u64, u8),
    old: &Target,
    new: &Target,
    flags: u32,
) -> std::result::Result<(), Stop> {
    let exchange = flags == RENAME_EXCHANGE;
    match new.found {
        Some(_) if flags & RENAME_NOREPLACE != 0 => return Err(Errno::EXIST.into()),
        None if exchange => return Err(Errno::NOENT.into()),
        _ => {}
    }
    let other_dir = exchange && new.found.is_some_and(|t| t.1 == KIND_DIR);
    let for_files = source.1 != KIND_DIR && (old.slash || !exchange && new.slash);
    if for_files || exchange && new.slash && !other_dir {
        return Err(Errno::NOTDIR.into());
    }
    no_cycle(op, (old.dir, new.dir), source, new.found, flags)?;
    match new.found {
        // Two names of one inode: nothing will be done.
        Some((target, _)) if target == source.0 => return Ok(()),
        Some((target, kind)) => {
            may_take(op, old.dir, source.0)?;
            may_take(op, new.dir, target)?;
            match (source.1 == KIND_DIR, kind == KIND_DIR) {
                (true, false) if !exchange => return Err(Errno::NOTDIR.into()),
                (false, true) if !exchange => return Err(Errno::ISDIR.into()),
                _ => {}
            }
        }
        None => {
            may_take(op, old.dir, source.0)?;
            may_change(op, new.dir)?;
        }
    }
    if old.dir != new.dir {
        // A directory that gets another parent changes its own entry `..`.
        let moved = [
            Some(source).filter(|s| s.1 == KIND_DIR),
            new.found.filter(|_| other_dir),
        ];
        for (ino, _) in moved.into_iter().flatten() {
            let node = op.node(ino)?;
            may_access(op, &*op.read(&node)?, WRITE)?;
        }
    }
    Ok(())
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedEntry {
    /// Name.
    pub name: Vec<u8>,
    /// Inode number.
    pub ino: u64,
    /// Type, as in `d_type`.
    pub kind: u8,
    /// Where [`ReadDir::seek`] goes on behind this entry.
    pub cookie: u64,
}

/// Walks through the entries of a directory, without `.` and `..`.
pub struct ReadDir {
    session: Arc<Session>,
    caller: Caller,
    ino: u64,
    cookie: u64,
    fetched: VecDeque<ListedEntry>,
    end: bool,
}

impl ReadDir {
    pub(crate) fn new(session: Arc<Session>, caller: Caller, ino: u64) -> Self {
        Self {
            session,
            caller,
            ino,
            cookie: 0,
            fetched: VecDeque::new(),
            end: false,
        }
    }

    /// Goes on behind the entry with this cookie; 0: from the start.
    pub fn seek(&mut self, cookie: u64) {
        self.cookie = cookie;
        self.fetched.clear();
        self.end = false;
    }

    fn fetch(&mut self) -> Result<()> {
        let fetched = &mut self.fetched;
        let mut full = false;
        self.session
            .readdir(&self.caller, self.ino, self.cookie, false, &mut |e| {
                if fetched.len() >= FETCH {
                    full = true;
                    return false;
                }
                if !matches!(e.name, b"." | b"..") {
                    let name = e.name.to_vec();
                    fetched.push_back(ListedEntry {
                        name,
                        ino: e.ino,
                        kind: e.kind,
                        cookie: e.cookie,
                    });
                }
                true
            })?;
        self.end = !full;
        self.cookie = self.fetched.back().map_or(self.cookie, |e| e.cookie);
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<ListedEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.fetched.is_empty()
            && !self.end
            && let Err(e) = self.fetch()
        {
            self.end = true;
            return Some(Err(e));
        }
        self.fetched.pop_front().map(Ok)
    }
}
