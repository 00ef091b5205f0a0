//! After a digest: when nobody can hold what it freed, give it out again.
//!
//! A digest publishes its position and a new epoch and goes on. One thread then passes
//! the gates of all clients, and of the daemon's own readers, once for all
//! digests that were published before; only then are freed blocks allocatable and is
//! log space below the digested position the client's to overwrite. A client that
//! does not move in time is cut off, so one sleeper cannot stop the volume.

use crate::client::Client;
use crate::gate::Inside;
use crate::shared::Shared;
use crate::space::Supply;
use parking_lot::{Condvar, Mutex};
use shale_device::mutants;
use shale_format::TxId;
use std::sync::Arc;
use std::time::Duration;

#[derive(Default)]
struct State {
    wanted: u64,
    done: u64,
    stop: bool,
}

/// Who waits for the next pass, and how many there were.
#[derive(Default)]
pub(crate) struct Release {
    state: Mutex<State>,
    changed: Condvar,
}

impl Release {
    /// Asks for a pass that begins after this call. Gives its number.
    pub(crate) fn ask(&self) -> u64 {
        let mut state = self.state.lock();
        state.wanted += 1;
        self.changed.notify_all();
        state.wanted
    }

    /// Waits until pass `number` is through, at most `limit`; whether it is.
    pub(crate) fn wait(&self, number: u64, limit: Duration) -> bool {
        let mut state = self.state.lock();
        self.changed
            .wait_while_for(&mut state, |s| s.done < number && !s.stop, limit);
        state.done >= number
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// The number that the next pass will reach; `None`: stop.
    fn next(&self) -> Option<u64> {
        let mut state = self.state.lock();
        self.changed
            .wait_while(&mut state, |s| s.wanted == s.done && !s.stop);
        (!state.stop).then_some(state.wanted)
    }

    fn through(&self, number: u64) {
        self.state.lock().done = number;
        self.changed.notify_all();
    }
}

impl Shared {
    /// The thread that passes gates.
    pub(crate) fn release_loop(self: &Arc<Self>) {
        while let Some(number) = self.release.next() {
            self.release_once();
            self.release.through(number);
        }
    }

    /// What could be given out by whoever waits until all that is free is released.
    pub(crate) fn released_supply(&self) -> Supply {
        // While it is locked no idle block becomes a free one: each is counted once.
        let idle = self.idle_blocks.lock();
        Supply::of(&self.volume).released(idle.iter().map(|run| run.len).sum())
    }

    fn release_once(self: &Arc<Self>) {
        let txid: TxId = self.published();
        let idle = self.idle_blocks.lock().len();
        let clients: Vec<(Arc<Client>, u64)> = self
            .clients()
            .into_iter()
            .map(|c| {
                let digested = c.digested();
                (c, digested)
            })
            .collect();
        if mutants::is_on("freed-early") {
            self.volume.release_up_to(txid);
        }
        if mutants::is_on("reclaim-gate") {
            for (client, digested) in &clients {
                client.daemon_page.set_reclaim(*digested);
            }
        }
        self.barrier.run();
        let look = |(c, _): &(Arc<Client>, u64)| (c.clone(), Inside::look(&c.client_page));
        let inside = clients.iter().map(look).collect();
        self.readers.pass();
        self.wait_outside(inside);
        self.volume.release_up_to(txid);
        let mut blocks = self.idle_blocks.lock();
        blocks
            .drain(..idle)
            .for_each(|run| self.volume.give_back(run));
        drop(blocks);
        for (client, digested) in clients {
            let early = mutants::is_on("reclaim-early");
            let upto = if early { client.committed() } else { digested };
            client.daemon_page.set_reclaim(upto);
        }
    }
}
