//! Hardening of a volume whose memory tier and logs lie in shared memory: what makes records survive a power cut, and what
//! lets the staging area be used again (StageFS §3; DESIGN "Volumes without NVM").
//!
//! | Module | What it does |
//! | --- | --- |
//! | [`hardener`] | appends records of logs to the staging area, one durable write for all who wait (group commit) |
//! | [`checkpointer`] | writes the pages of the memory tier that have changed, so that batches before them are not needed any more |
//! | [`waiters`] | who waits for which log |
//! | [`taken`] | what a batch has of one log |
//! | [`commit_times`] | how long batches take, as percentiles |
//!
//! **Order.** A log is digested only as far as it is hardened: before the chunk, or in it, between its data and its transaction ([`hardener::Hardener::harden_placed`]). A lease moves, and a number or a
//! block is used again, only after what was done under it is digested. So of two records of which one builds on the other, the
//! first is in the same batch piece or in an earlier batch, and a restore that digests batches in their order sees every record in a
//! state that it could have been logged in. An image of the memory tier holds nothing that is not hardened.
//!
//! **Space.** Batches are free once a checkpoint holds all that their records did. Where the staging area is full, logs are digested as
//! far as they are hardened (that takes no staging space), then a checkpoint frees it
//! ([`DigestScheduler::make_staging_space`](crate::digest_scheduler::DigestScheduler::make_staging_space)).

pub(crate) mod checkpointer;
pub(crate) mod commit_times;
pub(crate) mod hardener;
mod taken;
mod waiters;

pub(crate) use taken::NotHardened;

use checkpointer::Checkpointer;
use hardener::Hardener;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

/// The services of a staged volume.
#[derive(Clone)]
pub(crate) struct Staged {
    pub(crate) hardener: Arc<Hardener>,
    pub(crate) checkpointer: Arc<Checkpointer>,
    /// Ends the thread that hardens what nobody waits for.
    pub(crate) stop: Arc<StopFlag>,
}

/// Ends a thread that does something now and then.
#[derive(Default)]
pub(crate) struct StopFlag {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl StopFlag {
    /// Has the thread end.
    pub(crate) fn stop(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for `time`, or until it is to end; whether it is.
    fn wait(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        self.changed
            .wait_while_for(&mut stopped, |stopped| !*stopped, time);
        *stopped
    }

    /// Calls `work` every `pause` until it is to end.
    pub(crate) fn every(&self, pause: Duration, mut work: impl FnMut()) {
        while !self.wait(pause) {
            work();
        }
    }
}
