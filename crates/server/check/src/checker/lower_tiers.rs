//! Lower tiers: inodes that lie there, bitmaps, zones.

use super::Checker;
use crate::block_refs::{Owner, Part, for_runs};
use crate::inode_table::{Slot, state};
use crate::lower_tiers::{TABLE, TIERS, added_tables, zones};
use crate::report::Object;
use shale_format::bitmap::{self, WORDS_PER_BLOCK};
use shale_format::device_table::DevicePlace;
use shale_format::limits::{BLOCK_BYTES, INODES_PER_BLOCK};
use shale_format::zone::ZoneEntry;
use shale_format::{BlockAddr, TierId};
use std::ops::Range;

impl Checker<'_> {
    /// Names the inodes in blocks below NVM that cannot be read.
    pub(super) fn check_below(&mut self) {
        let mut block = [0; BLOCK_BYTES];
        for rank in 0..self.slots.blocks() {
            let Some((first, at)) = self.slots.block(rank) else {
                continue;
            };
            let addr = BlockAddr::from_raw(at);
            if addr.tier() == Some(TierId::Nvm) {
                continue;
            }
            if let Err(why) = self.media.read_below(addr, &mut block) {
                let last = first.0 + INODES_PER_BLOCK - 1;
                let what = "inodes that cannot be read";
                let found = format!("{} to {last}, in {addr:?}: {why}", first.0);
                self.findings
                    .error(Object::Part("inode file"), None, what, ("", found));
                self.totals.damaged_inodes += INODES_PER_BLOCK;
                self.slots_unread = true;
                for n in 0..INODES_PER_BLOCK {
                    let slot = Slot((rank * INODES_PER_BLOCK + n) as u32);
                    self.slots.state[slot.0 as usize] = state::DAMAGED;
                }
            }
        }
    }
}

impl Checker<'_> {
    /// Tables among the data have their blocks before anything else.
    pub(super) fn claim_tables(&mut self) {
        let owner = Owner {
            ino: 0,
            part: Part::Tables,
        };
        for (addr, len) in added_tables(&self.sb, &self.devices) {
            self.claims.claim(addr, len, owner, &mut self.findings);
        }
    }

    pub(super) fn check_lower(&mut self) {
        let counted = self.leaves_below.into_iter().zip(self.root.leaves_below);
        for ((found, said), tier) in counted.zip(TIERS).filter(|_| !self.names_missing) {
            let what = "count of leaves of directories there";
            self.findings.equal(tier, what, found, said);
        }
        let unknown = self.extents_missing || self.names_missing;
        let counted = self.extent_leaves_below.into_iter();
        let counted = counted.zip(self.root.extent_leaves_below);
        for ((found, said), tier) in counted.zip(TIERS).filter(|_| !unknown) {
            let what = "count of leaves of extents there";
            self.findings.equal(tier, what, found, said);
        }
        for (n, object) in TIERS.into_iter().enumerate() {
            for place in self.devices.of(n).to_vec() {
                self.check_lower_bitmap(n, &place, object);
                self.check_zones(n, &place, object);
            }
        }
        if self.devices.txid > self.root.txid {
            let found = (self.root.txid, self.devices.txid);
            let what = "device table of a batch that never was";
            self.findings.error(TABLE, None, what, found);
        }
    }

    fn check_lower_bitmap(&mut self, n: usize, place: &DevicePlace, object: Object) {
        let tables = place.tables();
        for block in tables.bitmap_block..tables.sums_block {
            let addr = BlockAddr::nvm(block);
            let mut bytes = [0; BLOCK_BYTES];
            if !self.media.load(block, &mut bytes) {
                continue;
            }
            let words = match bitmap::decode(&bytes, addr) {
                Ok(words) => words,
                Err(e) => {
                    self.findings.undecodable(object, Some(block), &e);
                    continue;
                }
            };
            let first = (block - tables.bitmap_block) as usize * WORDS_PER_BLOCK;
            let first = (place.first / 64) as usize + first;
            for (w, &used) in (first..).zip(words.iter()) {
                let at = w as u64 * 64;
                let inside = match place.end().saturating_sub(at) {
                    0 => 0,
                    left if left >= 64 => u64::MAX,
                    left => u64::MAX >> (64 - left),
                };
                let (used, seen) = (used & inside, self.claims.below(n).word(w) & inside);
                let findings = &mut self.findings;
                for_runs(w, used & !seen, |at, len| {
                    let what = "marked used, and nothing refers to them";
                    findings.error(object, Some(at), what, ("", format!("{len} blocks")));
                });
                for_runs(w, seen & !used, |at, len| {
                    let what = "in use and marked free: they would be given out again";
                    findings.error(object, Some(at), what, ("", format!("{len} blocks")));
                });
            }
        }
    }

    /// Entries are whole, and nothing in use lies behind a write pointer.
    fn check_zones(&mut self, n: usize, place: &DevicePlace, object: Object) {
        for (block, blocks, entry) in zones(&self.media, place) {
            match entry {
                Ok(entry) => self.check_zone(n, object, blocks, &entry),
                Err(e) => self.findings.undecodable(object, Some(block), &e),
            }
        }
    }

    fn check_zone(&mut self, n: usize, object: Object, blocks: Range<u64>, entry: &ZoneEntry) {
        let written = blocks.start + u64::from(entry.written);
        let seen = self.claims.below(n);
        let last = (blocks.start / 64..blocks.end.div_ceil(64))
            .rev()
            .map(|w| (w, seen.word(w as usize)))
            .find(|(_, word)| *word != 0)
            .map(|(w, word)| w * 64 + 63 - u64::from(word.leading_zeros()));
        if written > blocks.end {
            let counts = (blocks.end - blocks.start, entry.written);
            self.findings.error(
                object,
                Some(blocks.start),
                "zone written beyond its end",
                counts,
            );
        } else if let Some(last) = last.filter(|&last| last >= written) {
            let what = "block in use behind the write pointer of its zone";
            let values = (format!("below {written}"), last);
            self.findings
                .error(object, Some(blocks.start), what, values);
        }
    }
}
