//! Mapping a part of a file directly from NVM (Strata §4.1, DESIGN §35).

use crate::client::call_runner::CallRunner;
use crate::io::access_time::{note_access, wants_atime};
use crate::io::content::wrong_type;
use shale_format::BlockAddr;
use shale_format::limits::{BLOCK_BYTES, SEGMENT_BYTES};
use shale_proto::message::BlockRun;
use shale_proto::{Reply, Request};
use shale_session::caller::Caller;
use shale_session::daemon_link::DaemonLink;
use shale_session::errno::{Errno, Result};
use shale_session::log::client_log::Need;
use std::os::fd::OwnedFd;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Bytes of one file of the NVM tier.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index into [`DirectMap::segments`].
    pub segment: usize,
    /// First byte in it.
    pub offset: u64,
    /// Bytes, whole blocks.
    pub bytes: u64,
}

/// A part of a file that stays as it is, to be mapped privately.
#[derive(Debug)]
pub struct DirectMap {
    /// Bytes of the whole file; what its last block holds behind them means nothing.
    pub size: u64,
    /// Where the bytes lie, in the order of the file.
    pub pieces: Vec<Piece>,
    /// Descriptors of the files of the NVM tier, read-only.
    pub segments: Vec<OwnedFd>,
    /// As long as a duplicate of it is open, in whichever process, the bytes stay as they are,
    /// whatever becomes of the file and of the daemon.
    pub keep: OwnedFd,
}

/// See [`crate::Session::map_direct`].
pub(crate) fn map_direct(
    calls: &CallRunner,
    daemon: &DaemonLink,
    caller: &Caller,
    ino: u64,
    offset: u64,
    bytes: u64,
) -> Result<Option<DirectMap>> {
    let end = offset.checked_add(bytes).ok_or(Errno::OVERFLOW)?;
    let (newest, old_atime) = calls.run(caller, Need::default(), |op| {
        let node = op.node(ino)?;
        let state = op.read(&node)?;
        if !state.inode.is_file() {
            return Err(wrong_type(&state).into());
        }
        let inside = end.div_ceil(BLOCK) <= state.inode.size.div_ceil(BLOCK);
        let newest = inside.then_some(state.newest);
        Ok((newest, wants_atime(&state, op.now_ns)))
    })?;
    let Some(newest) = newest else {
        return Ok(None);
    };
    calls.digest_to(newest)?;
    let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
    let ask = Request::Map {
        ino,
        first,
        blocks: last - first,
    };
    let (reply, fds) = daemon.call(ask)?;
    let Reply::Mapped {
        size,
        runs,
        segments,
    } = reply
    else {
        return Ok(None);
    };
    if old_atime {
        note_access(calls, caller, ino)?;
    }
    let pieces = pieces(&runs, &segments).ok_or(Errno::PROTO)?;
    let mut fds = fds.into_iter();
    let keep = fds.next().ok_or(Errno::MFILE)?;
    let opened: Vec<OwnedFd> = fds.collect();
    if opened.len() < segments.len() {
        // The kernel leaves out what this process has no numbers for.
        return Err(Errno::MFILE);
    }
    Ok(Some(DirectMap {
        size,
        pieces,
        segments: opened,
        keep,
    }))
}

/// Cuts runs where segments end. `None`: a segment is not named.
fn pieces(runs: &[BlockRun], segments: &[u32]) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    for run in runs {
        let mut at = BlockAddr::from_raw(run.addr).byte();
        let end = at + u64::from(run.blocks) * BLOCK;
        while at < end {
            let segment = at / SEGMENT_BYTES;
            let bytes = ((segment + 1) * SEGMENT_BYTES).min(end) - at;
            pieces.push(Piece {
                segment: segments.iter().position(|&s| u64::from(s) == segment)?,
                offset: at % SEGMENT_BYTES,
                bytes,
            });
            at += bytes;
        }
    }
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_cut_where_segments_end() {
        let per_segment = SEGMENT_BYTES / BLOCK;
        let run = |first, blocks| BlockRun {
            addr: BlockAddr::nvm(first).raw(),
            blocks,
        };
        let piece = |segment, block, blocks| Piece {
            segment,
            offset: block * BLOCK,
            bytes: blocks * BLOCK,
        };
        let runs = [run(per_segment - 2, 5), run(3, 1)];
        let expected = [piece(1, per_segment - 2, 2), piece(0, 0, 3), piece(1, 3, 1)];
        assert_eq!(pieces(&runs, &[1, 0]).unwrap(), expected);
        assert_eq!(pieces(&runs, &[0]), None);
    }
}
