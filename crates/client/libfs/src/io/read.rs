//! Reading, and looking for data and holes: calls, on what [`crate::io::content`] says where bytes lie.

use crate::client::call_runner::CallRunner;
use crate::io::access_time::{note_access, wants_atime};
use crate::io::content::{AHEAD_BYTES, copy_out, pieces, wrong_type};
use crate::io::read_fast::read_fast;
use shale_inodes::node::Node;
use shale_session::caller::Caller;
use shale_session::errno::{Errno, Result};
use shale_session::log::client_log::Need;
use shale_session::lower_tiers::lower_blocks::RUN_BYTES;

/// A search for data or a hole looks at this many bytes before it can stop.
const SEEK_STEP_BYTES: u64 = 1 << 40;

/// See [`crate::Session::read`].
pub(crate) fn read(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    offset: u64,
    into: &mut [u8],
) -> Result<usize> {
    read_known(calls, caller, ino, None, false, offset, into)
}

/// As [`read`]; `known` is the inode's node, if the caller has it. `sequential`: it is
/// likely to read on from where this read ends.
#[inline(always)]
pub(crate) fn read_known(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    known: Option<&Node>,
    sequential: bool,
    offset: u64,
    into: &mut [u8],
) -> Result<usize> {
    if let Some(node) = known
        && let Some(n) = read_fast(calls, node, sequential, offset, into)
    {
        return Ok(n);
    }
    read_slow(calls, caller, ino, known, sequential, offset, into)
}

#[inline(never)]
fn read_slow(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    known: Option<&Node>,
    sequential: bool,
    offset: u64,
    into: &mut [u8],
) -> Result<usize> {
    let (mut done, mut known, mut whole) = (0, known, false);
    while !whole {
        let (at, rest) = (offset + done as u64, &mut into[done..]);
        let n;
        (n, whole) = read_run(calls, caller, ino, known.take(), sequential, at, rest)?;
        done += n;
    }
    Ok(done)
}

/// Reads under one run, where there are lower tiers no more than fits the cache. Gives the
/// bytes, and whether that was all there is to read.
fn read_run(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    mut known: Option<&Node>,
    sequential: bool,
    offset: u64,
    into: &mut [u8],
) -> Result<(usize, bool)> {
    let (n, whole, old_atime) = calls.run(caller, Need::default(), |op| {
        let found;
        // Only the first run trusts it: what stops the call may have replaced it.
        let node = match known.take() {
            Some(node) if op.may_read(node) => node,
            _ => {
                found = op.node(ino)?;
                &*found
            }
        };
        let state = op.read(node)?;
        if !state.inode.is_file() {
            return Err(wrong_type(&state).into());
        }
        let wanted = match into.len() > RUN_BYTES && op.is_tiered() {
            true => RUN_BYTES,
            false => into.len(),
        };
        let n = (wanted as u64).min(state.inode.size.saturating_sub(offset)) as usize;
        if n > 0 {
            let behind = copy_out(op, node, &state, offset, &mut into[..n])?;
            if sequential
                && n >= AHEAD_BYTES
                && let Some(behind) = behind
            {
                op.volume().expect_read(behind, AHEAD_BYTES);
            }
        }
        let whole = n < wanted || n == into.len();
        Ok((n, whole, n > 0 && wants_atime(&state, op.now_ns)))
    })?;
    if old_atime {
        note_access(calls, caller, ino)?;
    }
    Ok((n, whole))
}

/// Where data (`data`: true) or a hole begins at or after `offset`. `ENXIO`
/// beyond the end, and for data where none follows.
pub(crate) fn seek(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    offset: u64,
    data: bool,
) -> Result<u64> {
    calls.run(caller, Need::default(), |op| {
        let node = op.node(ino)?;
        let state = op.read(&node)?;
        if !state.inode.is_file() {
            return Err(wrong_type(&state).into());
        }
        let size = state.inode.size;
        if offset >= size {
            return Err(Errno::NXIO.into());
        }
        let mut found = None;
        let mut at = offset;
        while at < size && found.is_none() {
            let end = at.saturating_add(SEEK_STEP_BYTES).min(size);
            pieces(op, &node, &state, at, end, &mut |start, _, piece| {
                if found.is_none() && piece.is_data() == data {
                    found = Some(start);
                }
                Ok(())
            })?;
            at = end;
        }
        match found {
            Some(at) => Ok(at),
            None if data => Err(Errno::NXIO.into()),
            None => Ok(size),
        }
    })
}
