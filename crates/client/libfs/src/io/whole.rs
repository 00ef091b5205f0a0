//! A write above one piece as one transaction (Strata §3.2: atomic up to what the log holds).
//!
//! Its full blocks are stolen, so that the log has only a record for each run of them; where there
//! are no blocks to be had its bytes go through the log, as far as one permit goes. Either way its
//! records are one chain: a crash leaves all of the call or nothing, whatever the digest, which never
//! divides a chain, has done until then.
//!
//! A call is cut into pieces, each atomic, in these cases alone:
//! * it is above [`WHOLE_BYTES_MAX`];
//! * it cannot be stolen, and its records are above a quarter of the log
//!   ([`shale_oplog::Writer::permit_bytes_max`]);
//! * the volume lacks space for the whole of it, or it would end behind the largest file: then the
//!   part that fits is written, as `write(2)` has it.
//!
//! Nothing is different for writes of one piece.

use crate::client::call_runner::CallRunner;
use crate::io::write::{
    RUNS_MAX, Stolen, WRITE_PIECE_BYTES, WriteAccess, WriteFlags, after_write, end_in_memory,
    lock_to_write, log_pieces, missing_blocks, node_to_write,
};
use crate::namespace::rights::takes_rights;
use shale_format::FileBlock;
use shale_format::limits::{BLOCK_BYTES, RECORD_ALIGN};
use shale_format::record::{StealBody, flag, record_bytes};
use shale_inodes::node::Node;
use shale_oplog::CHAIN_RECORDS_MAX;
use shale_proto::message::GRANT_BLOCKS_MAX;
use shale_session::errno::{Errno, Result};
use shale_session::log::client_log::Need;
use shale_session::space::granted_space::GrantedSpace;
use shale_session::space::grants::{BlockRun, Runs};
use shale_session::space::reservation::write_bytes;
use shale_sys::mutants;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of the longest call that is one transaction. The daemon grants as many blocks for one call at most.
pub(crate) const WHOLE_BYTES_MAX: usize = GRANT_BLOCKS_MAX as usize * BLOCK_BYTES;
/// Records besides those of stolen runs or of whole pieces: what is before them, and what is behind.
const EDGES: usize = 2;
/// Bytes that a record takes of the log besides its data: the header, and up to the next line.
const RECORD_OVERHEAD_MAX: usize = 2 * RECORD_ALIGN;
/// Bytes before the first full block and behind the last one that was taken, if the file has become
/// longer since its end was looked up.
const EDGE_BYTES_MAX: usize = 3 * BLOCK_BYTES;

/// The daemon grants this part of what is free at most (docs/SPEC.md, *What is atomic*).
const GRANT_PART: u64 = 4;
/// Times that blocks are asked for: others may have taken them, and of space in many pieces not all is granted at once.
const GRANT_TRIES: u32 = 4;

/// Most pieces of a call that is one transaction: all of them fit one chain.
const _: () = assert!(WHOLE_BYTES_MAX / WRITE_PIECE_BYTES + EDGES < CHAIN_RECORDS_MAX);

/// Writes all of `data`, which is longer than a piece, as one transaction, and returns where that ended.
/// `None`, and nothing has changed: it has to be cut into pieces (see above).
pub(crate) fn write_whole(
    w: &WriteAccess<'_>,
    ino: u64,
    mut known: Option<&Node>,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
) -> Result<Option<u64>> {
    let WriteAccess {
        calls,
        space,
        caller,
    } = *w;
    if data.len() > WHOLE_BYTES_MAX || mutants::is_on("call-cut") {
        return Ok(None);
    }
    let guess = match flags.append {
        true => end_in_memory(calls, ino, known).unwrap_or(0),
        false => offset,
    };
    let Some((mut place, log)) = places_for(w, ino, guess, data, flags.sync)? else {
        return Ok(None);
    };
    let need = Need {
        log,
        sync: flags.sync,
    };
    let result = calls.run(caller, need, |op| {
        let mut found = None;
        let node = node_to_write(op, known.take(), ino, &mut found)?;
        let (mut state, offset, end) = lock_to_write(op, node, offset, data.len(), flags.append)?;
        takes_rights(op, ino, &mut state, flags.kill_suidgid)?;
        op.may_end_at(node, &state, end)?;
        let new_blocks = missing_blocks(op, node, &state, offset, end)?;
        let blocks = FileBlock::at_or_after(end).0 - FileBlock::containing(offset).0;
        // A digest copies what went through the log, and has all of it twice for a moment.
        let copied = place.stolen.runs.is_empty();
        let new = if copied { blocks } else { new_blocks };
        let tiered = op.is_tiered();
        op.reserve_space(write_bytes(tiered, new, blocks))?;
        place.fit(space, offset, data)?;
        let kill = flags.kill_suidgid;
        let kill_flag = if kill { flag::KILL_SUID } else { 0 };
        let stolen = &place.stolen;
        let logged = log_pieces(op, &mut state.overlay, ino, offset, data, stolen, kill_flag)?;
        after_write(&mut state, op.now_ns, end, new_blocks, kill, logged);
        calls.note_write(ino, offset..end, logged, stolen.bytes());
        place.stolen.runs.clear();
        Ok(end)
    });
    // Those that no record names.
    space.put_blocks(&mut place.stolen.runs);
    space.put_blocks(&mut place.surplus);
    match result {
        Ok(end) => Ok(Some(end)),
        Err(Errno::NOSPC | Errno::FBIG) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Where the bytes of a call go that begins at byte `offset`, and the bytes of log that it may need.
/// `None`: they go nowhere as a whole. `sync`: the call returns when they survive a power cut.
fn places_for(
    w: &WriteAccess<'_>,
    ino: u64,
    offset: u64,
    data: &[u8],
    sync: bool,
) -> Result<Option<(Places, u64)>> {
    let WriteAccess { calls, space, .. } = *w;
    let head = (offset.next_multiple_of(BLOCK) - offset) as usize;
    let blocks = (data.len() - head) / BLOCK_BYTES;
    let pieces = data.len() / WRITE_PIECE_BYTES + EDGES;
    let logged = data.len() + pieces * RECORD_OVERHEAD_MAX;
    let may_log = logged as u64 <= calls.log_bytes_max();
    let from = offset + head as u64;
    let range = from..from + (blocks * BLOCK_BYTES) as u64;
    // A log in memory that cannot take it as a whole is no buffer for it.
    let eager = calls.is_buffer() && !may_log || calls.is_eager(ino, range, sync);
    let mut runs = Runs::new();
    let taken = space.take_blocks(blocks as u64, eager, &mut runs)?
        || !may_log && take_blocks_later(calls, space, blocks as u64, &mut runs)?;
    if taken {
        let edges = EDGE_BYTES_MAX + EDGES * RECORD_OVERHEAD_MAX;
        let log = (edges + runs.len() * record_bytes(StealBody::BYTES, 0)) as u64;
        let few = runs.len() <= RUNS_MAX * data.len().div_ceil(WRITE_PIECE_BYTES);
        let fit = runs.len() + 2 * EDGES <= CHAIN_RECORDS_MAX && log <= calls.log_bytes_max();
        if fit && (few || !may_log) {
            // Another daemon may have given them to somebody else.
            space.are_blocks_ours()?;
            space.write_blocks(&data[head..], &runs)?;
            return Ok(Some((Places::stolen(head, runs), log)));
        }
        space.put_blocks(&mut runs);
    }
    Ok(may_log.then(|| (Places::logged(data.len()), logged as u64)))
}

/// Takes blocks for a call that can go nowhere else as a whole, once what earlier calls have replaced is
/// free: a program that overwrites a file faster than its log is digested finds little space otherwise, however
/// large the volume. `false`: the volume lacks space.
#[cold]
fn take_blocks_later(
    calls: &CallRunner,
    space: &GrantedSpace,
    blocks: u64,
    into: &mut Runs,
) -> Result<bool> {
    if !space.may_steal(true) || mutants::is_on("call-unwaited") {
        return Ok(false);
    }
    let needed = blocks * GRANT_PART;
    // This has the log digested. Blocks that a reader may still look at count as free here.
    if calls.volume_space()?.free < needed {
        return Ok(false);
    }
    for _ in 0..GRANT_TRIES {
        // The answer comes when they are free.
        match space.acquire(needed * BLOCK) {
            Ok(()) => space.give_space_back()?,
            Err(Errno::NOSPC) => return Ok(false),
            Err(e) => return Err(e),
        }
        if space.take_blocks(blocks, true, into)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Where the bytes of a call go.
struct Places {
    stolen: Stolen,
    /// Blocks that were taken and are one too many.
    surplus: Runs,
}

impl Places {
    /// These runs, which hold the bytes from byte `from` on.
    fn stolen(from: usize, runs: Runs) -> Self {
        let (fenced, surplus) = (true, Runs::new());
        Self {
            stolen: Stolen { from, runs, fenced },
            surplus,
        }
    }

    /// The log.
    fn logged(bytes: usize) -> Self {
        Self::stolen(bytes, Runs::new())
    }

    /// Writes the blocks again, inside of the inode's lock, if the call begins elsewhere in a block than was
    /// thought when they were written: what is appended to had become longer. Repeating the call could
    /// go on for ever while others append.
    fn fit(&mut self, space: &GrantedSpace, offset: u64, data: &[u8]) -> Result<()> {
        let stolen = &mut self.stolen;
        if stolen.runs.is_empty() || (offset + stolen.from as u64).is_multiple_of(BLOCK) {
            return Ok(());
        }
        stolen.from = (offset.next_multiple_of(BLOCK) - offset) as usize;
        let full = (data.len() - stolen.from) / BLOCK_BYTES;
        let taken: u64 = stolen.runs.iter().map(|run| run.blocks).sum();
        // They differ by one at most, and there are many.
        if taken > full as u64
            && let Some(last) = stolen.runs.last_mut()
        {
            last.blocks -= 1;
            let addr = last.addr.plus(last.blocks);
            self.surplus.push(BlockRun { addr, blocks: 1 });
            if last.blocks == 0 {
                stolen.runs.pop();
            }
        }
        let filled = space.write_blocks(&data[stolen.from..], &stolen.runs);
        if filled.is_err() {
            // Nobody uses them again.
            stolen.runs.clear();
        }
        filled
    }
}
