//! Requests of a surviving mount that the last daemon did, until the kernel has had their answers.

use crate::connections::attach::AttachService;
use crate::connections::clients::Clients;
use crate::recovery::recover::Kept;
use parking_lot::Mutex;
use shale_oplog::Recent;
use shale_sys::Clock;
use std::sync::Arc;

/// A request that the kernel sent again is answered long before this time has passed.
const KEEP_NS: u64 = 60_000_000_000;

/// What recovery kept: results of requests, and the logs that prove them.
pub(crate) struct KeptRequests {
    clock: Arc<dyn Clock>,
    clients: Arc<Clients>,
    attach: Arc<AttachService>,
    kept: Mutex<Kept>,
}

impl KeptRequests {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        clients: Arc<Clients>,
        attach: Arc<AttachService>,
        kept: Kept,
    ) -> Self {
        Self {
            clock,
            clients,
            attach,
            kept: Mutex::new(kept),
        }
    }

    /// Requests with their results.
    pub(crate) fn recent(&self) -> Recent {
        self.kept.lock().recent.clone()
    }

    /// The kernel has had its answers: logs that were kept for them go.
    pub(crate) fn forget(&self) {
        let logs = {
            let mut kept = self.kept.lock();
            kept.recent = Recent::default();
            std::mem::take(&mut kept.logs)
        };
        for (slot, path) in logs {
            if let Err(e) = self.attach.free_log(slot, &path) {
                tracing::error!(slot, "cannot free a log that is not needed any more: {e}");
            }
        }
    }

    /// Forgets by itself some time after a client took over.
    pub(crate) fn forget_old(&self) {
        let kept = self.kept.lock();
        let age_ns = self.clock.monotonic_ns().saturating_sub(kept.since_ns);
        let due = !kept.logs.is_empty() && age_ns > KEEP_NS;
        drop(kept);
        if due && self.clients.any(|client| client.trusted()) {
            self.forget();
        }
    }
}
