//! Waiting for the calls of clients to end, for as long as it may take (DESIGN §9).

use super::barrier::Barrier;
use super::client::{Client, ClientState, Transport};
use super::clients::Clients;
use super::fence::Fence;
use super::readers::{ActiveReaders, Backoff};
use super::sync::{Ordering, mutants};
use std::sync::Arc;
use std::time::Duration;

/// Waits until clients have left their calls. A client that does not in time is cut off.
pub struct GracePeriods {
    barrier: Barrier,
    clients: Arc<Clients>,
    fence: Arc<Fence>,
    limit: Duration,
}

impl GracePeriods {
    /// `limit`: how long a client may stay inside one call while others wait for it.
    pub fn new(
        barrier: Barrier,
        clients: Arc<Clients>,
        fence: Arc<Fence>,
        limit: Duration,
    ) -> Self {
        Self {
            barrier,
            clients,
            fence,
            limit,
        }
    }

    /// Longest wait for clients of other processes, if all are waited for at the same time: a limit for those
    /// that are inside of calls, and as much for those that wait in turn.
    pub fn longest(&self) -> Duration {
        self.limit * 2
    }

    /// Waits until every call that clients were inside of has ended, after a change to their pages.
    pub fn wait(&self, clients: &[Arc<Client>]) {
        if clients.is_empty() || mutants::is_on("lease-grace") {
            return;
        }
        if !mutants::is_on("lease-barrier") {
            self.barrier.run();
        }
        self.wait_outside(inside(clients));
    }

    /// The calls that clients are inside of, or may be without having seen the last change to their pages: for
    /// [`Self::wait_outside`].
    pub fn calls(&self, clients: &[Arc<Client>]) -> Vec<(Arc<Client>, ActiveReaders)> {
        self.barrier.run();
        inside(clients)
    }

    /// Waits until clients have left the calls they were inside of: for all at the same time, so
    /// that several that are held up take one limit.
    pub fn wait_outside(&self, mut calls: Vec<(Arc<Client>, ActiveReaders)>) {
        let mut backoff = Backoff::default();
        loop {
            calls.retain_mut(|(client, inside)| {
                !inside.passed(&client.client_page) && !has_gone(client)
            });
            if calls.is_empty() {
                return;
            }
            if !backoff.step(self.limit) {
                calls.retain(|(client, _)| self.waits_on(client));
                backoff = Backoff::default();
            }
        }
    }

    /// A client has stayed inside a call for the limit: it is cut off, unless it is part of this
    /// process: cutting it off would not stop it from using what is freed. Whether it is waited
    /// for once more.
    fn waits_on(&self, client: &Arc<Client>) -> bool {
        let ms = self.limit.as_millis();
        match client.transport {
            Transport::Socket => {
                let why = format!("it stayed inside a call for {ms} ms");
                self.fence.evict(client, why);
                false
            }
            Transport::InProcess if self.clients.is_closing() => false,
            Transport::InProcess => {
                tracing::warn!(
                    client = client.id,
                    "a call of this process has not ended for {ms} ms: freed blocks wait for it"
                );
                true
            }
        }
    }
}

/// The calls that clients are inside of. A barrier comes before.
fn inside(clients: &[Arc<Client>]) -> Vec<(Arc<Client>, ActiveReaders)> {
    let look =
        |client: &Arc<Client>| (client.clone(), ActiveReaders::snapshot(&client.client_page));
    clients.iter().map(look).collect()
}

/// A client that was cut off finds out before it returns what it read; a client that has gone may have died
/// inside a call.
fn has_gone(client: &Client) -> bool {
    let evicted = || matches!(*client.client_state.lock(), ClientState::Evicted(_));
    client.leaving.load(Ordering::Acquire) || client.transport == Transport::Socket && evicted()
}
