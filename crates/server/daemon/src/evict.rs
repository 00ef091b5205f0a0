//! Cutting a client off, and what follows from it (DESIGN §9).

use super::client::{Client, Fate};
use super::shared::Shared;
use shale_proto::control::state;
use std::sync::Arc;

impl Shared {
    /// Cuts a client off. What its log held at this moment will be digested; then its
    /// leases go. Its other things wait for its process to end, since it may still be writing to them.
    pub(crate) fn evict(self: &Arc<Self>, client: &Arc<Client>, why: String) {
        {
            let mut fate = client.fate.lock();
            if matches!(*fate, Fate::Evicted(_)) {
                return;
            }
            client.cut(self.barrier);
            client.daemon_page.set_state(state::EVICTED);
            *fate = Fate::Evicted(why.clone());
        }
        tracing::error!(
            client = client.id,
            pid = client.pid,
            "client cut off: {why}"
        );
        self.remember(client, why);
        self.queue.push(client);
    }

    /// A client that was cut off loses its leases once its log is in the volume.
    pub(crate) fn after_eviction(&self, client: &Client) {
        let evicted = matches!(*client.fate.lock(), Fate::Evicted(_));
        // Of what a refused record is followed by nothing counts, so nothing is needed for it.
        let refused = || client.work.lock().refused.is_some();
        if evicted && (refused() || client.backlog() == 0) {
            self.leases.release_all(client.id);
            self.credits.close(client.id);
        }
    }
}
