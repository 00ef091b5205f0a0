//! Sizes and ranges: truncate, fallocate, seek, copy.

use crate::client::call::CallContext;
use crate::client::call_runner::CallRunner;
use crate::inodes::flags::{may_change, may_write};
use crate::io::content::wrong_type;
use crate::io::read::read;
use crate::io::read::seek;
use crate::io::write::write_rest;
use crate::io::write::{WriteAccess, WriteFlags, missing_blocks};
use crate::namespace::rights::takes_rights;
use shale_format::inode::time;
use shale_format::limits::{BLOCK_BYTES, FILE_BYTES_MAX};
use shale_format::record::{FallocateBody, flag, record_bytes};
use shale_format::{FileBlock, Ino, LogPos};
use shale_inodes::attr::without_set_id;
use shale_inodes::node::{Node, NodeState};
use shale_oplog::encode;
use shale_session::caller::Caller;
use shale_session::errno::{BY_KERNEL, Errno, Result, Stop};
use shale_session::log::client_log::Need;
use shale_session::space::reservation::{content_blocks, shift_bytes, shorten_bytes, write_bytes};
use std::sync::atomic::Ordering;

/// Parts in which a range is reserved at most where space is short: each leaves a 65th of what was free.
const SPACE_TRIES: u32 = 16;

/// `SEEK_DATA` of `lseek`.
pub const SEEK_DATA: u32 = 3;
/// `SEEK_HOLE` of `lseek`.
pub const SEEK_HOLE: u32 = 4;

/// Modes of `fallocate`.
mod mode {
    pub const KEEP_SIZE: u32 = 1;
    pub const PUNCH_HOLE: u32 = 2;
    pub const COLLAPSE_RANGE: u32 = 8;
    pub const ZERO_RANGE: u32 = 16;
    pub const INSERT_RANGE: u32 = 32;
    pub const UNSHARE_RANGE: u32 = 64;
}

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes that `fallocate` reserves at a time in a volume with lower tiers.
const PIECE_BYTES: u64 = 8 << 20;
/// Bytes that `copy_file_range` moves at a time.
const COPY_BYTES: usize = 1 << 20;
/// The first time: more than most files have.
const COPY_BYTES_FIRST: usize = 32 << 10;

/// What `fallocate` does to the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeChange {
    Allocate,
    Punch,
    Zero,
    Collapse,
    Insert,
}

impl RangeChange {
    fn of(mode: u32) -> Result<(Self, bool)> {
        use self::mode::*;
        let keep = mode & KEEP_SIZE != 0;
        let change = match mode & !KEEP_SIZE {
            0 | UNSHARE_RANGE => Self::Allocate,
            PUNCH_HOLE if keep => Self::Punch,
            ZERO_RANGE => Self::Zero,
            COLLAPSE_RANGE if !keep => Self::Collapse,
            INSERT_RANGE if !keep => Self::Insert,
            _ => return Err(Errno::OPNOTSUPP),
        };
        Ok((change, keep))
    }
}

/// See [`crate::Session::truncate`].
pub(crate) fn truncate(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    size: u64,
    kill_suidgid: bool,
) -> Result<()> {
    truncate_beside_kernel(calls, caller, ino, size, kill_suidgid, &|| 0)
}

/// See [`crate::Session::truncate_beside_kernel`].
pub(crate) fn truncate_beside_kernel(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    size: u64,
    kill_suidgid: bool,
    kept: &dyn Fn() -> u64,
) -> Result<()> {
    if size > FILE_BYTES_MAX {
        return Err(Errno::FBIG);
    }
    if calls.done_before(caller).is_some() {
        return Ok(());
    }
    truncate_where(calls, caller, size, kill_suidgid, kept, |_| Ok(ino))
}

/// As [`truncate_beside_kernel`], of the file that `place` finds: in the run in which it
/// does, see [`make_where`].
pub(crate) fn truncate_where(
    calls: &CallRunner,
    caller: &Caller,
    size: u64,
    kill_suidgid: bool,
    kept: &dyn Fn() -> u64,
    place: impl Fn(&CallContext<'_>) -> std::result::Result<u64, Stop>,
) -> Result<()> {
    let need = Need::log(record_bytes(0, 0) as u64);
    calls.run(caller, need, |op| {
        let ino = place(op)?;
        if size > FILE_BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        let node = op.node_to_change(ino)?;
        let mut state = op.write(&node)?;
        if !state.inode.is_file() {
            return Err(wrong_type(&state).into());
        }
        may_change(&state.inode)?;
        takes_rights(op, ino, &mut state, kill_suidgid)?;
        let old = state.inode.size;
        if size < old && is_watched(op, &node) && kept() > size {
            return Err(BY_KERNEL.into());
        }
        op.may_end_at(&node, &state, size)?;
        let gone = match size < old {
            true => blocks_lost(op, &node, &state, size)?,
            false => 0,
        };
        if !size.is_multiple_of(BLOCK) && size < old {
            let tiered = op.is_tiered();
            op.reserve_space(shorten_bytes(tiered, gone))?;
        }
        let kill = if kill_suidgid { flag::KILL_SUID } else { 0 };
        let mut part = encode::truncate(Ino(ino), size).flags(kill);
        let end = op.append(&mut part)?;
        if size < old {
            state.overlay.truncate(size, LogPos(part.header.pos));
            state
                .allocated
                .remove(FileBlock::at_or_after(size).0..u64::MAX);
        }
        state.inode.size = size;
        state.blocks = state.blocks.saturating_sub(gone);
        changed(&mut state, op.now_ns, kill_suidgid);
        state.touched(end);
        Ok(())
    })
}

/// See [`crate::Session::fallocate`].
pub(crate) fn fallocate(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    mode: u32,
    offset: u64,
    bytes: u64,
) -> Result<()> {
    let (change, keep) = RangeChange::of(mode)?;
    if bytes == 0 {
        return Err(Errno::INVAL);
    }
    let end = offset
        .checked_add(bytes)
        .filter(|&e| e <= FILE_BYTES_MAX)
        .ok_or(Errno::FBIG)?;
    if calls.done_before(caller).is_some() {
        return Ok(());
    }
    match change {
        RangeChange::Collapse | RangeChange::Insert => {
            shift(calls, caller, ino, change, mode, offset, bytes)
        }
        RangeChange::Punch => change_range(calls, caller, ino, change, keep, offset..end),
        _ => change_in_pieces(calls, caller, ino, change, keep, offset..end),
    }
}

/// Reserves blocks, in a volume with lower tiers a piece at a time: space is asked for in
/// NVM, and each piece can go down before the next. The last one changes the size.
fn change_in_pieces(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    change: RangeChange,
    keep: bool,
    range: std::ops::Range<u64>,
) -> Result<()> {
    let (mut start, end) = (range.start, range.end);
    if !calls.is_tiered() {
        return change_as_space_comes(calls, caller, ino, change, keep, range);
    }
    if end - start <= PIECE_BYTES {
        return change_range(calls, caller, ino, change, keep, range);
    }
    check_space(calls, caller, ino, range)?;
    let unnamed = Caller {
        request: 0,
        ..*caller
    };
    while end - start > PIECE_BYTES {
        let to = (start + PIECE_BYTES) / BLOCK * BLOCK;
        change_range(calls, &unnamed, ino, change, true, start..to)?;
        start = to;
    }
    change_range(calls, caller, ino, change, keep, start..end)
}

/// Reserves blocks in NVM alone. What a record reserves beyond its blocks, in case each becomes an
/// extent of its own, is free again when it is digested: so a range that does not find space at once
/// is reserved as far as it does, then the rest, until all that is free is the file's.
fn change_as_space_comes(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    change: RangeChange,
    keep: bool,
    range: std::ops::Range<u64>,
) -> Result<()> {
    let (mut start, end) = (range.start, range.end);
    let mut tries = 0;
    loop {
        match change_range(calls, caller, ino, change, keep, start..end) {
            Err(Errno::NOSPC) if tries < SPACE_TRIES => {}
            done => return done,
        }
        if tries == 0 {
            check_space(calls, caller, ino, start..end)?;
        }
        tries += 1;
        let to = start / BLOCK * BLOCK + content_blocks(calls.volume_space()?.free) * BLOCK;
        if to <= start {
            return Err(Errno::NOSPC);
        }
        // All of it, if there is space by now.
        if to < end {
            let unnamed = Caller {
                request: 0,
                ..*caller
            };
            change_range(calls, &unnamed, ino, change, true, start..to)?;
            start = to;
        }
    }
}

/// ENOSPC if all tiers together lack space for the blocks that a range has not got yet.
fn check_space(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    range: std::ops::Range<u64>,
) -> Result<()> {
    let mut missing = 0;
    calls.run(caller, Need::default(), |op| {
        let node = op.node(ino)?;
        let state = op.read(&node)?;
        missing = missing_blocks(op, &node, &state, range.start, range.end)?;
        Ok(())
    })?;
    match missing > calls.volume_space()?.free {
        true => Err(Errno::NOSPC),
        false => Ok(()),
    }
}

fn change_range(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    change: RangeChange,
    keep: bool,
    range: std::ops::Range<u64>,
) -> Result<()> {
    let need = Need::log(record_bytes(FallocateBody::BYTES, 0) as u64);
    let bits = match change {
        RangeChange::Punch => mode::PUNCH_HOLE | mode::KEEP_SIZE,
        RangeChange::Zero => mode::ZERO_RANGE | if keep { mode::KEEP_SIZE } else { 0 },
        _ => u32::from(keep) * mode::KEEP_SIZE,
    };
    calls.run(caller, need, |op| {
        let node = op.node_to_change(ino)?;
        let mut state = op.write(&node)?;
        if !state.inode.is_file() {
            return Err(wrong_type(&state).into());
        }
        match change {
            RangeChange::Allocate => may_write(&state.inode, true)?,
            _ => may_change(&state.inode)?,
        }
        takes_rights(op, ino, &mut state, kills_set_id(caller))?;
        if !keep {
            op.may_end_at(&node, &state, range.end)?;
        }
        // Punching gives back whole blocks; the others need every block they touch.
        let punch = change == RangeChange::Punch;
        let blocks = if punch { inner(&range) } else { outer(&range) };
        let bytes = FileBlock(blocks.start).byte()..FileBlock(blocks.end).byte();
        let missing = missing_blocks(op, &node, &state, bytes.start, bytes.end)?;
        let new_blocks = if punch { 0 } else { missing };
        let freed = blocks.end - blocks.start - missing;
        let tiered = op.is_tiered();
        match change {
            RangeChange::Punch => op.reserve_space(shorten_bytes(tiered, freed))?,
            RangeChange::Zero => {
                op.reserve_space(write_bytes(tiered, new_blocks, new_blocks + freed))?;
            }
            _ => op.reserve_space(write_bytes(tiered, new_blocks, new_blocks))?,
        }
        let bytes = range.end - range.start;
        let kill = kills_set_id(caller);
        let flags = if kill { flag::KILL_SUID } else { 0 };
        let mut part = encode::fallocate(Ino(ino), range.start, bytes, bits).flags(flags);
        let end = op.append(&mut part)?;
        if change != RangeChange::Allocate {
            let to = range.end.min(state.inode.size.max(range.start));
            state.overlay.zero(range.start..to, LogPos(part.header.pos));
        }
        if punch {
            state.blocks = state.blocks.saturating_sub(freed);
            state.allocated.remove(blocks);
        } else {
            state.allocated.add(blocks, end);
        }
        if !keep && !punch {
            state.inode.size = state.inode.size.max(range.end);
        }
        state.blocks += new_blocks;
        changed(&mut state, op.now_ns, kill);
        state.touched(end);
        Ok(())
    })
}

/// Collapses or inserts a range: the one operation that no overlay can stand
/// for, so the log is brought into the volume around it.
fn shift(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    change: RangeChange,
    bits: u32,
    offset: u64,
    bytes: u64,
) -> Result<()> {
    if !offset.is_multiple_of(BLOCK) || !bytes.is_multiple_of(BLOCK) {
        return Err(Errno::INVAL);
    }
    let need = Need::log(record_bytes(FallocateBody::BYTES, 0) as u64);
    calls.run(caller, need, |op| {
        let node = op.node_to_change(ino)?;
        let mut state = op.write(&node)?;
        if !state.inode.is_file() {
            return Err(wrong_type(&state).into());
        }
        may_change(&state.inode)?;
        let size = state.inode.size;
        let legal = match change {
            RangeChange::Collapse => offset + bytes < size,
            _ => offset < size,
        };
        if !legal {
            return Err(Errno::INVAL.into());
        }
        takes_rights(op, ino, &mut state, kills_set_id(caller))?;
        if change == RangeChange::Collapse && is_watched(op, &node) {
            return Err(BY_KERNEL.into());
        }
        let new_size = match change {
            RangeChange::Collapse => size - bytes,
            _ => size
                .checked_add(bytes)
                .filter(|&s| s <= FILE_BYTES_MAX)
                .ok_or(Errno::FBIG)?,
        };
        op.may_end_at(&node, &state, new_size)?;
        let tiered = op.is_tiered();
        op.reserve_space(shift_bytes(tiered))?;
        let kill = kills_set_id(caller);
        let flags = if kill { flag::KILL_SUID } else { 0 };
        let end = op.append(&mut encode::fallocate(Ino(ino), offset, bytes, bits).flags(flags))?;
        state.inode.size = new_size;
        state.shifting = true;
        changed(&mut state, op.now_ns, kill);
        state.touched(end);
        Ok(())
    })?;
    let digested = calls.digest();
    calls.run(caller, Need::default(), |op| {
        let node = op.node(ino)?;
        op.end_shift(&node)
    })?;
    digested
}

/// See [`crate::Session::lseek`].
pub(crate) fn lseek(
    calls: &CallRunner,
    caller: &Caller,
    ino: u64,
    offset: u64,
    whence: u32,
) -> Result<u64> {
    match whence {
        SEEK_DATA => seek(calls, caller, ino, offset, true),
        SEEK_HOLE => seek(calls, caller, ino, offset, false),
        _ => Err(Errno::INVAL),
    }
}

/// See [`crate::Session::copy_file_range`].
pub(crate) fn copy_file_range(
    w: &WriteAccess<'_>,
    from: (u64, u64),
    to: (u64, u64),
    bytes: u64,
) -> Result<u64> {
    let (calls, caller) = (w.calls, w.caller);
    // Programs ask for all that a call can copy, of files of any size.
    let mut buffer = vec![0; COPY_BYTES_FIRST.min(bytes as usize)];
    let before = calls.written_before(caller);
    let mut done = before.map_or(0, |(_, written)| written.min(bytes));
    let flags = WriteFlags {
        kill_suidgid: kills_set_id(caller),
        append: false,
        sync: false,
    };
    while done < bytes {
        if done >= COPY_BYTES_FIRST as u64 {
            buffer.resize(COPY_BYTES, 0);
        }
        let want = (buffer.len() as u64).min(bytes - done) as usize;
        let got = read(calls, caller, from.0, from.1 + done, &mut buffer[..want])?;
        if got == 0 {
            break;
        }
        let begun = (&mut { to.1 + done }, 0);
        match write_rest(w, to.0, None, begun, &buffer[..got], flags) {
            Ok(n) => done += n as u64,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Whether others must not see the kernel take a file for longer than it is. Under an
/// exclusive lease.
fn is_watched(op: &CallContext<'_>, node: &Node) -> bool {
    op.yields() && node.watched.load(Ordering::Acquire)
}

/// Blocks that cutting a file to `size` bytes gives back.
fn blocks_lost(
    op: &CallContext<'_>,
    node: &Node,
    state: &NodeState,
    size: u64,
) -> std::result::Result<u64, Stop> {
    let from = FileBlock::at_or_after(size).byte();
    // Also those that it was given behind its end.
    let to = FileBlock::containing(FILE_BYTES_MAX).byte();
    Ok((to - from) / BLOCK - missing_blocks(op, node, state, from, to)?)
}

/// The blocks that lie in a range of bytes as a whole.
fn inner(bytes: &std::ops::Range<u64>) -> std::ops::Range<u64> {
    let first = FileBlock::at_or_after(bytes.start).0;
    first..FileBlock::containing(bytes.end).0.max(first)
}

/// The blocks that a range of bytes touches.
fn outer(bytes: &std::ops::Range<u64>) -> std::ops::Range<u64> {
    FileBlock::containing(bytes.start).0..FileBlock::at_or_after(bytes.end).0
}

/// Whether a change of content by this caller takes set-id bits away where the
/// kernel does not say so: by anybody but root.
fn kills_set_id(caller: &Caller) -> bool {
    caller.uid != 0
}

fn changed(state: &mut NodeState, now_ns: i64, kill: bool) {
    state.inode.set_time_ns(time::MODIFY, now_ns);
    state.inode.set_time_ns(time::CHANGE, now_ns);
    if kill {
        state.inode.mode = without_set_id(state.inode.mode);
    }
}
