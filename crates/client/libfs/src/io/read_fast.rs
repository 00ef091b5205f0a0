//! The short way of a read (DESIGN §8): bytes that lie in one place, in NVM or in the log, of a file whose
//! lease stands. It looks at what mostly is so; where something is
//! not, the long way (`read.rs`) restarts and finds out what to do.

use crate::client::call_runner::CallRunner;
use crate::io::access_time::wants_atime;
use crate::io::content::AHEAD_BYTES;
use shale_format::{FileBlock, TierId};
use shale_inodes::node::{Node, NodeState};
use shale_oplog::Source;
use shale_session::lower_tiers::lower_blocks::RUN_BYTES;
use shale_session::volume_reader::VolumeReader;
use shale_volume::Mapping;

/// Reads from byte `offset` on, as [`crate::io::read::read_known`]; `None`: not on this way.
#[inline(always)]
pub(crate) fn read_fast(
    calls: &CallRunner,
    node: &Node,
    sequential: bool,
    offset: u64,
    into: &mut [u8],
) -> Option<usize> {
    // Long reads are several.
    if into.len() > RUN_BYTES {
        return None;
    }
    calls.read_at_once(node, |state, volume, now_ns| {
        let n = (into.len() as u64).min(state.inode.size.saturating_sub(offset)) as usize;
        if n == 0 {
            return Some(0);
        }
        if wants_atime(state, now_ns) && volume.sampling().notes_access() {
            return None;
        }
        let into = &mut into[..n];
        copy_quickly(volume, (node, state), sequential, offset, into).then_some(n)
    })
}

/// Fills `into`, which is not empty, from where all of it lies; `false`: not that simple.
#[inline(always)]
fn copy_quickly(
    volume: &VolumeReader,
    (node, state): (&Node, &NodeState),
    sequential: bool,
    offset: u64,
    into: &mut [u8],
) -> bool {
    let end = offset + into.len() as u64;
    let at = match state.overlay.in_one(offset..end) {
        None | Some(Some(Source::Zero)) => return false,
        Some(Some(Source::Log { at })) => {
            volume.load_logged(at, into);
            return true;
        }
        Some(Some(Source::Block { addr, skip })) => addr.byte() + skip,
        Some(None) => {
            let fb = FileBlock::containing(offset);
            let Ok(Mapping::Data { addr, len }) = node.map_block(volume, state, fb) else {
                return false;
            };
            let in_one = end <= FileBlock(fb.0.saturating_add(len)).byte();
            if !in_one || addr.tier() != Some(TierId::Nvm) {
                return false;
            }
            volume.sampling().note_read(node.ino, offset, end, false);
            addr.byte() + (offset - fb.byte())
        }
    } as usize;
    if !volume.load(at, into) {
        return false;
    }
    if sequential && into.len() >= AHEAD_BYTES {
        volume.expect_read(at + into.len(), AHEAD_BYTES);
    }
    true
}
