//! Flags of inodes, as chattr(1) sets them, and what they forbid: to everybody, root too (ioctl_iflags(2)). The
//! kernel knows nothing of them on a mount, so whatever changes an inode asks here.

use crate::client::call_runner::CallRunner;
use shale_format::Ino;
use shale_format::inode::flag::{APPEND_ONLY, CHANGEABLE, DIR_SYNC, IMMUTABLE, SYNCS};
use shale_format::inode::{Inode, time};
use shale_format::record::{SetAttrBody, attr, record_bytes};
use shale_inodes::attr::{SetAttr, SetTime};
use shale_oplog::encode;
use shale_session::caller::Caller;
use shale_session::errno::{Errno, Result};
use shale_session::log::client_log::Need;

/// See [`crate::Session::inode_flags`].
pub(crate) fn inode_flags(calls: &CallRunner, caller: &Caller, ino: u64) -> Result<u32> {
    calls.run(caller, Need::default(), |op| {
        let node = op.node(ino)?;
        let state = op.read(&node)?;
        has_flags(&state.inode)?;
        Ok(state.inode.flags & CHANGEABLE)
    })
}

/// See [`crate::Session::set_inode_flags`].
pub(crate) fn set_inode_flags(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    flags: u32,
) -> Result<()> {
    if flags & !CHANGEABLE != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if calls.done_before(caller).is_some() {
        return Ok(());
    }
    let need = Need::log(record_bytes(SetAttrBody::BYTES, 0) as u64);
    calls.run(caller, need, |op| {
        let node = op.node_to_change(ino)?;
        let mut state = op.write(&node)?;
        has_flags(&state.inode)?;
        let old = state.inode.flags & CHANGEABLE;
        // Means nothing of a file, as on ext4.
        let flags = match state.inode.is_dir() {
            true => flags,
            false => flags & !DIR_SYNC,
        };
        if flags & SYNCS != 0 {
            op.changes_synced(true);
        }
        // What stays immutable keeps its other flags, as on ext4.
        if old & flags & IMMUTABLE != 0 && old != flags {
            return Err(Errno::PERM.into());
        }
        let body = SetAttrBody {
            valid: attr::FLAGS,
            flags,
            mode: 0,
            uid: 0,
            gid: 0,
            time_s: [0; 3],
            time_ns: [0; 3],
        };
        let end = op.append(&mut encode::set_attr(Ino(ino), body))?;
        state.inode.flags = state.inode.flags & !CHANGEABLE | flags;
        state.inode.set_time_ns(time::CHANGE, op.now_ns);
        state.touched(end);
        Ok(())
    })
}

fn has_flags(inode: &Inode) -> Result<()> {
    match inode.is_file() || inode.is_dir() {
        true => Ok(()),
        false => Err(Errno::NOTTY),
    }
}

#[inline]
fn allowed_without(inode: &Inode, flags: u32) -> Result<()> {
    match inode.flags & flags {
        0 => Ok(()),
        _ => Err(Errno::PERM),
    }
}

/// Content: what is appended only is written at its end.
#[inline]
pub(crate) fn may_write(inode: &Inode, append: bool) -> Result<()> {
    let forbids = if append { 0 } else { APPEND_ONLY };
    allowed_without(inode, IMMUTABLE | forbids)
}

/// Content that is there, extended attributes, one more name.
pub(crate) fn may_change(inode: &Inode) -> Result<()> {
    allowed_without(inode, IMMUTABLE | APPEND_ONLY)
}

/// Attributes. The times of what is appended only can be set to now.
pub(crate) fn may_set(inode: &Inode, set: &SetAttr) -> Result<()> {
    let times = [set.atime, set.mtime, set.ctime.map(SetTime::At)];
    let mut times = times.into_iter().flatten().peekable();
    let touched = times.peek().is_some();
    let given = times.any(|t| t != SetTime::Now);
    if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || given {
        return may_change(inode);
    }
    if touched {
        may_write(inode, true)
    } else {
        Ok(())
    }
}

/// A name in directory `dir` that is new there.
pub(crate) fn may_add_to(dir: &Inode) -> Result<()> {
    may_write(dir, true)
}

/// A name of `child` in directory `dir` that goes, or comes to stand for something else.
pub(crate) fn may_take_from(dir: &Inode, child: &Inode) -> Result<()> {
    may_change(dir)?;
    may_change(child)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_inodes::attr::Timestamp;

    fn with(flags: u32) -> Inode {
        Inode {
            ino: 20,
            mode: 0o100_644,
            flags,
            ..Inode::free()
        }
    }

    #[test]
    fn times_of_what_is_appended_only_can_be_set_to_now() {
        let now = SetAttr {
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        let given = SetAttr {
            mtime: Some(SetTime::At(Timestamp::default())),
            ..now
        };
        let mode = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        let may = |flags, set| may_set(&with(flags), set).is_ok();
        assert!(may(0, &given) && may(0, &mode));
        assert!(may(APPEND_ONLY, &now) && !may(APPEND_ONLY, &given) && !may(APPEND_ONLY, &mode));
        assert!(!may(IMMUTABLE, &now) && !may(IMMUTABLE, &given) && !may(IMMUTABLE, &mode));
        // Linux asks for nothing before some calls.
        assert!(may(IMMUTABLE, &SetAttr::default()));
    }
}
