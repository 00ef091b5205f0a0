//! Random operations and power cuts against a plain model.

use std::collections::HashSet;

use super::*;
use crate::UnitTimes;
use crate::ftl::Victims;
use crate::zoned::{Behaviour, Geometry};
use shale_sys::random::next_random;

/// 2 units, so 2 × 2 blocks open, 4 in reserve: of 32 erase blocks 15 are offered.
const SMALL: Geometry = Geometry {
    units: 2,
    blocks_per_unit: 16,
    pages_per_block: 8,
    page_bytes: 8_192,
};

fn settings(victims: Victims, cached_blocks: usize) -> Settings {
    Settings {
        victims,
        cache_bytes: cached_blocks * BLOCK_BYTES,
        wear_difference_max: 4,
        ..Settings::default()
    }
}

fn flash() -> Arc<Zoned> {
    let behaviour = Behaviour {
        cuts: true,
        times: UnitTimes::NONE,
        ..Behaviour::default()
    };
    Arc::new(Zoned::memory(SMALL, behaviour).unwrap())
}

/// What a block may hold: its contents since the last flush, the newest last. 0: zeros.
#[derive(Clone)]
struct Model {
    blocks: Vec<Vec<u32>>,
    written: u32,
}

fn data(stamp: u32) -> [u8; BLOCK_BYTES] {
    let mut data = [0; BLOCK_BYTES];
    for word in data.chunks_exact_mut(4) {
        word.copy_from_slice(&stamp.to_le_bytes());
    }
    data
}

impl Model {
    fn new(ftl: &Ftl) -> Self {
        Model {
            blocks: vec![vec![0]; (ftl.bytes() as usize) / BLOCK_BYTES],
            written: 0,
        }
    }

    fn write(&mut self, ftl: &Ftl, block: usize) {
        self.written += 1;
        let at = (block * BLOCK_BYTES) as u64;
        ftl.write(at, &data(self.written)).unwrap();
        self.blocks[block].push(self.written);
    }

    fn discard(&mut self, ftl: &Ftl, block: usize, count: usize) {
        let (at, bytes) = (block * BLOCK_BYTES, count * BLOCK_BYTES);
        ftl.discard(at as u64, bytes as u64).unwrap();
        self.blocks[block..][..count]
            .iter_mut()
            .for_each(|b| b.push(0));
    }

    fn flush(&mut self, ftl: &Ftl) {
        ftl.flush().unwrap();
        for block in &mut self.blocks {
            block.drain(..block.len() - 1);
        }
    }

    fn check(&self, ftl: &Ftl) {
        let mut found = [0; BLOCK_BYTES];
        for (block, stamps) in self.blocks.iter().enumerate() {
            ftl.read((block * BLOCK_BYTES) as u64, &mut found).unwrap();
            let newest = *stamps.last().unwrap();
            assert_eq!(found, data(newest), "block {block}");
        }
    }

    /// After a cut: each block holds one of the contents it had since the flush. From then
    /// on it is that one.
    fn adopt(&mut self, ftl: &Ftl) {
        let mut found = [0; BLOCK_BYTES];
        for (block, stamps) in self.blocks.iter_mut().enumerate() {
            ftl.read((block * BLOCK_BYTES) as u64, &mut found).unwrap();
            let holds = stamps.iter().find(|stamp| found == data(**stamp));
            let holds = *holds.unwrap_or_else(|| panic!("block {block}: not one of {stamps:?}"));
            *stamps = vec![holds];
        }
    }
}

/// The map against what stands on flash.
fn check_invariants(ftl: &Ftl) {
    let state = ftl.state.lock();
    let mut valid = vec![0; SMALL.blocks() as usize];
    let mut places = HashSet::new();
    for block in 0..state.map.blocks() {
        match state.map.get(block) {
            Where::At(at, slot) => {
                assert!(places.insert((at, slot)), "two blocks at {at:?}");
                valid[at.block.number() as usize] += 1;
                let oob = Oob::from_bytes(&ftl.flash.read_oob(at).unwrap()).unwrap();
                assert!(matches!(oob.kind, Kind::Data(held) if held[slot] == block));
            }
            Where::Trimmed(at) => {
                let oob = Oob::from_bytes(&ftl.flash.read_oob(at).unwrap()).unwrap();
                assert!(matches!(oob.kind, Kind::Trims(_)));
                assert!(state.map.needs_list(at));
            }
            Where::Unwritten | Where::TrimPending => {}
        }
    }
    let counted: Vec<u32> = (0..SMALL.blocks()).map(|b| state.map.valid(b)).collect();
    assert_eq!(counted, valid);
}

fn random_life(seed: u64, victims: Victims, cuts: bool) {
    let mut random = seed;
    let mut below = |bound: usize| next_random(&mut random) as usize % bound;
    let flash = flash();
    let settings = settings(victims, [0, 3, 12][below(3)]);
    let mut ftl = Ftl::open(Arc::clone(&flash), settings).unwrap();
    let mut model = Model::new(&ftl);
    let blocks = model.blocks.len();
    // All blocks in use, or few of them.
    let used = [blocks, blocks / 4][below(2)];
    let steps = 300 + below(900);
    for _ in 0..steps {
        match below(100) {
            0..=69 => model.write(&ftl, below(used)),
            70..=84 => model.write(&ftl, below(used.min(4))),
            85..=89 => {
                let first = below(used);
                model.discard(&ftl, first, 1 + below((used - first).min(9)));
            }
            90..=95 => model.flush(&ftl),
            96 => model.check(&ftl),
            _ if cuts => {
                drop(ftl);
                flash.cut_power(below(usize::MAX) as u64).unwrap();
                ftl = Ftl::open(Arc::clone(&flash), settings).unwrap();
                model.adopt(&ftl);
                check_invariants(&ftl);
            }
            _ => {}
        }
    }
    model.check(&ftl);
    check_invariants(&ftl);
    assert_eq!(flash.counts().out_of_order, 0);
}

#[test]
fn random_lives_with_cuts_agree_with_the_model() {
    for seed in 0..12 {
        for victims in [Victims::Greedy, Victims::CostBenefit] {
            let lived = std::panic::catch_unwind(|| random_life(seed, victims, true));
            assert!(lived.is_ok(), "random_life({seed}, {victims:?}, true)");
        }
    }
}

#[test]
fn random_lives_without_cuts_agree_with_the_model() {
    (1_000..1_010).for_each(|seed| random_life(seed, Victims::CostBenefit, false));
}

#[test]
fn parts_of_blocks_are_written_and_discarded() {
    let ftl = Ftl::open(flash(), settings(Victims::Greedy, 2)).unwrap();
    ftl.write(4_000, &[7; 5_000]).unwrap();
    ftl.flush().unwrap();
    ftl.discard(4_090, 20).unwrap();
    ftl.discard(8_192, 4_096).unwrap();
    let mut found = [1; 13_000];
    ftl.read(0, &mut found).unwrap();
    let expected = |at: usize| match at {
        4_000..4_090 | 4_110..8_192 => 7,
        _ => 0,
    };
    assert!((0..13_000).all(|at| found[at] == expected(at)));
    assert_eq!(ftl.counts().blocks_trimmed, 1);
    ftl.write(0, &[]).unwrap();
}

#[test]
fn a_trim_that_was_flushed_stays_although_older_copies_are_left() {
    for seed in 0..10 {
        let flash = flash();
        let ftl = Ftl::open(Arc::clone(&flash), settings(Victims::Greedy, 0)).unwrap();
        let mut model = Model::new(&ftl);
        for round in 0..60 {
            model.write(&ftl, 3);
            model.write(&ftl, 10 + round % 30);
            model.flush(&ftl);
        }
        model.discard(&ftl, 3, 1);
        model.flush(&ftl);
        // So much that the list of trimmed blocks has to move.
        (0..200).for_each(|n| model.write(&ftl, 40 + n % 20));
        drop(ftl);
        flash.cut_power(seed).unwrap();
        let ftl = Ftl::open(flash, settings(Victims::Greedy, 0)).unwrap();
        model.adopt(&ftl);
        assert_eq!(model.blocks[3], [0]);
    }
}

#[test]
fn many_trims_of_single_blocks_cost_no_space() {
    let ftl = Ftl::open(flash(), settings(Victims::CostBenefit, 0)).unwrap();
    let mut model = Model::new(&ftl);
    for round in 0..2_000 {
        let block = round % model.blocks.len();
        model.write(&ftl, block);
        model.flush(&ftl);
        if round % 3 != 0 {
            model.discard(&ftl, block, 1);
            model.flush(&ftl);
        }
    }
    model.check(&ftl);
    (0..model.blocks.len()).for_each(|block| model.write(&ftl, block));
    // Nothing but lists is written now.
    for block in 0..model.blocks.len() {
        model.discard(&ftl, block, 1);
        model.flush(&ftl);
    }
    model.check(&ftl);
    check_invariants(&ftl);
}

#[test]
fn cold_blocks_wear_too() {
    let flash = flash();
    let ftl = Ftl::open(Arc::clone(&flash), settings(Victims::Greedy, 0)).unwrap();
    let mut model = Model::new(&ftl);
    (0..model.blocks.len()).for_each(|block| model.write(&ftl, block));
    (0..20_000).for_each(|n| model.write(&ftl, n % 5));
    model.check(&ftl);
    let counts: Vec<u32> = (0..SMALL.blocks())
        .map(|block| flash.erase_count(SMALL.block(block)))
        .collect();
    assert!(counts.iter().all(|count| *count >= 20), "{counts:?}");
}

#[test]
fn amplification_is_that_of_moved_pages() {
    let flash = flash();
    let ftl = Ftl::open(Arc::clone(&flash), settings(Victims::Greedy, 4)).unwrap();
    let mut model = Model::new(&ftl);
    let blocks = model.blocks.len();
    (0..blocks).for_each(|block| model.write(&ftl, block));
    let before = flash.counts();
    assert_eq!(before.pages_moved, 0, "a first fill moves nothing");
    let mut random = 9;
    (0..4_000).for_each(|_| model.write(&ftl, next_random(&mut random) as usize % blocks));
    let spent = flash.counts() - before;
    assert!(spent.pages_moved > 0);
    assert!(spent.pages_programmed >= spent.pages_moved + 1_800);
    assert_eq!(ftl.counts().blocks_cleaned, flash.counts().blocks_erased);
}
