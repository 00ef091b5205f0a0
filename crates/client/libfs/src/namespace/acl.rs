//! Access control lists: who may do what by one, setting and removing them, and what a `chmod` and a new inode make of them.
//!
//! A list and the mode that follows it change in one transaction. A record that sets the list of an inode sets the
//! permission bits of its mode, too, and one that sets the mode changes the list: so memory does here and
//! digest there, both by `shale_format::acl`.

use crate::client::call::CallContext;
use crate::client::reservation::blocks_bytes;
use crate::client::session::{Need, Session};
use crate::errno::{Errno, Result, Stop};
use crate::inodes::attr::{Caller, SetAttr};
use crate::inodes::flags::may_change;
use crate::inodes::node::NodeState;
use crate::namespace::access::{WRITE, may};
use crate::namespace::attributes::changed;
use crate::namespace::xattrs::{blocks, most_blocks, space_for, with_xattrs};
use shale_format::Ino;
use shale_format::acl::{Acl, AclError, AclKind, matters, permits};
use shale_format::inode::time;
use shale_format::record::{SetAttrBody, XattrBody, record_bytes};
use shale_format::xattr::{Xattrs, encoded_bytes};
use shale_oplog::encode;

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

impl CallContext<'_> {
    /// The list of this kind of an inode.
    pub(crate) fn acl(
        &self,
        state: &NodeState,
        kind: AclKind,
    ) -> std::result::Result<Option<Acl>, Stop> {
        let inode = &state.inode;
        match &state.xattrs {
            Some(attrs) => among(inode.ino, attrs, kind),
            None if inode.xattr_addr == 0 => Ok(None),
            None => among(inode.ino, &self.session.view.xattrs(inode)?, kind),
        }
    }

    /// The list of an inode, if it matters to the caller.
    pub(crate) fn deciding_acl(&self, state: &NodeState) -> std::result::Result<Option<Acl>, Stop> {
        match self.caller.uid != 0 && matters(&state.inode, self.caller.uid) {
            true => self.acl(state, AclKind::Access),
            false => Ok(None),
        }
    }

    /// Refuses with `EACCES` unless the caller has all the rights `want` on an inode.
    pub(crate) fn may(&self, state: &NodeState, want: u32) -> std::result::Result<(), Stop> {
        let acl = self.deciding_acl(state)?;
        Ok(may(self.caller, &state.inode, acl.as_ref(), want)?)
    }

    /// The value of the list of an inode after a `chmod` to this mode, if that changes it, with the space that it needs.
    pub(crate) fn acl_with_mode(
        &mut self,
        state: &mut NodeState,
        mode: u32,
    ) -> std::result::Result<Option<Vec<u8>>, Stop> {
        self.load_xattrs(state)?;
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
        self.reserve_space(blocks_bytes(
            most_blocks(bytes).saturating_sub(blocks(bytes)),
        ))?;
        Ok(Some(new.encode()))
    }

    /// Has the attributes of an inode in memory.
    pub(crate) fn load_xattrs(&self, state: &mut NodeState) -> std::result::Result<(), Stop> {
        if state.xattrs.is_none() {
            state.xattrs = Some(match state.inode.xattr_addr {
                0 => Xattrs::new(),
                _ => self.session.view.xattrs(&state.inode)?,
            });
        }
        Ok(())
    }
}

impl NodeState {
    /// Notes the list that a change of the mode has made.
    pub(crate) fn note_acl(&mut self, value: Option<Vec<u8>>) {
        if let (Some(attrs), Some(value)) = (&mut self.xattrs, value) {
            attrs.insert(AclKind::Access.name().to_vec(), value);
        }
    }
}

/// Refuses a value that is no list, as the kernel does before it looks at the inode.
pub(crate) fn check_value(value: &[u8]) -> Result<()> {
    Acl::parse(value).map(|_| ()).map_err(refused)
}

impl Session {
    /// Sets an access control list, which is an attribute's value; one without entries removes it. Who may do that has
    /// been decided before. The mode's permission bits follow the list that decides, in one
    /// transaction; one that says no more than a mode is not kept. `kill_sgid`: set-group-id goes; `None`: if the caller is not in the
    /// group, as far as libfs knows. Errors: `EINVAL` for what is no list, `EOPNOTSUPP` for another version and on symbolic
    /// links, `E2BIG` above 511 entries, `EACCES` for a default list of what is no directory, `ENOSPC`, `EPERM`.
    pub fn set_acl(
        &self,
        caller: &Caller,
        ino: u64,
        kind: AclKind,
        value: &[u8],
        kill_sgid: Option<bool>,
    ) -> Result<()> {
        check_value(value)?;
        if self.done_before(caller).is_some() {
            return Ok(());
        }
        self.set_acl_where(caller, kind, value, kill_sgid, |_| Ok(ino))
    }

    /// Whether the list of an inode lets the caller write, who is in these groups; `None`: there is none that matters.
    pub fn acl_lets_write(
        &self,
        caller: &Caller,
        ino: u64,
        is_in: &dyn Fn(u32) -> bool,
    ) -> Result<Option<bool>> {
        self.run(caller, Need::default(), |op| {
            let node = op.node(ino)?;
            let state = op.read(&node)?;
            let acl = op.deciding_acl(&state)?;
            let lets = |acl: &Acl| permits(&state.inode, Some(acl), caller.uid, is_in, WRITE);
            Ok(acl.as_ref().map(lets))
        })
    }

    /// As [`Self::set_acl`], of the inode that `place` finds: in the run in which it does, see [`Self::make_where`].
    pub(crate) fn set_acl_where(
        &self,
        caller: &Caller,
        kind: AclKind,
        value: &[u8],
        kill_sgid: Option<bool>,
        place: impl Fn(&CallContext<'_>) -> std::result::Result<u64, Stop>,
    ) -> Result<()> {
        let name = kind.name();
        let attribute = record_bytes(XattrBody::BYTES, name.len() + value.len());
        let need = Need::log((record_bytes(SetAttrBody::BYTES, 0) + attribute) as u64);
        self.run(caller, need, |op| {
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
                    let stranger = || caller.uid != 0 && caller.gid != state.inode.gid;
                    let kill = kill_sgid.unwrap_or_else(stranger);
                    decide_by(op, &mut state, &acl, kill)
                }
                Some(acl) => store(op, &mut state, kind, Some(&acl), None),
                None => store(op, &mut state, kind, None, None),
            }
        })
    }
}

/// Gives an inode the list `acl`, and the mode that goes with it.
fn decide_by(
    op: &mut CallContext<'_>,
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
        true => store(op, state, AclKind::Access, None, Some(&set)),
        // The list itself tells the permission bits.
        false => {
            let set = (mode & !0o777 != old & !0o777).then_some(&set);
            store(op, state, AclKind::Access, Some(acl), set)?;
            state.inode.mode = mode;
            Ok(())
        }
    }
}

/// Logs a new list, or that there is none, and a new mode, as one transaction.
fn store(
    op: &mut CallContext<'_>,
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
        op.session.paths.permissions_changed();
    }
    Ok(())
}
