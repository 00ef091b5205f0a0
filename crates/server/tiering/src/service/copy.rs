//! Copying a batch: all of it is read, then it is written in runs as long as the target takes.
//!
//! Read is by place, written by heat and file: what follows one another on a device is one request, and so is
//! what is written, whatever it is made of. Files of a few blocks cost no more requests than large ones.

use super::Tiering;
use crate::move_request::{BLOCK, DISK_BATCH_BLOCKS, MoveRequest, Target};
use shale_format::inode::Inode;
use shale_format::{BlockAddr, TierId};
use shale_sys::mutants;
use shale_volume::{Result, Run, VolumeError, WriteStream};
use std::collections::BTreeMap;

/// Blocks that are read or written at once, all of a batch: between requests to a disk that follow one another
/// its arm may go elsewhere, for another reader.
const REQUEST_BLOCKS: u64 = DISK_BATCH_BLOCKS;
/// What a disk passes under its head in a quarter of the time that it needs to go elsewhere: 512 KiB.
const DISK_GAP: u64 = 128;
/// What flash reads in a part of the time that a request takes: 32 KiB.
const FLASH_GAP: u64 = 8;

/// Blocks that were copied.
#[derive(Clone, Copy)]
pub(super) struct Copied {
    pub(super) at: u64,
    pub(super) from: BlockAddr,
    pub(super) to: BlockAddr,
    pub(super) blocks: u64,
    /// They were only given a place.
    pub(super) unwritten: bool,
}

/// What was copied, by inode.
pub(super) type Copies = BTreeMap<u64, Vec<Copied>>;

/// Files that end within a block, by inode, and that block.
pub(super) type LastOf = BTreeMap<u64, u64>;

/// Blocks to be copied, and the block of the buffer that they are read to.
#[derive(Clone, Copy)]
struct Part {
    w: MoveRequest,
    slot: u64,
}

/// Blocks of the buffer as bytes.
fn bytes_of(slot: u64, blocks: u64) -> std::ops::Range<usize> {
    (slot * BLOCK) as usize..((slot + blocks) * BLOCK) as usize
}

/// The parts of a batch one behind the other in a buffer.
fn in_a_row(batch: &[MoveRequest]) -> Vec<Part> {
    let mut slot = 0;
    let part = |&w: &MoveRequest| {
        slot += w.blocks;
        let slot = slot - w.blocks;
        Part { w, slot }
    };
    batch.iter().map(part).collect()
}

impl Part {
    /// Behind its last block.
    fn end(&self) -> BlockAddr {
        self.w.from.plus(self.w.blocks)
    }

    /// Blocks between its end and another part's beginning; `None`: there is none, or on another tier.
    fn gap(&self, next: &Part) -> Option<u64> {
        let same = self.w.from.tier() == next.w.from.tier();
        let gap = next.w.from.index().checked_sub(self.end().index());
        gap.filter(|_| same)
    }
}

/// Blocks which nobody wants that are read with those on either side: to pass them over takes longer.
fn gap_max(tier: Option<TierId>) -> u64 {
    match tier {
        Some(TierId::Hdd) => DISK_GAP,
        Some(TierId::Ssd) => FLASH_GAP,
        _ => 0,
    }
}

/// Parts in the order of where they are, in groups that are read at once.
fn by_place(parts: &mut [Part]) -> impl Iterator<Item = &[Part]> {
    parts.sort_by_key(|p| p.w.from);
    let mut first: Option<BlockAddr> = None;
    parts.chunk_by(move |a, b| {
        let begins = *first.get_or_insert(a.w.from);
        let near = a.gap(b).is_some_and(|gap| gap <= gap_max(a.w.from.tier()));
        let together = near && b.end().index() - begins.index() <= REQUEST_BLOCKS;
        if !together {
            first = None;
        }
        together
    })
}

impl Tiering {
    /// Rewrites elsewhere a block that its device cannot read, from the copy that is kept in memory. `false`: there is
    /// none, or no space.
    pub fn mend_block(&self, inode: &Inode, at: u64, from: BlockAddr) -> bool {
        let generation = self.volume.view().generation(from);
        let kept = |generation| self.digester.tail_blocks().has(from, generation);
        if !generation.is_ok_and(kept) {
            return false;
        }
        let block = MoveRequest {
            ino: inode.ino,
            at,
            from,
            blocks: 1,
            hot: false,
            unwritten: false,
            pin: inode.pin(),
            leaf: false,
        };
        let _guard = self.lock_mover();
        let tier = from.tier().unwrap_or(TierId::Nvm);
        let moved = self.move_to(&[block], tier);
        // Where its own tier is full it may find space above.
        let moved = moved.or_else(|_| self.move_to(&[block], TierId::Nvm));
        moved.is_ok_and(|blocks| blocks == 1)
    }

    /// Copies a batch. Gives what was copied, and whether the target is full.
    pub(super) fn copy(
        &self,
        mut batch: Vec<MoveRequest>,
        last: &LastOf,
        target: Target,
    ) -> Result<(Copies, bool)> {
        let clipped = self.clip(&mut batch, target);
        batch.sort_by_key(|w| (w.unwritten, !w.hot, w.ino, w.at));
        let (data, unwritten) = batch.split_at(batch.partition_point(|w| !w.unwritten));
        let (parts, bytes) = self.load(data);
        let unwritten = in_a_row(unwritten);
        let (mut copies, mut full) = (Copies::new(), false);
        for (parts, bytes) in [(&parts, Some(&bytes[..])), (&unwritten, None)] {
            for same_stream in parts.chunk_by(|a, b| a.w.hot == b.w.hot) {
                full = full || self.store(same_stream, bytes, target, &mut copies)?;
            }
        }
        self.keep_last(&parts, &bytes, last, &copies)?;
        Ok((copies, full || clipped))
    }

    /// Keeps the last blocks of files that were written below NVM.
    fn keep_last(
        &self,
        parts: &[Part],
        bytes: &[u8],
        last: &LastOf,
        copies: &Copies,
    ) -> Result<()> {
        let view = self.volume.view();
        for Part { w, slot } in parts {
            let Some(&last) = last.get(&w.ino) else {
                continue;
            };
            let Some(n) = last.checked_sub(w.at).filter(|&n| n < w.blocks) else {
                continue;
            };
            let to = copies.get(&w.ino).into_iter().flatten().find_map(|c| {
                let n = last.checked_sub(c.at).filter(|&n| n < c.blocks)?;
                (!c.unwritten && c.to.tier() != Some(TierId::Nvm)).then(|| c.to.plus(n))
            });
            if let Some(to) = to {
                let place = (to, view.generation(to)?);
                let bytes = &bytes[bytes_of(slot + n, 1)];
                self.digester.tail_blocks().keep(w.ino, place, bytes);
            }
        }
        Ok(())
    }

    /// Leaves of a batch what the spare of a tier below has space for. Whether that is not all.
    fn clip(&self, batch: &mut Vec<MoveRequest>, target: Target) -> bool {
        let space = self.volume.lower_space(target.tier);
        let Some(space) = space.filter(|_| !target.last) else {
            return false;
        };
        let mut left = space.available;
        let mut clipped = false;
        batch.retain_mut(|w| {
            clipped |= w.blocks > left;
            w.blocks = w.blocks.min(left);
            left -= w.blocks;
            w.blocks > 0
        });
        clipped
    }

    /// Reads a batch. Gives what could be read, in the order of the batch and without gaps.
    fn load(&self, batch: &[MoveRequest]) -> (Vec<Part>, Vec<u8>) {
        let mut parts = in_a_row(batch);
        let blocks = batch.iter().map(|w| w.blocks).sum();
        let mut bytes = vec![0; bytes_of(0, blocks).end];
        let mut scratch = Vec::new();
        let mut good = Vec::with_capacity(parts.len());
        for group in by_place(&mut parts) {
            if self.read_group(group, &mut bytes, &mut scratch) {
                good.extend_from_slice(group);
                continue;
            }
            // What lies between may be what cannot be read.
            for run in group.chunk_by(|a, b| a.gap(b) == Some(0)) {
                if self.read_group(run, &mut bytes, &mut scratch) {
                    good.extend_from_slice(run);
                    continue;
                }
                for part in run {
                    self.read_blockwise(part, &mut bytes, &mut good);
                }
            }
        }
        good.sort_by_key(|p| p.slot);
        let mut end = 0;
        for part in &mut good {
            bytes.copy_within(bytes_of(part.slot, part.w.blocks), bytes_of(end, 0).start);
            part.slot = end;
            end += part.w.blocks;
        }
        (good, bytes)
    }

    /// Reads parts that follow one another and what lies between them; whether all could be read.
    fn read_group(&self, group: &[Part], bytes: &mut [u8], scratch: &mut Vec<u8>) -> bool {
        let view = self.volume.view();
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            return true;
        };
        let read = if group.len() == 1 {
            view.read_at(
                first.w.from,
                0,
                &mut bytes[bytes_of(first.slot, first.w.blocks)],
            )
        } else {
            let begins = first.w.from.index();
            scratch.resize(bytes_of(0, last.end().index() - begins).end, 0);
            let read = view.read_at(first.w.from, 0, scratch);
            for part in group {
                let at = part.w.from.index() - begins;
                let into = &mut bytes[bytes_of(part.slot, part.w.blocks)];
                into.copy_from_slice(&scratch[bytes_of(at, part.w.blocks)]);
            }
            read
        };
        read.is_ok() || mutants::is_on("migrate-unread")
    }

    /// Reads block by block. A block that cannot be read stays where it is.
    fn read_blockwise(&self, part: &Part, bytes: &mut [u8], good: &mut Vec<Part>) {
        let view = self.volume.view();
        for n in 0..part.w.blocks {
            let (from, slot) = (part.w.from.plus(n), part.slot + n);
            let into = &mut bytes[bytes_of(slot, 1)];
            let read = view.read_at(from, 0, into);
            match read.or_else(|e| self.other_copy(from, into).then_some(()).ok_or(e)) {
                Ok(()) => {
                    let (at, blocks) = (part.w.at + n, 1);
                    let w = MoveRequest {
                        at,
                        from,
                        blocks,
                        ..part.w
                    };
                    good.push(Part { w, slot });
                }
                // Nobody misses a block that has moved away meanwhile.
                Err(e) if self.volume.is_live(from) => {
                    if self.could_not_read(from, &e) {
                        self.migration_failed(&e);
                    }
                }
                Err(_) => {}
            }
        }
    }

    /// Writes parts that follow one another in the buffer; without one, gives them a place. Gives whether
    /// the target is full.
    fn store(
        &self,
        parts: &[Part],
        bytes: Option<&[u8]>,
        target: Target,
        copies: &mut Copies,
    ) -> Result<bool> {
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
            return Ok(false);
        };
        let (mut slot, end) = (first.slot, last.slot + last.w.blocks);
        let mut rest = parts.iter().copied().peekable();
        while slot < end {
            let want = (end - slot).min(REQUEST_BLOCKS);
            let runs = match self.place(want, first.w.hot, target) {
                Ok(runs) => runs,
                Err(VolumeError::NoSpace { .. }) => return Ok(true),
                Err(e) => return Err(e),
            };
            for run in runs {
                let mut to = run;
                while to.len > 0
                    && let Some(part) = rest.peek_mut()
                {
                    let w = &mut part.w;
                    let blocks = w.blocks.min(to.len);
                    copies.entry(w.ino).or_default().push(Copied {
                        at: w.at,
                        from: w.from,
                        to: to.addr,
                        blocks,
                        unwritten: w.unwritten,
                    });
                    if target.tier != TierId::Nvm {
                        let (addr, len) = (to.addr, blocks);
                        self.note_owner(Run { addr, len }, w.ino)?;
                    }
                    (to.addr, to.len) = (to.addr.plus(blocks), to.len - blocks);
                    (w.at, w.from, w.blocks) =
                        (w.at + blocks, w.from.plus(blocks), w.blocks - blocks);
                    if w.blocks == 0 {
                        rest.next();
                    }
                }
                let from = bytes.map(|bytes| &bytes[bytes_of(slot, run.len)]);
                match (target.tier, from) {
                    (TierId::Nvm, Some(from)) => self.volume.write_at(run.addr, 0, from)?,
                    (TierId::Nvm, None) => {}
                    (_, Some(from)) => self.volume.write_lower(run, from)?,
                    (_, None) => self.volume.skip_lower(run)?,
                }
                slot += run.len;
            }
        }
        Ok(false)
    }

    /// New blocks on the target, `blocks` of them on NVM, below in one run perhaps fewer.
    pub(super) fn place(&self, blocks: u64, hot: bool, target: Target) -> Result<Vec<Run>> {
        let stream = if hot {
            WriteStream::Hot
        } else {
            WriteStream::Cold
        };
        match target.tier {
            TierId::Nvm => self.allocate_above(blocks),
            tier => {
                let run = self
                    .volume
                    .allocate_lower(tier, stream, blocks, target.last)?;
                Ok(vec![run])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_is_read_at_once() {
        let part = |tier, at, blocks| {
            let w = MoveRequest {
                ino: 1,
                at: 0,
                from: BlockAddr::new(tier, at),
                blocks,
                hot: false,
                unwritten: false,
                pin: None,
                leaf: false,
            };
            Part { w, slot: 0 }
        };
        let groups = |tier, places: &[(u64, u64)]| {
            let mut parts: Vec<Part> = { places.iter() }
                .map(|&(at, blocks)| part(tier, at, blocks))
                .collect();
            by_place(&mut parts).map(<[Part]>::len).collect::<Vec<_>>()
        };
        let places = [(130, 2), (0, 1), (1, 1), (10, 10), (300, 1)];
        assert_eq!(groups(TierId::Nvm, &places), [2, 1, 1, 1]);
        assert_eq!(groups(TierId::Ssd, &places), [3, 1, 1]);
        assert_eq!(groups(TierId::Hdd, &places), [4, 1]);
        // No request is longer than a batch, with what is between.
        let long = [(0, 4000), (4010, 80), (4095, 1), (4096, 1)];
        assert_eq!(groups(TierId::Hdd, &long), [3, 1]);
        let mut parts = [part(TierId::Ssd, 5, 1), part(TierId::Hdd, 6, 1)];
        assert_eq!(by_place(&mut parts).count(), 2);
    }
}
