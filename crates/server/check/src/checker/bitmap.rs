//! The bitmap against what was seen.

use super::Checker;
use crate::block_refs::for_runs;
use crate::report::{Object, Severity};
use shale_format::BlockAddr;
use shale_format::bitmap::{self, BITS_PER_BLOCK, BitmapHeader, WORDS_PER_BLOCK};
use shale_format::limits::BLOCK_BYTES;
use std::ops::Range;
use zerocopy::FromBytes;

const BITMAP: Object = Object::Part("bitmap");

/// Runs that adjoin are reported as one.
#[derive(Default)]
struct Joined(Option<(u64, u64)>);

impl Joined {
    /// Adds a run; gives the one before, if it is complete.
    fn push(&mut self, first: u64, len: u64) -> Option<(u64, u64)> {
        match &mut self.0 {
            Some((start, n)) if *start + *n == first => {
                *n += len;
                None
            }
            open => open.replace((first, len)),
        }
    }
}

/// The bits of word `w` that are in `range`.
fn mask(w: usize, range: &Range<u64>) -> u64 {
    let first = w as u64 * 64;
    let (start, end) = (
        range.start.clamp(first, first + 64),
        range.end.clamp(first, first + 64),
    );
    match end - start {
        0 => 0,
        n => (u64::MAX >> (64 - n)) << (start - first),
    }
}

impl Checker<'_> {
    /// Compares. Gives the number of blocks marked used, if all of the bitmap is whole.
    pub(super) fn check_bitmap(&mut self) -> Option<u64> {
        let data = self.sb.data();
        let (mut leaked, mut unmarked, mut fixed) =
            (Joined::default(), Joined::default(), Joined::default());
        let (mut marked, mut whole) = (0, true);
        for n in 0..self.sb.bitmap_blocks {
            let Some(words) = self.bitmap_block(n) else {
                whole = false;
                continue;
            };
            let first = n as usize * WORDS_PER_BLOCK;
            for (w, &used) in (first..).zip(words.iter()) {
                let inside = mask(w, &data);
                let seen = self.claims.seen().word(w) & inside;
                marked += u64::from((used & inside).count_ones());
                let free = (!used & !seen & inside).count_ones();
                self.totals.blocks_free += u64::from(free);
                for_runs(w, used & inside & !seen, |at, n| {
                    self.totals.blocks_leaked += n;
                    leaked
                        .push(at, n)
                        .into_iter()
                        .for_each(|r| self.note_leaked(r));
                });
                for_runs(w, seen & !used, |at, n| {
                    self.totals.blocks_unmarked += n;
                    unmarked
                        .push(at, n)
                        .into_iter()
                        .for_each(|r| self.note_unmarked(r));
                });
                for_runs(w, !used & !inside, |at, n| {
                    fixed
                        .push(at, n)
                        .into_iter()
                        .for_each(|r| self.note_fixed(r));
                });
            }
        }
        leaked.0.into_iter().for_each(|r| self.note_leaked(r));
        unmarked.0.into_iter().for_each(|r| self.note_unmarked(r));
        fixed.0.into_iter().for_each(|r| self.note_fixed(r));
        whole.then_some(marked)
    }

    fn bitmap_block(&mut self, n: u64) -> Option<Box<[u64; WORDS_PER_BLOCK]>> {
        let addr = BlockAddr::nvm(self.sb.bitmap_block + n);
        let mut block = [0; BLOCK_BYTES];
        if !self.media.load(addr.index(), &mut block) {
            return None;
        }
        match bitmap::decode(&block, addr) {
            Ok(words) => {
                let txid = BitmapHeader::read_from_prefix(&block[..]).map_or(0, |(h, _)| h.txid);
                if txid > self.root.txid {
                    let what = "bitmap block of a batch that never was";
                    let values = (format!("{} or less", self.root.txid), txid);
                    self.findings
                        .error(BITMAP, Some(addr.index()), what, values);
                }
                Some(words)
            }
            Err(e) => {
                self.findings.undecodable(BITMAP, Some(addr.index()), &e);
                let blocks = n * BITS_PER_BLOCK;
                let what = "blocks whose use could not be compared";
                let found = format!("{blocks} to {}", blocks + BITS_PER_BLOCK - 1);
                self.findings
                    .note(Severity::Warning, BITMAP, None, what, ("", found));
                None
            }
        }
    }

    fn note_leaked(&mut self, (first, len): (u64, u64)) {
        let what = "leaked: marked used, and nothing refers to them";
        self.findings.note(
            Severity::Warning,
            BITMAP,
            Some(first),
            what,
            ("", blocks(len)),
        );
    }

    fn note_unmarked(&mut self, (first, len): (u64, u64)) {
        let what = "in use and marked free: they would be given out again";
        self.findings
            .error(BITMAP, Some(first), what, ("", blocks(len)));
    }

    fn note_fixed(&mut self, (first, len): (u64, u64)) {
        let what = "blocks that are not for data marked free";
        self.findings
            .error(BITMAP, Some(first), what, ("", blocks(len)));
    }
}

fn blocks(len: u64) -> String {
    match len {
        1 => "1 block".to_owned(),
        n => format!("{n} blocks"),
    }
}
