//! Waiting for the calls of clients to end, for as long as it may take (DESIGN §9).

use super::client::{Client, Fate, Reach};
use super::gate::{Inside, Waiting};
use super::shared::Shared;
use super::sync::{Ordering, mutants};
use std::sync::Arc;

impl Shared {
    /// Passes the gates of clients after a change to their pages.
    pub(crate) fn pass_gates(self: &Arc<Self>, clients: &[Arc<Client>]) {
        if clients.is_empty() || mutants::is_on("lease-gate") {
            return;
        }
        if !mutants::is_on("lease-barrier") {
            self.barrier.run();
        }
        let look = |client: &Arc<Client>| (client.clone(), Inside::look(&client.client_page));
        self.wait_outside(clients.iter().map(look).collect());
    }

    /// Waits until clients have left the calls they were inside of: for all at the same time, so
    /// that several that are held up take one limit.
    pub(crate) fn wait_outside(self: &Arc<Self>, mut calls: Vec<(Arc<Client>, Inside)>) {
        let limit = self.config.gate_timeout;
        let mut waiting = Waiting::default();
        loop {
            calls.retain_mut(|(client, inside)| {
                !inside.passed(&client.client_page) && !has_gone(client)
            });
            if calls.is_empty() {
                return;
            }
            if !waiting.turn(limit) {
                calls.retain(|(client, _)| self.waits_on(client));
                waiting = Waiting::default();
            }
        }
    }

    /// A client has stayed inside a call for the limit: it is cut off, unless it is part of this
    /// process: cutting it off would not stop it from using what is freed. Whether it is waited
    /// for once more.
    fn waits_on(self: &Arc<Self>, client: &Arc<Client>) -> bool {
        let ms = self.config.gate_timeout.as_millis();
        match client.reach {
            Reach::Socket => {
                self.evict(client, format!("it stayed inside a call for {ms} ms"));
                false
            }
            Reach::InProcess if self.closing.load(Ordering::Acquire) => false,
            Reach::InProcess => {
                tracing::warn!(
                    client = client.id,
                    "a call of this process has not ended for {ms} ms: freed blocks wait for it"
                );
                true
            }
        }
    }
}

/// Whoever was cut off finds out before it returns what it read; whoever has gone may have died
/// inside a call.
fn has_gone(client: &Client) -> bool {
    let evicted = || matches!(*client.fate.lock(), Fate::Evicted(_));
    client.leaving.load(Ordering::Acquire) || client.reach == Reach::Socket && evicted()
}
