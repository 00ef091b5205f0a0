//! Access control lists: who may do what by one, setting and removing them, and what a `chmod` and a new inode make of them.
//!
//! A list and the mode that follows it change in one transaction. A record that sets the list of an inode sets the
//! permission bits of its mode, too, and one that sets the mode changes the list: so memory does here and
//! digest there, both by `shale_format::acl`.

use crate::client::call::CallContext;
use crate::client::call_runner::CallRunner;
use crate::inodes::flags::may_change;
use crate::inodes::xattr_cache::{blocks, load_xattrs, most_blocks, space_for, with_xattrs};
use crate::namespace::access::{WRITE, may};
use crate::namespace::path_cache::PathCache;
use shale_format::Ino;
use shale_format::acl::{Acl, AclError, AclKind, matters, permits};
use shale_format::inode::time;
use shale_format::record::{SetAttrBody, XattrBody, record_bytes};
use shale_format::xattr::{Xattrs, encoded_bytes};
use shale_inodes::attr::SetAttr;
use shale_inodes::attr::changed;
use shale_inodes::node::NodeState;
use shale_oplog::encode;
use shale_session::caller::Caller;
use shale_session::errno::{Errno, Result, Stop};
use shale_session::log::client_log::Need;
use shale_session::space::reservation::blocks_bytes;

const SET_GID: u32 = libc::S_ISGID;

fn refused(e: AclError) -> Errno {
    match e {
        AclError::Version { .. } => Errno::OPNOTSUPP,
        AclError::Long { .. } => Errno::TOOBIG,
        AclError::Bytes { .. } | AclError::Entries => Errno::INVAL,
    }
}

/// What is stored and is no list lets nobody in.
fn damaged(ino: u64, e: AclError) -> Stop {
    tracing::error!(ino, "{e}");
    Errno::IO.into()
}

fn among(ino: u64, attrs: &Xattrs, kind: AclKind) -> std::result::Result<Option<Acl>, Stop> {
    Acl::among(attrs, kind).map_err(|e| damaged(ino, e))
}

/// Lists that a new inode begins with.
#[derive(Default)]
pub(crate) struct Inherited {
    access: Option<Acl>,
    default: Option<Acl>,
}

impl Inherited {
    /// Mode and lists of what is made with this mode in a directory with this default list. The umask is no matter there.
    pub(crate) fn of(default: &Acl, mode: u32) -> (u32, Self) {
        let (mode, access) = default.inherited(mode);
        let is_dir = mode & libc::S_IFMT == libc::S_IFDIR;
        let default = is_dir.then(|| default.clone());
        (mode, Self { access, default })
    }

    /// As attributes.
    pub(crate) fn attributes(&self) -> Xattrs {
        let lists = [
            (AclKind::Access, &self.access),
            (AclKind::Default, &self.default),
        ];
        let named = |(kind, acl): (AclKind, &Option<Acl>)| {
            let value = acl.as_ref()?.encode();
            Some((kind.name().to_vec(), value))
        };
        lists.into_iter().filter_map(named).collect()
    }
}

/// The list of this kind of an inode.
pub(crate) fn acl(
    op: &CallContext<'_>,
    state: &NodeState,
    kind: AclKind,
) -> std::result::Result<Option<Acl>, Stop> {
    let inode = &state.inode;
    match &state.xattrs {
        Some(attrs) => among(inode.ino, attrs, kind),
        None if inode.xattr_addr == 0 => Ok(None),
        None => among(inode.ino, &op.volume().xattrs(inode)?, kind),
    }
}

/// The list of an inode, if it matters to the caller.
pub(crate) fn deciding_acl(
    op: &CallContext<'_>,
    state: &NodeState,
) -> std::result::Result<Option<Acl>, Stop> {
    match op.caller.uid != 0 && matters(&state.inode, op.caller.uid) {
        true => acl(op, state, AclKind::Access),
        false => Ok(None),
    }
}

/// Refuses with `EACCES` unless the caller has all the rights `want` on an inode.
pub(crate) fn may_access(
    op: &CallContext<'_>,
    state: &NodeState,
    want: u32,
) -> std::result::Result<(), Stop> {
    let acl = deciding_acl(op, state)?;
    Ok(may(op.caller, &state.inode, acl.as_ref(), want)?)
}

/// The value of the list of an inode after a `chmod` to this mode, if that changes it, with the space that it needs.
pub(crate) fn acl_with_mode(
    op: &mut CallContext<'_>,
    state: &mut NodeState,
    mode: u32,
) -> std::result::Result<Option<Vec<u8>>, Stop> {
    load_xattrs(op, state)?;
    let ino = state.inode.ino;
    let Some(attrs) = state.xattrs.as_ref().filter(|x| !x.is_empty()) else {
        return Ok(None);
    };
    let Some(old) = among(ino, attrs, AclKind::Access)? else {
        return Ok(None);
    };
    let new = old.with_mode(mode);
    if new == old {
        return Ok(None);
    }
    // As long as before, and rewritten.
    let bytes = encoded_bytes(attrs);
    let more = most_blocks(bytes).saturating_sub(blocks(bytes));
    op.reserve_space(blocks_bytes(more))?;
    Ok(Some(new.encode()))
}

/// Refuses a value that is no list, as the kernel does before it looks at the inode.
pub(crate) fn check_value(value: &[u8]) -> Result<()> {
    Acl::parse(value).map(|_| ()).map_err(refused)
}

/// See [`crate::Session::set_acl`].
pub(crate) fn set_acl(
    calls: &CallRunner,
    paths: &PathCache,
    caller: &Caller,
    ino: u64,
    kind: AclKind,
    value: &[u8],
    kill_sgid: Option<bool>,
) -> Result<()> {
    check_value(value)?;
    if calls.done_before(caller).is_some() {
        return Ok(());
    }
    set_acl_where(calls, paths, caller, kind, value, kill_sgid, |_| Ok(ino))
}

/// See [`crate::Session::acl_lets_write`].
pub(crate) fn acl_lets_write(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    is_in: &dyn Fn(u32) -> bool,
) -> Result<Option<bool>> {
    calls.run(caller, Need::default(), |op| {
        let node = op.node(ino)?;
        let state = op.read(&node)?;
        let acl = deciding_acl(op, &state)?;
        let lets = |acl: &Acl| permits(&state.inode, Some(acl), caller.uid, is_in, WRITE);
        Ok(acl.as_ref().map(lets))
    })
}

/// As [`set_acl`], of the inode that `place` finds: in the run in which it does, see [`make_where`].
pub(crate) fn set_acl_where(
    calls: &CallRunner,
    paths: &PathCache,
    caller: &Caller,
    kind: AclKind,
    value: &[u8],
    kill_sgid: Option<bool>,
    place: impl Fn(&CallContext<'_>) -> std::result::Result<u64, Stop>,
) -> Result<()> {
    let name = kind.name();
    let attribute = record_bytes(XattrBody::BYTES, name.len() + value.len());
    let need = Need::log((record_bytes(SetAttrBody::BYTES, 0) + attribute) as u64);
    calls.run(caller, need, |op| {
        let ino = place(op)?;
        let acl = Acl::parse(value).map_err(refused)?;
        let node = op.node_to_change(ino)?;
        let mut state = with_xattrs(op, &node)?;
        may_change(&state.inode)?;
        if state.inode.is_symlink() {
            return Err(Errno::OPNOTSUPP.into());
        }
        match acl {
            Some(_) if kind == AclKind::Default && !state.inode.is_dir() => {
                Err(Errno::ACCESS.into())
            }
            Some(acl) if !acl.is_valid() => Err(Errno::INVAL.into()),
            Some(acl) if kind == AclKind::Access => {
                let stranger = || caller.uid != 0 && !caller.is_in(state.inode.gid);
                let kill = kill_sgid.unwrap_or_else(stranger);
                decide_by(op, paths, &mut state, &acl, kill)
            }
            Some(acl) => store(op, paths, &mut state, kind, Some(&acl), None),
            None => store(op, paths, &mut state, kind, None, None),
        }
    })
}

/// Gives an inode the list `acl`, and the mode that goes with it.
fn decide_by(
    op: &mut CallContext<'_>,
    paths: &PathCache,
    state: &mut NodeState,
    acl: &Acl,
    kill_sgid: bool,
) -> std::result::Result<(), Stop> {
    let (bits, is_all) = acl.as_mode();
    let kept = if kill_sgid { !SET_GID } else { !0 };
    let old = state.inode.mode;
    let mode = old & !0o777 & kept | bits;
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    match is_all {
        true => store(op, paths, state, AclKind::Access, None, Some(&set)),
        // The list itself tells the permission bits.
        false => {
            let set = (mode & !0o777 != old & !0o777).then_some(&set);
            store(op, paths, state, AclKind::Access, Some(acl), set)?;
            state.inode.mode = mode;
            Ok(())
        }
    }
}

/// Logs a new list, or that there is none, and a new mode, as one transaction.
fn store(
    op: &mut CallContext<'_>,
    paths: &PathCache,
    state: &mut NodeState,
    kind: AclKind,
    acl: Option<&Acl>,
    set: Option<&SetAttr>,
) -> std::result::Result<(), Stop> {
    let (ino, name) = (Ino(state.inode.ino), kind.name());
    let attrs = state.xattrs.as_ref().ok_or(Errno::IO)?;
    let value = acl.map(Acl::encode);
    let goes = value.is_none() && attrs.contains_key(name);
    op.reserve_space(space_for(attrs, name, value.as_deref())?)?;
    let mut parts = Vec::with_capacity(2);
    let mut new = state.inode;
    if let Some(set) = set {
        let (inode, body) = changed(&state.inode, set, op.now_ns);
        new = inode;
        parts.push(encode::set_attr(ino, body));
    }
    match &value {
        Some(value) => parts.push(encode::set_xattr(ino, name, value)),
        None if goes => parts.push(encode::remove_xattr(ino, name)),
        None => {}
    }
    if parts.is_empty() {
        return Ok(());
    }
    let end = op.append_chain(&mut parts)?;
    drop(parts);
    if let Some(attrs) = &mut state.xattrs {
        match value {
            Some(value) => drop(attrs.insert(name.to_vec(), value)),
            None => drop(attrs.remove(name)),
        }
    }
    state.inode = new;
    state.inode.set_time_ns(time::CHANGE, op.now_ns);
    state.touched(end);
    if state.inode.is_dir() {
        paths.permissions_changed();
    }
    Ok(())
}
