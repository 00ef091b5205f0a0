//! Logs that wait for a digest thread.

use parking_lot::{Condvar, Mutex};
use shale_clients::client::Client;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What a digest thread is to do.
pub enum Next {
    /// Digest this client's log.
    Log(Arc<Client>),
    /// No log waits.
    Nothing,
    /// End.
    Stop,
}

/// Logs that wait for a digest thread.
#[derive(Default)]
pub struct Queue {
    state: Mutex<(VecDeque<Arc<Client>>, bool)>,
    wake: Condvar,
}

impl Queue {
    /// Has a log digested soon.
    pub fn push(&self, client: &Arc<Client>) {
        if !client.queued.swap(true, Ordering::AcqRel) {
            self.state.lock().0.push_back(client.clone());
            self.wake.notify_one();
        }
    }

    /// Ends all threads.
    pub fn stop(&self) {
        self.state.lock().1 = true;
        self.wake.notify_all();
    }

    /// The next log.
    pub fn pop(&self, wait: Duration) -> Next {
        let mut state = self.state.lock();
        self.wake
            .wait_while_for(&mut state, |s| s.0.is_empty() && !s.1, wait);
        match (state.1, state.0.pop_front()) {
            (true, _) => Next::Stop,
            (false, Some(client)) => {
                client.queued.store(false, Ordering::Release);
                Next::Log(client)
            }
            (false, None) => Next::Nothing,
        }
    }
}
