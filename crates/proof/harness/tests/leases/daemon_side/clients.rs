//! Who is attached.

use super::client::Client;
use super::sync::{AtomicBool, Mutex, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of no client of this model.
pub(crate) const LEFT_LOGS: u32 = u32::MAX;

#[derive(Default)]
pub(crate) struct Clients {
    attached: Mutex<BTreeMap<u32, Arc<Client>>>,
    closing: AtomicBool,
}

impl Clients {
    pub(crate) fn add(&self, client: &Arc<Client>) {
        self.attached.lock().insert(client.id, client.clone());
    }

    pub(crate) fn snapshot(&self) -> Vec<Arc<Client>> {
        self.attached.lock().values().cloned().collect()
    }

    pub(crate) fn get(&self, id: u32) -> Option<Arc<Client>> {
        self.attached.lock().get(&id).cloned()
    }

    pub(crate) fn any(&self, is_such: impl Fn(&Arc<Client>) -> bool) -> bool {
        self.attached.lock().values().any(is_such)
    }

    pub(crate) fn note_detached(&self, _client: &Client, _why: String) {}

    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}
