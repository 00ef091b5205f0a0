//! Extended attributes.

use crate::client::call::CallContext;
use crate::client::call_runner::CallRunner;
use crate::inodes::flags::may_change;
use crate::inodes::xattr_cache::{space_for, with_xattrs};
use crate::namespace::acl::check_value;
use crate::namespace::acl::set_acl;
use crate::namespace::acl::set_acl_where;
use crate::namespace::path_cache::PathCache;
use shale_format::Ino;
use shale_format::acl::AclKind;
use shale_format::inode::time;
use shale_format::limits::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use shale_format::record::{XattrBody, record_bytes};
use shale_format::xattr::Xattrs;
use shale_inodes::node::NodeState;
use shale_oplog::encode;
use shale_session::caller::Caller;
use shale_session::errno::{Errno, Result, Stop};
use shale_session::log::client_log::Need;

/// `XATTR_CREATE`: an attribute that exists is `EEXIST`.
pub const XATTR_CREATE: u32 = 1;
/// `XATTR_REPLACE`: an attribute that does not exist is `ENODATA`.
pub const XATTR_REPLACE: u32 = 2;

/// See [`crate::Session::setxattr`].
pub(crate) fn setxattr(
    calls: &CallRunner,
    paths: &PathCache,
    caller: &Caller,
    ino: u64,
    name: &[u8],
    value: &[u8],
    flags: u32,
) -> Result<()> {
    check_set(name, value, flags)?;
    if let Some(kind) = AclKind::of(name) {
        return set_acl(calls, paths, caller, ino, kind, value, None);
    }
    if calls.done_before(caller).is_some() {
        return Ok(());
    }
    setxattr_where(calls, paths, caller, name, value, flags, |_| Ok(ino))
}

/// As [`setxattr`], of the inode that `place` finds: in the run in which it does, see
/// [`make_where`].
pub(crate) fn setxattr_where(
    calls: &CallRunner,
    paths: &PathCache,
    caller: &Caller,
    name: &[u8],
    value: &[u8],
    flags: u32,
    place: impl Fn(&CallContext<'_>) -> std::result::Result<u64, Stop>,
) -> Result<()> {
    if let Some(kind) = AclKind::of(name) {
        check_set(name, value, flags)?;
        return set_acl_where(calls, paths, caller, kind, value, None, place);
    }
    let bytes = name.len().min(XATTR_NAME_BYTES_MAX) + value.len().min(XATTR_VALUE_BYTES_MAX);
    let need = Need::log(record_bytes(XattrBody::BYTES, bytes) as u64);
    calls.run(caller, need, |op| {
        let ino = place(op)?;
        check_set(name, value, flags)?;
        let node = op.node_to_change(ino)?;
        let mut state = with_xattrs(op, &node)?;
        if name.starts_with(b"user.") && !has_user_attributes(&state) {
            return Err(Errno::PERM.into());
        }
        may_change(&state.inode)?;
        let attrs = state.xattrs.as_ref().ok_or(Errno::IO)?;
        let old = attrs.get(name);
        if old.is_some() && flags & XATTR_CREATE != 0 {
            return Err(Errno::EXIST.into());
        }
        if old.is_none() && flags & XATTR_REPLACE != 0 {
            return Err(Errno::NODATA.into());
        }
        op.reserve_space(space_for(attrs, name, Some(value))?)?;
        let end = op.append(&mut encode::set_xattr(Ino(ino), name, value))?;
        if let Some(attrs) = &mut state.xattrs {
            attrs.insert(name.to_vec(), value.to_vec());
        }
        state.inode.set_time_ns(time::CHANGE, op.now_ns);
        state.touched(end);
        Ok(())
    })
}

/// See [`crate::Session::getxattr`].
pub(crate) fn getxattr(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    name: &[u8],
) -> Result<Vec<u8>> {
    getxattr_where(calls, caller, name, |_| Ok(ino))
}

/// As [`getxattr`], of the inode that `place` finds.
pub(crate) fn getxattr_where(
    calls: &CallRunner,
    caller: &Caller,
    name: &[u8],
    place: impl Fn(&CallContext<'_>) -> std::result::Result<u64, Stop>,
) -> Result<Vec<u8>> {
    look_at_xattrs(calls, caller, place, |attrs| {
        check_name(name)?;
        attrs.get(name).cloned().ok_or(Errno::NODATA)
    })
}

/// See [`crate::Session::listxattr`].
pub(crate) fn listxattr(calls: &CallRunner, caller: &Caller, ino: u64) -> Result<Vec<u8>> {
    listxattr_where(calls, caller, |_| Ok(ino))
}

/// As [`listxattr`], of the inode that `place` finds.
pub(crate) fn listxattr_where(
    calls: &CallRunner,
    caller: &Caller,
    place: impl Fn(&CallContext<'_>) -> std::result::Result<u64, Stop>,
) -> Result<Vec<u8>> {
    look_at_xattrs(calls, caller, place, |attrs| {
        let visible = |n: &&Vec<u8>| caller.uid == 0 || !n.starts_with(b"trusted.");
        Ok(attrs
            .keys()
            .filter(visible)
            .flat_map(|n| n.iter().copied().chain([0]))
            .collect())
    })
}

/// See [`crate::Session::removexattr`].
pub(crate) fn removexattr(
    calls: &CallRunner,
    paths: &PathCache,
    caller: &Caller,
    ino: u64,
    name: &[u8],
) -> Result<()> {
    check_name(name)?;
    if calls.done_before(caller).is_some() {
        return Ok(());
    }
    removexattr_where(calls, paths, caller, name, |_| Ok(ino))
}

/// As [`removexattr`], of the inode that `place` finds: in the run in which it does, see
/// [`make_where`].
pub(crate) fn removexattr_where(
    calls: &CallRunner,
    paths: &PathCache,
    caller: &Caller,
    name: &[u8],
    place: impl Fn(&CallContext<'_>) -> std::result::Result<u64, Stop>,
) -> Result<()> {
    if let Some(kind) = AclKind::of(name) {
        // One that is not there is no error.
        return set_acl_where(calls, paths, caller, kind, b"", None, place);
    }
    let need =
        Need::log(record_bytes(XattrBody::BYTES, name.len().min(XATTR_NAME_BYTES_MAX)) as u64);
    calls.run(caller, need, |op| {
        let ino = place(op)?;
        check_name(name)?;
        let node = op.node_to_change(ino)?;
        let mut state = with_xattrs(op, &node)?;
        if name.starts_with(b"user.") && !has_user_attributes(&state) {
            return Err(Errno::PERM.into());
        }
        may_change(&state.inode)?;
        remove_xattr(op, ino, &mut state, name)
    })
}

fn look_at_xattrs<T>(
    calls: &CallRunner,
    caller: &Caller,
    place: impl Fn(&CallContext<'_>) -> std::result::Result<u64, Stop>,
    look: impl Fn(&Xattrs) -> Result<T>,
) -> Result<T> {
    calls.run(caller, Need::default(), |op| {
        let node = op.node(place(op)?)?;
        if let Some(attrs) = &op.read(&node)?.xattrs {
            return Ok(look(attrs)?);
        }
        let state = with_xattrs(op, &node)?;
        Ok(look(state.xattrs.as_ref().ok_or(Errno::IO)?)?)
    })
}

/// Removes an attribute of an inode whose attributes are loaded.
pub(crate) fn remove_xattr(
    op: &mut CallContext<'_>,
    ino: u64,
    state: &mut NodeState,
    name: &[u8],
) -> std::result::Result<(), Stop> {
    let attrs = state.xattrs.as_ref().ok_or(Errno::IO)?;
    if !attrs.contains_key(name) {
        return Err(Errno::NODATA.into());
    }
    op.reserve_space(space_for(attrs, name, None)?)?;
    let end = op.append(&mut encode::remove_xattr(Ino(ino), name))?;
    if let Some(attrs) = &mut state.xattrs {
        attrs.remove(name);
    }
    state.inode.set_time_ns(time::CHANGE, op.now_ns);
    state.touched(end);
    Ok(())
}

fn has_user_attributes(state: &NodeState) -> bool {
    state.inode.is_file() || state.inode.is_dir()
}

/// Refuses what no attribute can be set to.
fn check_set(name: &[u8], value: &[u8], flags: u32) -> Result<()> {
    check_name(name)?;
    if flags & !(XATTR_CREATE | XATTR_REPLACE) != 0 {
        return Err(Errno::INVAL);
    }
    if value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(Errno::TOOBIG);
    }
    if AclKind::of(name).is_some() {
        check_value(value)?;
    }
    Ok(())
}

/// Refuses names without a name space that is served, and of `system.` all but the two access control lists.
fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        return Err(Errno::RANGE);
    }
    if name.contains(&0) {
        return Err(Errno::INVAL);
    }
    let spaces: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];
    let Some(space) = spaces.into_iter().find(|s| name.starts_with(s)) else {
        return Err(Errno::OPNOTSUPP);
    };
    if name.len() == space.len() {
        return Err(Errno::INVAL);
    }
    // The kernel leaves it to the file system who may set these: other than lists there are none.
    if *space == *b"system." && AclKind::of(name).is_none() {
        Err(Errno::OPNOTSUPP)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_spaces() {
        for (name, expected) in [
            (&b"user.x"[..], Ok(())),
            (b"security.selinux", Ok(())),
            (b"trusted.overlay.opaque", Ok(())),
            (b"user.", Err(Errno::INVAL)),
            (b"", Err(Errno::RANGE)),
            (b"userx", Err(Errno::OPNOTSUPP)),
            (b"system.posix_acl_access", Ok(())),
            (b"system.posix_acl_default", Ok(())),
            (b"system.posix_acl_other", Err(Errno::OPNOTSUPP)),
            (b"system.other", Err(Errno::OPNOTSUPP)),
            (b"system.shale.mount", Err(Errno::OPNOTSUPP)),
            (b"user.a\0b", Err(Errno::INVAL)),
        ] {
            assert_eq!(check_name(name), expected, "{name:?}");
        }
        assert_eq!(
            check_name(&[b"user.".as_slice(), &[b'x'; 250]].concat()),
            Ok(())
        );
        assert_eq!(
            check_name(&[b"user.".as_slice(), &[b'x'; 251]].concat()),
            Err(Errno::RANGE)
        );
    }
}
