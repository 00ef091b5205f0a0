//! What a power cut leaves of block devices: everything that was flushed, and of what came after
//! that any sectors.
//!
//! A [`BlockTape`] notes what several devices are reported, in one order, and how many events of a
//! [`Recording`] of NVM had happened before each step: media lose power together. A
//! [`BlockReplay`] steps through it.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cut::Choice;
use crate::record::Recording;
use shale_block::{DISCARDED, MemoryBlocks, Step};

/// A step of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted {
    /// Events of NVM that had happened before.
    pub event: usize,
    /// Which device.
    pub device: usize,
    /// What it was reported.
    pub step: Step,
}

/// What devices were reported, in order.
pub struct BlockTape {
    recording: Arc<Recording>,
    noted: Mutex<Vec<Noted>>,
}

impl BlockTape {
    /// Nothing yet.
    pub fn new(recording: &Arc<Recording>) -> Arc<BlockTape> {
        Arc::new(BlockTape {
            recording: Arc::clone(recording),
            noted: Mutex::default(),
        })
    }

    /// Notes what `device`, number `number`, is distinguished from now on.
    pub fn watch(self: &Arc<Self>, number: usize, device: MemoryBlocks) -> MemoryBlocks {
        let tape = Arc::clone(self);
        device.telling(move |step| tape.note(number, step.clone()))
    }

    /// Notes a step of `device`, which is about to happen.
    pub fn note(&self, device: usize, step: Step) {
        let event = self.recording.event_count();
        self.noted.lock().push(Noted {
            event,
            device,
            step,
        });
    }

    /// Takes out all steps so far.
    pub fn take(&self) -> Vec<Noted> {
        std::mem::take(&mut self.noted.lock())
    }
}

/// What is assumed of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockRules {
    /// A flush makes nothing durable, though it says so: for finding out whether a test would see it.
    pub flush_lies: bool,
}

/// A position in what devices were reported.
#[derive(Debug, Clone)]
pub struct BlockReplay<'t> {
    noted: &'t [Noted],
    rules: BlockRules,
    at: usize,
    durable: Vec<Vec<u8>>,
    /// Steps that may or may not have reached their medium, in order.
    pending: Vec<usize>,
}

impl<'t> BlockReplay<'t> {
    /// Before the first step, with `contents` on the devices.
    pub fn new(noted: &'t [Noted], contents: Vec<Vec<u8>>, rules: BlockRules) -> BlockReplay<'t> {
        BlockReplay {
            noted,
            rules,
            at: 0,
            durable: contents,
            pending: Vec::new(),
        }
    }

    /// All steps, those to come too.
    pub fn noted(&self) -> &'t [Noted] {
        self.noted
    }

    /// How many steps have happened.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The next step.
    pub fn next(&self) -> Option<&'t Noted> {
        self.noted.get(self.at)
    }

    /// Whether some of what happened may be lost.
    pub fn is_uncertain(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Lets one more step happen; whether there was one.
    pub fn step(&mut self) -> bool {
        let Some(noted) = self.noted.get(self.at) else {
            return false;
        };
        match &noted.step {
            Step::Flush if self.rules.flush_lies => {}
            Step::Flush => {
                let mine = |n: &usize| self.noted[*n].device == noted.device;
                let (certain, rest): (Vec<_>, Vec<_>) = self.pending.iter().partition(|n| mine(n));
                self.pending = rest;
                for n in certain {
                    let medium = &mut self.durable[noted.device];
                    apply(medium, &self.noted[n].step, usize::MAX, &mut || true);
                }
            }
            _ => self.pending.push(self.at),
        }
        self.at += 1;
        true
    }

    /// What each device holds if power fails now: sectors of `sector_bytes` are written whole or
    /// not at all, and of those that are uncertain the ones that `choice` says.
    pub fn images(&self, sector_bytes: usize, choice: &Choice<'_>) -> Vec<Vec<u8>> {
        let sectors = |n: &usize| bytes_of(&self.noted[*n].step).div_ceil(sector_bytes);
        let alive = choice.survivors(self.pending.iter().map(sectors).sum());
        let mut alive = alive.into_iter();
        let mut images = self.durable.clone();
        for &n in &self.pending {
            let noted = &self.noted[n];
            let mut next = || alive.next().unwrap_or(false);
            apply(
                &mut images[noted.device],
                &noted.step,
                sector_bytes,
                &mut next,
            );
        }
        images
    }

    /// The first write before the end of another one in its zone since that was erased, if there is
    /// one: device and byte. (What is reserved is passed over: a gap.) Zones of `zone_bytes` begin at `from`.
    pub fn out_of_order(noted: &[Noted], from: u64, zone_bytes: u64) -> Option<(usize, u64)> {
        let mut ends = std::collections::BTreeMap::new();
        let mut open = BTreeSet::new();
        for Noted { device, step, .. } in noted {
            let zone = |at: u64| (*device, at.saturating_sub(from) / zone_bytes);
            match step {
                Step::Write { at, bytes } if *at >= from => {
                    let begins = (at - from).is_multiple_of(zone_bytes);
                    let goes_on = match ends.get(&zone(*at)) {
                        Some(end) => end <= at,
                        // Where it goes on after a start only the volume knows.
                        None => begins || open.insert(zone(*at)),
                    };
                    if !goes_on {
                        return Some((*device, *at));
                    }
                    ends.insert(zone(*at), at + bytes.len() as u64);
                }
                Step::Discard { at, .. } => {
                    ends.insert(zone(*at), *at);
                }
                _ => {}
            }
        }
        None
    }
}

fn bytes_of(step: &Step) -> usize {
    match step {
        Step::Write { bytes, .. } => bytes.len(),
        Step::Discard { bytes, .. } => *bytes as usize,
        Step::Flush => 0,
    }
}

/// Does a step to `medium`, sector by sector where `alive` says so.
fn apply(medium: &mut [u8], step: &Step, sector_bytes: usize, alive: &mut dyn FnMut() -> bool) {
    let (at, len) = match step {
        Step::Write { at, bytes } => (*at as usize, bytes.len()),
        Step::Discard { at, bytes } => (*at as usize, *bytes as usize),
        Step::Flush => return,
    };
    for from in (0..len).step_by(sector_bytes.min(len.max(1))) {
        let to = len.min(from.saturating_add(sector_bytes));
        if !alive() {
            continue;
        }
        match step {
            Step::Write { bytes, .. } => {
                medium[at + from..at + to].copy_from_slice(&bytes[from..to])
            }
            _ => medium[at + from..at + to].fill(DISCARDED),
        }
    }
}
