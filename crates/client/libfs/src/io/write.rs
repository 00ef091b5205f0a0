//! Writing: directly from the caller's buffer to NVM, once (DESIGN §5).
//!
//! Bytes that fill aligned blocks are stolen: written into granted free blocks of
//! the volume, so that digest only links them. The rest goes into the log. All
//! records of a call are one transaction, also above [`WRITE_PIECE_BYTES`]
//! ([`crate::io::whole`]); a call that cannot be one is cut into pieces, and each piece is.

use crate::client::call::CallContext;
use crate::client::call_runner::CallRunner;
use crate::inodes::flags::may_write;
use crate::io::content::{Piece, pieces, wrong_type};
use crate::io::whole::write_whole;
use crate::namespace::rights::takes_rights;
use shale_format::inode::time;
use shale_format::limits::{BLOCK_BYTES, CHECKSUM_BYTES_MAX, FILE_BYTES_MAX};
use shale_format::record::{StealBody, flag, record_bytes};
use shale_format::{BlockAddr, FileBlock, Ino, LogPos};
use shale_inodes::attr::without_set_id;
use shale_inodes::node::{Node, NodeState};
use shale_oplog::{Overlay, Part, Source, encode};
use shale_session::caller::Caller;
use shale_session::errno::{Errno, Result, Stop};
use shale_session::log::client_log::Need;
use shale_session::space::granted_space::GrantedSpace;
use shale_session::space::grants::{BlockRun, Runs};
use shale_session::space::reservation::{UNIT, content_blocks, write_bytes};
use shale_sys::biased_rwlock::WriteGuard;
use shale_volume::Mapping;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// What a write works with: it runs calls, takes granted blocks, and is somebody's.
#[derive(Clone, Copy)]
pub(crate) struct WriteAccess<'s> {
    /// The frame.
    pub calls: &'s CallRunner,
    /// Where granted blocks come from.
    pub space: &'s GrantedSpace,
    /// Who writes.
    pub caller: &'s Caller,
}

/// How a write is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// Take away set-user-id, and set-group-id of a group-executable file.
    pub kill_suidgid: bool,
    /// Write at the end of the file, wherever the offset points.
    pub append: bool,
    /// Return when the data survives a power cut, whatever the policy of the volume: the file is open with
    /// `O_SYNC` or `O_DSYNC`, or the call says so (`RWF_SYNC`, `RWF_DSYNC`).
    pub sync: bool,
}

impl Stolen {
    /// Bytes of the blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes() as u64).sum()
    }
}

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of a piece: the most data of one record, and of one transaction where a call cannot be one.
pub(crate) const WRITE_PIECE_BYTES: usize = 1 << 20;
/// With more runs than this in a piece the grants are too scattered to be worth stealing.
pub(crate) const RUNS_MAX: usize = 8;

/// Full blocks that are already in their place, and what the log has to say of them.
pub(crate) struct Stolen {
    /// First byte of the data that goes to blocks.
    pub from: usize,
    pub runs: Runs,
    /// They are written and durable; else the append writes them.
    pub fenced: bool,
}

/// See [`crate::Session::write`].
pub(crate) fn write(
    w: &WriteAccess<'_>,
    ino: u64,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
) -> Result<usize> {
    Ok(write_at(w, ino, offset, data, flags)?.0)
}

/// Tries for one page: others may use up what was lent for it.
const PAGE_TRIES: u32 = 8;

/// See [`crate::Session::write_pages`].
pub(crate) fn write_pages(
    to: &WriteAccess<'_>,
    ino: u64,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
) -> Result<(usize, u64)> {
    // Not a part of the request, of which a part may be done already: to write a page once more after a crash changes nothing.
    let caller = &Caller {
        request: 0,
        ..*to.caller
    };
    let to = &WriteAccess { caller, ..*to };
    let mut done = 0;
    while done < data.len() {
        let at = offset + done as u64;
        let bytes = (BLOCK - at % BLOCK) as usize;
        let page = &data[done..data.len().min(done + bytes)];
        match write_page(to, ino, at, page, flags) {
            Ok(written) => done += written,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok((done, offset + done as u64))
}

/// Writes what lies in one block.
fn write_page(
    to: &WriteAccess<'_>,
    ino: u64,
    offset: u64,
    page: &[u8],
    flags: WriteFlags,
) -> Result<usize> {
    for _ in 0..PAGE_TRIES {
        match write(to, ino, offset, page, flags) {
            Err(Errno::NOSPC) => {}
            other => return other,
        }
        let bytes = write_bytes(to.calls.is_tiered(), 1, 1);
        to.space.acquire_for_page(bytes.next_multiple_of(UNIT))?;
    }
    Err(Errno::NOSPC)
}

/// See [`crate::Session::write_at`].
pub(crate) fn write_at(
    w: &WriteAccess<'_>,
    ino: u64,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
) -> Result<(usize, u64)> {
    let mut at = offset;
    let n = write_with_node(w, ino, None, &mut at, data, flags)?;
    Ok((n, at))
}

/// As [`write_at`]; `known` is the inode's node, if the caller has it. `at` is where
/// to begin, then where the write ended. (Not a part of the result: a pair that is stored
/// word by word and loaded as a whole is loaded when all that was stored before is in memory.)
pub(crate) fn write_with_node(
    w: &WriteAccess<'_>,
    ino: u64,
    known: Option<&Node>,
    at: &mut u64,
    data: &[u8],
    flags: WriteFlags,
) -> Result<usize> {
    let mut done = 0;
    if let Some((from, bytes)) = w.calls.written_before(w.caller) {
        (*at, done) = (from + bytes, (bytes as usize).min(data.len()));
    }
    if done > 0 && done == data.len() {
        return Ok(done);
    }
    write_rest(w, ino, known, (at, done), data, flags)
}

/// Writes what is left of `data` when `done` bytes of it are written, to `at`; whether the
/// request was in progress before a crash is not asked. As [`write_with_node`] else.
pub(crate) fn write_rest(
    w: &WriteAccess<'_>,
    ino: u64,
    known: Option<&Node>,
    (at, mut done): (&mut u64, usize),
    data: &[u8],
    flags: WriteFlags,
) -> Result<usize> {
    if data.len() - done > first_piece(*at) {
        match write_whole(w, ino, known, *at, &data[done..], flags) {
            Ok(Some(end)) => {
                *at = end;
                return Ok(data.len());
            }
            Ok(None) => {}
            Err(e) if done == 0 => return Err(e),
            Err(_) => return Ok(done),
        }
    }
    loop {
        let mut piece = &data[done..data.len().min(done + first_piece(*at))];
        let whole = data.len() - done;
        let place = (*at, whole, true);
        let mut written = write_piece(w, ino, known, place, piece, flags);
        if written == Err(Errno::NOSPC)
            && let Some(fits) = part_that_fits(w.calls, *at, piece)?
        {
            piece = fits;
            // Blocks to steal would have to be free besides the space.
            let place = (*at, whole, false);
            written = write_piece(w, ino, known, place, piece, flags);
        }
        match written {
            Ok(end) => *at = end,
            Err(e) if done == 0 => return Err(e),
            Err(_) => return Ok(done),
        }
        done += piece.len();
        if done == data.len() {
            return Ok(done);
        }
    }
}

/// Of a piece that found no space, to be written from byte `at` on, what does by now; `None`: less than a
/// block.
#[cold]
fn part_that_fits<'d>(calls: &CallRunner, at: u64, piece: &'d [u8]) -> Result<Option<&'d [u8]>> {
    if calls.is_tiered() {
        return Ok(None);
    }
    let blocks = content_blocks(calls.volume_space()?.free);
    let bytes = (blocks * BLOCK).saturating_sub(at % BLOCK);
    Ok((bytes > 0).then(|| &piece[..piece.len().min(bytes as usize)]))
}

/// Writes one piece of the `whole` bytes that a call has yet to write, into granted blocks if it `steals`;
/// returns the offset behind it.
fn write_piece(
    w: &WriteAccess<'_>,
    ino: u64,
    mut known: Option<&Node>,
    (offset, whole, steals): (u64, usize, bool),
    data: &[u8],
    flags: WriteFlags,
) -> Result<u64> {
    let WriteAccess {
        calls,
        space,
        caller,
    } = *w;
    let mut stolen = match (data.len() < BLOCK_BYTES || !steals, flags.append) {
        (true, _) => None,
        (false, true) => steal_at_end(w, ino, known, data, flags.sync)?,
        (false, false) => steal(w, ino, offset, data, flags.sync)?,
    };
    let need = Need {
        log: log_bytes(data.len(), stolen.as_ref()),
        sync: flags.sync,
    };
    let result = calls.run(caller, need, |op| {
        let mut found = None;
        let node = node_to_write(op, known.take(), ino, &mut found)?;
        let (mut state, offset, end) = lock_to_write(op, node, offset, data.len(), flags.append)?;
        if data.is_empty() {
            return Ok((end, true));
        }
        takes_rights(op, ino, &mut state, flags.kill_suidgid)?;
        // Asked for all of it, so that it is not done by halves.
        op.may_end_at(node, &state, offset.saturating_add(whole as u64))?;
        let fits = stolen
            .as_ref()
            .is_none_or(|s| (offset + s.from as u64).is_multiple_of(BLOCK));
        let new_blocks = missing_blocks(op, node, &state, offset, end)?;
        let blocks = FileBlock::at_or_after(end).0 - FileBlock::containing(offset).0;
        let tiered = op.is_tiered();
        op.reserve_space(write_bytes(tiered, new_blocks, blocks))?;
        let kill = flags.kill_suidgid;
        let kill_flag = if kill { flag::KILL_SUID } else { 0 };
        let logged = match stolen.as_ref().filter(|_| fits) {
            None => log_write(op, &mut state.overlay, ino, offset, data, kill_flag)?,
            Some(s) => match s.runs[..] {
                [run] if s.from == 0 && data.len() == run.bytes() && !s.fenced => {
                    log_block(op, &mut state.overlay, ino, offset, data, run, kill_flag)?
                }
                _ => log_pieces(op, &mut state.overlay, ino, offset, data, s, kill_flag)?,
            },
        };
        after_write(&mut state, op.now_ns, end, new_blocks, kill, logged);
        let eager = stolen.as_ref().filter(|_| fits).map_or(0, Stolen::bytes);
        calls.note_write(ino, offset..end, logged, eager);
        Ok((end, fits))
    });
    if let Some(s) = &mut stolen
        && !matches!(result, Ok((_, true)))
    {
        space.put_blocks(&mut s.runs);
    }
    result.map(|(end, _)| end)
}

/// Steals for an append: the end of the file is only a guess until the inode is
/// locked; a wrong guess sends the bytes through the log.
fn steal_at_end(
    w: &WriteAccess<'_>,
    ino: u64,
    known: Option<&Node>,
    data: &[u8],
    sync: bool,
) -> Result<Option<Stolen>> {
    match end_in_memory(w.calls, ino, known) {
        Some(end) => steal(w, ino, end, data, sync),
        None => Ok(None),
    }
}

/// Where the file ends, as far as this client knows without asking; `None`: it does not.
pub(crate) fn end_in_memory(calls: &CallRunner, ino: u64, known: Option<&Node>) -> Option<u64> {
    let size_of = |node: &Node| node.state.read().inode.size;
    match known {
        Some(node) => Some(size_of(node)),
        None => calls.in_memory(ino).map(|node| size_of(&node)),
    }
}

/// The node that a run of a call writes to: the one that the call came with, if it may be changed in this run, or else
/// the one that is `found`. Only the first run has one to come with: what stops a call may have replaced it.
#[inline]
pub(crate) fn node_to_write<'n>(
    op: &CallContext<'_>,
    known: Option<&'n Node>,
    ino: u64,
    found: &'n mut Option<Arc<Node>>,
) -> std::result::Result<&'n Node, Stop> {
    match known {
        Some(node) if op.may_change(node) => Ok(node),
        _ => Ok(found.insert(op.node_to_change(ino)?)),
    }
}

/// Locks a file for a write of `bytes` bytes at `offset`, or at its end: its state, and where the bytes begin and end.
#[inline]
pub(crate) fn lock_to_write<'n>(
    op: &CallContext<'_>,
    node: &'n Node,
    offset: u64,
    bytes: usize,
    append: bool,
) -> std::result::Result<(WriteGuard<'n, NodeState>, u64, u64), Stop> {
    let state = op.lock(node)?;
    if !state.inode.is_file() {
        return Err(wrong_type(&state).into());
    }
    may_write(&state.inode, append)?;
    let offset = if append { state.inode.size } else { offset };
    let end = end_of(offset, bytes)?;
    Ok((state, offset, end))
}

/// Writes the full blocks of `data` into granted blocks, if it has any. `sync`: the call returns when they survive a power cut.
fn steal(
    w: &WriteAccess<'_>,
    ino: u64,
    offset: u64,
    data: &[u8],
    sync: bool,
) -> Result<Option<Stolen>> {
    let WriteAccess { calls, space, .. } = *w;
    let head = (offset.next_multiple_of(BLOCK) - offset) as usize;
    let blocks = data.len().saturating_sub(head) / BLOCK_BYTES;
    if blocks == 0 {
        return Ok(None);
    }
    let mut runs = Runs::new();
    let (from, bytes) = (offset + head as u64, (blocks * BLOCK_BYTES) as u64);
    let eager = calls.is_eager(ino, from..from + bytes, sync);
    if !space.take_blocks(blocks as u64, eager, &mut runs)? {
        return Ok(None);
    }
    if runs.len() > RUNS_MAX {
        space.put_blocks(&mut runs);
        return Ok(None);
    }
    // Another daemon may have given them to somebody else.
    space.are_blocks_ours()?;
    // An append to a log in memory makes nothing durable.
    let fenced = eager || blocks * BLOCK_BYTES > CHECKSUM_BYTES_MAX;
    if fenced {
        space.write_blocks(&data[head..], &runs)?;
    }
    Ok(Some(Stolen {
        from: head,
        runs,
        fenced,
    }))
}

/// Bytes of the first piece of a call that writes from byte `at` on: the following ones begin where a
/// block does.
#[inline]
pub(crate) fn first_piece(at: u64) -> usize {
    WRITE_PIECE_BYTES - (at % BLOCK) as usize
}

/// Where `bytes` bytes at `offset` end. Errors: `EFBIG`.
#[inline]
fn end_of(offset: u64, bytes: usize) -> Result<u64> {
    let end = offset.checked_add(bytes as u64);
    end.filter(|&e| e <= FILE_BYTES_MAX).ok_or(Errno::FBIG)
}

/// Bytes of log that a piece may need: also if stealing turns out not to fit.
fn log_bytes(data: usize, stolen: Option<&Stolen>) -> u64 {
    let steals = stolen.map_or(0, |s| s.runs.len() * record_bytes(StealBody::BYTES, 0));
    (record_bytes(0, data) + 2 * record_bytes(0, 0) + steals) as u64
}

/// Appends one record with all of the data. Returns the position behind it.
#[inline]
fn log_write(
    op: &mut CallContext<'_>,
    overlay: &mut Overlay,
    ino: u64,
    offset: u64,
    data: &[u8],
    kill: u8,
) -> std::result::Result<LogPos, Stop> {
    let mut part = encode::write(Ino(ino), offset, data);
    part.header.flags |= kill;
    let end = op.append(&mut part)?;
    let at = part.payload_at();
    let record = LogPos(part.header.pos);
    overlay.insert(
        offset..offset + data.len() as u64,
        Source::Log { at },
        record,
    );
    Ok(end)
}

/// Writes one run of blocks and its record. Returns the position behind the record.
#[inline]
fn log_block(
    op: &mut CallContext<'_>,
    overlay: &mut Overlay,
    ino: u64,
    offset: u64,
    data: &[u8],
    run: BlockRun,
    kill: u8,
) -> std::result::Result<LogPos, Stop> {
    let mut part = steal_part(op, ino, offset, &run, data, false);
    part.header.flags |= kill;
    let end = op.append(&mut part)?;
    let addr = run.addr;
    let record = LogPos(part.header.pos);
    let source = Source::Block { addr, skip: 0 };
    overlay.insert(offset..offset + data.len() as u64, source, record);
    Ok(end)
}

/// Appends the records of one call or piece as one transaction: what is before the blocks, the
/// blocks, and what is behind them. Returns the position behind the last.
pub(crate) fn log_pieces(
    op: &mut CallContext<'_>,
    overlay: &mut Overlay,
    ino: u64,
    offset: u64,
    data: &[u8],
    s: &Stolen,
    kill: u8,
) -> std::result::Result<LogPos, Stop> {
    let mut parts: SmallVec<[Part<'_>; 3]> = SmallVec::new();
    let mut ranges: SmallVec<[(Range<u64>, Option<BlockAddr>); 3]> = SmallVec::new();
    let logged = |parts: &mut SmallVec<_>, ranges: &mut SmallVec<_>, range: Range<usize>| {
        for piece in pieces_of(offset, range) {
            let at = offset + piece.start as u64;
            ranges.push((at..offset + piece.end as u64, None));
            parts.push(encode::write(Ino(ino), at, &data[piece]));
        }
    };
    logged(&mut parts, &mut ranges, 0..s.from);
    let mut from = s.from;
    for run in &s.runs {
        let (at, bytes) = (offset + from as u64, run.bytes());
        parts.push(steal_part(
            op,
            ino,
            at,
            run,
            &data[from..from + bytes],
            s.fenced,
        ));
        ranges.push((at..at + bytes as u64, Some(run.addr)));
        from += bytes;
    }
    logged(&mut parts, &mut ranges, from..data.len());
    for part in &mut parts {
        part.header.flags |= kill;
    }
    let end = op.append_chain(&mut parts)?;
    for (part, (range, addr)) in parts.iter().zip(ranges) {
        let logged = Source::Log {
            at: part.payload_at(),
        };
        let source = addr.map_or(logged, |addr| Source::Block { addr, skip: 0 });
        overlay.insert(range, source, LogPos(part.header.pos));
    }
    Ok(end)
}

/// Cuts bytes `range` of a call that begins at byte `offset` of the file into pieces.
pub(crate) fn pieces_of(offset: u64, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = range.end.min(at + first_piece(offset + at as u64));
        let piece = at..end;
        at = end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The record of one stolen run. Data that is not durable yet is written by the append.
fn steal_part<'a>(
    op: &CallContext<'a>,
    ino: u64,
    at: u64,
    run: &BlockRun,
    data: &'a [u8],
    fenced: bool,
) -> Part<'a> {
    let body = StealBody {
        addr: run.addr.raw(),
        blocks: run.blocks as u32,
        data_crc: 0,
        end: at + data.len() as u64,
    };
    match fenced {
        true => encode::steal(Ino(ino), at, body).flags(flag::FENCED),
        false => {
            let to = (op.granted_region(), run.addr.byte() as usize);
            encode::steal_data(Ino(ino), at, body, to, data)
        }
    }
}

/// Blocks of `from..to` that the file does not have yet. What was cut off or punched
/// out counts as missing, also while the volume still has it.
pub(crate) fn missing_blocks(
    op: &CallContext<'_>,
    node: &Node,
    state: &NodeState,
    from: u64,
    to: u64,
) -> std::result::Result<u64, Stop> {
    let (first, last) = (FileBlock::containing(from), FileBlock::at_or_after(to));
    if !state.in_volume && state.overlay.is_empty() {
        return Ok(last.0 - first.0 - state.allocated.count(first.0..last.0));
    }
    if last.0 - first.0 == 1 {
        // Most writes are within one block, and most of those within one just written.
        match state.overlay.last_in(first.byte()..last.byte()) {
            Some(Source::Log { .. } | Source::Block { .. }) => return Ok(0),
            None if state.overlay.is_cut(first.byte()) => {
                return Ok(1 - state.allocated.count(first.0..last.0));
            }
            None => {
                let hole = matches!(
                    node.map_block(op.volume(), state, first)?,
                    Mapping::Hole { .. }
                );
                return Ok(
                    u64::from(hole) - u64::from(hole) * state.allocated.count(first.0..last.0)
                );
            }
            Some(Source::Zero) => {}
        }
    }
    let mut missing = 0;
    // First block of which nothing is known yet.
    let mut next = first.0;
    let mut leave_out = |gap: std::ops::Range<u64>| {
        if !gap.is_empty() {
            missing += gap.end - gap.start - state.allocated.count(gap);
        }
    };
    pieces(
        op,
        node,
        state,
        first.byte(),
        last.byte(),
        &mut |start, end, piece| {
            if piece.is_data() || matches!(piece, Piece::Unwritten) {
                leave_out(next..FileBlock::containing(start).0);
                next = next.max(FileBlock::at_or_after(end).0);
            }
            Ok(())
        },
    )?;
    leave_out(next..last.0);
    Ok(missing)
}

/// The inode after a write that ended at byte `end`.
pub(crate) fn after_write(
    state: &mut NodeState,
    now_ns: i64,
    end: u64,
    new_blocks: u64,
    kill: bool,
    logged: LogPos,
) {
    let inode = &mut state.inode;
    inode.size = inode.size.max(end);
    inode.set_time_ns(time::MODIFY, now_ns);
    inode.set_time_ns(time::CHANGE, now_ns);
    if kill {
        inode.mode = without_set_id(inode.mode);
    }
    state.blocks += new_blocks;
    state.touched(logged);
}
