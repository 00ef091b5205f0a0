//! After a digest: when nobody can hold what it freed, give it out again.
//!
//! A digest publishes its position and a new epoch and goes on. One thread then waits for the calls of
//! all clients, and for the daemon's own readers, once for all digests that were published before;
//! only then are freed blocks allocatable and is log space below the digested position the client's
//! to overwrite. A client that does not move in time is cut off, so one sleeper cannot stop the volume.

use super::clients::Clients;
use super::grace::GracePeriods;
use super::readers::{LocalReaders, ReadGuard};
use parking_lot::{Condvar, Mutex};
use shale_format::TxId;
use shale_sys::mutants;
use shale_volume::{Run, Volume};
use std::sync::Arc;
use std::time::Duration;

#[derive(Default)]
struct State {
    wanted: u64,
    done: u64,
    stop: bool,
}

/// Gives out again what was freed.
pub struct Reclaimer {
    volume: Arc<Volume>,
    clients: Arc<Clients>,
    grace: Arc<GracePeriods>,
    readers: LocalReaders,
    /// Blocks that no file needs, and that a thread of a client may still be reading.
    deferred: Mutex<Vec<Run>>,
    /// Who waits for the next grace period, and how many there were.
    state: Mutex<State>,
    changed: Condvar,
}

impl Reclaimer {
    /// Nothing is given out again before somebody calls [`Self::run`].
    pub fn new(
        volume: Arc<Volume>,
        clients: Arc<Clients>,
        grace: Arc<GracePeriods>,
        readers: LocalReaders,
    ) -> Self {
        Self {
            volume,
            clients,
            grace,
            readers,
            deferred: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Begins to read the volume: what is freed from now on stays as it is until the reader is dropped.
    pub fn read(&self) -> ReadGuard<'_> {
        self.readers.enter()
    }

    /// Asks for a grace period that begins after this call. Gives its number.
    pub fn request(&self) -> u64 {
        let mut state = self.state.lock();
        state.wanted += 1;
        self.changed.notify_all();
        state.wanted
    }

    /// Asks for a grace period and waits until it has ended, at most `limit`; whether it is.
    pub fn wait_grace_period_within(&self, limit: Duration) -> bool {
        let number = self.request();
        let mut state = self.state.lock();
        self.changed
            .wait_while_for(&mut state, |s| s.done < number && !s.stop, limit);
        state.done >= number
    }

    /// The same, for as long as it may take: who does not leave a call in time is cut off meanwhile.
    pub fn wait_grace_period(&self) -> bool {
        self.wait_grace_period_within(self.grace.longest())
    }

    /// Frees blocks after the next grace period that begins.
    pub fn defer_free(&self, runs: &[Run]) {
        self.deferred.lock().extend(runs.iter().copied());
    }

    /// Whether a grace period would free something.
    pub fn has_freed(&self) -> bool {
        self.volume.space().pending > 0 || !self.deferred.lock().is_empty()
    }

    /// Calls `f` with the number of blocks that are free as soon as no reader can hold them, and that the volume does not know of.
    /// None of them becomes one that it knows of meanwhile: each is counted once.
    pub fn with_deferred<T>(&self, f: impl FnOnce(u64) -> T) -> T {
        let deferred = self.deferred.lock();
        f(deferred.iter().map(|run| run.len).sum())
    }

    /// The thread that waits for grace periods, until [`Self::stop`].
    pub fn run(&self) {
        while let Some(number) = self.next() {
            self.run_grace_period();
            let mut state = self.state.lock();
            assert!(
                (state.done + 1..=state.wanted).contains(&number),
                "grace period {number} has ended, of {} after {}",
                state.wanted,
                state.done
            );
            state.done = number;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// The number that the next grace period will reach; `None`: stop.
    fn next(&self) -> Option<u64> {
        let mut state = self.state.lock();
        self.changed
            .wait_while(&mut state, |s| s.wanted == s.done && !s.stop);
        (!state.stop).then_some(state.wanted)
    }

    fn run_grace_period(&self) {
        let txid: TxId = self.clients.published();
        let deferred = self.deferred.lock().len();
        let clients = self.clients.snapshot();
        let digested: Vec<u64> = clients.iter().map(|client| client.digested()).collect();
        if mutants::is_on("freed-early") {
            self.volume.release_up_to(txid);
        }
        let reclaim = || clients.iter().zip(&digested);
        if mutants::is_on("reclaim-grace") {
            reclaim().for_each(|(client, upto)| client.daemon_page.set_reclaim(*upto));
        }
        let calls = self.grace.calls(&clients);
        self.readers.wait_for_all();
        self.grace.wait_outside(calls);
        self.volume.release_up_to(txid);
        let mut blocks = self.deferred.lock();
        assert!(blocks.len() >= deferred, "only grace periods free them");
        blocks
            .drain(..deferred)
            .for_each(|run| self.volume.give_back(run));
        drop(blocks);
        for (client, &digested) in reclaim() {
            let upto = match mutants::is_on("reclaim-early") {
                true => client.published().pos().0,
                false => digested,
            };
            assert!(
                upto <= client.digested() || mutants::is_on("reclaim-early"),
                "log space is given back before its records are in the volume"
            );
            client.daemon_page.set_reclaim(upto);
        }
    }
}
