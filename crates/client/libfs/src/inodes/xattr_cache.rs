//! The extended attributes of an inode in memory: loaded when they are first asked for, and the space that a change of them needs.

use crate::client::call::CallContext;
use shale_format::limits::{BLOCK_BYTES, XATTR_TOTAL_BYTES_MAX};
use shale_format::xattr::{CAPABILITY, XattrEntry, Xattrs, encoded_bytes};
use shale_inodes::node::{Node, NodeState};
use shale_session::errno::{Errno, Result, Stop};
use shale_session::space::reservation::blocks_bytes;
use shale_sys::biased_rwlock::WriteGuard;

/// Has the attributes of an inode in memory.
pub(crate) fn load_xattrs(
    op: &CallContext<'_>,
    state: &mut NodeState,
) -> std::result::Result<(), Stop> {
    if state.xattrs.is_none() {
        state.xattrs = Some(op.volume().xattrs(&state.inode)?);
    }
    Ok(())
}

/// The state of a node with its extended attributes loaded.
pub(crate) fn with_xattrs<'n>(
    op: &CallContext<'_>,
    node: &'n Node,
) -> std::result::Result<WriteGuard<'n, NodeState>, Stop> {
    let mut state = op.lock(node)?;
    load_xattrs(op, &mut state)?;
    Ok(state)
}

/// Space that attributes need when one of them gets another value, or goes. `ENOSPC`: they are too long together.
pub(crate) fn space_for(attrs: &Xattrs, name: &[u8], value: Option<&[u8]>) -> Result<u64> {
    let entry = |value: &[u8]| XattrEntry::BYTES + name.len() + value.len();
    let now = encoded_bytes(attrs);
    let goes = attrs.get(name).map_or(0, |v| entry(v));
    let then = now - goes + value.map_or(0, entry);
    if value.is_some() && then > XATTR_TOTAL_BYTES_MAX {
        return Err(Errno::NOSPC);
    }
    let had = if attrs.is_empty() { 0 } else { blocks(now) };
    Ok(blocks_bytes(most_blocks(then).saturating_sub(had)))
}

/// Blocks that an encoding of so many bytes fills.
pub(crate) fn blocks(bytes: usize) -> u64 {
    bytes.div_ceil(BLOCK_BYTES) as u64
}

/// The same with the list that they need where no run is free.
pub(crate) fn most_blocks(bytes: usize) -> u64 {
    let blocks = blocks(bytes);
    blocks + u64::from(blocks > 1)
}

/// Whether the inode has capabilities.
pub(crate) fn has_capability(
    op: &CallContext<'_>,
    state: &mut NodeState,
) -> std::result::Result<bool, Stop> {
    if state.xattrs.is_none() && state.inode.xattr_addr != 0 {
        state.xattrs = Some(op.volume().xattrs(&state.inode)?);
    }
    let xattrs = state.xattrs.as_ref();
    Ok(xattrs.is_some_and(|x| x.contains_key(CAPABILITY)))
}
