//! Blocks of NVM that programs have mapped.
//!
//! No grace period ends a mapping: what is mapped has to stay what it is until the mapping
//! has gone. So a block that is freed while it is *held* is not given out: it *waits*, and is
//! free when nobody holds it any more. In memory only: the persistent bitmap has it free.

use crate::bitmap_runs::{for_words, runs_of};
use crate::run::Run;
use std::collections::BTreeMap;

/// Who holds what, and what of it is freed.
#[derive(Default)]
pub(crate) struct PinnedBlocks {
    holds: BTreeMap<u64, Vec<Run>>,
    next: u64,
    /// Set while somebody holds the block; empty before the first hold.
    held: Vec<u64>,
    /// Set while it is freed besides.
    waiting: Vec<u64>,
}

impl PinnedBlocks {
    /// Notes a hold; `words` is the length of a bitmap of the tier.
    pub(crate) fn add(&mut self, runs: &[Run], words: usize) -> u64 {
        self.held.resize(words, 0);
        self.waiting.resize(words, 0);
        mark(&mut self.held, runs);
        self.next += 1;
        self.holds.insert(self.next, runs.to_vec());
        self.next
    }

    /// Blocks of all holds, those that several hold as often.
    pub(crate) fn blocks(&self) -> u64 {
        self.holds.values().flatten().map(|run| run.len).sum()
    }

    /// Whether somebody holds a block of a run.
    pub(crate) fn touches(&self, run: Run) -> bool {
        let mut found = false;
        if !self.held.is_empty() {
            for_words(run.addr.index(), run.len, |w, mask| {
                found |= mask & self.held[w] != 0;
            });
        }
        found
    }

    /// Of a run that is freed: what nobody holds. The rest waits.
    pub(crate) fn part_freed(&mut self, run: Run) -> Vec<Run> {
        if self.holds.is_empty() {
            return vec![run];
        }
        let mut free = Vec::new();
        for_words(run.addr.index(), run.len, |w, mask| {
            self.waiting[w] |= mask & self.held[w];
            free.push((w, mask & !self.held[w]));
        });
        runs_of(free.into_iter())
    }

    /// Has blocks wait that are free and held: those of a mapping that is older than this start.
    pub(crate) fn wait(&mut self, runs: &[Run]) {
        mark(&mut self.waiting, runs);
    }

    /// Of a run, what waits; it does no longer.
    pub(crate) fn take_waiting(&mut self, run: Run) -> Vec<Run> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let mut taken = Vec::new();
        for_words(run.addr.index(), run.len, |w, mask| {
            taken.push((w, self.waiting[w] & mask));
            self.waiting[w] &= !mask;
        });
        runs_of(taken.into_iter())
    }

    /// Ends a hold. Gives what is free now.
    pub(crate) fn drop(&mut self, hold: u64) -> Vec<Run> {
        if self.holds.remove(&hold).is_none() {
            return Vec::new();
        }
        self.held.fill(0);
        for runs in self.holds.values() {
            mark(&mut self.held, runs);
        }
        let freed = self.waiting.iter_mut().zip(&self.held).map(|(w, held)| {
            let freed = *w & !held;
            *w &= held;
            freed
        });
        runs_of(freed.enumerate())
    }
}

fn mark(words: &mut [u64], runs: &[Run]) {
    for run in runs {
        for_words(run.addr.index(), run.len, |w, mask| words[w] |= mask);
    }
}
