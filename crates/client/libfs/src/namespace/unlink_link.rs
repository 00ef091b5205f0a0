//! Names of inodes that exist: one more, one less, and what happens to an inode that
//! has lost its last one.
//!
//! An inode without names that nobody uses is freed by the record that took the last
//! name. One that is in use becomes an orphan; a `Free` record ends it when its last
//! user goes. Who uses an inode is counted in [`Node::handles`], which only grows
//! under the inode's lock and while it has a name; the kernel's uses are known by
//! their end ([`Session::forget`]). That another client uses it is reported with the lease.

use crate::client::call::CallContext;
use crate::client::call_runner::CallRunner;
use crate::inodes::flags::{may_add_to, may_change, may_take_from};
use crate::inodes::inode_locks::Locked;
use crate::namespace::create_lookup::made_before;
use crate::namespace::create_lookup::{add_entry, take_entry};
use crate::namespace::path_cache::PathCache;
use shale_format::dirent::kind_of_mode;
use shale_format::inode::{flag as inode_flag, time};
use shale_format::limits::LINKS_MAX;
use shale_format::record::{LinkBody, flag, record_bytes};
use shale_format::{DirKey, Ino, LogPos};
use shale_inodes::attr::Attr;
use shale_inodes::dirents::{FoundDirent, Slot, check_length, check_new, find, slot};
use shale_inodes::node::{Node, NodeState};
use shale_oplog::{Overlay, encode};
use shale_session::caller::Caller;
use shale_session::errno::{Errno, Result, Stop};
use shale_session::kernel_refs::KernelRefs;
use shale_session::log::client_log::Need;
use shale_session::space::reservation::TREE_BYTES;
use shale_sys::mutants;
use shale_volume::FoundInode;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// Inodes that one sweep looks at.
const SWEEP_MAX: usize = 256;

/// See [`crate::Session::link`].
pub(crate) fn link(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    parent: u64,
    name: &[u8],
) -> Result<Attr> {
    if let Some(attr) = made_before(calls, caller) {
        return attr;
    }
    check_new(name)?;
    link_where(calls, caller, name.len(), |_| Ok((ino, parent, name)))
}

/// As [`link`], with inode, directory and name, of at most `name_bytes` bytes, that
/// `place` finds: in the run that makes the link, see [`make_where`].
pub(crate) fn link_where<N: AsRef<[u8]>>(
    calls: &CallRunner,
    caller: &Caller,
    name_bytes: usize,
    place: impl Fn(&CallContext<'_>) -> std::result::Result<(u64, u64, N), Stop>,
) -> Result<Attr> {
    let need = Need::log(record_bytes(LinkBody::BYTES, name_bytes) as u64);
    calls.run(caller, need, |op| {
        let (ino, parent, name) = place(op)?;
        let name = name.as_ref();
        check_new(name)?;
        let child = op.node_to_change(ino)?;
        drop(op.read(&child)?);
        let dir = op.node_to_change(parent)?;
        drop(op.read(&dir)?);
        let mut locked = Locked::take(op, &[&dir, &child])?;
        op.live_dir(&locked[parent])?;
        let Slot::Vacant(key) = slot(op.volume(), &locked[parent], name)? else {
            return Err(Errno::EXIST.into());
        };
        may_add_to(&locked[parent].inode)?;
        may_change(&locked[ino].inode)?;
        may_link(op, &locked[ino])?;
        op.reserve_space(TREE_BYTES)?;
        let kind = kind_of_mode(locked[ino].inode.mode);
        let mut part = encode::link(Ino(parent), Ino(ino), kind, key.twin(), name);
        let end = op.append(&mut part)?;
        add_entry(
            &mut locked[parent],
            &FoundDirent { key, ino, kind },
            name,
            op.now_ns,
            end,
        );
        let state = &mut locked[ino];
        state.inode.nlink += 1;
        state.inode.flags &= !inode_flag::ORPHAN;
        state.orphan = false;
        state.inode.set_time_ns(time::CHANGE, op.now_ns);
        state.touched(end);
        op.refer(ino);
        Ok(Attr::of(&state.inode, state.blocks))
    })
}

/// See [`crate::Session::unlink`].
pub(crate) fn unlink(
    calls: &CallRunner,
    paths: &PathCache,
    caller: &Caller,
    parent: u64,
    name: &[u8],
) -> Result<()> {
    match name {
        b"." | b".." => Err(Errno::ISDIR),
        _ => remove(calls, paths, caller, parent, name, false),
    }
}

/// See [`crate::Session::rmdir`].
pub(crate) fn rmdir(
    calls: &CallRunner,
    paths: &PathCache,
    caller: &Caller,
    parent: u64,
    name: &[u8],
) -> Result<()> {
    match name {
        b"." => Err(Errno::INVAL),
        b".." => Err(Errno::NOTEMPTY),
        _ => remove(calls, paths, caller, parent, name, true),
    }
}

fn remove(
    calls: &CallRunner,
    paths: &PathCache,
    caller: &Caller,
    parent: u64,
    name: &[u8],
    want_dir: bool,
) -> Result<()> {
    check_length(name)?;
    if calls.done_before(caller).is_some() {
        return Ok(());
    }
    let place = |_: &CallContext<'_>| Ok((parent, name, None));
    remove_where(calls, paths, caller, name.len(), want_dir, place)
}

/// Removes a name of at most `name_bytes` bytes from a directory, both of which `place` finds,
/// and what it has to stand for, if `place` has asked about that.
pub(crate) fn remove_where<N: AsRef<[u8]>>(
    calls: &CallRunner,
    paths: &PathCache,
    caller: &Caller,
    name_bytes: usize,
    want_dir: bool,
    place: impl Fn(&CallContext<'_>) -> std::result::Result<(u64, N, Option<u64>), Stop>,
) -> Result<()> {
    let need = Need::log(record_bytes(LinkBody::BYTES, name_bytes) as u64);
    calls.run(caller, need, |op| {
        let (parent, name, expected) = place(op)?;
        let name = name.as_ref();
        let dir = op.node_to_change(parent)?;
        let found = entry(op, &dir, name)?.ok_or_else(|| op.gone())?;
        if expected.is_some_and(|ino| ino != found.ino) {
            return Err(Stop::Again);
        }
        let child = op.node_to_change(found.ino)?;
        let mut locked = Locked::take(op, &[&dir, &child])?;
        unchanged(op, &locked[parent], name, Some(found))?;
        may_take_from(&locked[parent].inode, &locked[found.ino].inode)?;
        may_remove(&locked[found.ino], want_dir)?;
        let freed = frees(op, &child, &locked[found.ino]);
        let mut part = encode::unlink(
            Ino(parent),
            Ino(found.ino),
            found.kind,
            found.key.twin(),
            name,
        )
        .flags(if freed { flag::FREE_NOW } else { 0 })
        .flags(if want_dir { flag::DIRECTORY } else { 0 });
        let end = op.append(&mut part)?;
        take_entry(&mut locked[parent], &found, op.now_ns, end);
        lose_name(&mut locked[found.ino], freed, op.now_ns, end);
        if freed {
            op.bury(&child, end);
        }
        paths.entry_gone(found.kind);
        Ok(())
    })
}

/// See [`crate::Session::forget`].
pub(crate) fn forget(calls: &CallRunner, ino: u64) -> Result<()> {
    let caller = Caller::default();
    let orphan = calls.run(&caller, Need::default(), |op| {
        let Some(node) = op.in_memory(ino) else {
            // No orphan lies below NVM.
            return Ok(match op.volume().view().find_inode(Ino(ino))? {
                FoundInode::Here(inode) => inode.flags & inode_flag::ORPHAN != 0,
                FoundInode::None | FoundInode::Below { .. } => false,
            });
        };
        // The client that has the lease by now may have taken its last name.
        let node = if node.lease.was_set() {
            op.node(ino)?
        } else {
            node
        };
        Ok(node.state.read().orphan)
    });
    match orphan {
        Ok(true) => free_unused(calls, &caller, ino).map(|_| ()),
        Ok(false) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e),
    }
}

/// The last handle of this process on an inode is closed. If the inode has lost its last
/// name, here or by another client, and nobody else has it open, it is freed.
pub(crate) fn after_last_close(calls: &CallRunner, caller: &Caller, node: &Node) -> Result<()> {
    let orphan = |op: &mut CallContext<'_>| {
        if op.holds(node) {
            return Ok(node.state.read().orphan);
        }
        let node = op.node(node.ino)?;
        let state = op.read(&node)?;
        Ok(state.orphan)
    };
    match calls.run(caller, Need::default(), orphan) {
        Ok(true) => free_unused(calls, caller, node.ino).map(|_| ()),
        Ok(false) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e),
    }
}

/// What became of inodes without names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// So many were freed.
    pub freed: u64,
    /// These are kept for the kernel, which has references to them: a program has them open, or it has not forgotten them yet.
    pub referred: Vec<u64>,
}

/// See [`crate::Session::sweep_orphans`].
pub(crate) fn sweep_orphans(calls: &CallRunner, kernel: &KernelRefs) -> Result<Swept> {
    let caller = Caller::default();
    let found = calls.run(&caller, Need::default(), |op| {
        let view = op.volume().view();
        let mut found = Vec::new();
        if let Some(orphans) = view.inode(Ino::ORPHANS)? {
            view.entries(&orphans, DirKey(0), &mut |entry| {
                found.push(entry.ino.0);
                if found.len() < SWEEP_MAX {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
        }
        Ok(found)
    })?;
    let mut swept = Swept::default();
    for ino in found {
        if kernel.refers_to(ino) && !mutants::is_on("orphan-in-use") {
            swept.referred.push(ino);
        } else if calls.try_lease(ino) == Ok(true) && free_unused(calls, &caller, ino)? {
            swept.freed += 1;
        }
    }
    Ok(swept)
}

/// Frees an inode that has neither name nor user; whether it did.
fn free_unused(calls: &CallRunner, caller: &Caller, ino: u64) -> Result<bool> {
    let need = Need::log(record_bytes(0, 0) as u64);
    let freed = calls.run(caller, need, |op| {
        let node = op.node_to_change(ino)?;
        let mut state = op.write(&node)?;
        let used = node.used_elsewhere.load(Ordering::Acquire)
            || node.handles.load(Ordering::Acquire) > 0
            || op.kernel_knows(ino);
        if used && !mutants::is_on("orphan-in-use") || !state.orphan {
            return Ok(false);
        }
        let end = op.append(&mut encode::free(Ino(ino)))?;
        bury(&mut state);
        state.touched(end);
        op.bury(&node, end);
        Ok(true)
    });
    match freed {
        Err(Errno::NOENT) => Ok(false),
        other => other,
    }
}

/// The entry `name` of a directory that has to be alive.
pub(crate) fn entry(
    op: &CallContext<'_>,
    dir: &Node,
    name: &[u8],
) -> std::result::Result<Option<FoundDirent>, Stop> {
    let state = op.read(dir)?;
    op.live_dir(&state)?;
    find(op.volume(), &state, name)
}

/// Restarts unless `name` is still what it was when it was looked up.
pub(crate) fn unchanged(
    op: &CallContext<'_>,
    dir: &NodeState,
    name: &[u8],
    expected: Option<FoundDirent>,
) -> std::result::Result<(), Stop> {
    op.live_dir(dir)?;
    if find(op.volume(), dir, name)? == expected {
        Ok(())
    } else {
        Err(Stop::Again)
    }
}

/// Whether an inode may get one more name.
pub(crate) fn may_link(op: &CallContext<'_>, state: &NodeState) -> std::result::Result<(), Stop> {
    if state.inode.is_dir() {
        return Err(Errno::PERM.into());
    }
    if state.orphan && state.no_link {
        return Err(op.gone());
    }
    if state.inode.nlink >= LINKS_MAX {
        Err(Errno::MLINK.into())
    } else {
        Ok(())
    }
}

/// Whether an inode that loses a name is freed by that.
pub(crate) fn frees(op: &CallContext<'_>, node: &Node, state: &NodeState) -> bool {
    let last = state.inode.is_dir() || state.inode.nlink <= 1;
    let in_use = op.kernel_references() || node.handles.load(Ordering::Acquire) > 0;
    let in_use = in_use || node.used_elsewhere.load(Ordering::Acquire);
    last && !in_use
}

/// Whether an inode may lose a name to `rmdir` (`want_dir`) or `unlink`, or to a rename
/// of such an inode over it.
pub(crate) fn may_remove(state: &NodeState, want_dir: bool) -> Result<()> {
    match (state.inode.is_dir(), want_dir) {
        (true, false) => Err(Errno::ISDIR),
        (false, true) => Err(Errno::NOTDIR),
        (true, true) if state.inode.size > 0 => Err(Errno::NOTEMPTY),
        _ => Ok(()),
    }
}

/// An inode in memory after one of its names has gone.
pub(crate) fn lose_name(state: &mut NodeState, freed: bool, now_ns: i64, end: LogPos) {
    let nlink = if state.inode.is_dir() {
        0
    } else {
        state.inode.nlink.saturating_sub(1)
    };
    state.inode.nlink = nlink;
    state.inode.set_time_ns(time::CHANGE, now_ns);
    state.touched(end);
    if freed {
        bury(state);
    } else if nlink == 0 {
        state.orphan = true;
        state.no_link = true;
        state.inode.flags |= inode_flag::ORPHAN;
    }
}

/// There is no such inode any more; its content needs no memory.
fn bury(state: &mut NodeState) {
    state.dead = true;
    state.overlay = Overlay::new();
    state.xattrs = None;
}
