//! Attributes of inodes, targets of symbolic links, sizes of the file system.

use crate::client::call::CallContext;
use crate::client::call_runner::CallRunner;
use crate::inodes::flags::may_set;
use crate::inodes::xattr_cache::has_capability;
use crate::io::content::read_target;
use crate::io::truncate_fallocate::truncate;
use crate::namespace::acl::acl_with_mode;
use crate::namespace::path_cache::PathCache;
use shale_format::Ino;
use shale_format::limits::{BLOCK_BYTES, NAME_BYTES_MAX};
use shale_format::record::{Kind, SetAttrBody, attr, record_bytes};
use shale_inodes::attr::changed;
use shale_inodes::attr::{Attr, SetAttr, SetTime};
use shale_oplog::encode;
use shale_session::caller::Caller;
use shale_session::errno::{Errno, Result, Stop};
use shale_session::log::client_log::Need;
use shale_session::space::reservation::HIDDEN_BLOCKS;

const SECOND_NS: u32 = 1_000_000_000;
/// What `statvfs` tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Unit of the block counts, and preferred size of input and output, in bytes.
    pub block_bytes: u32,
    /// Blocks that files could ever use.
    pub blocks: u64,
    /// Blocks that are free for files; what was deleted counts at once.
    pub blocks_free: u64,
    /// Inodes, used and free.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_bytes_max: u32,
}

/// See [`crate::Session::getattr`].
pub(crate) fn getattr(calls: &CallRunner, caller: &Caller, ino: u64) -> Result<Attr> {
    calls.run(caller, Need::default(), |op| {
        let node = op.node(ino)?;
        let state = op.read(&node)?;
        Ok(Attr::of(&state.inode, state.blocks))
    })
}

/// See [`crate::Session::setattr`].
pub(crate) fn setattr(
    calls: &CallRunner,
    paths: &PathCache,
    caller: &Caller,
    ino: u64,
    set: &SetAttr,
) -> Result<Attr> {
    check_times(set)?;
    let rest = SetAttr { size: None, ..*set };
    let done = calls.done_before(caller).map(|d| (d.kind, d.records));
    let sized = done.is_some_and(|(kind, _)| kind == Kind::Truncate);
    match (set.size, done) {
        (None, Some(_)) => return getattr(calls, caller, ino),
        // Cut off between its two transactions?
        (Some(_), Some((_, records))) if records > 1 || !sized => {
            return getattr(calls, caller, ino);
        }
        (Some(size), None) => truncate(calls, caller, ino, size, set.kill_suidgid)?,
        _ => {}
    }
    set_attributes_where(calls, paths, caller, |_| Ok((ino, rest)))
}

/// Sets the attributes, all but the size, that `place` comes to, of the inode that it
/// finds: in the run in which it does, see [`make_where`].
pub(crate) fn set_attributes_where(
    calls: &CallRunner,
    paths: &PathCache,
    caller: &Caller,
    place: impl Fn(&CallContext<'_>) -> std::result::Result<(u64, SetAttr), Stop>,
) -> Result<Attr> {
    let need = Need::log(record_bytes(SetAttrBody::BYTES, 0) as u64);
    calls.run(caller, need, |op| {
        let (ino, set) = place(op)?;
        check_times(&set)?;
        let node = op.node_to_change(ino)?;
        let mut state = op.write(&node)?;
        may_set(&state.inode, &set)?;
        let owned = set.uid.is_some() || set.gid.is_some();
        if owned && !state.inode.is_dir() && has_capability(op, &mut state)? {
            return Err(Stop::Rights(ino, 0));
        }
        let (new, body) = changed(&state.inode, &set, op.now_ns);
        let acl = match body.valid & attr::MODE {
            0 => None,
            _ => acl_with_mode(op, &mut state, new.mode)?,
        };
        if body.valid != 0 {
            let end = op.append(&mut encode::set_attr(Ino(ino), body))?;
            state.inode = new;
            state.note_acl(acl);
            state.touched(end);
            if new.is_dir() && body.valid & (attr::MODE | attr::UID | attr::GID) != 0 {
                paths.permissions_changed();
            }
        }
        Ok(Attr::of(&state.inode, state.blocks))
    })
}

/// See [`crate::Session::readlink`].
pub(crate) fn readlink(calls: &CallRunner, caller: &Caller, ino: u64) -> Result<Vec<u8>> {
    readlink_where(calls, caller, |_| Ok(ino))
}

/// As [`readlink`], of what `place` finds.
pub(crate) fn readlink_where(
    calls: &CallRunner,
    caller: &Caller,
    place: impl Fn(&CallContext<'_>) -> std::result::Result<u64, Stop>,
) -> Result<Vec<u8>> {
    calls.run(caller, Need::default(), |op| {
        let node = op.node(place(op)?)?;
        let state = op.read(&node)?;
        if !state.inode.is_symlink() {
            return Err(Errno::INVAL.into());
        }
        read_target(op, &node, &state)
    })
}

/// See [`crate::Session::fsync`].
pub(crate) fn fsync(calls: &CallRunner, caller: &Caller, ino: u64, _data_only: bool) -> Result<()> {
    let newest = calls.run(caller, Need::default(), |op| {
        let node = op.node(ino)?;
        let newest = op.read(&node)?.newest;
        op.still_served().map(|()| newest)
    })?;
    calls.fsync(newest)
}

/// See [`crate::Session::sync_all`].
pub(crate) fn sync_all(calls: &CallRunner) -> Result<()> {
    let caller = Caller::default();
    calls.run(&caller, Need::default(), |op| op.still_served())?;
    calls.harden_all()
}

/// See [`crate::Session::statfs`].
pub(crate) fn statfs(calls: &CallRunner) -> Result<StatFs> {
    let space = calls.volume_space()?;
    let usable = |blocks: u64| blocks.saturating_sub(HIDDEN_BLOCKS);
    Ok(StatFs {
        block_bytes: BLOCK_BYTES as u32,
        blocks: usable(space.total),
        blocks_free: usable(space.free),
        files: space.inodes_used + space.inodes_free,
        files_free: space.inodes_free,
        name_bytes_max: NAME_BYTES_MAX as u32,
    })
}

fn check_times(set: &SetAttr) -> Result<()> {
    let given = [set.atime, set.mtime, set.ctime.map(SetTime::At)];
    let bad = given
        .into_iter()
        .flatten()
        .any(|t| matches!(t, SetTime::At(t) if t.nsec >= SECOND_NS));
    if bad { Err(Errno::INVAL) } else { Ok(()) }
}
