//! Where the bytes of a file lie: log overlay, then the volume's extents, then zeros (DESIGN §8).
//!
//! Every byte is copied once, from where it lies to the caller. Nothing that was
//! read is returned if the daemon cut this client off meanwhile.

use crate::client::call::CallContext;
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, FileBlock, TierId};
use shale_inodes::node::{Node, NodeState};
use shale_oplog::Source;
use shale_session::errno::{Errno, Stop};
use shale_session::volume_reader::whole;
use shale_volume::{Mapping, check_target};

/// Bytes behind a sequential read that begin to come into the cache, if it was as long: with the first
/// lines there, the CPU's own read-ahead, which ends with a page, has begun with the next one.
pub(crate) const AHEAD_BYTES: usize = 512;

pub(crate) fn wrong_type(state: &NodeState) -> Errno {
    if state.inode.is_dir() {
        Errno::ISDIR
    } else {
        Errno::INVAL
    }
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
        let (len, piece) = match node.map_block(op.volume(), state, fb)? {
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

/// Fills `into` with the file's bytes from `offset` on. Returns the byte of the tier behind the
/// last of them, unless that came from elsewhere.
pub(crate) fn copy_out(
    op: &CallContext<'_>,
    node: &Node,
    state: &NodeState,
    offset: u64,
    into: &mut [u8],
) -> std::result::Result<Option<usize>, Stop> {
    let volume = op.volume();
    let end = offset + into.len() as u64;
    let mut behind = None;
    pieces(op, node, state, offset, end, &mut |from, to, piece| {
        let into = &mut into[(from - offset) as usize..(to - offset) as usize];
        let at = match piece {
            Piece::Volume(byte) => {
                volume.sampling().note_read(node.ino, from, to, false);
                byte as usize
            }
            Piece::Newer(Source::Block { addr, skip }) => (addr.byte() + skip) as usize,
            Piece::Lower(addr, skip, len) => {
                behind = None;
                volume.sampling().note_read(node.ino, from, to, true);
                return volume.load_lower((addr, skip, len), from, &node.read_to, into);
            }
            Piece::Newer(Source::Log { at }) => {
                volume.load_logged(at, into);
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
        whole(volume.load(at, into))
    })?;
    op.still_served()?;
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
