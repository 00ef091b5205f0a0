//! Reading: log overlay, then the volume's extents, then zeros (DESIGN §8).
//!
//! Every byte is copied once, from where it lies to the caller. Nothing that was
//! read is returned if the daemon cut this client off meanwhile.

use crate::client::call::CallContext;
use crate::client::session::{Need, Session};
use crate::errno::{Errno, Result, Stop};
use crate::inodes::attr::Caller;
use crate::inodes::node::{Node, NodeState};
use crate::lower_tiers::block_cache::RUN_BYTES;
use shale_format::inode::{flag, time};
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, FileBlock, TierId};
use shale_oplog::Source;
use shale_volume::{Mapping, check_target};

/// With a last access older than this many seconds, a read notes a new one (relatime).
const ATIME_SECONDS_MAX: i64 = 24 * 3600;

/// Bytes behind a sequential read that begin to come into the cache, if it was as long: with the first
/// lines there, the CPU's own read-ahead, which ends with a page, has begun with the next one.
pub(crate) const AHEAD_BYTES: usize = 512;

/// A search for data or a hole looks at this many bytes before it can stop.
const SEEK_STEP_BYTES: u64 = 1 << 40;

impl Session {
    /// Reads from byte `offset` on; fewer bytes only at the end of the file.
    pub fn read(&self, caller: &Caller, ino: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.read_known(caller, ino, None, false, offset, into)
    }

    /// As [`Self::read`]; `known` is the inode's node, if the caller has it. `sequential`: it is
    /// likely to read on from where this read ends.
    #[inline(always)]
    pub(crate) fn read_known(
        &self,
        caller: &Caller,
        ino: u64,
        known: Option<&Node>,
        sequential: bool,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        if let Some(node) = known
            && let Some(n) = self.read_fast(node, sequential, offset, into)
        {
            return Ok(n);
        }
        self.read_slow(caller, ino, known, sequential, offset, into)
    }

    #[inline(never)]
    fn read_slow(
        &self,
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
            (n, whole) = self.read_run(caller, ino, known.take(), sequential, at, rest)?;
            done += n;
        }
        Ok(done)
    }

    /// Reads under one run, where there are lower tiers no more than fits the cache. Gives the
    /// bytes, and whether that was all there is to read.
    fn read_run(
        &self,
        caller: &Caller,
        ino: u64,
        mut known: Option<&Node>,
        sequential: bool,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(usize, bool)> {
        let (n, whole, old_atime) = self.run(caller, Need::default(), |op| {
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
            let wanted = match into.len() > RUN_BYTES && op.session.is_tiered() {
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
                    op.session.nvm.expect_read(behind, AHEAD_BYTES);
                }
            }
            let whole = n < wanted || n == into.len();
            Ok((n, whole, n > 0 && wants_atime(&state, op.now_ns)))
        })?;
        if old_atime {
            self.note_access(caller, ino)?;
        }
        Ok((n, whole))
    }

    /// Where data (`data`: true) or a hole begins at or after `offset`. `ENXIO`
    /// beyond the end, and for data where none follows.
    pub(crate) fn seek(&self, caller: &Caller, ino: u64, offset: u64, data: bool) -> Result<u64> {
        self.run(caller, Need::default(), |op| {
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
}

pub(crate) fn wrong_type(state: &NodeState) -> Errno {
    if state.inode.is_dir() {
        Errno::ISDIR
    } else {
        Errno::INVAL
    }
}

/// Whether a read now is to be noted: as `relatime` has it, and not twice at one time of the clock.
#[inline]
pub(crate) fn wants_atime(state: &NodeState, now_ns: i64) -> bool {
    let i = &state.inode;
    if i.flags & flag::NO_ATIME != 0 {
        return false;
    }
    let at = |which: usize| (i.time_s[which], i.time_ns[which]);
    let old = at(time::ACCESS) <= at(time::MODIFY)
        || at(time::ACCESS) <= at(time::CHANGE)
        || now_ns / 1_000_000_000 - i.time_s[time::ACCESS] > ATIME_SECONDS_MAX;
    let s_and_ns = || {
        (
            now_ns.div_euclid(1_000_000_000),
            now_ns.rem_euclid(1_000_000_000),
        )
    };
    old && (i.time_s[time::ACCESS], i64::from(i.time_ns[time::ACCESS])) != s_and_ns()
}

/// Where some bytes of a file come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece {
    /// From the log or a stolen block.
    Newer(Source),
    /// From the volume, at this byte of the NVM tier.
    Volume(u64),
    /// From a block below NVM, this many bytes behind its start; so many blocks of the file
    /// follow one another from there on.
    Lower(BlockAddr, u64, u64),
    /// Zeros: blocks that were never written.
    Unwritten,
    /// Zeros: a hole.
    Zero,
}

impl Piece {
    pub(crate) fn is_data(&self) -> bool {
        !matches!(
            self,
            Piece::Zero | Piece::Unwritten | Piece::Newer(Source::Zero)
        )
    }
}

/// Calls `f(start, end, piece)` for every run of bytes of `from..to` with one source, in order.
pub(crate) fn pieces(
    op: &CallContext<'_>,
    node: &Node,
    state: &NodeState,
    from: u64,
    to: u64,
    f: &mut dyn FnMut(u64, u64, Piece) -> std::result::Result<(), Stop>,
) -> std::result::Result<(), Stop> {
    if state.overlay.is_empty() {
        return volume_pieces(op, node, state, from, to, f);
    }
    state
        .overlay
        .segments(from..to, |range, source| match source {
            Some(source) => f(range.start, range.end, Piece::Newer(source)),
            None => volume_pieces(op, node, state, range.start, range.end, f),
        })
}

fn volume_pieces(
    op: &CallContext<'_>,
    node: &Node,
    state: &NodeState,
    from: u64,
    to: u64,
    f: &mut dyn FnMut(u64, u64, Piece) -> std::result::Result<(), Stop>,
) -> std::result::Result<(), Stop> {
    let mut at = from;
    while at < to {
        let fb = FileBlock::containing(at);
        let skip = at - fb.byte();
        let (len, piece) = match node.map_block(&op.session.view, state, fb)? {
            Mapping::Data { addr, len } => match addr.tier() {
                Some(TierId::Nvm) => (len, Piece::Volume(addr.byte() + skip)),
                _ => (len, Piece::Lower(addr, skip, len)),
            },
            Mapping::Unwritten { len, .. } => (len, Piece::Unwritten),
            Mapping::Hole { len } => (len, Piece::Zero),
        };
        let end = fb
            .byte()
            .saturating_add(len.saturating_mul(BLOCK_BYTES as u64))
            .min(to);
        f(at, end, piece)?;
        at = end;
    }
    Ok(())
}

/// Bytes of the NVM tier, unless there is a memory error in them.
fn load(session: &Session, at: usize, into: &mut [u8]) -> std::result::Result<(), Stop> {
    session.nvm.load(at, into);
    match session.nvm.lost(at, into.len()) {
        None => Ok(()),
        Some(_) => Err(Errno::IO.into()),
    }
}

/// Fills `into` with the file's bytes from `offset` on. Returns the byte of the tier behind the
/// last of them, unless that came from elsewhere.
pub(crate) fn copy_out(
    op: &CallContext<'_>,
    node: &Node,
    state: &NodeState,
    offset: u64,
    into: &mut [u8],
) -> std::result::Result<Option<usize>, Stop> {
    let session = op.session;
    let end = offset + into.len() as u64;
    let mut behind = None;
    pieces(op, node, state, offset, end, &mut |from, to, piece| {
        let into = &mut into[(from - offset) as usize..(to - offset) as usize];
        let at = match piece {
            Piece::Volume(byte) => {
                session.note_read(node.ino, from, to, false);
                byte as usize
            }
            Piece::Newer(Source::Block { addr, skip }) => (addr.byte() + skip) as usize,
            Piece::Lower(addr, skip, len) => {
                behind = None;
                session.note_read(node.ino, from, to, true);
                return session.load_lower(node, (addr, skip, len), from, into);
            }
            Piece::Newer(Source::Log { at }) => {
                session.log.read(at, 0, into);
                behind = None;
                return Ok(());
            }
            Piece::Zero | Piece::Unwritten | Piece::Newer(Source::Zero) => {
                into.fill(0);
                behind = None;
                return Ok(());
            }
        };
        behind = Some(at + into.len());
        load(session, at, into)
    })?;
    session.still_served()?;
    Ok(behind)
}

/// Target of a symbolic link, verified wherever it comes from.
pub(crate) fn read_target(
    op: &CallContext<'_>,
    node: &Node,
    state: &NodeState,
) -> std::result::Result<Vec<u8>, Stop> {
    let mut target = vec![0; state.inode.size as usize];
    copy_out(op, node, state, 0, &mut target)?;
    check_target(&state.inode, &target)?;
    Ok(target)
}
