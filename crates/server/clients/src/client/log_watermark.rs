//! How far a client's log goes: what it says, what is believed, where it was cut off.

use super::super::barrier::Barrier;
use super::super::log_reader::set_word;
use super::super::sync::{Ordering, mutants};
use super::{Client, ClientState};
use shale_format::LogPos;
use shale_format::limits::RECORD_ALIGN;
use shale_format::log::{END_AT, end};
use shale_persist::Published;

/// How far a log was believed to be complete, and where it was cut off.
#[derive(Debug)]
pub struct ValidatedWatermark {
    /// Highest published position that was believed.
    believed: u64,
    /// Nothing from here on counts; `u64::MAX` while the client is served.
    cut: u64,
}

impl Default for ValidatedWatermark {
    fn default() -> Self {
        Self {
            believed: 0,
            cut: u64::MAX,
        }
    }
}

impl Client {
    /// Records before this are in the volume.
    pub fn digested(&self) -> u64 {
        self.digested.load(Ordering::Acquire)
    }

    /// Records before `pos` are in the volume now. The position never goes back.
    pub fn set_digested(&self, pos: LogPos) {
        let before = self.digested();
        assert!(pos.0 >= before, "digested to {}, then to {before}", pos.0);
        self.digested.store(pos.0, Ordering::Release);
        self.daemon_page.set_digested(pos.0);
    }

    /// How far the client says that its log is published. What cannot be true is
    /// not believed: the word never goes back, is a multiple of a record's unit, and never runs
    /// a ring ahead of what was digested (the client keeps no more than a ring).
    pub fn published(&self) -> Published {
        let mut reached = self.reached.lock();
        self.look_at_log(&mut reached);
        Published::at(LogPos(reached.believed.min(reached.cut)))
    }

    fn look_at_log(&self, reached: &mut ValidatedWatermark) {
        let unit = RECORD_ALIGN as u64;
        let highest = self.digested() + self.ring_bytes;
        let said = self.client_page.published() / unit * unit;
        reached.believed = reached.believed.max(said.min(highest));
    }

    /// From now on nothing that the client publishes counts. A thread that is appending finds out
    /// before the call returns. Exact: the end is what is believed at one moment, and nobody
    /// believes more afterwards.
    pub fn cut(&self, barrier: Barrier) {
        let early = mutants::is_on("seal-early").then(|| self.published().pos().0);
        set_word(&self.log_fd, END_AT, end::SOUGHT);
        if !mutants::is_on("seal-barrier") {
            barrier.run();
        }
        let early =
            early.or_else(|| mutants::is_on("seal-in-pieces").then(|| self.published().pos().0));
        let mut reached = self.reached.lock();
        let now = early.unwrap_or_else(|| {
            self.look_at_log(&mut reached);
            reached.believed
        });
        reached.cut = reached.cut.min(now);
        let cut = reached.cut;
        drop(reached);
        set_word(&self.log_fd, END_AT, end::at(cut));
    }

    /// Whether requests are answered.
    pub fn served(&self) -> bool {
        *self.client_state.lock() == ClientState::Served && !self.leaving.load(Ordering::Acquire)
    }

    /// Bytes of log that wait for digest.
    pub fn backlog(&self) -> u64 {
        self.published().pos().0.saturating_sub(self.digested())
    }
}
