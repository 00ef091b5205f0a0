//! Waiting for the calls of one client to end, for as long as it may take (DESIGN §9).

use super::client::{Client, Fate, Reach};
use super::gate::Inside;
use super::shared::Shared;
use super::sync::{Ordering, mutants};
use std::sync::Arc;

impl Shared {
    /// Passes the gates of one client after a change to its page.
    pub(crate) fn pass_gate(self: &Arc<Self>, client: &Arc<Client>) {
        if mutants::is_on("lease-gate") {
            return;
        }
        if !mutants::is_on("lease-barrier") {
            self.barrier.run();
        }
        let mut inside = Inside::look(&client.client_page);
        self.wait_outside(client, &mut inside);
    }

    /// Waits until the client has left the calls it was inside of. One that does not is
    /// cut off, unless it is part of this process: cutting it off would not stop it
    /// from using what is freed.
    pub(crate) fn wait_outside(self: &Arc<Self>, client: &Arc<Client>, inside: &mut Inside) {
        let limit = self.config.gate_timeout;
        loop {
            // Whoever was cut off finds out before it returns what it read; whoever has
            // gone may have died inside a call.
            let evicted = matches!(*client.fate.lock(), Fate::Evicted(_));
            let socket = client.reach == Reach::Socket;
            if client.leaving.load(Ordering::Acquire) || evicted && socket {
                return;
            }
            if inside.wait(&client.client_page, limit) {
                return;
            }
            match client.reach {
                Reach::Socket => self.evict(
                    client,
                    format!("it stayed inside a call for {} ms", limit.as_millis()),
                ),
                Reach::InProcess if self.closing.load(Ordering::Acquire) => return,
                Reach::InProcess => tracing::warn!(
                    client = client.id,
                    "a call of this process has not ended for {} ms: freed blocks wait for it",
                    limit.as_millis()
                ),
            }
        }
    }
}
