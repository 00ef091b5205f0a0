//! The short way of a read (DESIGN §8): bytes that lie in one place, in NVM or in the log, of a file whose
//! lease stands. It looks at what mostly is so, in the order of the long way; where something is
//! not, that way (`read.rs`) restarts and finds out what to do.

use crate::client::read_section::ReadSection;
use crate::client::reader_slot::number;
use crate::client::session::Session;
use crate::client::sync::{failpoints, mutants};
use crate::inodes::node::{Node, NodeState};
use crate::io::read::{AHEAD_BYTES, wants_atime};
use crate::lower_tiers::block_cache::RUN_BYTES;
use shale_format::{FileBlock, TierId};
use shale_oplog::Source;
use shale_proto::LeaseMode;
use shale_volume::Mapping;

impl Session {
    /// Reads from byte `offset` on, as [`Session::read_known`]; `None`: not on this way.
    #[inline(always)]
    pub(crate) fn read_fast(
        &self,
        node: &Node,
        sequential: bool,
        offset: u64,
        into: &mut [u8],
    ) -> Option<usize> {
        // The kernel wants to know of each use; long reads are several.
        if self.kernel.get().is_some() || into.len() > RUN_BYTES {
            return None;
        }
        let n = {
            let _inside = ReadSection::enter_as(self.client_words(), number());
            let epoch = self.epoch();
            failpoints::reach("call-inside");
            if !self.holds(node, LeaseMode::Shared) && !mutants::is_on("quick-unleased") {
                return None;
            }
            let state = node.state.try_read()?;
            let now = state.epoch >= epoch || mutants::is_on("epoch-read");
            if !now || state.dead || state.shifting || !state.inode.is_file() {
                return None;
            }
            let n = (into.len() as u64).min(state.inode.size.saturating_sub(offset)) as usize;
            if n > 0 && !self.copy_quickly(node, &state, sequential, offset, &mut into[..n]) {
                return None;
            }
            n
        };
        self.still_served().is_ok().then_some(n)
    }

    /// Fills `into`, which is not empty, from where all of it lies; `false`: not that simple.
    #[inline(always)]
    fn copy_quickly(
        &self,
        node: &Node,
        state: &NodeState,
        sequential: bool,
        offset: u64,
        into: &mut [u8],
    ) -> bool {
        if wants_atime(state, self.clock.realtime_ns()) && self.notes_access() {
            return false;
        }
        let end = offset + into.len() as u64;
        let at = match state.overlay.in_one(offset..end) {
            None | Some(Some(Source::Zero)) => return false,
            Some(Some(Source::Log { at })) => {
                self.log.read(at, 0, into);
                return true;
            }
            Some(Some(Source::Block { addr, skip })) => addr.byte() + skip,
            Some(None) => {
                let fb = FileBlock::containing(offset);
                let Ok(Mapping::Data { addr, len }) = node.map_block(&self.view, state, fb) else {
                    return false;
                };
                let in_one = end <= FileBlock(fb.0.saturating_add(len)).byte();
                if !in_one || addr.tier() != Some(TierId::Nvm) {
                    return false;
                }
                self.note_read(node.ino, offset, end, false);
                addr.byte() + (offset - fb.byte())
            }
        } as usize;
        self.nvm.load(at, into);
        if self.nvm.lost(at, into.len()).is_some() {
            return false;
        }
        if sequential && into.len() >= AHEAD_BYTES {
            self.nvm.expect_read(at + into.len(), AHEAD_BYTES);
        }
        true
    }
}
