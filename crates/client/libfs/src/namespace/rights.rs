//! Rights that a program file gives a process that runs it: set-user-ID, set-group-ID, and the capabilities of
//! `security.capability`. A change of its content takes them away, as on ext4:
//!
//! * set-user-ID, and set-group-ID of what the group may execute, if the writer has no privilege. The
//!   record of the change does that itself (`KILL_SUID`);
//! * set-group-ID of what the group may not execute, if the writer has no privilege and is not in
//!   the group; and a capability, by any writer. Both go by records of their own, before the change.
//!
//! The kernel has its own copy of the mode and reads it when a program is started, without asking.
//! A change through the mount has the kernel take the rights away first (the front end's
//! `SETATTR` without attributes), and thereby know the new mode. So a client that yields to the mount
//! leaves such changes to the kernel ([`crate::BY_KERNEL`]): served in the process, the kernel
//! could learn of them too late for a program that is being started.

use crate::client::call::CallContext;
use crate::client::call_runner::CallRunner;
use crate::inodes::xattr_cache::{has_capability, with_xattrs};
use crate::namespace::xattrs::remove_xattr;
use shale_format::Ino;
use shale_format::record::{SetAttrBody, XattrBody, record_bytes};
use shale_format::xattr::CAPABILITY;
use shale_inodes::attr::changed;
use shale_inodes::attr::{SetAttr, without_set_id};
use shale_inodes::node::NodeState;
use shale_oplog::encode;
use shale_session::caller::Caller;
use shale_session::errno::{BY_KERNEL, Result, Stop};
use shale_session::log::client_log::Need;

const SET_GID: u32 = libc::S_ISGID;

/// Stops a call that is about to change the content of file `ino` while the file has rights that
/// have to go before; `kill`: the writer has no privilege.
#[inline(always)]
pub(crate) fn takes_rights(
    op: &CallContext<'_>,
    ino: u64,
    state: &mut NodeState,
    kill: bool,
) -> std::result::Result<(), Stop> {
    let attributes = match &state.xattrs {
        Some(xattrs) => !xattrs.is_empty(),
        None => state.inode.xattr_addr != 0,
    };
    if state.inode.mode & 0o6000 == 0 && !attributes {
        return Ok(());
    }
    takes_some_rights(op, ino, state, kill)
}

#[cold]
fn takes_some_rights(
    op: &CallContext<'_>,
    ino: u64,
    state: &mut NodeState,
    kill: bool,
) -> std::result::Result<(), Stop> {
    let mode = state.inode.mode;
    let by_record = without_set_id(mode);
    // On the mount the kernel has decided that before, and knows all groups of the writer.
    let stranger = !op.is_kernels() && !op.caller.is_in(state.inode.gid);
    let left = if stranger {
        by_record & !SET_GID
    } else {
        by_record
    };
    let capable = has_capability(op, state)?;
    // It also knows whether the writer has the privilege: not every process of root's has.
    if op.yields() && (capable || left != mode) {
        return Err(BY_KERNEL.into());
    }
    let (by_record, left) = if kill {
        (by_record, left)
    } else {
        (mode, mode)
    };
    if capable || left != by_record {
        return Err(Stop::Rights(ino, mode & !left));
    }
    Ok(())
}

/// Takes these mode bits and the capability from a file.
#[cold]
pub(crate) fn take_rights(calls: &CallRunner, caller: &Caller, ino: u64, bits: u32) -> Result<()> {
    // Done once more after a crash it changes nothing.
    let caller = Caller {
        request: 0,
        ..*caller
    };
    let log =
        record_bytes(SetAttrBody::BYTES, 0) + record_bytes(XattrBody::BYTES, CAPABILITY.len());
    calls.run(&caller, Need::log(log as u64), |op| {
        let node = op.node_to_change(ino)?;
        let mut state = with_xattrs(op, &node)?;
        if has_capability(op, &mut state)? {
            remove_xattr(op, ino, &mut state, CAPABILITY)?;
        }
        if state.inode.mode & bits != 0 {
            let set = SetAttr {
                mode: Some(state.inode.mode & !bits),
                ..SetAttr::default()
            };
            let (new, body) = changed(&state.inode, &set, op.now_ns);
            let end = op.append(&mut encode::set_attr(Ino(ino), body))?;
            state.inode = new;
            state.touched(end);
        }
        Ok(())
    })
}
