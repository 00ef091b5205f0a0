//! Tiers below NVM: their bitmaps and zones against what was seen. The devices are not read here:
//! `scrub` and every read do that.

use super::Checker;
use super::claims::for_runs;
use super::report::Object;
use shale_format::BlockAddr;
use shale_format::bitmap::{self, WORDS_PER_BLOCK};
use shale_format::limits::BLOCK_BYTES;
use shale_format::zone::{ZONES_PER_BLOCK, ZoneEntry};

const TIERS: [Object; 2] = [Object::Part("ssd"), Object::Part("hdd")];

impl Checker<'_> {
    pub(super) fn check_lower(&mut self) {
        for (n, object) in TIERS.into_iter().enumerate() {
            if self.sb.tier[n + 1].blocks > 0 {
                self.check_lower_bitmap(n, object);
                self.check_zones(n, object);
            }
        }
    }

    fn check_lower_bitmap(&mut self, n: usize, object: Object) {
        let tables = self.sb.lower[n];
        let blocks = self.sb.tier[n + 1].blocks;
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
            for (w, &used) in (first..).zip(words.iter()) {
                let at = w as u64 * 64;
                let inside = match blocks.saturating_sub(at) {
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
    fn check_zones(&mut self, n: usize, object: Object) {
        let (table, tables) = (self.sb.tier[n + 1], self.sb.lower[n]);
        let (mut zone, mut first) = (0, 0);
        let mut bytes = [0; BLOCK_BYTES];
        for device in &table.device[..table.devices as usize] {
            for _ in 0..device.zones() {
                let block = tables.zone_block + zone / ZONES_PER_BLOCK;
                let at = (zone % ZONES_PER_BLOCK) as usize * ZoneEntry::BYTES;
                let end = first + u64::from(device.zone_blocks);
                if self.media.load(block, &mut bytes) {
                    match ZoneEntry::decode(&bytes[at..at + ZoneEntry::BYTES], zone) {
                        Ok(entry) => self.check_zone(n, object, first..end, &entry),
                        Err(e) => self.findings.undecodable(object, Some(block), &e),
                    }
                }
                (zone, first) = (zone + 1, end);
            }
        }
    }

    fn check_zone(
        &mut self,
        n: usize,
        object: Object,
        blocks: std::ops::Range<u64>,
        entry: &ZoneEntry,
    ) {
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
