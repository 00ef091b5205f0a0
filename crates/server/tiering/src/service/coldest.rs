//! The coldest pieces of files in NVM, and what lies of a piece.

use super::Tiering;
use crate::move_request::MoveRequest;
use crate::recency::{HeatRegion, PIECE_BLOCKS};
use shale_format::inode::time;
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_volume::Result;
use std::collections::VecDeque;
use std::ops::ControlFlow;

impl Tiering {
    /// The next pieces of NVM to move down, coldest first, about `blocks` blocks.
    pub(super) fn coldest(&self, blocks: u64) -> Result<Vec<MoveRequest>> {
        let mut listed = self.coldest.lock();
        let wanted = self.take_coldest(&mut listed, blocks, false)?;
        if !wanted.is_empty() {
            return Ok(wanted);
        }
        *listed = self.list_coldest()?;
        match self.take_coldest(&mut listed, blocks, false)? {
            none if none.is_empty() => self.take_coldest(&mut listed, blocks, true),
            wanted => Ok(wanted),
        }
    }

    /// For how many uses of pieces the coldest piece in NVM has not been used.
    pub(super) fn coldest_age(&self) -> Result<u64> {
        let mut listed = self.coldest.lock();
        for again in [true, false] {
            while let Some(piece) = listed.front().filter(|piece| !piece.link) {
                let place = (piece.ino, piece.piece);
                let used = self.recency.of(place.0, place.1) > piece.stamp;
                let in_nvm: fn(TierId) -> bool = |tier| tier == TierId::Nvm;
                if !used && self.data_of(place, (in_nvm, false), &mut Vec::new())? > 0 {
                    return Ok(self.recency.uses() - piece.stamp);
                }
                listed.pop_front();
            }
            if again {
                *listed = self.list_coldest()?;
            }
        }
        // Nothing would be demoted for it.
        Ok(0)
    }

    /// `links`: also targets of symbolic links.
    fn take_coldest(
        &self,
        listed: &mut VecDeque<HeatRegion>,
        blocks: u64,
        links: bool,
    ) -> Result<Vec<MoveRequest>> {
        let (mut wanted, mut sum) = (Vec::new(), 0);
        while sum < blocks
            && let Some(piece) = listed.pop_front_if(|next| links || !next.link)
        {
            // It has been used since.
            if self.recency.of(piece.ino, piece.piece) > piece.stamp {
                continue;
            }
            let in_nvm: fn(TierId) -> bool = |tier| tier == TierId::Nvm;
            let hot = self.recency.is_hot(piece.ino, piece.piece * PIECE_BLOCKS);
            sum += self.data_of((piece.ino, piece.piece), (in_nvm, hot), &mut wanted)?;
        }
        Ok(wanted)
    }

    /// Adds what lies of a piece in the tiers that `from` takes; of the inode file of a block. Gives the
    /// blocks.
    pub(super) fn data_of(
        &self,
        (ino, piece): (u64, u64),
        (from, hot): (fn(TierId) -> bool, bool),
        wanted: &mut Vec<MoveRequest>,
    ) -> Result<u64> {
        let _reader = self.grace.read();
        let view = self.volume.view();
        let inode = match self.inode_or_file(Ino(ino))? {
            Some(inode) if inode.has_content() => inode,
            Some(dir) if dir.is_dir() && piece == 0 && !from(TierId::Nvm) => {
                let before = wanted.len();
                self.lies_of(Ino(ino), None, &mut |dir, leaf| {
                    wanted.push(MoveRequest::leaf(
                        dir,
                        BlockAddr::from_raw(leaf.extent.addr),
                    ));
                })?;
                return Ok((wanted.len() - before) as u64);
            }
            _ => return Ok(0),
        };
        let unit = if Ino(ino) == Ino::NONE {
            1
        } else {
            PIECE_BLOCKS
        };
        if inode.pin().is_some_and(from) {
            return Ok(0);
        }
        let range = piece * unit..(piece + 1) * unit;
        let mut blocks = 0;
        view.extents_there(&inode, FileBlock(range.start), &mut |e| {
            if e.file_block >= range.end {
                return ControlFlow::Break(());
            }
            let addr = BlockAddr::from_raw(e.addr);
            // What was never written has no reason to come up.
            let wants = !e.is_unwritten() || addr.tier() == Some(TierId::Nvm);
            if addr.tier().is_some_and(from) && wants {
                let len = e.end().0.min(range.end) - e.file_block;
                blocks += len;
                wanted.push(MoveRequest {
                    ino,
                    at: e.file_block,
                    from: addr,
                    blocks: len,
                    hot,
                    unwritten: e.is_unwritten(),
                    pin: inode.pin(),
                    leaf: false,
                });
            }
            ControlFlow::Continue(())
        })?;
        Ok(blocks)
    }

    fn list_coldest(&self) -> Result<VecDeque<HeatRegion>> {
        let mut pieces: Vec<HeatRegion> = Vec::new();
        self.each_lying(Some(TierId::Nvm), &mut |inode, lies| {
            let e = &lies.extent;
            if inode.pin() == Some(TierId::Nvm) {
                return;
            }
            let last = (e.end().0 - 1) / PIECE_BLOCKS;
            for piece in e.file_block / PIECE_BLOCKS..=last {
                let again = pieces
                    .last()
                    .is_some_and(|p| (p.ino, p.piece) == (inode.ino, piece));
                if again {
                    continue;
                }
                pieces.push(HeatRegion {
                    link: inode.is_symlink(),
                    stamp: self.recency.of(inode.ino, piece),
                    changed_s: inode.time_s[time::CHANGE].max(inode.time_s[time::ACCESS]),
                    ino: inode.ino,
                    piece,
                });
            }
        })?;
        pieces.sort_unstable();
        Ok(pieces.into())
    }
}
