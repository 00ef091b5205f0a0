//! Threads that are held up between two accesses to NVM, at random: what takes two threads
//! within the time of one store happens often.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shale_nvm::counters::Path;
use shale_nvm::{Recorder, Sink};
use shale_record::Medium;

use shale_bench::chance::Chance;

/// One access in so many is held up.
const ONE_IN: u64 = 8;
/// For so long at most.
const MICROSECONDS: u64 = 120;

/// The same between two steps, of which there are few: another thread's call has to fit in.
const MICROSECONDS_BETWEEN: u64 = 4_000;

/// Whether and how threads are held up. As made: not at all.
#[derive(Debug, Default)]
pub struct Unrest {
    /// 0: none.
    state: AtomicU64,
}

impl Unrest {
    /// Begins, or ends with `None`.
    pub fn set(&self, seed: Option<u64>) {
        self.state
            .store(seed.map_or(0, |seed| seed | 1), Ordering::Relaxed);
    }

    fn hold_up(&self) {
        if self.state.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut chance = Chance::new(self.state.fetch_add(2, Ordering::Relaxed));
        if chance.below(ONE_IN) == 0 {
            std::thread::sleep(Duration::from_micros(chance.below(MICROSECONDS)));
        }
    }
}

/// Holds up a caller that is between two steps that take no time; for builds in which there are
/// such places (feature `mutants`).
pub fn hold_between() {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let mut chance = Chance::new(NUMBER.fetch_add(1, Ordering::Relaxed));
    if chance.below(2) == 0 {
        std::thread::sleep(Duration::from_micros(chance.below(MICROSECONDS_BETWEEN)));
    }
}

/// Records, and holds up before.
pub(crate) struct Restless {
    pub(crate) medium: Arc<Medium>,
    pub(crate) unrest: Arc<Unrest>,
}

impl Recorder for Restless {
    fn attached(&self, bytes: usize, read: &dyn Fn(&mut [u8])) {
        self.medium.attached(bytes, read);
    }

    fn record(&self, path: Path, act: &mut dyn FnMut(&mut dyn Sink)) {
        self.unrest.hold_up();
        self.medium.record(path, act);
    }
}
