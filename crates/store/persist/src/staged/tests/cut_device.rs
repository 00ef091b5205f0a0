//! A device that notes what was done to it, and what a power cut at any of its steps could leave.

use super::PAGE_BYTES;
use parking_lot::Mutex;
use rustix::io::Errno;
use shale_block::{BlockCounts, BlockDevice, BlockError, TierDevice};
use shale_sys::random::next_random;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a power cut leaves whole.
const SECTOR_BYTES: usize = 512;

enum Step {
    Write(u64, Vec<u8>),
    /// Durable on return, and nothing else with it.
    WriteDurable(u64, Vec<u8>),
    Flush,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    begun_with: Vec<u8>,
    steps: Vec<Step>,
    /// How many more steps succeed.
    left: Option<usize>,
}

/// See the module.
#[derive(Default)]
pub(super) struct CutDevice {
    state: Mutex<State>,
}

impl CutDevice {
    /// A device with these contents, all durable.
    pub(super) fn holding(bytes: Vec<u8>) -> Arc<Self> {
        let state = State {
            begun_with: bytes.clone(),
            bytes,
            ..State::default()
        };
        Arc::new(Self {
            state: Mutex::new(state),
        })
    }

    /// Every change fails once `steps` more have succeeded.
    pub(super) fn fail_after(&self, steps: usize) {
        self.state.lock().left = Some(steps);
    }

    pub(super) fn contents(&self) -> Vec<u8> {
        self.state.lock().bytes.clone()
    }

    /// How many steps have happened.
    pub(super) fn steps(&self) -> usize {
        self.state.lock().steps.len()
    }

    /// What it holds after a power cut during step `cut`: of what was not durable by then any blocks, each as a whole
    /// or some sectors of it.
    pub(super) fn cut(&self, cut: usize, seed: &mut u64) -> Vec<u8> {
        let state = self.state.lock();
        let mut durable = state.begun_with.clone();
        // The newest contents of each block first written since it was durable, in order of writing.
        let mut pending: Vec<(usize, &[u8])> = Vec::new();
        for (n, step) in state.steps.iter().enumerate().take(cut + 1) {
            let is_done = n < cut;
            match step {
                Step::Flush if is_done => {
                    for (at, block) in pending.drain(..) {
                        durable[at..at + PAGE_BYTES].copy_from_slice(block);
                    }
                }
                Step::Flush => {}
                Step::WriteDurable(at, bytes) if is_done => {
                    let at = *at as usize;
                    let range = at..at + bytes.len();
                    pending.retain(|(at, _)| !range.contains(at));
                    durable[range].copy_from_slice(bytes);
                }
                Step::Write(at, bytes) | Step::WriteDurable(at, bytes) => {
                    let blocks = bytes.chunks(PAGE_BYTES).enumerate();
                    pending.extend(blocks.map(|(n, b)| (*at as usize + n * PAGE_BYTES, b)));
                }
            }
        }
        // Mostly all or nearly all, or nothing, for these are what is missed.
        let kept = [0, 1, 8, 15, 16][next_random(seed) as usize % 5];
        for (at, block) in pending {
            for (n, sector) in block.chunks(SECTOR_BYTES).enumerate() {
                let is_torn = next_random(seed).is_multiple_of(8);
                let kept = if is_torn { 8 } else { kept };
                if next_random(seed) % 16 < kept {
                    durable[at + n * SECTOR_BYTES..][..sector.len()].copy_from_slice(sector);
                }
            }
        }
        durable
    }

    /// What it holds if all before step `cut` is durable and nothing of that step.
    pub(super) fn cut_without(&self, cut: usize) -> Vec<u8> {
        let state = self.state.lock();
        let mut durable = state.begun_with.clone();
        for step in &state.steps[..cut] {
            if let Step::Write(at, bytes) | Step::WriteDurable(at, bytes) = step {
                durable[*at as usize..][..bytes.len()].copy_from_slice(bytes);
            }
        }
        durable
    }

    /// How often each block was written, for tests of what is written where.
    pub(super) fn written_blocks(&self, from_step: usize) -> BTreeMap<u64, usize> {
        let mut blocks = BTreeMap::new();
        for step in &self.state.lock().steps[from_step..] {
            if let Step::Write(at, bytes) | Step::WriteDurable(at, bytes) = step {
                for n in 0..(bytes.len() / PAGE_BYTES) as u64 {
                    *blocks.entry(at / PAGE_BYTES as u64 + n).or_default() += 1;
                }
            }
        }
        blocks
    }

    fn step(&self, step: Step) -> Result<(), BlockError> {
        let mut state = self.state.lock();
        match &mut state.left {
            Some(0) => return Err(BlockError::os("cut", "change it", Errno::IO)),
            Some(left) => *left -= 1,
            None => {}
        }
        if let Step::Write(at, bytes) | Step::WriteDurable(at, bytes) = &step {
            state.bytes[*at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        state.steps.push(step);
        Ok(())
    }
}

impl BlockDevice for CutDevice {
    fn bytes(&self) -> u64 {
        self.state.lock().bytes.len() as u64
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), BlockError> {
        into.copy_from_slice(&self.state.lock().bytes[at as usize..][..into.len()]);
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), BlockError> {
        self.step(Step::Write(at, from.to_vec()))
    }

    fn write_durable(&self, at: u64, from: &[u8]) -> Result<(), BlockError> {
        self.step(Step::WriteDurable(at, from.to_vec()))
    }

    fn discard(&self, _at: u64, _bytes: u64) -> Result<(), BlockError> {
        panic!("nothing of an area is discarded")
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.step(Step::Flush)
    }
}

impl TierDevice for CutDevice {
    fn counts(&self) -> BlockCounts {
        BlockCounts::default()
    }

    fn access(&self) -> &'static str {
        "memory"
    }

    fn name(&self) -> String {
        "cut".to_owned()
    }
}
