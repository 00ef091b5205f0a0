//! A power cut: what is uncertain at that moment, and the images it can leave.
//!
//! Invariants: units are listed in the order in which they were stored, and applied in
//! it, so the latest survivor of a unit wins as in a coherent cache.

use std::collections::HashSet;

use crate::replay::{Replay, UNIT_BYTES};
use shale_nvm::counters::Path;
use shale_nvm::{LINE_BYTES, StoreKind};
use shale_sys::random::next_random;

/// What a power cut may do to a cache line stored but not yet fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutEffect {
    /// All of it survives.
    Kept,
    /// None of it survives.
    Lost,
    /// Any of its aligned 8-byte units survive.
    TornAt8Bytes,
}

/// What is assumed of the medium and the platform; each field is one assumption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaRules {
    /// Stored through the cache, not flushed. Anything but `Lost` means that lines may be
    /// evicted by themselves; `Kept` that caches are in the persistence domain.
    pub stored: CutEffect,
    /// Flushed, not fenced.
    pub flushed: CutEffect,
    /// Stored non-temporally, not fenced.
    pub streamed: CutEffect,
    /// Single words stored to one line survive in program order only, as a prefix. Memory
    /// copies and non-temporal stores never have an order.
    pub line_prefix: bool,
}

impl MediaRules {
    /// The rules of ordinary platforms: nothing is certain before its fence.
    pub const ADR: MediaRules = MediaRules {
        stored: CutEffect::TornAt8Bytes,
        flushed: CutEffect::TornAt8Bytes,
        streamed: CutEffect::TornAt8Bytes,
        line_prefix: true,
    };

    /// Platforms whose caches survive; write-combining buffers do not.
    pub const EADR: MediaRules = MediaRules {
        stored: CutEffect::Kept,
        flushed: CutEffect::Kept,
        streamed: CutEffect::TornAt8Bytes,
        line_prefix: true,
    };

    /// No line is written back before it is flushed: a medium kinder than real ones, to
    /// find out whether a failure needs an eviction.
    pub const NO_EVICTION: MediaRules = MediaRules {
        stored: CutEffect::Lost,
        ..MediaRules::ADR
    };
}

impl Default for MediaRules {
    fn default() -> Self {
        MediaRules::ADR
    }
}

/// An 8-byte unit whose value may or may not be on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// Index of the medium.
    pub medium: usize,
    /// Where, in bytes, a multiple of 8.
    pub offset: usize,
    /// The whole unit after the store.
    pub value: [u8; UNIT_BYTES],
    /// The event that stored it.
    pub event: usize,
    /// How it was stored.
    pub kind: StoreKind,
    /// The operation that stored it.
    pub operation: u64,
    /// On whose behalf.
    pub path: Path,
}

impl Unit {
    fn line(&self) -> (usize, usize) {
        (self.medium, self.offset / LINE_BYTES)
    }
}

/// Which of the uncertain units survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice<'c> {
    /// None.
    None,
    /// All.
    All,
    /// Those whose entry, by place in [`Cut::units`], is true; missing entries are false.
    Mask(&'c [bool]),
    /// Each with probability one half, the same for the same seed.
    Seed(u64),
}

impl Choice<'_> {
    pub(crate) fn survivors(&self, units: usize) -> Vec<bool> {
        match *self {
            Choice::None => vec![false; units],
            Choice::All => vec![true; units],
            Choice::Mask(mask) => (0..units)
                .map(|index| mask.get(index).copied().unwrap_or(false))
                .collect(),
            Choice::Seed(seed) => {
                let mut state = seed;
                (0..units)
                    .map(|_| next_random(&mut state) >> 63 == 1)
                    .collect()
            }
        }
    }
}

/// The moment of a power cut.
#[derive(Debug)]
pub struct Cut<'r> {
    replay: &'r Replay<'r>,
    line_prefix: bool,
    units: Vec<Unit>,
    kept: Vec<Unit>,
}

impl<'r> Cut<'r> {
    pub(crate) fn new(replay: &'r Replay<'r>, line_prefix: bool) -> Self {
        Cut {
            replay,
            line_prefix,
            units: Vec::new(),
            kept: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, unit: Unit, effect: CutEffect) {
        match effect {
            CutEffect::Kept => self.kept.push(unit),
            CutEffect::Lost => {}
            CutEffect::TornAt8Bytes => self.units.push(unit),
        }
    }

    pub(crate) fn sort(&mut self) {
        let order = |unit: &Unit| (unit.event, unit.medium, unit.offset);
        self.units.sort_by_key(order);
        self.kept.sort_by_key(order);
    }

    /// The units that may or may not survive, in the order in which they were stored.
    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// The units that survive under `choice`, in order: write these over
    /// [`Replay::durable`] to get the image. Where words of a line survive as a prefix,
    /// earlier words of it are added to the choice.
    pub fn survivors(&self, choice: &Choice<'_>) -> Vec<Unit> {
        let mut alive = choice.survivors(self.units.len());
        if self.line_prefix {
            let mut needed = HashSet::new();
            for (index, unit) in self.units.iter().enumerate().rev() {
                if unit.kind == StoreKind::Word {
                    if alive[index] {
                        needed.insert(unit.line());
                    }
                    alive[index] |= needed.contains(&unit.line());
                }
            }
        }
        let chosen = self.units.iter().zip(&alive).filter(|(_, alive)| **alive);
        let mut survivors: Vec<Unit> = self.kept.clone();
        survivors.extend(chosen.map(|(unit, _)| *unit));
        survivors.sort_by_key(|unit| (unit.event, unit.medium, unit.offset));
        survivors
    }

    /// The contents of a medium after the cut.
    ///
    /// # Panics
    /// If there is no such medium.
    pub fn image(&self, medium: usize, choice: &Choice<'_>) -> Vec<u8> {
        let mut image = vec![0; self.replay.durable(medium).len()];
        self.write_image(medium, choice, |at, bytes| {
            image[at..at + bytes.len()].copy_from_slice(bytes);
        });
        image
    }

    /// Writes the contents of a medium after the cut with `write`, which gets an offset and what is there: all of it once,
    /// and then what survives beyond that.
    ///
    /// # Panics
    /// If there is no such medium.
    pub fn write_image(
        &self,
        medium: usize,
        choice: &Choice<'_>,
        mut write: impl FnMut(usize, &[u8]),
    ) {
        let durable = self.replay.durable(medium);
        write(0, durable);
        for unit in self.survivors(choice) {
            if unit.medium == medium {
                let end = durable.len().min(unit.offset + UNIT_BYTES);
                write(unit.offset, &unit.value[..end - unit.offset]);
            }
        }
    }
}
