//! Free space of the NVM tier, in memory.
//!
//! A block that is not free is *used* (by the volume as last committed), *taken*
//! (given out since, free again after a restart) or *pending* (freed by a commit,
//! but a reader may still hold it) or *waiting* (freed, but mapped by a program: see
//! `pinned_blocks`). One bit a block says "not free"; the persistent
//! bitmap knows only "used". Segments keep a count of free blocks and a
//! bound on their longest free run, so that searches skip what cannot serve.
//!
//! File data is taken from a cursor upwards, tree nodes from the top downwards:
//! nodes change often and one at a time, and would shatter the runs of data.

use crate::bitmap_runs::{for_words, runs_of};
use crate::error::{AllocationError, Result};
use crate::pinned_blocks::PinnedBlocks;
use crate::run::Run;
use parking_lot::Mutex;
use shale_format::limits::{BLOCK_BYTES, SEGMENT_BYTES};
use shale_format::{BlockAddr, TierId, TxId};
use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks of a segment. A search looks at one segment at a time.
pub const SEGMENT_BLOCKS: u64 = SEGMENT_BYTES / BLOCK_BYTES as u64;
/// Shortest run that a grant prefers.
const GRANT_RUN_BLOCKS: u64 = 256;
/// Blocks of [`Space::reserved_fixed`] for one transaction, whatever it does: new copies
/// of its data ([`TRANSACTION_DATA_BLOCKS`]), of the nodes above them, of its attributes.
const RESERVED_TRANSACTION: u64 = 512;
/// Blocks of data that one transaction of a log writes at most, besides those that it reserved: 1 MiB,
/// not aligned.
const TRANSACTION_DATA_BLOCKS: u64 = 257;
/// Part of the tier that [`Space::reserved_fixed`] has besides: inner nodes that split, of
/// which there can be one for 252 leaves and its parent, and a tree that is rewritten
/// as a whole, with one leaf for 168 extents.
const RESERVED_PART: u64 = 64;

/// What of [`RESERVED_TRANSACTION`] a transaction can need: data, attributes, nodes.
const TRANSACTION_BLOCKS: u64 =
    TRANSACTION_DATA_BLOCKS + shale_format::xattr::XATTR_BLOCKS_MAX as u64 + 128;
/// Part of the tier that [`RESERVED_PART`] leaves over: inner nodes and their roots are fewer than
/// 1/126 of it, a tree that is rewritten is 1/168.
const SPARE_PART: u64 = 576;

const _: () = assert!(
    RESERVED_TRANSACTION > TRANSACTION_BLOCKS,
    "data, attributes and nodes of a transaction fit the reserve"
);

const _: () = assert!(SEGMENT_BLOCKS.is_multiple_of(64));

/// How the blocks of a tier are used. `total` = free + taken + pending + waiting + used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Space {
    /// Blocks that can be allocated at all: superblocks, journal and so on left out.
    pub total: u64,
    /// Blocks that can be allocated now.
    pub free: u64,
    /// Blocks given out in memory and not part of the volume yet.
    pub taken: u64,
    /// Blocks freed by commits and not released yet.
    pub pending: u64,
    /// Blocks freed, and mapped by programs still.
    pub waiting: u64,
    /// Blocks in use by the volume as last committed.
    pub used: u64,
    /// Part of `free` that the caller should keep for what a digest needs for a moment:
    /// enough for one transaction of a log, and for inner nodes that split.
    pub reserved_fixed: u64,
}

impl Space {
    /// Blocks of [`Space::reserved_fixed`] that can be lacking for a while: more than what it is for
    /// can ever need together.
    pub fn spare(&self) -> u64 {
        RESERVED_TRANSACTION - TRANSACTION_BLOCKS + self.total / SPARE_PART
    }
}

/// One word of the bitmap as a commit changes it.
#[derive(Clone, Copy, Debug)]
pub struct WordChange {
    /// Index of the word.
    pub word: usize,
    /// Bits as last committed.
    pub base: u64,
    /// Bits to be committed.
    pub now: u64,
    /// Blocks that the transaction freed.
    pub freed: u64,
}

#[derive(Clone, Copy)]
struct Segment {
    free: u32,
    /// No free run is longer.
    longest: u32,
}

struct State {
    /// Set while a block is not free.
    busy: Vec<u64>,
    /// Set while a block is pending.
    pending: Vec<u64>,
    segments: Vec<Segment>,
    cursor: u64,
    space: Space,
    /// Runs that commits freed, by commit.
    unreleased: BTreeMap<TxId, Vec<Run>>,
    held: PinnedBlocks,
}

/// Gives out blocks. All methods may be called by several threads at once.
pub struct Allocator {
    /// Blocks that may be given out.
    blocks: Range<u64>,
    state: Mutex<State>,
}

impl Allocator {
    /// An allocator over `blocks`; `used` is the persistent bitmap.
    pub fn new(blocks: Range<u64>, used: &[u64]) -> Self {
        let mut busy = used.to_vec();
        for_words(0, blocks.start, |w, mask| busy[w] |= mask);
        let bits = busy.len() as u64 * 64;
        for_words(blocks.end, bits - blocks.end, |w, mask| busy[w] |= mask);
        let total = blocks.end - blocks.start;
        let segments: Vec<Segment> = busy
            .chunks((SEGMENT_BLOCKS / 64) as usize)
            .map(|words| words.iter().map(|w| w.count_zeros()).sum())
            .map(|free| Segment {
                free,
                longest: free,
            })
            .collect();
        let free = segments.iter().map(|s| u64::from(s.free)).sum();
        let state = State {
            pending: vec![0; busy.len()],
            busy,
            segments,
            cursor: blocks.start,
            space: Space {
                total,
                free,
                taken: 0,
                pending: 0,
                waiting: 0,
                used: total - free,
                reserved_fixed: total / RESERVED_PART + RESERVED_TRANSACTION,
            },
            unreleased: BTreeMap::new(),
            held: PinnedBlocks::default(),
        };
        Allocator {
            blocks,
            state: Mutex::new(state),
        }
    }

    /// How the tier is used.
    pub fn space(&self) -> Space {
        self.state.lock().space
    }

    /// Whether all of a run may be allocated at all.
    ///
    /// # Errors
    /// `BadRun`: it may not.
    pub fn check(&self, run: Run) -> Result<()> {
        let first = run.addr.index();
        let inside = run.addr.tier() == Some(TierId::Nvm)
            && run.len > 0
            && first >= self.blocks.start
            && first < self.blocks.end
            && run.len <= self.blocks.end - first;
        inside
            .then_some(())
            .ok_or_else(|| run.bad("outside the blocks for data"))
    }

    /// Takes `blocks` blocks for data, in few runs, near `hint` if there is one.
    ///
    /// # Errors
    /// `NoSpace`; then none is taken.
    pub fn allocate(&self, blocks: u64, hint: Option<BlockAddr>) -> Result<Vec<Run>> {
        let mut state = self.state.lock();
        state.need(blocks)?;
        let mut runs = Vec::new();
        let mut left = blocks;
        let hint = hint
            .map(BlockAddr::index)
            .filter(|h| self.blocks.contains(h));
        if let Some(at) = hint {
            state.take_at(at, &mut left, &mut runs);
        }
        let mut at = hint.unwrap_or(state.cursor);
        let mut want = left.min(SEGMENT_BLOCKS);
        while left > 0 {
            if hint.is_none() && state.run_at(at, want) == want {
                state.take_at(at, &mut left, &mut runs);
            } else if let Some(found) = state.find(want, at / SEGMENT_BLOCKS) {
                state.take_at(found, &mut left, &mut runs);
            } else {
                want = state.longest().min(want - 1).max(1);
                continue;
            }
            if let Some(last) = runs.last() {
                at = last.addr.index() + last.len;
            }
            if hint.is_none() {
                state.cursor = at;
            }
            want = want.min(left);
        }
        let given: u64 = runs.iter().map(|run| run.len).sum();
        assert_eq!(given, blocks, "all or nothing is allocated");
        state.check();
        Ok(runs)
    }

    /// Takes one run of `blocks` blocks (at most a segment's).
    ///
    /// # Errors
    /// `NoSpace`: there is no such run.
    pub fn allocate_run(&self, blocks: u64) -> Result<Run> {
        let mut state = self.state.lock();
        state.need(blocks)?;
        let from = state.cursor / SEGMENT_BLOCKS;
        let first = state.find(blocks, from).ok_or(AllocationError::NoSpace {
            wanted: blocks,
            free: state.space.free,
        })?;
        let mut runs = Vec::new();
        state.take_at(first, &mut { blocks }, &mut runs);
        Ok(Run::nvm(first, blocks))
    }

    /// Takes one run of `blocks` blocks, however long, for tables: the last there is.
    ///
    /// # Errors
    /// `NoSpace`: there is no such run.
    pub fn allocate_whole(&self, blocks: u64) -> Result<Run> {
        let mut state = self.state.lock();
        state.need(blocks)?;
        let mut longest = 0;
        let mut end = self.blocks.end;
        for at in self.blocks.clone().rev() {
            if state.busy[(at / 64) as usize] >> (at % 64) & 1 == 1 {
                end = at;
            }
            longest = longest.max(end - at);
            if longest == blocks {
                state.set_taken(at, blocks);
                return Ok(Run::nvm(at, blocks));
            }
        }
        Err(AllocationError::NoSpace {
            wanted: blocks,
            free: longest,
        })
    }

    /// Takes 1 to `blocks` blocks from the top of the tier, for nodes.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn allocate_top(&self, blocks: u64) -> Result<Run> {
        let mut state = self.state.lock();
        state.need(1)?;
        let words_per = (SEGMENT_BLOCKS / 64) as usize;
        let segment = state.segments.iter().rposition(|s| s.free > 0).unwrap_or(0);
        let first_word = segment * words_per;
        let words = &state.busy[first_word..state.busy.len().min(first_word + words_per)];
        let word = words.iter().rposition(|&w| w != u64::MAX).unwrap_or(0);
        let free = !words[word];
        let skip = free.leading_zeros();
        let n = u64::from((free << skip).leading_ones()).min(blocks);
        let end = (first_word + word) as u64 * 64 + u64::from(64 - skip);
        state.set_taken(end - n, n);
        Ok(Run::nvm(end - n, n))
    }

    /// Takes about `blocks` blocks for a client: whole free segments first, then long runs. A run may span
    /// segments. Leaves [`Space::reserved_fixed`] alone. May give fewer blocks, at least 1.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn grant(&self, blocks: u64) -> Result<Vec<Run>> {
        let mut state = self.state.lock();
        let available = state.space.free.saturating_sub(state.space.reserved_fixed);
        let mut left = blocks.min(available);
        if left == 0 {
            return Err(AllocationError::NoSpace {
                wanted: blocks,
                free: available,
            });
        }
        let mut runs = Vec::new();
        for i in 0..state.segments.len() as u64 {
            if left > 0 && u64::from(state.segments[i as usize].free) == SEGMENT_BLOCKS {
                state.take_at(i * SEGMENT_BLOCKS, &mut left, &mut runs);
            }
        }
        for want in [GRANT_RUN_BLOCKS, 1] {
            if want == 1 && !runs.is_empty() {
                break;
            }
            while left > 0 {
                let Some(first) = state.find(want.min(left), 0) else {
                    break;
                };
                state.take_at(first, &mut left, &mut runs);
            }
        }
        Ok(runs)
    }

    /// Takes exactly these blocks.
    ///
    /// # Errors
    /// `BadRun`: one of them is not free; then none is taken.
    pub fn take(&self, run: Run) -> Result<()> {
        self.check(run)?;
        let mut state = self.state.lock();
        // What the volume needs goes before what somebody says to have mapped.
        let waiting = state.held.take_waiting(run);
        state.end_wait(&waiting);
        // A client may use a granted run that goes over the end of a segment as one.
        let (mut at, end) = (run.addr.index(), run.addr.index() + run.len);
        while at < end {
            match state.run_at(at, end - at) {
                0 => return Err(run.bad("not all of it is free")),
                free => at += free,
            }
        }
        state.set_taken(run.addr.index(), run.len);
        Ok(())
    }

    /// Takes those blocks of a run that are free, for a transaction that is about to
    /// mark it used. Gives the blocks taken.
    ///
    /// # Errors
    /// `BadRun`: one of them is pending.
    pub fn take_free_part(&self, run: Run) -> Result<Vec<Run>> {
        let mut state = self.state.lock();
        let (mut free, mut pending) = (Vec::new(), 0);
        for_words(run.addr.index(), run.len, |w, mask| {
            free.push((w, !state.busy[w] & mask));
            pending |= state.pending[w] & mask;
        });
        if pending != 0 {
            return Err(run.bad("freed, and not released yet"));
        }
        let runs = runs_of(free.into_iter());
        for r in &runs {
            state.set_taken(r.addr.index(), r.len);
        }
        Ok(runs)
    }

    /// Makes taken blocks free.
    pub fn give_back(&self, run: Run) {
        let mut state = self.state.lock();
        let taken = state.space.taken;
        assert!(run.len <= taken, "{run:?} is given back, {taken} are taken");
        state.set_free(run.addr.index(), run.len);
        state.space.taken -= run.len;
        state.check();
    }

    /// Takes over what a commit did to the bitmap.
    pub fn apply_committed(&self, txid: TxId, changes: &[WordChange]) -> Vec<Run> {
        let mut state = self.state.lock();
        for c in changes {
            let ones = |bits: u64| u64::from(bits.count_ones());
            let begun = ones(c.now & !c.base);
            // Freed without ever having been committed: taken until now.
            let passed_by = ones(c.freed & !c.base);
            state.space.taken -= begun + passed_by;
            state.space.used += begun;
            state.space.used -= ones(c.base & !c.now);
            state.space.pending += ones(c.freed);
            state.pending[c.word] |= c.freed;
        }
        let freed = runs_of(changes.iter().map(|c| (c.word, c.freed)));
        if !freed.is_empty() {
            let before = state.unreleased.insert(txid, freed.clone());
            assert!(before.is_none(), "transaction {txid:?} is committed twice");
        }
        state.check();
        freed
    }

    /// Makes blocks that transactions up to `txid` freed allocatable. Gives the number of blocks.
    pub fn release_up_to(&self, txid: TxId) -> u64 {
        let mut state = self.state.lock();
        let later = state.unreleased.split_off(&TxId(txid.0.saturating_add(1)));
        let released = std::mem::replace(&mut state.unreleased, later);
        let mut blocks = 0;
        for run in released.into_values().flatten() {
            for_words(run.addr.index(), run.len, |w, mask| {
                state.pending[w] &= !mask
            });
            state.space.pending -= run.len;
            state.space.waiting += run.len;
            let free = state.held.part_freed(run);
            blocks += state.end_wait(&free);
        }
        state.check();
        blocks
    }

    /// Keeps blocks as they are until the hold ends: one that is freed waits, one that is free waits at once. Gives
    /// the number of the hold.
    ///
    /// # Errors
    /// `BadRun`: a run that is not one of blocks for data.
    pub fn hold(&self, runs: &[Run]) -> Result<u64> {
        for run in runs {
            self.check(*run)?;
        }
        let mut state = self.state.lock();
        let words = state.busy.len();
        let hold = state.held.add(runs, words);
        for run in runs {
            let mut free = Vec::new();
            for_words(run.addr.index(), run.len, |w, mask| {
                free.push((w, !state.busy[w] & mask));
            });
            let free = runs_of(free.into_iter());
            state.held.wait(&free);
            for run in free {
                state.set_taken(run.addr.index(), run.len);
                state.space.taken -= run.len;
                state.space.waiting += run.len;
            }
        }
        Ok(hold)
    }

    /// Blocks of all holds, those of several as often.
    pub fn held_blocks(&self) -> u64 {
        self.state.lock().held.blocks()
    }

    /// Whether a block of `run` is held.
    pub fn is_held(&self, run: Run) -> bool {
        self.state.lock().held.touches(run)
    }

    /// Ends a hold. Gives the number of blocks that are free now.
    pub fn drop_hold(&self, hold: u64) -> u64 {
        let mut state = self.state.lock();
        let freed = state.held.drop(hold);
        state.end_wait(&freed)
    }
}

impl State {
    /// Every block is counted once. What a commit or a release changes is counted from bits of other tables: it
    /// has to be the same blocks.
    fn check(&self) {
        let s = &self.space;
        let parts = [s.free, s.taken, s.pending, s.waiting, s.used];
        assert!(
            parts.iter().all(|&n| n <= s.total) && parts.iter().sum::<u64>() == s.total,
            "blocks are counted wrong: {s:?}"
        );
    }

    fn need(&self, blocks: u64) -> Result<()> {
        if blocks > self.space.free {
            return Err(AllocationError::NoSpace {
                wanted: blocks,
                free: self.space.free,
            });
        }
        Ok(())
    }

    /// Length of the free run that begins at block `at`, no more than `most` and no
    /// further than its segment.
    fn run_at(&self, at: u64, most: u64) -> u64 {
        let end = (at / SEGMENT_BLOCKS + 1) * SEGMENT_BLOCKS;
        let most = most.min(end - at);
        let mut n = 0;
        while n < most {
            let (word, bit) = ((at + n) / 64, (at + n) % 64);
            let Some(busy) = self.busy.get(word as usize) else {
                break;
            };
            let free = u64::from((busy >> bit).trailing_zeros()).min(64 - bit);
            n += free;
            if bit + free < 64 {
                break;
            }
        }
        n.min(most)
    }

    /// Takes what is free at block `at`, at most `left` blocks.
    fn take_at(&mut self, at: u64, left: &mut u64, runs: &mut Vec<Run>) {
        let n = self.run_at(at, *left);
        if n > 0 {
            self.set_taken(at, n);
            *left -= n;
            match runs.last_mut() {
                Some(r) if r.addr.index() + r.len == at => r.len += n,
                _ => runs.push(Run::nvm(at, n)),
            }
        }
    }

    /// First block of a free run of at least `want` blocks, segments from `from` on first.
    fn find(&mut self, want: u64, from: u64) -> Option<u64> {
        let n = self.segments.len();
        for i in 0..n {
            let segment = (from as usize + i) % n;
            if u64::from(self.segments[segment].longest) >= want
                && let Some(first) = self.find_in(segment, want)
            {
                return Some(first);
            }
        }
        None
    }

    /// First run of `want` blocks in a segment; without one its bound becomes exact.
    fn find_in(&mut self, segment: usize, want: u64) -> Option<u64> {
        let words_per = (SEGMENT_BLOCKS / 64) as usize;
        let first_word = segment * words_per;
        let last_word = self.busy.len().min(first_word + words_per);
        let (mut longest, mut run) = (0, 0);
        for w in first_word..last_word {
            let busy = self.busy[w];
            if busy == u64::MAX {
                longest = longest.max(run);
                run = 0;
                continue;
            }
            let mut bit = 0;
            while bit < 64 {
                let free = u64::from((busy >> bit).trailing_zeros()).min(64 - bit);
                run += free;
                bit += free;
                if run >= want {
                    return Some(w as u64 * 64 + bit - run);
                }
                if bit < 64 {
                    longest = longest.max(run);
                    run = 0;
                    bit += u64::from((busy >> bit).trailing_ones()).min(64 - bit);
                }
            }
        }
        self.segments[segment].longest = longest.max(run) as u32;
        None
    }

    /// Upper bound of the longest free run.
    fn longest(&self) -> u64 {
        let longest = self.segments.iter().map(|s| s.longest).max();
        longest.unwrap_or(0).into()
    }

    fn set_taken(&mut self, first: u64, len: u64) {
        let (busy, segments) = (&mut self.busy, &mut self.segments);
        for_words(first, len, |w, mask| {
            assert_eq!(busy[w] & mask, 0, "blocks taken twice");
            busy[w] |= mask;
            segments[w * 64 / SEGMENT_BLOCKS as usize].free -= mask.count_ones();
        });
        self.space.free -= len;
        self.space.taken += len;
    }

    /// Makes blocks free that waited. Gives their number.
    fn end_wait(&mut self, runs: &[Run]) -> u64 {
        let mut blocks = 0;
        for run in runs {
            self.set_free(run.addr.index(), run.len);
            blocks += run.len;
        }
        self.space.waiting -= blocks;
        blocks
    }

    /// Makes blocks free; the caller counts where they come from.
    fn set_free(&mut self, first: u64, len: u64) {
        let (busy, segments) = (&mut self.busy, &mut self.segments);
        for_words(first, len, |w, mask| {
            assert_eq!(busy[w] & mask, mask, "blocks freed that were free");
            busy[w] &= !mask;
            let s = &mut segments[w * 64 / SEGMENT_BLOCKS as usize];
            s.free += mask.count_ones();
            s.longest = s.free;
        });
        self.space.free += len;
    }
}
