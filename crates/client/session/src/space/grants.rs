//! What the daemon granted ahead of use: inode numbers and free blocks.

use crate::daemon_link::DaemonLink;
use crate::errno::{Errno, Result};
use parking_lot::Mutex;
use shale_format::BlockAddr;
use shale_format::limits::{BLOCK_BYTES, SEGMENT_BYTES};
use shale_proto::message::BlockRun as GrantedRun;
use shale_proto::{Reply, Request};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs of inode numbers asked for at once when a directory has none left.
pub(crate) const INODE_RUNS: u32 = 4;
/// Directories that keep numbers of their own; beyond it the oldest lose theirs to all.
const DIRECTORIES_MAX: usize = 256;

/// Inode numbers to give to new files, kept by directory so that the inodes of one
/// directory lie together (Strata §3.1).
pub(crate) struct InodeNumbers {
    daemon: DaemonLink,
    numbers: Mutex<Numbers>,
}

#[derive(Default)]
struct Numbers {
    by_parent: HashMap<u64, Vec<u64>>,
    spare: Vec<u64>,
}

impl InodeNumbers {
    pub(crate) fn new(daemon: DaemonLink) -> Self {
        Self {
            daemon,
            numbers: Mutex::default(),
        }
    }

    /// A number for a new inode in directory `parent`, if one is at hand.
    pub fn take(&self, parent: u64) -> Option<u64> {
        self.numbers.lock().take(parent)
    }

    /// Gets numbers for files in a directory.
    pub fn get_more(&self, parent: u64) -> Result<()> {
        match self.daemon.ask(Request::GrantInodes {
            parent,
            runs: INODE_RUNS,
        })? {
            Reply::Inodes { inos } if !inos.is_empty() => {
                self.numbers.lock().add(parent, inos);
                Ok(())
            }
            Reply::Inodes { .. } | Reply::NoSpace => Err(Errno::NOSPC),
            _ => Err(Errno::PROTO),
        }
    }
}

impl Numbers {
    fn take(&mut self, parent: u64) -> Option<u64> {
        if let Some(ino) = self.by_parent.get_mut(&parent).and_then(Vec::pop) {
            return Some(ino);
        }
        self.spare.pop()
    }

    /// Adds granted numbers for `parent`, to be used in this order.
    fn add(&mut self, parent: u64, granted: Vec<u64>) {
        if self.by_parent.len() >= DIRECTORIES_MAX {
            let rest: Vec<u64> = self.by_parent.drain().flat_map(|(_, v)| v).collect();
            self.spare.extend(rest);
        }
        self.by_parent
            .entry(parent)
            .or_default()
            .extend(granted.into_iter().rev());
    }
}

/// A run of granted blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRun {
    /// The first block.
    pub addr: BlockAddr,
    /// How many.
    pub blocks: u64,
}

impl BlockRun {
    /// Bytes of the run.
    pub fn bytes(&self) -> usize {
        self.blocks as usize * BLOCK_BYTES
    }
}

/// A few runs of blocks.
pub type Runs = SmallVec<[BlockRun; 2]>;

/// Free blocks of the volume that this client may write whole blocks into (steal).
///
/// Most calls take one block: the run that they take it from is a single word, its first
/// block and how many there are, and costs one atomic step. Two words that are equal are
/// the same run, so it does no harm if the word went away and came back meanwhile.
#[derive(Default)]
pub(crate) struct Blocks {
    front: AtomicU64,
    /// The runs behind the front, the next one last.
    runs: Mutex<Vec<BlockRun>>,
}

/// Bits of a word that count blocks; those above are the number of the first one.
const COUNT_BITS: u32 = 24;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// A run as a word, if it fits: on NVM, and not longer than [`COUNT_MAX`].
fn word_of(run: BlockRun) -> Option<u64> {
    let index = run.addr.index();
    let fits = run.addr == BlockAddr::nvm(index)
        && (1..=COUNT_MAX).contains(&run.blocks)
        && index >> (u64::BITS - COUNT_BITS) == 0;
    fits.then_some(index << COUNT_BITS | run.blocks)
}

fn run_of(word: u64) -> BlockRun {
    BlockRun {
        addr: BlockAddr::nvm(word >> COUNT_BITS),
        blocks: word & COUNT_MAX,
    }
}

impl Blocks {
    /// Takes `blocks` blocks in as few runs as the grants allow; `false` and nothing
    /// taken when there are fewer.
    #[inline]
    pub fn take(&self, blocks: u64, into: &mut Runs) -> bool {
        let mut word = self.front.load(Ordering::Relaxed);
        while word & COUNT_MAX >= blocks {
            let rest = word + (blocks << COUNT_BITS) - blocks;
            let rest = if rest & COUNT_MAX == 0 { 0 } else { rest };
            let relaxed = Ordering::Relaxed;
            match self
                .front
                .compare_exchange_weak(word, rest, relaxed, relaxed)
            {
                Ok(_) => {
                    let addr = run_of(word).addr;
                    into.push(BlockRun { addr, blocks });
                    return true;
                }
                Err(now) => word = now,
            }
        }
        self.take_slowly(blocks, into)
    }

    #[cold]
    fn take_slowly(&self, blocks: u64, into: &mut Runs) -> bool {
        let mut runs = self.runs.lock();
        self.step_back(&mut runs);
        let start = into.len();
        let mut wanted = blocks;
        while wanted > 0 {
            let Some(run) = runs.last_mut() else {
                runs.extend(into.drain(start..).rev());
                break;
            };
            let n = run.blocks.min(wanted);
            into.push(BlockRun {
                addr: run.addr,
                blocks: n,
            });
            run.addr = run.addr.plus(n);
            run.blocks -= n;
            wanted -= n;
            if run.blocks == 0 {
                runs.pop();
            }
        }
        self.step_forward(&mut runs);
        wanted == 0
    }

    /// Puts back what was not used, to be used next.
    pub fn put(&self, unused: &mut Runs) {
        if !unused.is_empty() {
            let mut runs = self.runs.lock();
            self.step_back(&mut runs);
            for run in unused.drain(..).rev() {
                match runs.last_mut() {
                    Some(last) if run.addr.plus(run.blocks) == last.addr => {
                        last.addr = run.addr;
                        last.blocks += run.blocks;
                    }
                    _ => runs.push(run),
                }
            }
            self.step_forward(&mut runs);
        }
    }

    /// Adds a grant, to be used after those at hand.
    pub fn add(&self, granted: impl DoubleEndedIterator<Item = BlockRun>) {
        let mut runs = self.runs.lock();
        let rest = std::mem::take(&mut *runs);
        runs.extend(granted.rev());
        runs.extend(rest);
    }

    /// Takes everything, to give it back to the daemon.
    pub fn drain(&self) -> Vec<BlockRun> {
        let mut runs = self.runs.lock();
        self.step_back(&mut runs);
        std::mem::take(&mut *runs)
    }

    /// Blocks at hand.
    pub fn count(&self) -> u64 {
        let runs = self.runs.lock();
        let front = self.front.load(Ordering::Relaxed) & COUNT_MAX;
        front + runs.iter().map(|r| r.blocks).sum::<u64>()
    }

    /// Puts the front run back among the others.
    fn step_back(&self, runs: &mut Vec<BlockRun>) {
        match self.front.swap(0, Ordering::Relaxed) {
            0 => {}
            word => runs.push(run_of(word)),
        }
    }

    /// Has the next run be the front. (Only who holds the lock puts one there.)
    fn step_forward(&self, runs: &mut Vec<BlockRun>) {
        if let Some(word) = runs.last().copied().and_then(word_of) {
            self.front.store(word, Ordering::Relaxed);
            runs.pop();
        }
    }
}

/// The parts of a run by segments: index, bytes of the tier.
pub fn within_segments(run: &GrantedRun) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    const SEGMENT: usize = SEGMENT_BYTES as usize;
    let first = BlockAddr::from_raw(run.addr).byte() as usize;
    let end = first + run.blocks as usize * BLOCK_BYTES;
    (first / SEGMENT..end.div_ceil(SEGMENT)).map(move |n| {
        let segment = n * SEGMENT..(n + 1) * SEGMENT;
        (n, first.max(segment.start)..end.min(segment.end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(index: u64, blocks: u64) -> BlockRun {
        BlockRun {
            addr: BlockAddr::nvm(index),
            blocks,
        }
    }

    #[test]
    fn numbers_go_up_within_a_directory() {
        let mut n = Numbers::default();
        assert_eq!(n.take(1), None);
        n.add(1, (32..48).chain(64..80).collect());
        let got: Vec<u64> = (0..32).map(|_| n.take(1).unwrap()).collect();
        assert_eq!(got, (32..48).chain(64..80).collect::<Vec<_>>());
        assert_eq!(n.take(1), None);
    }

    #[test]
    fn blocks_are_taken_in_order_all_or_none_and_put_back() {
        let b = Blocks::default();
        b.add([run(100, 4), run(200, 2)].into_iter());
        let mut got = Runs::new();
        assert!(b.take(5, &mut got));
        assert_eq!(got[..], [run(100, 4), run(200, 1)]);
        let mut none = Runs::new();
        assert!(!b.take(2, &mut none) && none.is_empty());
        assert_eq!(b.count(), 1);
        b.put(&mut got);
        assert_eq!(b.count(), 6);
        assert!(b.take(6, &mut got));
        assert_eq!(got[..], [run(100, 4), run(200, 2)]);
    }
}
