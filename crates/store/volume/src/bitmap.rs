//! The persistent bitmap and what a transaction changes in it.
//!
//! Every change is checked against the bitmap as last committed: a block that
//! would be used twice or freed twice fails the transaction instead of the volume.

use crate::error::{Result, VolumeError};
use crate::media::NvmRegion;
use crate::transaction::journal::Batch;
use shale_allocation::{Run, WordChange, for_words};
use shale_format::BlockAddr;
use shale_format::bitmap::{self, BITS_PER_BLOCK, WORDS_PER_BLOCK};
use shale_format::limits::BLOCK_BYTES;
use shale_sys::mutants;
use std::ops::Range;

/// Bytes of the journal that one changed word may need.
const WORD_JOURNAL_BYTES: u64 = 24;
/// Bytes of the journal that a changed header may need.
const HEADER_JOURNAL_BYTES: u64 = 32;
/// Byte range of a bitmap block's header that changes with its words: txid and checksum.
const HEADER_CHANGE: Range<usize> = 16..32;
/// Words left unchanged between two changed ones which cost less than a new entry.
const GAP_WORDS: usize = 2;

/// Words of a page of [`Touched`]: four lines of the caches.
const PAGE_WORDS: usize = 16;
/// Pages whose memory is kept for the next transaction.
const PAGES_KEPT: usize = 4096;

#[derive(Clone, Copy, Default)]
struct Word {
    now: u64,
    freed: u64,
}

/// Words that follow one another, some of them touched.
struct Page {
    number: usize,
    /// Which, by bit.
    touched: u16,
    words: [Word; PAGE_WORDS],
}

/// The words that a transaction touches, in pages that are made when a word of them is first touched. To find a
/// word takes two loads: a random overwrite touches two for each block.
#[derive(Default)]
struct Touched {
    /// For each page of the bitmap its place in `pages`, plus 1; 0: no word of it is touched.
    places: Vec<u32>,
    pages: Vec<Page>,
    count: usize,
}

impl Touched {
    /// Word `w`, which is `base` as last committed.
    fn word(&mut self, w: usize, base: u64) -> &mut Word {
        let (number, bit) = (w / PAGE_WORDS, w % PAGE_WORDS);
        if number >= self.places.len() {
            self.places.resize(number + 1, 0);
        }
        let place = &mut self.places[number];
        if *place == 0 {
            self.pages.push(Page {
                number,
                touched: 0,
                words: [Word::default(); PAGE_WORDS],
            });
            *place = self.pages.len() as u32;
        }
        let page = &mut self.pages[*place as usize - 1];
        if page.touched >> bit & 1 == 0 {
            page.touched |= 1 << bit;
            page.words[bit] = Word {
                now: base,
                freed: 0,
            };
            self.count += 1;
        }
        &mut page.words[bit]
    }

    /// Number and value of each, ascending.
    fn iter(&self) -> impl Iterator<Item = (usize, Word)> {
        let mut pages: Vec<&Page> = self.pages.iter().collect();
        pages.sort_unstable_by_key(|page| page.number);
        pages.into_iter().flat_map(|page| {
            let set = (0..PAGE_WORDS).filter(|bit| page.touched >> bit & 1 == 1);
            set.map(|bit| (page.number * PAGE_WORDS + bit, page.words[bit]))
        })
    }

    fn clear(&mut self) {
        for page in self.pages.drain(..) {
            self.places[page.number] = 0;
        }
        self.pages.shrink_to(PAGES_KEPT);
        self.count = 0;
    }
}

/// The bitmap as last committed, and the words that the transaction touches.
pub(crate) struct Bits {
    /// Where its blocks are in NVM; 0: there is none, all of its bits stay set.
    places: Vec<u64>,
    used: Vec<u64>,
    touched: Touched,
}

impl Bits {
    /// Reads and checks the bitmap.
    pub(crate) fn load(media: &NvmRegion, first_block: u64, blocks: u64) -> Result<Self> {
        let mut bits = Bits::empty();
        bits.used.reserve(blocks as usize * WORDS_PER_BLOCK);
        bits.read(media, first_block..first_block + blocks)?;
        Ok(bits)
    }

    /// A bitmap without a block.
    pub(crate) fn empty() -> Self {
        Bits {
            places: Vec::new(),
            used: Vec::new(),
            touched: Touched::default(),
        }
    }

    /// Takes over the blocks of `more` as those from block `at` on. Blocks between the end and `at`
    /// are nowhere.
    pub(crate) fn append(&mut self, at: u64, more: Bits) {
        self.places.resize(at as usize, 0);
        self.used.resize(at as usize * WORDS_PER_BLOCK, u64::MAX);
        self.places.extend(more.places);
        self.used.extend(more.used);
    }

    /// Reads and checks the blocks at `places`, which are the next ones.
    fn read(&mut self, media: &NvmRegion, places: Range<u64>) -> Result<()> {
        let mut block = [0; BLOCK_BYTES];
        for place in places {
            let addr = BlockAddr::nvm(place);
            media.load_block(addr, &mut block)?;
            self.places.push(place);
            if mutants::is_on("bitmap-checksum") {
                let words = &block[BLOCK_BYTES - WORDS_PER_BLOCK * 8..];
                let words = words.as_chunks().0.iter().map(|&w| u64::from_le_bytes(w));
                self.used.extend(words);
                continue;
            }
            self.used
                .extend_from_slice(&bitmap::decode(&block, addr)?[..]);
        }
        Ok(())
    }

    /// Blocks of the bitmap are nowhere from now on.
    pub(crate) fn drop_blocks(&mut self, blocks: Range<u64>) {
        let words = blocks.start as usize * WORDS_PER_BLOCK..blocks.end as usize * WORDS_PER_BLOCK;
        self.places[blocks.start as usize..blocks.end as usize].fill(0);
        self.used[words].fill(u64::MAX);
    }

    /// The bitmap as last committed.
    pub(crate) fn used(&self) -> &[u64] {
        &self.used
    }

    fn word(&mut self, w: usize) -> (u64, &mut Word) {
        let base = self.used[w];
        (base, self.touched.word(w, base))
    }

    fn damaged(run: Run, expected: u64) -> VolumeError {
        VolumeError::Damaged {
            what: "bitmap bit of one of the blocks",
            at: run.addr.index(),
            expected,
            found: 1 - expected,
        }
    }

    /// Marks a run used that nothing uses, neither in the volume nor in this transaction.
    /// The caller has checked that it lies in the data area.
    pub(crate) fn mark(&mut self, run: Run) -> Result<()> {
        let mut twice = false;
        for_words(run.addr.index(), run.len, |w, mask| {
            let (_, word) = self.word(w);
            twice |= word.now & mask != 0;
            word.now |= mask;
            word.freed &= !mask;
        });
        if twice {
            Err(Self::damaged(run, 0))
        } else {
            Ok(())
        }
    }

    /// Frees a run that is used.
    pub(crate) fn free(&mut self, run: Run) -> Result<()> {
        let mut twice = false;
        for_words(run.addr.index(), run.len, |w, mask| {
            let (_, word) = self.word(w);
            twice |= word.now & mask != mask;
            word.now &= !mask;
            word.freed |= mask;
        });
        if twice {
            Err(Self::damaged(run, 1))
        } else {
            Ok(())
        }
    }

    /// What the transaction changes, ascending.
    pub(crate) fn changes(&self) -> Vec<WordChange> {
        self.touched
            .iter()
            .map(|(word, t)| WordChange {
                word,
                base: self.used[word],
                now: t.now,
                freed: t.freed,
            })
            .collect()
    }

    /// Upper bound of what [`Bits::journal`] adds to a batch.
    pub(crate) fn journal_bytes(&self) -> u64 {
        let words = self.touched.count as u64;
        words * WORD_JOURNAL_BYTES + words.min(self.places.len() as u64) * HEADER_JOURNAL_BYTES
    }

    /// Adds the changed words to a batch, with the headers that check them.
    pub(crate) fn journal(&self, txid: u64, batch: &mut Batch) {
        let touched = self.touched.iter();
        let changed: Vec<(usize, u64)> = touched
            .filter_map(|(w, word)| (word.now != self.used[w]).then_some((w, word.now)))
            .collect();
        for in_block in changed.chunk_by(|a, b| a.0 / WORDS_PER_BLOCK == b.0 / WORDS_PER_BLOCK) {
            let n = in_block[0].0 / WORDS_PER_BLOCK;
            let mut bits = [0; WORDS_PER_BLOCK];
            let base = n * WORDS_PER_BLOCK;
            bits.copy_from_slice(&self.used[base..base + WORDS_PER_BLOCK]);
            let words: Vec<usize> = in_block.iter().map(|(w, _)| w - base).collect();
            for &(w, now) in in_block {
                bits[w - base] = now;
            }
            let addr = BlockAddr::nvm(self.places[n]);
            let block = bitmap::encode(addr, txid, &bits);
            let mut push = |r: Range<usize>| {
                batch.push(addr.byte() + r.start as u64, &block[r]);
            };
            push(HEADER_CHANGE);
            let byte = |w: usize| BLOCK_BYTES - (WORDS_PER_BLOCK - w) * 8;
            let mut open = words[0]..words[0] + 1;
            for &w in &words[1..] {
                if w - open.end > GAP_WORDS {
                    push(byte(open.start)..byte(open.end));
                    open.start = w;
                }
                open.end = w + 1;
            }
            push(byte(open.start)..byte(open.end));
        }
    }

    /// Makes the changes the bitmap as last committed.
    pub(crate) fn apply_committed(&mut self) {
        for (w, word) in self.touched.iter() {
            self.used[w] = word.now;
        }
        self.touched.clear();
    }

    /// Forgets the changes.
    pub(crate) fn reset(&mut self) {
        self.touched.clear();
    }
}

/// The words of a bitmap in which only `used` runs are set, for a new volume.
pub(crate) fn words_with(blocks: u64, used: &[(u64, u64)]) -> Vec<u64> {
    let mut words = vec![0; (bitmap::blocks_for(blocks) as usize) * WORDS_PER_BLOCK];
    for &(first, len) in used {
        for_words(first, len, |w, mask| words[w] |= mask);
    }
    let bits = bitmap::blocks_for(blocks) * BITS_PER_BLOCK;
    for_words(blocks, bits - blocks, |w, mask| words[w] |= mask);
    words
}
