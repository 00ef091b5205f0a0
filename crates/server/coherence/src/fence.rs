//! Cutting a client off (DESIGN §9).

use super::Queue;
use super::barrier::Barrier;
use super::client::{Client, ClientState};
use super::clients::Clients;
use shale_proto::shared_pages::state;
use std::sync::Arc;

/// Cuts clients off.
pub struct Fence {
    barrier: Barrier,
    clients: Arc<Clients>,
    /// What the log of a client held that was cut off is digested by the thread that works on this.
    queue: Arc<Queue>,
}

impl Fence {
    /// `barrier`: as of [`Barrier::register`].
    pub fn new(barrier: Barrier, clients: Arc<Clients>, queue: Arc<Queue>) -> Self {
        Self {
            barrier,
            clients,
            queue,
        }
    }

    /// Cuts a client off. What its log held at this moment will be digested; then its
    /// leases go. Its other things wait for its process to end, since it may still be writing to them.
    pub fn evict(&self, client: &Arc<Client>, why: String) {
        {
            let mut client_state = client.client_state.lock();
            if matches!(*client_state, ClientState::Evicted(_)) {
                return;
            }
            client.cut(self.barrier);
            client.daemon_page.set_state(state::EVICTED);
            *client_state = ClientState::Evicted(why.clone());
        }
        tracing::error!(
            client = client.id,
            pid = client.pid,
            "client cut off: {why}"
        );
        self.clients.note_detached(client, why);
        self.queue.push(client);
    }
}

/// Whether a client was cut off and nothing of its log is to be digested any more: then its leases go.
pub fn is_over(client: &Client) -> bool {
    let evicted = matches!(*client.client_state.lock(), ClientState::Evicted(_));
    // Of what a refused record is followed by nothing counts, so nothing is needed for it.
    let refused = || client.work.lock().refused.is_some();
    evicted && (refused() || client.backlog() == 0)
}
