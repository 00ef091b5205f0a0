//! Open files: the handle of the path API.

mod handle_xattrs;

use crate::client::call::CallContext;
use crate::client::session::Session;
use crate::inodes::flags::may_write;
use crate::io::read::read_known;
use crate::io::truncate_fallocate::{SEEK_DATA, SEEK_HOLE};
use crate::io::write::{WriteFlags, write_with_node};
use crate::namespace::access::{EXECUTE, READ, WRITE};
use crate::namespace::acl::{acl, may_access};
use crate::namespace::create_lookup::{Fresh, make_at, tmpfile_where};
use crate::namespace::unlink_link::after_last_close;
use crate::namespace::walk::{Origin, Target, is_sticky_and_shared, walk, walk_to_create};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use shale_format::Ino;
use shale_format::acl::AclKind;
use shale_format::limits::NAME_BYTES_MAX;
use shale_inodes::attr::{Attr, SetAttr};
use shale_inodes::dirents::{KIND_DIR, KIND_SYMLINK};
use shale_inodes::node::{Node, NodeState};
use shale_session::caller::Caller;
use shale_session::errno::{BY_KERNEL, Errno, Result, Stop};
use shale_session::log::client_log::Need;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// `lseek` from the start.
pub const SEEK_SET: u32 = 0;
/// `lseek` from the present offset.
pub const SEEK_CUR: u32 = 1;
/// `lseek` from the end.
pub const SEEK_END: u32 = 2;

/// An open file or directory. Its inode lives at least as long, with or without name.
pub struct File {
    session: Arc<Session>,
    node: Arc<Node>,
    caller: Caller,
    flags: OFlags,
    offset: Mutex<u64>,
    /// Where the last read ended: a guess of where the next one begins.
    next_read: AtomicU64,
}

/// See [`Session::open`].
pub(crate) fn open_file(
    session: &Arc<Session>,
    from: Origin<'_>,
    caller: &Caller,
    path: &[u8],
    flags: OFlags,
    mode: u32,
) -> Result<File> {
    let caller = Caller {
        request: 0,
        ..*caller
    };
    let flags = plausible(flags)?;
    if flags.contains(OFlags::TMPFILE) {
        return open_unnamed(session, from, &caller, path, flags, mode);
    }
    let create = flags.contains(OFlags::CREATE);
    let exclusive = create && flags.contains(OFlags::EXCL);
    let follow = !flags.contains(OFlags::NOFOLLOW) && !exclusive;
    let fresh = Fresh::file(&caller, mode).opened();
    let need = if create {
        fresh.need(NAME_BYTES_MAX)
    } else {
        Need::default()
    };
    let (node, made) = session.calls.run(&caller, need, |op| {
        let target = if create {
            walk_to_create(op, from, path, follow)?
        } else {
            walk(op, from, path, follow)?
        };
        if target.found.is_some() || !create {
            if create && from.mounted {
                protected(op, &target)?;
            }
            return Ok((look(op, target, flags)?, false));
        }
        let (dir, name) = vacant(op, &target)?;
        if from.mounted && caller.uid != 0 {
            inherits_nothing(op, dir)?;
        }
        match make_at(op, dir, &name, &fresh) {
            // It was not there a moment ago.
            Err(Stop::Errno(Errno::EXIST)) if !exclusive => Err(Stop::Again),
            made => Ok((made?.1, true)),
        }
    })?;
    let file = File::new(session, caller, node, flags);
    if flags.contains(OFlags::TRUNC) && !made {
        let (ino, kill) = (file.node.ino, caller.uid != 0);
        match from.mounted {
            true => session.truncate_beside_kernel(&caller, ino, 0, kill, &|| u64::MAX)?,
            false => session.truncate(&caller, ino, 0, kill)?,
        }
    }
    Ok(file)
}

fn open_unnamed(
    session: &Arc<Session>,
    from: Origin<'_>,
    caller: &Caller,
    path: &[u8],
    flags: OFlags,
    mode: u32,
) -> Result<File> {
    let place = |op: &CallContext<'_>| {
        let dir = walk(op, from, path, true)?.ino()?;
        let node = op.node(dir)?;
        let state = op.read(&node)?;
        if !state.inode.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        may_access(op, &state, WRITE | EXECUTE)?;
        Ok(dir)
    };
    let fresh = Fresh::file(caller, mode).opened();
    let (_, node) = tmpfile_where(&session.calls, caller, &fresh, flags.bits(), place)?;
    Ok(File::new(session, *caller, node, flags))
}

/// Refuses combinations of flags that make no sense, and drops what `O_PATH` ignores.
fn plausible(flags: OFlags) -> Result<OFlags> {
    if flags.contains(OFlags::PATH) {
        let kept = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        return Ok(flags & kept);
    }
    if flags.contains(OFlags::TMPFILE) {
        return if writes(flags) {
            Ok(flags)
        } else {
            Err(Errno::INVAL)
        };
    }
    let both = OFlags::CREATE | OFlags::DIRECTORY;
    if flags.contains(both) {
        Err(Errno::INVAL)
    } else {
        Ok(flags)
    }
}

fn writes(flags: OFlags) -> bool {
    matches!(flags & OFlags::ACCMODE, OFlags::WRONLY | OFlags::RDWR)
}

fn reads(flags: OFlags) -> bool {
    matches!(flags & OFlags::ACCMODE, OFlags::RDONLY | OFlags::RDWR)
        && !flags.contains(OFlags::PATH)
}

/// Decides what a found name means for `open`, and counts the handle.
fn look(
    op: &CallContext<'_>,
    target: Target,
    flags: OFlags,
) -> std::result::Result<Arc<Node>, Stop> {
    let create = flags.contains(OFlags::CREATE);
    let (ino, kind) = target.found.ok_or(Errno::NOENT)?;
    if create && flags.contains(OFlags::EXCL) {
        return Err(Errno::EXIST.into());
    }
    if create && kind == KIND_DIR {
        return Err(Errno::ISDIR.into());
    }
    if target.slash && kind != KIND_DIR {
        return Err(Errno::NOTDIR.into());
    }
    if kind == KIND_SYMLINK && !flags.contains(OFlags::PATH) {
        let directory = flags.contains(OFlags::DIRECTORY);
        return Err(if directory {
            Errno::NOTDIR
        } else {
            Errno::LOOP
        }
        .into());
    }
    if flags.contains(OFlags::DIRECTORY) && kind != KIND_DIR {
        return Err(Errno::NOTDIR.into());
    }
    let node = op.node(ino)?;
    {
        let state = op.read(&node)?;
        if state.orphan {
            return Err(Stop::Again);
        }
        if !flags.contains(OFlags::PATH) {
            may_open(op, &state, flags)?;
        }
        op.open(&node);
    }
    Ok(node)
}

/// Leaves to the kernel what it may refuse to open with `O_CREAT`, even to the superuser: a file in a sticky directory that others may
/// write (`fs.protected_regular`, proc_sys_fs(5)).
fn protected(op: &CallContext<'_>, target: &Target) -> std::result::Result<(), Stop> {
    let node = op.node(target.dir)?;
    match is_sticky_and_shared(op.read(&node)?.inode.mode) {
        true => Err(BY_KERNEL.into()),
        false => Ok(()),
    }
}

/// Leaves to the kernel what is made in a directory with a default access control list: the file may get a mode by which the kernel would not
/// open it again for the user who has it open.
fn inherits_nothing(op: &CallContext<'_>, dir: u64) -> std::result::Result<(), Stop> {
    let node = op.node(dir)?;
    match acl(op, &*op.read(&node)?, AclKind::Default)? {
        Some(_) => Err(BY_KERNEL.into()),
        None => Ok(()),
    }
}

/// Where a file can be made that was not found: directory and name.
fn vacant(op: &CallContext<'_>, target: &Target) -> std::result::Result<(u64, Vec<u8>), Stop> {
    let name = target.name(Errno::ISDIR)?.to_vec();
    let node = op.node(target.dir)?;
    may_access(op, &*op.read(&node)?, WRITE | EXECUTE)?;
    Ok((target.dir, name))
}

fn may_open(
    op: &CallContext<'_>,
    state: &NodeState,
    flags: OFlags,
) -> std::result::Result<(), Stop> {
    let inode = &state.inode;
    let write = writes(flags) || flags.contains(OFlags::TRUNC);
    if inode.is_dir() && write {
        return Err(Errno::ISDIR.into());
    }
    let want = if reads(flags) { READ } else { 0 } | if write { WRITE } else { 0 };
    may_access(op, state, want)?;
    if write {
        let append = flags.contains(OFlags::APPEND) && !flags.contains(OFlags::TRUNC);
        may_write(inode, append)?;
    }
    if inode.is_dir() || inode.is_file() {
        Ok(())
    } else {
        Err(Errno::NXIO.into())
    }
}

impl File {
    fn new(session: &Arc<Session>, caller: Caller, node: Arc<Node>, flags: OFlags) -> Self {
        Self {
            session: session.clone(),
            node,
            caller,
            flags,
            offset: Mutex::new(0),
            next_read: AtomicU64::new(0),
        }
    }

    /// Inode number.
    pub fn ino(&self) -> u64 {
        self.node.ino
    }

    /// As [`Session::kernel_name`].
    pub fn kernel_name(&self) -> Vec<u8> {
        self.session.kernel_name(self.node.ino)
    }

    /// Whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.node.state.read().inode.is_file()
    }

    /// Sets attributes, but for the size, as [`Tree::chmod`](crate::Tree::chmod) and its like do, for a program that has the tree mounted: owner
    /// and mode of a file that the kernel knows are [`BY_KERNEL`].
    pub fn set_attributes_beside_kernel(&self, set: &SetAttr) -> Result<()> {
        let tree = self.session.tree(self.caller);
        let tree = tree.mounted_at(Ino::ROOT.0, true);
        tree.set_found(|_| Ok(self.node.ino), set)
    }

    /// Reads at the file's offset and moves it; fewer bytes only at the end of the file.
    pub fn read(&self, into: &mut [u8]) -> Result<usize> {
        let mut offset = self.offset.lock();
        let n = self.pread(*offset, into)?;
        *offset += n as u64;
        Ok(n)
    }

    /// Writes at the file's offset, or with `APPEND` at the end of the file, and moves
    /// the offset behind it. Durable on return with the strict policy.
    pub fn write(&self, data: &[u8]) -> Result<usize> {
        self.write_at(&mut self.offset.lock(), data)
    }

    /// Reads at byte `offset`. Errors: `EBADF` if not open for reading, `EISDIR`, `EINVAL`.
    pub fn pread(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        if !reads(self.flags) {
            return Err(Errno::BADF);
        }
        check_range(offset, into.len())?;
        let sequential = self.next_read.load(Ordering::Relaxed) == offset;
        let (ino, node) = (self.node.ino, Some(&*self.node));
        let calls = &self.session.calls;
        let n = read_known(calls, &self.caller, ino, node, sequential, offset, into)?;
        self.next_read.store(offset + n as u64, Ordering::Relaxed);
        Ok(n)
    }

    /// Writes at byte `offset`; with `APPEND` at the end of the file instead, as on
    /// Linux. Errors: `EBADF` if not open for writing, `EFBIG`, `ENOSPC`, `EINVAL`.
    pub fn pwrite(&self, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_at(&mut { offset }, data)
    }

    /// Writes at `at`, which is then where the write ended.
    fn write_at(&self, at: &mut u64, data: &[u8]) -> Result<usize> {
        if !writes(self.flags) {
            return Err(Errno::BADF);
        }
        check_range(*at, data.len())?;
        if data.is_empty() {
            return Ok(0);
        }
        let append = self.flags.contains(OFlags::APPEND);
        let flags = WriteFlags {
            kill_suidgid: self.caller.uid != 0,
            append,
            sync: self.flags.intersects(OFlags::SYNC | OFlags::DSYNC),
        };
        let (ino, known) = (self.node.ino, Some(&*self.node));
        let w = &self.session.to_write(&self.caller);
        write_with_node(w, ino, known, at, data, flags)
    }

    /// Moves the offset as lseek(2), also with `SEEK_DATA` and `SEEK_HOLE`, and tells
    /// where it is. Errors: `EINVAL`, `ENXIO`, `EOVERFLOW`.
    pub fn lseek(&self, by: i64, whence: u32) -> Result<u64> {
        if self.flags.contains(OFlags::PATH) {
            return Err(Errno::BADF);
        }
        let mut offset = self.offset.lock();
        let from = match whence {
            SEEK_SET => 0,
            SEEK_CUR => *offset,
            SEEK_END => self.stat()?.size,
            SEEK_DATA | SEEK_HOLE => {
                let at = u64::try_from(by).map_err(|_| Errno::NXIO)?;
                *offset = self
                    .session
                    .lseek(&self.caller, self.node.ino, at, whence)?;
                return Ok(*offset);
            }
            _ => return Err(Errno::INVAL),
        };
        let to = i64::try_from(from).map_err(|_| Errno::OVERFLOW)?;
        let to = to.checked_add(by).ok_or(Errno::OVERFLOW)?;
        *offset = u64::try_from(to).map_err(|_| Errno::INVAL)?;
        Ok(*offset)
    }

    /// Inode, caller and session, for calls about extended attributes.
    pub(crate) fn of_attributes(&self) -> Result<(u64, &Caller, &Session)> {
        match self.flags.contains(OFlags::PATH) {
            true => Err(Errno::BADF),
            false => Ok((self.node.ino, &self.caller, &self.session)),
        }
    }

    /// Attributes.
    pub fn stat(&self) -> Result<Attr> {
        self.session.getattr(&self.caller, self.node.ino)
    }

    /// Sets the size. Errors: `EINVAL` if not open for writing.
    pub fn truncate(&self, size: u64) -> Result<()> {
        if !writes(self.flags) {
            return Err(if self.flags.contains(OFlags::PATH) {
                Errno::BADF
            } else {
                Errno::INVAL
            });
        }
        self.session
            .truncate(&self.caller, self.node.ino, size, self.caller.uid != 0)
    }

    /// As fallocate(2), with its `mode`. Errors: `EBADF` if not open for writing.
    pub fn fallocate(&self, mode: u32, offset: u64, bytes: u64) -> Result<()> {
        if !writes(self.flags) {
            return Err(Errno::BADF);
        }
        self.session
            .fallocate(&self.caller, self.node.ino, mode, offset, bytes)
    }

    /// Makes the file durable; `data_only`: what is needed to read its content back.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        if self.flags.contains(OFlags::PATH) {
            return Err(Errno::BADF);
        }
        self.session.fsync(&self.caller, self.node.ino, data_only)
    }

    /// Gives the file another name, also one of `TMPFILE` its first one. Errors: those
    /// of linkat(2).
    pub fn link_at(&self, path: &[u8]) -> Result<()> {
        self.session
            .tree(self.caller)
            .link_open(self.node.ino, path)
    }

    /// The directory's entries. Errors: `ENOTDIR`, `EBADF`.
    pub fn read_dir(&self) -> Result<crate::namespace::path::ReadDir> {
        if !reads(self.flags) {
            return Err(Errno::BADF);
        }
        if self.stat()?.mode & libc::S_IFMT != libc::S_IFDIR {
            return Err(Errno::NOTDIR);
        }
        Ok(crate::namespace::path::ReadDir::new(
            self.session.clone(),
            self.caller,
            self.node.ino,
        ))
    }
}

fn check_range(offset: u64, bytes: usize) -> Result<()> {
    let end = offset
        .checked_add(bytes as u64)
        .filter(|&e| e <= i64::MAX as u64);
    end.map(|_| ()).ok_or(Errno::INVAL)
}

impl Drop for File {
    fn drop(&mut self) {
        let ino = self.node.ino;
        let last = self.node.handles.fetch_sub(1, Ordering::AcqRel) == 1;
        // From here on who removes the last name of the inode frees it.
        let calls = &self.session.calls;
        calls.uncount_open(ino);
        if last
            && !calls.kernel_references()
            && let Err(e) = after_last_close(calls, &self.caller, &self.node)
        {
            tracing::warn!("inode {ino} may have no name and no user and not be freed: {e}");
        }
    }
}
