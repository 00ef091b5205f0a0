//! Logs that wait for a digest thread.

use crate::connections::client::Client;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Logs that wait for a digest thread.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<(VecDeque<Arc<Client>>, bool)>,
    wake: Condvar,
}

impl Queue {
    /// Has a log digested soon.
    pub(crate) fn push(&self, client: &Arc<Client>) {
        if !client.queued.swap(true, Ordering::AcqRel) {
            self.state.lock().0.push_back(client.clone());
            self.wake.notify_one();
        }
    }

    /// Ends all threads.
    pub(crate) fn stop(&self) {
        self.state.lock().1 = true;
        self.wake.notify_all();
    }

    /// The next log; `Ok(None)`: none for a while; `Err`: stop.
    pub(crate) fn pop(&self, wait: Duration) -> Result<Option<Arc<Client>>, ()> {
        let mut state = self.state.lock();
        self.wake
            .wait_while_for(&mut state, |s| s.0.is_empty() && !s.1, wait);
        match (state.1, state.0.pop_front()) {
            (true, _) => Err(()),
            (false, Some(client)) => {
                client.queued.store(false, Ordering::Release);
                Ok(Some(client))
            }
            (false, None) => Ok(None),
        }
    }
}
