//! Looking up names and making them: files, directories, links, device nodes.
//!
//! One record makes an inode together with its name. Before a record is appended
//! everything that could refuse it has been checked under the directory's lock;
//! after it only memory changes.

use crate::client::call::CallContext;
use crate::client::call_runner::CallRunner;
use crate::inodes::flags::may_add_to;
use crate::inodes::xattr_cache::{load_xattrs, most_blocks};
use crate::io::truncate_fallocate::truncate;
use crate::namespace::acl::{Inherited, acl};
use crate::namespace::attributes::getattr;
use shale_format::acl::{Acl, AclKind};
use shale_format::dirent::kind_of_mode;
use shale_format::inode::{self, Inode, flag, target_checksum, time};
use shale_format::limits::{LINKS_MAX, SYMLINK_BYTES_MAX};
use shale_format::record::{CreateBody, XattrBody, record_bytes};
use shale_format::xattr::{Xattrs, encoded_bytes};
use shale_format::{DirKey, Ino, LogPos};
use shale_inodes::attr::Attr;
use shale_inodes::dir::Entry;
use shale_inodes::dirents::{FoundDirent, Slot, check_length, check_new, find, slot};
use shale_inodes::node::{Node, NodeState};
use shale_oplog::{Part, Source, encode};
use shale_session::caller::Caller;
use shale_session::errno::{Errno, Result, Stop};
use shale_session::log::client_log::Need;
use shale_session::space::reservation::{INODE_BYTES, TREE_BYTES, blocks_bytes};
use std::sync::Arc;

const S_IFMT: u32 = libc::S_IFMT;
const S_ISGID: u32 = libc::S_ISGID;

/// What is made.
#[derive(Clone, Copy)]
pub(crate) struct Fresh<'a> {
    /// With the bits that a umask takes away, which a default list has stay.
    mode: u32,
    umask: u32,
    rdev: u64,
    target: &'a [u8],
    /// The call that makes it opens it.
    opened: bool,
}

impl<'a> Fresh<'a> {
    fn of_mode(mode: u32, umask: u32) -> Self {
        Self {
            mode,
            umask: umask & 0o777,
            rdev: 0,
            target: &[],
            opened: false,
        }
    }

    /// Has the call that makes it open it: nobody can remove it before.
    pub(crate) fn opened(self) -> Self {
        Self {
            opened: true,
            ..self
        }
    }

    pub(crate) fn file(caller: &Caller, mode: u32) -> Self {
        Self::of_mode(libc::S_IFREG | mode & 0o7777, caller.umask)
    }

    pub(crate) fn directory(caller: &Caller, mode: u32) -> Self {
        Self::of_mode(libc::S_IFDIR | mode & 0o1777, caller.umask)
    }

    /// Of the type in `mode`; 0 is a regular file.
    pub(crate) fn node(caller: &Caller, mode: u32, rdev: u64) -> Result<Self> {
        let kind = match mode & S_IFMT {
            0 => libc::S_IFREG,
            libc::S_IFDIR => return Err(Errno::PERM),
            k
            @ (libc::S_IFREG | libc::S_IFCHR | libc::S_IFBLK | libc::S_IFIFO | libc::S_IFSOCK) => k,
            _ => return Err(Errno::INVAL),
        };
        let device = matches!(kind, libc::S_IFCHR | libc::S_IFBLK);
        Ok(Self {
            rdev: if device { rdev } else { 0 },
            ..Self::of_mode(kind | mode & 0o7777, caller.umask)
        })
    }

    /// What a rename leaves under the old name. It has no list: nobody may do anything with it anyway.
    pub(crate) fn whiteout() -> Self {
        Self::of_mode(libc::S_IFCHR, 0)
    }

    /// What making it with a name of at most `name_bytes` bytes needs.
    pub(crate) fn need(&self, name_bytes: usize) -> Need {
        Need::log(self.record_bytes(name_bytes) as u64)
    }

    fn record_bytes(&self, name_bytes: usize) -> usize {
        record_bytes(CreateBody::BYTES, name_bytes + self.target.len())
    }

    /// A symbolic link.
    pub(crate) fn link(target: &'a [u8]) -> Result<Self> {
        if target.is_empty() {
            return Err(Errno::NOENT);
        }
        if target.len() > SYMLINK_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        Ok(Self {
            target,
            ..Self::of_mode(libc::S_IFLNK | 0o777, 0)
        })
    }
}

/// See [`crate::Session::lookup`].
pub(crate) fn lookup(
    calls: &CallRunner,
    caller: &Caller,
    parent: u64,
    name: &[u8],
) -> Result<Attr> {
    check_length(name)?;
    if !Ino(parent).is_user() {
        return Err(Errno::NOENT);
    }
    calls.run(caller, Need::default(), |op| {
        let dir = op.node(parent)?;
        let state = op.read(&dir)?;
        let ino = match name {
            b"." | b".." if state.orphan => return Err(Errno::NOENT.into()),
            b"." => parent,
            b".." if !state.inode.is_dir() => return Err(Errno::NOTDIR.into()),
            b".." => state.inode.parent.max(Ino::ROOT.0),
            _ => {
                op.live_dir(&state)?;
                find(op.volume(), &state, name)?.ok_or(Errno::NOENT)?.ino
            }
        };
        drop(state);
        op.follows_names();
        let node = op.node(ino)?;
        let state = op.read(&node)?;
        op.refer(ino);
        Ok(Attr::of(&state.inode, state.blocks))
    })
}

/// See [`crate::Session::lookup_file`].
pub(crate) fn lookup_file(calls: &CallRunner, caller: &Caller, ino: u64) -> Result<Attr> {
    if !Ino(ino).is_user() {
        return Err(Errno::NOENT);
    }
    calls.run(caller, Need::default(), |op| {
        let node = op.node(ino)?;
        let state = op.read(&node)?;
        if !state.inode.is_file() {
            return Err(Errno::NOENT.into());
        }
        op.refer(ino);
        Ok(Attr::of(&state.inode, state.blocks))
    })
}

/// See [`crate::Session::mknod`].
pub(crate) fn mknod(
    calls: &CallRunner,
    caller: &Caller,
    parent: u64,
    name: &[u8],
    mode: u32,
    rdev: u64,
) -> Result<Attr> {
    make(
        calls,
        caller,
        parent,
        name,
        Fresh::node(caller, mode, rdev)?,
    )
}

/// See [`crate::Session::mkdir`].
pub(crate) fn mkdir(
    calls: &CallRunner,
    caller: &Caller,
    parent: u64,
    name: &[u8],
    mode: u32,
) -> Result<Attr> {
    make(calls, caller, parent, name, Fresh::directory(caller, mode))
}

/// See [`crate::Session::symlink`].
pub(crate) fn symlink(
    calls: &CallRunner,
    caller: &Caller,
    parent: u64,
    name: &[u8],
    target: &[u8],
) -> Result<Attr> {
    make(calls, caller, parent, name, Fresh::link(target)?)
}

/// See [`crate::Session::create`].
pub(crate) fn create(
    calls: &CallRunner,
    caller: &Caller,
    parent: u64,
    name: &[u8],
    mode: u32,
    flags: u32,
) -> Result<Attr> {
    loop {
        let made = make(calls, caller, parent, name, Fresh::file(caller, mode));
        if made != Err(Errno::EXIST) || flags & libc::O_EXCL as u32 != 0 {
            return made;
        }
        match lookup(calls, caller, parent, name) {
            Err(Errno::NOENT) => {}
            Ok(attr)
                if flags & libc::O_TRUNC as u32 != 0 && attr.mode & S_IFMT == libc::S_IFREG =>
            {
                truncate(calls, caller, attr.ino, 0, caller.uid != 0)?;
                return getattr(calls, caller, attr.ino);
            }
            found => return found,
        }
    }
}

/// See [`crate::Session::tmpfile`].
pub(crate) fn tmpfile(
    calls: &CallRunner,
    caller: &Caller,
    parent: u64,
    mode: u32,
    flags: u32,
) -> Result<Attr> {
    if let Some(attr) = made_before(calls, caller) {
        return attr;
    }
    let fresh = Fresh::file(caller, mode);
    let made = tmpfile_where(calls, caller, &fresh, flags, |_| Ok(parent));
    made.map(|(attr, _)| attr)
}

/// As [`tmpfile`], in the file system of the directory that `place` finds.
pub(crate) fn tmpfile_where(
    calls: &CallRunner,
    caller: &Caller,
    fresh: &Fresh<'_>,
    flags: u32,
    place: impl Fn(&CallContext<'_>) -> std::result::Result<u64, Stop>,
) -> Result<(Attr, Arc<Node>)> {
    let need = Need::log(record_bytes(CreateBody::BYTES, 0) as u64);
    calls.run(caller, need, |op| {
        let parent = place(op)?;
        let dir = op.node(parent)?;
        let dir = op.read(&dir)?;
        op.live_dir(&dir)?;
        may_add_to(&dir.inode)?;
        let default = acl(op, &dir, AclKind::Default)?;
        let (fresh, attrs) = with_inherited(fresh, default.as_ref());
        need_new(op, record_bytes(CreateBody::BYTES, 0), INODE_BYTES, &attrs)?;
        let ino = op.new_number(parent)?;
        let mut inode = new_inode(op, &dir.inode, ino, &fresh)?;
        inode.nlink = 0;
        inode.flags = flag::ORPHAN;
        let body = create_body(&inode, 0);
        let part = encode::create(Ino::NONE, Ino(ino), body, &[], &[]);
        let end = append_new(op, part, ino, &attrs)?.end;
        let mut state = NodeState::fresh(inode, op.epoch);
        state.xattrs = Some(attrs);
        state.orphan = true;
        state.no_link = flags & libc::O_EXCL as u32 != 0;
        state.touched(end);
        let node = op.add_new(state, fresh.opened);
        op.refer(ino);
        Ok((Attr::of(&inode, 0), node))
    })
}

fn make(
    calls: &CallRunner,
    caller: &Caller,
    parent: u64,
    name: &[u8],
    fresh: Fresh<'_>,
) -> Result<Attr> {
    if let Some(attr) = made_before(calls, caller) {
        return attr;
    }
    check_new(name)?;
    make_where(calls, caller, &fresh, name.len(), |_| Ok((parent, name)))
}

/// Makes an inode with a name of at most `name_bytes` bytes in a directory, both of which
/// `place` finds. It is found and made in one run: a number that is found in one run may be
/// another directory's in the next.
pub(crate) fn make_where<N: AsRef<[u8]>>(
    calls: &CallRunner,
    caller: &Caller,
    fresh: &Fresh<'_>,
    name_bytes: usize,
    place: impl Fn(&CallContext<'_>) -> std::result::Result<(u64, N), Stop>,
) -> Result<Attr> {
    calls.run(caller, fresh.need(name_bytes), |op| {
        let (parent, name) = place(op)?;
        make_at(op, parent, name.as_ref(), fresh).map(|(attr, _)| attr)
    })
}

/// If the caller's request was done before a crash: the inode that it made or named.
pub(crate) fn made_before(calls: &CallRunner, caller: &Caller) -> Option<Result<Attr>> {
    calls
        .done_before(caller)
        .map(|done| getattr(calls, caller, done.ino.0))
}

/// Makes an inode with the name `name` in directory `parent`. `EEXIST` if that is there.
pub(crate) fn make_at(
    op: &mut CallContext<'_>,
    parent: u64,
    name: &[u8],
    fresh: &Fresh<'_>,
) -> std::result::Result<(Attr, Arc<Node>), Stop> {
    check_new(name)?;
    let dir = op.node_to_change(parent)?;
    let mut state = op.write(&dir)?;
    op.live_dir(&state)?;
    match slot(op.volume(), &state, name)? {
        Slot::Taken(_) => Err(Errno::EXIST.into()),
        Slot::Vacant(_) if may_add_to(&state.inode).is_err() => Err(Errno::PERM.into()),
        Slot::Vacant(key) => {
            load_xattrs(op, &mut state)?;
            make_in(op, &mut state, key, name, fresh)
        }
    }
}

/// Makes an inode with the name `name` at the free place `key` of directory `dir`.
fn make_in(
    op: &mut CallContext<'_>,
    dir: &mut NodeState,
    key: DirKey,
    name: &[u8],
    fresh: &Fresh<'_>,
) -> std::result::Result<(Attr, Arc<Node>), Stop> {
    let parent = dir.inode.ino;
    if fresh.mode & S_IFMT == libc::S_IFDIR && dir.inode.nlink >= LINKS_MAX {
        return Err(Errno::MLINK.into());
    }
    let blocks = u64::from(!fresh.target.is_empty());
    let default = acl(op, dir, AclKind::Default)?;
    let (fresh, attrs) = with_inherited(fresh, default.as_ref());
    let reserve = TREE_BYTES + INODE_BYTES + blocks_bytes(blocks);
    need_new(op, fresh.record_bytes(name.len()), reserve, &attrs)?;
    let inode = new_numbered(op, &dir.inode, &fresh)?;
    let ino = inode.ino;
    let body = create_body(&inode, key.twin());
    let part = encode::create(Ino(parent), Ino(ino), body, name, fresh.target);
    let Logged { pos, payload, end } = append_new(op, part, ino, &attrs)?;

    let mut state = NodeState::fresh(inode, op.epoch);
    state.xattrs = Some(attrs);
    if blocks > 0 {
        let at = LogPos(payload.0 + name.len() as u64);
        state.overlay.insert(0..inode.size, Source::Log { at }, pos);
        state.blocks = blocks;
    }
    state.touched(end);
    // Before the directory's lock is given up: who finds the name finds the inode.
    let node = op.add_new(state, fresh.opened);
    op.refer(ino);
    let found = FoundDirent {
        key,
        ino,
        kind: kind_of_mode(inode.mode),
    };
    add_entry(dir, &found, name, op.now_ns, end);
    Ok((Attr::of(&inode, blocks), node))
}

/// What is made in a directory with this default list, with its mode as it will be, and the lists that it gets: as the
/// kernel's `posix_acl_create`.
fn with_inherited<'a>(fresh: &Fresh<'a>, default: Option<&Acl>) -> (Fresh<'a>, Xattrs) {
    let link = fresh.mode & S_IFMT == libc::S_IFLNK;
    match default.filter(|_| !link) {
        None => {
            let mode = fresh.mode & !fresh.umask;
            (Fresh { mode, ..*fresh }, Xattrs::new())
        }
        Some(default) => {
            let (mode, inherited) = Inherited::of(default, fresh.mode);
            (Fresh { mode, ..*fresh }, inherited.attributes())
        }
    }
}

/// Where the record lies that makes an inode, and its payload; and where the transaction ends.
struct Logged {
    pos: LogPos,
    payload: LogPos,
    end: LogPos,
}

/// Appends the record that makes an inode and those of its attributes as one transaction.
fn append_new(
    op: &mut CallContext<'_>,
    mut part: Part<'_>,
    ino: u64,
    attrs: &Xattrs,
) -> std::result::Result<Logged, Stop> {
    let logged = |part: &Part<'_>, end| Logged {
        pos: LogPos(part.header.pos),
        payload: part.payload_at(),
        end,
    };
    if attrs.is_empty() {
        let end = op.append(&mut part)?;
        return Ok(logged(&part, end));
    }
    let mut parts = vec![part];
    parts.extend(
        attrs
            .iter()
            .map(|(name, v)| encode::set_xattr(Ino(ino), name, v)),
    );
    let end = op.append_chain(&mut parts)?;
    Ok(logged(&parts[0], end))
}

/// As [`new_inode`], with a number of its own.
pub(crate) fn new_numbered(
    op: &CallContext<'_>,
    dir: &Inode,
    fresh: &Fresh<'_>,
) -> std::result::Result<Inode, Stop> {
    let ino = op.new_number(dir.ino)?;
    new_inode(op, dir, ino, fresh)
}

/// The inode that a call makes in directory `dir`: its group, and for directories the
/// set-group-id bit, come from a set-group-id directory.
fn new_inode(
    op: &CallContext<'_>,
    dir: &Inode,
    ino: u64,
    fresh: &Fresh<'_>,
) -> std::result::Result<Inode, Stop> {
    let is_dir = fresh.mode & S_IFMT == libc::S_IFDIR;
    let mut inode = Inode::free();
    inode.ino = ino;
    inode.mode = fresh.mode;
    inode.uid = op.caller.uid;
    inode.gid = op.caller.gid;
    if dir.mode & S_ISGID != 0 {
        inode.gid = dir.gid;
        inode.mode = inherited_mode(op, dir.gid, fresh.mode);
    } else {
        op.may_use_group(inode.gid)?;
    }
    inode.nlink = if is_dir { 2 } else { 1 };
    inode.parent = if is_dir { dir.ino } else { 0 };
    inode.size = fresh.target.len() as u64;
    if inode.is_symlink() {
        inode.target_checksum = target_checksum(Ino(ino), fresh.target);
    }
    inode.rdev = fresh.rdev;
    inode.flags = inode::inherited(dir.flags, fresh.mode);
    inode.generation = (op.now_ns as u32 ^ (ino as u32).wrapping_mul(0x9e37_79b9)).max(1);
    for which in [time::ACCESS, time::MODIFY, time::CHANGE, time::BIRTH] {
        inode.set_time_ns(which, op.now_ns);
    }
    Ok(inode)
}

/// Mode in a set-group-id directory of group `gid`. A file may not become executable
/// with a group that its maker is not in; the kernel has seen to that where it calls.
fn inherited_mode(op: &CallContext<'_>, gid: u32, mode: u32) -> u32 {
    let strange = op.caller.uid != 0 && !op.caller.is_in(gid);
    match mode & S_IFMT {
        libc::S_IFDIR => mode | S_ISGID,
        _ if mode & 0o2010 == 0o2010 && strange && !op.kernel_references() => mode & !S_ISGID,
        _ => mode,
    }
}

pub(crate) fn create_body(inode: &Inode, twin: u8) -> CreateBody {
    CreateBody {
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        generation: inode.generation,
        rdev: inode.rdev,
        name_bytes: 0,
        target_bytes: 0,
        twin,
        reserved: [0; 11],
    }
}

/// Puts an entry into a directory in memory: count of entries and subdirectories, times.
pub(crate) fn add_entry(
    dir: &mut NodeState,
    found: &FoundDirent,
    name: &[u8],
    now_ns: i64,
    end: LogPos,
) {
    let entry = Entry {
        ino: found.ino,
        kind: found.kind,
        name: name.into(),
    };
    dir.dir.set(found.key, Some(entry), end);
    dir.inode.size += 1;
    dir.inode.nlink += u32::from(found.is_dir());
    dir_changed(dir, now_ns, end);
}

/// Takes an entry out of a directory in memory.
pub(crate) fn take_entry(dir: &mut NodeState, found: &FoundDirent, now_ns: i64, end: LogPos) {
    dir.dir.set(found.key, None, end);
    dir.inode.size = dir.inode.size.saturating_sub(1);
    dir.inode.nlink -= u32::from(found.is_dir());
    dir_changed(dir, now_ns, end);
}

fn dir_changed(dir: &mut NodeState, now_ns: i64, end: LogPos) {
    dir.inode.set_time_ns(time::MODIFY, now_ns);
    dir.inode.set_time_ns(time::CHANGE, now_ns);
    dir.touched(end);
}

/// Makes sure that an inode with these attributes can be made: with a record of `bytes` bytes, and `reserve` for it without
/// them.
fn need_new(
    op: &mut CallContext<'_>,
    bytes: usize,
    reserve: u64,
    attrs: &Xattrs,
) -> std::result::Result<(), Stop> {
    if attrs.is_empty() {
        return op.reserve_space(reserve);
    }
    let record =
        |(name, v): (&Vec<u8>, &Vec<u8>)| record_bytes(XattrBody::BYTES, name.len() + v.len());
    op.need_log((bytes + attrs.iter().map(record).sum::<usize>()) as u64)?;
    op.reserve_space(reserve + blocks_bytes(most_blocks(encoded_bytes(attrs))))
}
