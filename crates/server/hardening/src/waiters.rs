//! Who waits for which log until it is hardened, and which of them the next batch is about.

use shale_clients::client::Client;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Who waits for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A call that is about this log alone (fsync). It is in the next batch, with as little of the others as it takes.
    Call,
    /// A digest.
    Digest,
    /// A call that waits for several logs (sync), or the thread that hardens what nobody waits for.
    All,
}

/// While calls on other logs than the first one of a batch wait, or did until so many batches ago, it is about as large as
/// [`BytesBeside`](shale_proto::commits::BytesBeside) says: what they wait for beside their own records.
const RECENT_BATCHES: u64 = 64;

/// A log whose records are waited for.
struct Waiting {
    client: Arc<Client>,
    /// Who wait for it.
    waiters: u32,
    /// Of these, [`Waiter::Call`].
    calls: u32,
}

/// Who waits, and whether a batch is on its way.
#[derive(Default)]
pub(crate) struct State {
    /// A batch is being written.
    pub(crate) writing: bool,
    waiting: BTreeMap<u32, Waiting>,
    /// Batches so far.
    pub(crate) batches: u64,
    /// The two logs that calls waited for last: their clients, and the number of batches then.
    recent_calls: [Option<(u32, u64)>; 2],
    pub(crate) failed: Option<String>,
}

impl State {
    pub(crate) fn wait_for(&mut self, client: &Arc<Client>, waiter: Waiter) {
        let waiting = self.waiting.entry(client.id).or_insert_with(|| Waiting {
            client: client.clone(),
            waiters: 0,
            calls: 0,
        });
        waiting.waiters += 1;
        if waiter == Waiter::Call {
            waiting.calls += 1;
            let [last, before] = self.recent_calls;
            let other = match last {
                Some((id, _)) if id == client.id => before,
                _ => last,
            };
            self.recent_calls = [Some((client.id, self.batches)), other];
        }
    }

    pub(crate) fn wait_no_more(&mut self, id: u32, waiter: Waiter) {
        let Some(waiting) = self.waiting.get_mut(&id) else {
            return;
        };
        waiting.waiters -= 1;
        waiting.calls -= u32::from(waiter == Waiter::Call);
        if waiting.waiters == 0 {
            self.waiting.remove(&id);
        }
    }

    /// Whether calls on other logs than that of client `id` wait, or did recently.
    pub(crate) fn others_wait(&self, id: u32) -> bool {
        let is_recent = |&(other, batches): &(u32, u64)| {
            other != id && self.batches - batches <= RECENT_BATCHES
        };
        self.recent_calls.iter().flatten().any(is_recent)
    }

    /// All of them, those first that calls wait for.
    pub(crate) fn in_order(&self) -> Vec<Arc<Client>> {
        let of = |called: bool| {
            let such = move |w: &&Waiting| (w.calls > 0) == called;
            self.waiting.values().filter(such)
        };
        of(true)
            .chain(of(false))
            .map(|w| w.client.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_clients::client::Transport;
    use shale_clients::testing::lone;

    #[test]
    fn logs_that_calls_wait_for_come_first_and_keep_batches_small() {
        let client = |id| Arc::new(lone(id, Transport::Socket));
        let (first, second, third) = (client(1), client(2), client(3));
        let mut state = State::default();
        let order = |state: &State| -> Vec<u32> {
            let logs = state.in_order().into_iter();
            logs.map(|client| client.id).collect()
        };
        for client in [&first, &second, &third] {
            state.wait_for(client, Waiter::All);
        }
        assert_eq!(order(&state), [1, 2, 3]);
        state.wait_for(&third, Waiter::Call);
        assert_eq!(order(&state), [3, 1, 2]);
        state.wait_no_more(third.id, Waiter::Call);
        assert_eq!(order(&state), [1, 2, 3]);
        state.wait_no_more(second.id, Waiter::All);
        state.wait_no_more(second.id, Waiter::All);
        assert_eq!(order(&state), [1, 3]);

        assert!(state.others_wait(1) && !state.others_wait(3));
        state.wait_for(&first, Waiter::Digest);
        assert!(!state.others_wait(3), "a digest is no call");
        state.wait_for(&first, Waiter::Call);
        state.wait_for(&first, Waiter::Call);
        assert!(state.others_wait(1) && state.others_wait(2) && state.others_wait(3));
        state.batches += RECENT_BATCHES;
        assert!(state.others_wait(1));
        state.batches += 1;
        assert!(!state.others_wait(1) && !state.others_wait(2));
    }
}
