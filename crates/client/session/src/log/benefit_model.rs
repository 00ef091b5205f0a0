//! The Buffer Benefit Model (HiNFS §3.2): which whole blocks of a buffered client go directly to NVM, because an fsync follows
//! each write of them anyway.
//!
//! Every block is *lazy* at first: what is written to it goes to the log in memory. Each fsync looks at the blocks that
//! were written since the one before. Of a block `Ncw` lines were written, and `Ncf` different ones were still to be copied to NVM
//! by the fsync, the rest having been written back before. Memory pays if
//!
//! ```text
//! Ncw · Ldram + Ncf · Lnvm < Ncw · Lnvm
//! ```
//!
//! and else the block is *eager*: its next writes go directly to NVM, until no fsync has come for [`EAGER_FOR_NS`].
//!
//! The model counts lines as if every write went to memory (the *ghost buffer*), holds no data, and remembers a bounded number of blocks: those
//! that were used last. It asks nobody for the time or anything else: each answer follows from what came before.
//!
//! An fsync makes durable all that its client has written, of whatever file, so it is an fsync of every block; HiNFS has one of
//! the blocks of its file.

use lru::LruCache;
use shale_format::limits::BLOCK_BYTES;
use shale_format::log::RING_AT;
use shale_format::{Buffering, LogPos};
use shale_nvm::{LINE_BYTES, Map};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::Instant;

const BLOCK: u64 = BLOCK_BYTES as u64;
const LINE: u64 = LINE_BYTES as u64;
/// Blocks that are remembered together: 64 KiB of a file.
const GROUP: u64 = 16;
/// For so long after the last fsync a block stays eager (HiNFS §3.2).
const EAGER_FOR_NS: u64 = 5_000_000_000;
/// What is written to measure, and how often.
const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
const MEASURED: usize = 3;
/// The ghost buffer takes at most this part of the buffer (HiNFS §3.2: below 1%).
const GHOST_PART: u64 = 100;

/// What it takes to write a cache line, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineCosts {
    /// Into memory.
    pub memory_ps: u64,
    /// Into NVM.
    pub nvm_ps: u64,
}

impl LineCosts {
    /// Measures both in logs that were just made and hold nothing yet: zeros are written to where their first records will be.
    pub(crate) fn measure(memory: &Map, nvm: &Map) -> Self {
        let line_ps = |map: &Map| {
            let write = || {
                let begun = Instant::now();
                map.copy_nt(RING_AT, &ZEROS);
                map.fence();
                begun.elapsed().as_nanos() as u64 * 1000 / (ZEROS.len() as u64 / LINE)
            };
            // The first time its pages are made.
            write();
            (0..MEASURED).map(|_| write()).min().unwrap_or(0)
        };
        Self {
            memory_ps: line_ps(memory),
            nvm_ps: line_ps(nvm),
        }
    }
}

/// What the model has decided so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// Bytes of whole blocks that went directly to NVM.
    pub eager_bytes: u64,
    /// Bytes that went to memory.
    pub lazy_bytes: u64,
    /// Blocks of which an fsync found what the one before had (HiNFS Figure 4).
    pub right: u64,
    /// Blocks of which it found the opposite.
    pub wrong: u64,
}

/// What is remembered of blocks that follow one another.
#[derive(Clone, Debug, Default)]
struct Group {
    /// Lines of each block that were written since the last fsync.
    dirty: [u64; GROUP as usize],
    /// How many lines that were, each time counted.
    written: [u32; GROUP as usize],
    /// Blocks, a bit each, that are eager.
    eager: u16,
    /// Blocks of which an fsync has decided.
    decided: u16,
    /// When the last fsync was that found one of them written.
    synced_ns: u64,
    /// Behind the newest record of them.
    newest: LogPos,
}

impl Group {
    fn is_dirty(&self) -> bool {
        self.dirty.iter().any(|&lines| lines != 0)
    }
}

/// Inode number and which group of its blocks.
type Place = (u64, u64);

/// See the module.
pub struct BenefitModel {
    buffering: Buffering,
    costs: LineCosts,
    groups: LruCache<Place, Group>,
    /// Those that were written since the last fsync.
    dirty: Vec<Place>,
    decisions: Decisions,
}

impl BenefitModel {
    /// Of a client whose log in memory has `ring_bytes`.
    pub fn new(buffering: Buffering, costs: LineCosts, ring_bytes: u64) -> Self {
        let bytes = size_of::<Group>() + size_of::<Place>() + 4 * size_of::<usize>();
        let most = ring_bytes / GHOST_PART / bytes as u64;
        let most = NonZeroUsize::new(most as usize).unwrap_or(NonZeroUsize::MIN);
        Self {
            buffering,
            costs,
            groups: LruCache::new(most),
            dirty: Vec::new(),
            decisions: Decisions::default(),
        }
    }

    /// What was decided so far.
    pub fn decisions(&self) -> Decisions {
        self.decisions
    }

    /// Whether all blocks of bytes `range` of inode `ino` go directly to NVM. The time is asked for only where it matters.
    pub fn is_eager(&mut self, ino: u64, range: Range<u64>, now_ns: impl FnOnce() -> u64) -> bool {
        match self.buffering {
            Buffering::Lazy => return false,
            Buffering::Eager => return true,
            Buffering::Model => {}
        }
        let mut synced_ns = u64::MAX;
        for (group, blocks) in groups_of(&range) {
            let mask = bits(&blocks);
            match self.groups.get(&(ino, group)) {
                Some(known) if known.eager & mask == mask => {
                    synced_ns = synced_ns.min(known.synced_ns);
                }
                _ => return false,
            }
        }
        synced_ns != u64::MAX && now_ns().saturating_sub(synced_ns) < EAGER_FOR_NS
    }

    /// Bytes `range` of inode `ino` were written, with a record that ends at `end`; `eager`: so many of them directly to NVM.
    pub fn note_write(&mut self, ino: u64, range: Range<u64>, end: LogPos, eager: u64) {
        self.decisions.eager_bytes += eager;
        self.decisions.lazy_bytes += (range.end - range.start).saturating_sub(eager);
        if self.buffering != Buffering::Model {
            return;
        }
        for (index, blocks) in groups_of(&range) {
            let place = (ino, index);
            let group = self.groups.get_or_insert_mut(place, Group::default);
            if !group.is_dirty() {
                self.dirty.push(place);
            }
            group.newest = group.newest.max(end);
            for n in blocks {
                let block = index * GROUP + n;
                let lines = lines_of(&range, block);
                group.dirty[n as usize] |= lines;
                let written = &mut group.written[n as usize];
                *written = written.saturating_add(lines.count_ones());
            }
        }
    }

    /// An fsync at `now_ns` has found the log digested up to `digested`: decides about every block that was written since the one before.
    pub fn note_fsync(&mut self, digested: LogPos, now_ns: u64) {
        for place in std::mem::take(&mut self.dirty) {
            // What was forgotten meanwhile is lazy again.
            let Some(group) = self.groups.peek_mut(&place) else {
                continue;
            };
            group.synced_ns = now_ns;
            for n in 0..GROUP as usize {
                let lines = std::mem::take(&mut group.dirty[n]);
                let written = u64::from(std::mem::take(&mut group.written[n]));
                if lines == 0 {
                    continue;
                }
                let left = match group.newest <= digested {
                    true => 0,
                    false => u64::from(lines.count_ones()),
                };
                let LineCosts { memory_ps, nvm_ps } = self.costs;
                let eager = written * memory_ps + left * nvm_ps >= written * nvm_ps;
                let bit = 1 << n;
                if group.decided & bit != 0 {
                    let same = (group.eager & bit != 0) == eager;
                    self.decisions.right += u64::from(same);
                    self.decisions.wrong += u64::from(!same);
                }
                group.decided |= bit;
                match eager {
                    true => group.eager |= bit,
                    false => group.eager &= !bit,
                }
            }
        }
    }
}

/// The groups of the blocks that bytes `range` touch, and which blocks of each.
fn groups_of(range: &Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> + use<> {
    let (first, last) = (range.start / BLOCK, range.end.div_ceil(BLOCK));
    (first / GROUP..last.div_ceil(GROUP)).map(move |group| {
        let at = group * GROUP;
        let from = first.max(at) - at;
        (group, from..last.min(at + GROUP) - at)
    })
}

fn bits(blocks: &Range<u64>) -> u16 {
    blocks.clone().fold(0, |bits, n| bits | 1 << n)
}

/// Lines of a block that bytes `range` of the file touch, a bit each.
fn lines_of(range: &Range<u64>, block: u64) -> u64 {
    let at = block * BLOCK;
    let from = range.start.max(at) - at;
    let to = range.end.min(at + BLOCK).saturating_sub(at);
    if from >= to {
        return 0;
    }
    let (first, last) = (from / LINE, to.div_ceil(LINE));
    let upto = |n: u64| u64::MAX.checked_shr(64 - n as u32).unwrap_or(0);
    upto(last) & !upto(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: LineCosts = LineCosts {
        memory_ps: 10,
        nvm_ps: 100,
    };
    const RING: u64 = 64 << 20;
    const NOTHING: LogPos = LogPos(0);

    fn model() -> BenefitModel {
        BenefitModel::new(Buffering::Model, COSTS, RING)
    }

    /// A small program of a client: what it does, at which second.
    #[derive(Clone, Copy)]
    enum Did {
        Write(u64, u64, u64),
        Fsync,
    }
    use Did::{Fsync, Write};

    fn replay(model: &mut BenefitModel, trace: &[Did], at_s: u64) {
        for (n, did) in trace.iter().enumerate() {
            match *did {
                Write(ino, from, bytes) => {
                    model.note_write(ino, from..from + bytes, LogPos(n as u64 + 1), 0);
                }
                Fsync => model.note_fsync(NOTHING, at_s * 1_000_000_000),
            }
        }
    }

    fn eager_at(model: &mut BenefitModel, ino: u64, range: Range<u64>, at_s: u64) -> bool {
        model.is_eager(ino, range, || at_s * 1_000_000_000)
    }

    #[test]
    fn a_block_is_lazy_until_an_fsync_follows_its_write() {
        let mut m = model();
        assert!(!eager_at(&mut m, 20, 0..4096, 0));
        replay(&mut m, &[Write(20, 0, 4096)], 0);
        assert!(!eager_at(&mut m, 20, 0..4096, 0));
        replay(&mut m, &[Fsync], 1);
        assert!(eager_at(&mut m, 20, 0..4096, 1));
        assert!(
            !eager_at(&mut m, 20, 0..8192, 1),
            "of the second nothing is known"
        );
        assert!(!eager_at(&mut m, 21, 0..4096, 1), "nor of another file");
    }

    #[test]
    fn a_block_that_is_overwritten_before_its_fsync_stays_in_memory() {
        let mut m = model();
        let page = Write(20, 0, 4096);
        replay(&mut m, &[page, page, page, page, Fsync], 0);
        assert!(!eager_at(&mut m, 20, 0..4096, 0), "4 writes, one copy");
        // 10 + 90 of 100 are no gain.
        let lines = [Write(20, 0, 640), Write(20, 640, 60)];
        replay(&mut m, &[lines[0], lines[1], Fsync], 0);
        assert!(eager_at(&mut m, 20, 0..4096, 0), "each line once");
        assert_eq!((m.decisions().right, m.decisions().wrong), (0, 1));
    }

    #[test]
    fn what_was_written_back_before_costs_the_fsync_nothing() {
        let mut m = model();
        replay(&mut m, &[Write(20, 0, 4096)], 0);
        m.note_fsync(LogPos(1), 0);
        assert!(!eager_at(&mut m, 20, 0..4096, 0));
    }

    #[test]
    fn an_eager_block_is_lazy_again_without_an_fsync_for_five_seconds() {
        let mut m = model();
        replay(&mut m, &[Write(20, 0, 65_536), Fsync], 10);
        assert!(eager_at(&mut m, 20, 0..65_536, 14));
        assert!(!eager_at(&mut m, 20, 0..65_536, 15));
        replay(&mut m, &[Write(20, 4096, 4096), Fsync], 15);
        assert!(eager_at(&mut m, 20, 4096..8192, 19));
    }

    #[test]
    fn memory_as_slow_as_nvm_is_no_buffer() {
        let costs = LineCosts {
            memory_ps: 100,
            nvm_ps: 100,
        };
        let mut m = BenefitModel::new(Buffering::Model, costs, RING);
        let page = Write(20, 0, 4096);
        replay(&mut m, &[page, page, page, Fsync], 0);
        assert!(eager_at(&mut m, 20, 0..4096, 0));
    }

    /// HiNFS §3.2: below 1% of the buffer.
    #[test]
    fn the_ghost_buffer_is_bounded() {
        let mut m = model();
        for ino in 0..1 << 20 {
            m.note_write(ino, 0..4096, LogPos(1), 0);
        }
        let bytes = m.groups.len() * (size_of::<Group>() + size_of::<Place>());
        assert!(m.groups.len() > 1000);
        assert!((bytes as u64) < RING / GHOST_PART, "{bytes}");
        m.note_fsync(NOTHING, 0);
        assert!(m.dirty.is_empty());
        assert!(!eager_at(&mut m, 0, 0..4096, 0), "forgotten");
        assert!(eager_at(&mut m, (1 << 20) - 1, 0..4096, 0));
    }

    #[test]
    fn the_setting_wins() {
        for (buffering, eager) in [(Buffering::Lazy, false), (Buffering::Eager, true)] {
            let mut m = BenefitModel::new(buffering, COSTS, RING);
            replay(&mut m, &[Write(20, 0, 4096), Fsync], 0);
            assert_eq!(eager_at(&mut m, 20, 0..4096, 0), eager);
            assert_eq!(m.groups.len(), 0);
        }
    }

    #[test]
    fn steady_programs_are_predicted() {
        let mut m = model();
        // A database: a journal that is appended and synced, pages that are overwritten many times between.
        for n in 0..1000 {
            let page = Write(7, n % 5 * 4096, 4096);
            replay(&mut m, &[Write(8, n % 64 * 4096, 4096), Fsync], n / 100);
            replay(&mut m, &[page, page, page, page, page], n / 100);
        }
        let Decisions { right, wrong, .. } = m.decisions();
        assert!(right > 9 * wrong, "{right} right, {wrong} wrong");
    }

    #[test]
    fn lines_of_a_block() {
        assert_eq!(lines_of(&(0..4096), 0), u64::MAX);
        assert_eq!(lines_of(&(0..1), 0), 1);
        assert_eq!(lines_of(&(63..65), 0), 3);
        assert_eq!(lines_of(&(4000..8192), 1), u64::MAX);
        assert_eq!(lines_of(&(4095..4097), 0), 1 << 63);
        assert_eq!(lines_of(&(4095..4097), 1), 1);
        assert_eq!(lines_of(&(0..4096), 3), 0);
    }
}
