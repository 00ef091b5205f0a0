//! Steps through a recording and knows, at each event, what is certain to be on the
//! media and what is not.
//!
//! Invariants: `durable` holds what any power cut leaves; `pending` holds, by line, each
//! newer value of an 8-byte unit that might be there instead, in the order in which they
//! were stored. A value is the *whole* unit after its store, so values of a unit stand for
//! each other without regard to which bytes changed.

use std::collections::BTreeMap;

use crate::cut::{Cut, CutEffect, MediaRules, Unit};
use crate::record::{Action, Recorded, Script};
use shale_nvm::counters::Path;
use shale_nvm::{LINE_BYTES, StoreKind};

/// What an aligned store makes atomic, in bytes.
pub(crate) const UNIT_BYTES: usize = 8;

/// A value of one unit that is not certain to be on the medium.
#[derive(Debug, Clone)]
struct Version {
    event: usize,
    offset: usize,
    value: [u8; UNIT_BYTES],
    kind: StoreKind,
    thread: usize,
    operation: u64,
    path: Path,
    /// Threads that started the write-back of this value; the fence of any makes it certain.
    flushed_by: Vec<usize>,
}

impl Version {
    fn is_certain_after_fence_of(&self, thread: usize) -> bool {
        match self.kind {
            StoreKind::Nt => self.thread == thread,
            StoreKind::Word | StoreKind::Copy => self.flushed_by.contains(&thread),
        }
    }

    fn effect(&self, rules: &MediaRules) -> CutEffect {
        match self.kind {
            StoreKind::Nt => rules.streamed,
            _ if self.flushed_by.is_empty() => rules.stored,
            _ => rules.flushed,
        }
    }
}

/// A position in a [`Script`].
#[derive(Debug, Clone)]
pub struct Replay<'s> {
    script: &'s Script,
    at: usize,
    durable: Vec<Vec<u8>>,
    current: Vec<Vec<u8>>,
    /// By medium and number of the line.
    pending: BTreeMap<(usize, usize), Vec<Version>>,
}

impl<'s> Replay<'s> {
    pub(crate) fn new(script: &'s Script) -> Self {
        // Whole units, so that the last needs no special care.
        let padded = |medium| {
            let mut image = script.initial(medium).to_vec();
            image.resize(image.len().next_multiple_of(UNIT_BYTES), 0);
            image
        };
        let durable: Vec<Vec<u8>> = (0..script.media().len()).map(padded).collect();
        Replay {
            script,
            at: 0,
            current: durable.clone(),
            durable,
            pending: BTreeMap::new(),
        }
    }

    /// How many events have happened.
    pub fn at(&self) -> usize {
        self.at
    }

    /// What a medium holds if nothing uncertain survives, and before rules that keep
    /// some of it.
    pub fn durable(&self, medium: usize) -> &[u8] {
        &self.durable[medium][..self.script.initial(medium).len()]
    }

    /// What a medium holds while power is on.
    pub fn current(&self, medium: usize) -> &[u8] {
        &self.current[medium][..self.script.initial(medium).len()]
    }

    /// Lets one more event happen, and returns it; `None` at the end.
    pub fn step(&mut self) -> Option<&'s Recorded> {
        let recorded = self.script.events().get(self.at)?;
        match &recorded.action {
            Action::Store {
                kind,
                offset,
                bytes,
            } => self.store(recorded, *kind, *offset, bytes),
            Action::Flush { offset, lines } => {
                let first = (recorded.medium, offset / LINE_BYTES);
                let end = (recorded.medium, offset / LINE_BYTES + lines);
                for (_, versions) in self.pending.range_mut(first..end) {
                    for version in versions {
                        if !version.flushed_by.contains(&recorded.thread) {
                            version.flushed_by.push(recorded.thread);
                        }
                    }
                }
            }
            Action::Fence => self.fence(recorded.thread),
        }
        self.at += 1;
        Some(recorded)
    }

    /// Steps until `event` events have happened.
    ///
    /// # Panics
    /// If there are fewer, or more have happened already.
    pub fn advance_to(&mut self, event: usize) {
        assert!(event >= self.at, "at event {}, not before {event}", self.at);
        while self.at < event {
            assert!(self.step().is_some(), "no event {event}");
        }
    }

    fn store(&mut self, recorded: &Recorded, kind: StoreKind, offset: usize, bytes: &[u8]) {
        let current = &mut self.current[recorded.medium];
        current[offset..offset + bytes.len()].copy_from_slice(bytes);
        let first = offset / UNIT_BYTES * UNIT_BYTES;
        for unit in (first..offset + bytes.len()).step_by(UNIT_BYTES) {
            let mut value = [0; UNIT_BYTES];
            value.copy_from_slice(&current[unit..unit + UNIT_BYTES]);
            self.pending
                .entry((recorded.medium, unit / LINE_BYTES))
                .or_default()
                .push(Version {
                    event: self.at,
                    offset: unit,
                    value,
                    kind,
                    thread: recorded.thread,
                    operation: recorded.operation,
                    path: recorded.path,
                    flushed_by: Vec::new(),
                });
        }
    }

    /// Makes certain what the thread flushed or streamed; older values of those units
    /// can no longer come back.
    fn fence(&mut self, thread: usize) {
        let durable = &mut self.durable;
        self.pending.retain(|&(medium, _), versions| {
            let mut certain: BTreeMap<usize, usize> = BTreeMap::new();
            for version in versions.iter() {
                if version.is_certain_after_fence_of(thread) {
                    durable[medium][version.offset..version.offset + UNIT_BYTES]
                        .copy_from_slice(&version.value);
                    certain.insert(version.offset, version.event);
                }
            }
            versions.retain(|version| {
                certain
                    .get(&version.offset)
                    .is_none_or(|&event| version.event > event)
            });
            !versions.is_empty()
        });
    }

    /// What is uncertain if power fails now.
    pub fn cut(&self, rules: &MediaRules) -> Cut<'_> {
        let mut cut = Cut::new(self, rules.line_prefix);
        for (&(medium, _), versions) in &self.pending {
            for version in versions {
                let unit = Unit {
                    medium,
                    offset: version.offset,
                    value: version.value,
                    event: version.event,
                    kind: version.kind,
                    operation: version.operation,
                    path: version.path,
                };
                let alone = versions
                    .iter()
                    .filter(|other| other.offset == version.offset)
                    .count()
                    == 1;
                let there = &self.durable[medium][version.offset..version.offset + UNIT_BYTES];
                // The same value again is no second state.
                if alone && there == version.value {
                    continue;
                }
                cut.add(unit, version.effect(rules));
            }
        }
        cut.sort();
        cut
    }
}
