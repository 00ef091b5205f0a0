//! A set of blocks of tiers.

use rangemap::RangeSet;
use shale_format::BlockAddr;
use shale_volume::Run;

/// Disjoint runs of blocks; runs that touch are one.
#[derive(Clone, Debug, Default)]
pub struct RunSet(RangeSet<BlockAddr>);

impl RunSet {
    /// Adds a run; one without blocks adds nothing.
    pub fn insert(&mut self, run: Run) {
        if run.len > 0 {
            self.0.insert(run.addr..run.addr.plus(run.len));
        }
    }

    /// Whether the run has blocks, and all of them are in the set.
    pub fn contains(&self, run: Run) -> bool {
        let rest = |whole: &std::ops::Range<BlockAddr>| whole.end.index() - run.addr.index();
        let whole = self.0.get(&run.addr);
        whole.is_some_and(|whole| run.len > 0 && run.len <= rest(whole))
    }

    /// Whether there is no run.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a block of the run is in the set.
    pub fn overlaps(&self, run: Run) -> bool {
        run.len > 0 && self.0.overlaps(&(run.addr..run.addr.plus(run.len)))
    }

    /// Takes a run out; `false` and nothing changed if not all of it is in the set.
    pub fn remove(&mut self, run: Run) -> bool {
        let whole = self.contains(run);
        if whole {
            self.0.remove(run.addr..run.addr.plus(run.len));
        }
        whole
    }

    /// Takes many runs out, as [`Self::remove`] does each. Blocks of a granted run that were written one after the other
    /// go in few steps, in whatever order files have them.
    pub fn remove_all(&mut self, mut runs: Vec<Run>) {
        runs.sort_unstable();
        for some in runs.chunk_by(|a, b| a.addr.plus(a.len) == b.addr) {
            let len = some.iter().map(|run| run.len).sum();
            let addr = some[0].addr;
            if !self.remove(Run { addr, len }) {
                for &run in some {
                    self.remove(run);
                }
            }
        }
    }

    /// All runs, by their addresses.
    pub fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.0.iter().map(|run| Run {
            addr: run.start,
            len: run.end.index() - run.start.index(),
        })
    }

    /// Blocks in all.
    pub fn blocks(&self) -> u64 {
        self.iter().map(|run| run.len).sum()
    }
}

impl FromIterator<Run> for RunSet {
    fn from_iter<I: IntoIterator<Item = Run>>(runs: I) -> Self {
        let mut set = Self::default();
        runs.into_iter().for_each(|run| set.insert(run));
        set
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
        assert!(set.overlaps(run(24, 2)) && set.overlaps(run(9, 2)));
        assert!(!set.overlaps(run(25, 2)) && !set.overlaps(run(9, 1)) && !set.overlaps(run(12, 0)));
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
