//! Requests of a surviving mount that the last daemon did, until the kernel has had their answers.

use crate::connections::attach::AttachService;
use parking_lot::Mutex;
use shale_clients::clients::Clients;
use shale_oplog::Recent;
use shale_recovery::recover::CompletedRequests;
use shale_sys::Clock;
use std::sync::Arc;

/// Once all requests that the kernel sent again have been read, each has looked here long before this time has passed.
const KEEP_NS: u64 = 60_000_000_000;

/// What recovery kept: results of requests, and the logs that prove them.
pub(crate) struct RequestsOfLastDaemon {
    clock: Arc<dyn Clock>,
    clients: Arc<Clients>,
    attach: Arc<AttachService>,
    kept: Mutex<CompletedRequests>,
}

impl RequestsOfLastDaemon {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        clients: Arc<Clients>,
        attach: Arc<AttachService>,
        kept: CompletedRequests,
    ) -> Self {
        Self {
            clock,
            clients,
            attach,
            kept: Mutex::new(kept),
        }
    }

    /// Requests with their results, until they are forgotten here.
    pub(crate) fn recent(&self) -> Recent {
        self.kept.lock().recent.clone()
    }

    /// The kernel has had its answers: logs that were kept for them go.
    pub(crate) fn forget(&self) {
        let logs = {
            let mut kept = self.kept.lock();
            kept.recent.forget();
            std::mem::take(&mut kept.logs)
        };
        for slot in logs {
            if let Err(e) = self.attach.free_log(slot) {
                tracing::error!(slot, "cannot free a log that is not needed any more: {e}");
            }
        }
    }

    /// Forgets by itself some time after a client took over, and has read what was sent again.
    pub(crate) fn forget_old(&self) {
        let mut kept = self.kept.lock();
        let now_ns = self.clock.monotonic_ns();
        if !kept.recent.are_resent_read() {
            kept.since_ns = now_ns;
        }
        let age_ns = now_ns.saturating_sub(kept.since_ns);
        let due = !kept.logs.is_empty() && age_ns > KEEP_NS;
        drop(kept);
        if due && self.clients.any(|client| client.trusted()) {
            self.forget();
        }
    }
}
