//! What was granted to one client and not used yet: inode numbers and blocks.
//!
//! Granted things have left the volume's free space in memory only. A digested record
//! that uses one takes it out of here; what is left when the client goes returns to the volume.

use shale_format::{BlockAddr, Ino};
use shale_volume::{Run, Volume};
use std::collections::{BTreeMap, HashSet};

/// Disjoint runs of blocks, by first block.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunSet {
    runs: BTreeMap<BlockAddr, u64>,
}

impl RunSet {
    /// Adds a run that is not in the set.
    pub(crate) fn insert(&mut self, run: Run) {
        if run.len == 0 {
            return;
        }
        let mut joined = run;
        if let Some((&addr, &len)) = self.runs.range(..run.addr).next_back()
            && addr.plus(len) == run.addr
        {
            joined = Run {
                addr,
                len: len + run.len,
            };
        }
        if let Some(len) = self.runs.remove(&run.addr.plus(run.len)) {
            joined.len += len;
        }
        self.runs.insert(joined.addr, joined.len);
    }

    /// Whether all of a run is in the set.
    pub(crate) fn contains(&self, run: Run) -> bool {
        self.around(run).is_some()
    }

    /// Takes a run out; `false` and nothing changed if not all of it is in the set.
    pub(crate) fn remove(&mut self, run: Run) -> bool {
        let Some((addr, len)) = self.around(run) else {
            return false;
        };
        let before = run.addr.index() - addr.index();
        if before == 0 {
            self.runs.remove(&addr);
        } else {
            self.runs.insert(addr, before);
        }
        let behind = len - before - run.len;
        if behind > 0 {
            self.runs.insert(run.addr.plus(run.len), behind);
        }
        true
    }

    /// Takes many runs out, as [`Self::remove`] does each. What is written block after block to a granted run goes
    /// in few steps, in whatever order files have it.
    pub(crate) fn remove_all(&mut self, mut runs: Vec<Run>) {
        runs.sort_unstable();
        for some in runs.chunk_by(|a, b| a.addr.plus(a.len) == b.addr) {
            let len = some.iter().map(|run| run.len).sum();
            let whole = Run {
                addr: some[0].addr,
                len,
            };
            if !self.remove(whole) {
                for &run in some {
                    self.remove(run);
                }
            }
        }
    }

    /// The run of the set that all of `run` lies in.
    fn around(&self, run: Run) -> Option<(BlockAddr, u64)> {
        let (&addr, &len) = self.runs.range(..=run.addr).next_back()?;
        let last = run.addr.index().checked_add(run.len)?;
        let inside = addr.tier() == run.addr.tier() && run.len > 0 && last <= addr.index() + len;
        inside.then_some((addr, len))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.runs.iter().map(|(&addr, &len)| Run { addr, len })
    }

    /// Blocks in all.
    pub(crate) fn blocks(&self) -> u64 {
        self.runs.values().sum()
    }
}

/// What one client has been granted and has not used.
#[derive(Default)]
pub(crate) struct Grants {
    pub(crate) inos: HashSet<u64>,
    pub(crate) blocks: RunSet,
}

impl Grants {
    /// Returns everything to the volume.
    pub(crate) fn give_back(&mut self, volume: &Volume) {
        for run in std::mem::take(&mut self.blocks).iter() {
            volume.give_back(run);
        }
        let inos: Vec<Ino> = self.inos.drain().map(Ino).collect();
        volume.return_inodes(&inos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, len: u64) -> Run {
        Run {
            addr: BlockAddr::nvm(first),
            len,
        }
    }

    #[test]
    fn runs_join_and_split() {
        let mut set = RunSet::default();
        set.insert(run(10, 5));
        set.insert(run(20, 5));
        set.insert(run(15, 5));
        assert_eq!(set.iter().collect::<Vec<_>>(), [run(10, 15)]);
        assert!(set.contains(run(12, 3)) && !set.contains(run(9, 2)) && !set.contains(run(24, 2)));
        assert!(!set.contains(run(12, 0)) && !set.contains(run(12, u64::MAX)));
        assert!(set.remove(run(12, 3)));
        assert!(!set.remove(run(11, 2)), "part of it has gone");
        assert_eq!(set.iter().collect::<Vec<_>>(), [run(10, 2), run(15, 10)]);
        assert_eq!(set.blocks(), 12);
    }

    #[test]
    fn many_runs_go_as_each_does() {
        let mut set = RunSet::default();
        set.insert(run(10, 10));
        set.insert(run(30, 10));
        set.remove_all(vec![
            run(14, 1),
            run(12, 2),
            run(38, 4),
            run(17, 3),
            run(36, 2),
            run(15, 2),
        ]);
        // What reaches beyond the set stays, and keeps no other from going.
        assert_eq!(
            set.iter().collect::<Vec<_>>(),
            [run(10, 2), run(30, 6), run(38, 2)]
        );
        set.remove_all(Vec::new());
        assert_eq!(set.blocks(), 10);
    }

    #[test]
    fn another_tier_is_another_block() {
        let mut set = RunSet::default();
        set.insert(run(10, 5));
        let ssd = Run {
            addr: BlockAddr::new(shale_format::TierId::Ssd, 11),
            len: 1,
        };
        assert!(!set.contains(ssd));
    }
}
