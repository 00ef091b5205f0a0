//! Write-back of buffered clients on a volume with NVM: digests of what nobody waits for (HiNFS §3.2; DESIGN §10).
//!
//! The log in memory of a buffered client is its write buffer, and a digest writes it back: the newest version of each byte, and
//! nothing of what was overwritten, cut off or removed meanwhile. Logs that fill are digested as any other; a thread looks every
//! [`WRITE_BACK_EVERY`] for what is older than [`WRITE_BACK_AGE`]. What ordered clients have logged another one has digested every second,
//! all of it: their fsync copies nothing.

use super::DigestScheduler;
use crate::config::WriteBackTimes;
use serde::Serialize;
use shale_clients::client::Client;
use shale_format::Durability;
use shale_hardening::NotHardened;
use shale_sys::{StopFlag, mutants};
use std::sync::Arc;
use std::time::Duration;

/// How often write-back looks at logs (HiNFS §3.2).
pub(crate) const WRITE_BACK_EVERY: Duration = Duration::from_secs(5);
/// How old what is logged may become before it is written back, where nobody waits for it (HiNFS §3.2).
pub(crate) const WRITE_BACK_AGE: Duration = Duration::from_secs(30);

/// The write buffer: the logs in memory of buffered clients, ordered ones among them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BufferStatus {
    /// Buffered clients.
    pub clients: usize,
    /// Bytes of their logs.
    pub limit_bytes: u64,
    /// Most bytes that the logs of all may have together.
    pub bound_bytes: u64,
    /// Clients that were to be buffered and are strict, since no memory was left for their logs, from the start on.
    pub unbuffered_clients: u64,
    /// Of the logs, bytes that are not in the volume yet.
    pub used_bytes: u64,
    /// Of these, bytes that are not in NVM at all: what a power cut would lose now.
    pub unhardened_bytes: u64,
    /// Seconds since somebody first saw the oldest of them.
    pub unhardened_s: f64,
    /// Bytes that fsync copied to NVM, of clients that are attached.
    pub copied_bytes: u64,
    /// Bytes of whole blocks that they wrote directly to NVM, since an fsync was expected to follow.
    pub eager_bytes: u64,
    /// Bytes that they wrote to memory.
    pub lazy_bytes: u64,
    /// Blocks for which the fsync that the Buffer Benefit Model expected came, or did not as expected.
    pub decided_right: u64,
    /// Blocks of which it expected the opposite: right / (right + wrong) is its accuracy (HiNFS §3.2, Figure 4).
    pub decided_wrong: u64,
}

impl DigestScheduler {
    /// How full the write buffer is, which may have `bound_bytes` and had no space for so many clients; `None`: there is no buffered client.
    pub(crate) fn buffer_status(
        &self,
        (bound_bytes, unbuffered_clients): (u64, u64),
    ) -> Option<BufferStatus> {
        let now_ns = self.parts.clock.monotonic_ns();
        let mut status = BufferStatus {
            bound_bytes,
            unbuffered_clients,
            ..BufferStatus::default()
        };
        for client in self.buffered_clients() {
            let (published, digested) = (client.published().pos().0, client.digested());
            let unhardened = published.saturating_sub(client.copied());
            let age = client.buffer_age.lock().oldest_ns(now_ns, client.copied());
            status.clients += 1;
            status.limit_bytes += client.ring_bytes;
            status.used_bytes += published.saturating_sub(digested);
            status.unhardened_bytes += unhardened;
            status.unhardened_s = status.unhardened_s.max(age as f64 / 1e9);
            status.copied_bytes += client.client_page.copied_bytes();
            let words = client.client_page.buffering();
            let sums = [
                &mut status.eager_bytes,
                &mut status.lazy_bytes,
                &mut status.decided_right,
                &mut status.decided_wrong,
            ];
            // What clients say: nothing is decided by it.
            for (sum, word) in sums.into_iter().zip(words) {
                *sum = sum.saturating_add(word);
            }
        }
        (status.clients > 0).then_some(status)
    }

    /// The thread that writes back what clients with this policy have logged, until `stop`. Each policy has its own: what an ordered client
    /// did is not held up by a large digest of another one.
    pub(crate) fn run_write_back(
        &self,
        stop: &StopFlag,
        policy: Durability,
        times: WriteBackTimes,
    ) {
        match policy {
            Durability::Ordered => stop.every(times.ordered, || {
                self.write_back(policy, Duration::ZERO);
            }),
            _ => stop.every(times.every, || self.write_back(policy, times.age)),
        }
    }

    /// Digests of each client with a write buffer and this policy what it logged `age` ago and before, as far as looks tell: this is one.
    fn write_back(&self, policy: Durability, age: Duration) {
        let now_ns = self.parts.clock.monotonic_ns();
        let clients = self.buffered_clients().into_iter();
        for client in clients.filter(|client| client.policy == policy) {
            let upto = {
                let mut looks = client.buffer_age.lock();
                looks.look(now_ns, client.published().pos().0);
                looks.older_than(now_ns, age.as_nanos() as u64, client.digested())
            };
            if let Some(upto) = upto {
                // The outcome is in the client's fate and in the totals.
                let _ = self.digest_to(&client, upto);
            }
        }
    }

    /// Returns when what every buffered client has published by now survives a power cut: it has copied that to NVM by itself, or it is
    /// digested. `asking`: the client that wants to know, if it is one; of another one it does not count what goes wrong with its log.
    pub(super) fn write_back_all(&self, asking: Option<&Arc<Client>>) -> Result<(), NotHardened> {
        if mutants::is_on("sync-left-in-memory") {
            return Ok(());
        }
        let logs = self.buffered_clients().into_iter().map(|client| {
            let published = client.published().pos().0;
            (client, published)
        });
        for (client, published) in logs.collect::<Vec<_>>() {
            if client.copied() >= published {
                continue;
            }
            let done = self.digest_to(&client, published);
            if let (Err(stop), true) = (done, asking.is_some_and(|asking| asking.id == client.id)) {
                return Err(NotHardened::Failed(stop.to_string()));
            }
        }
        Ok(())
    }

    fn buffered_clients(&self) -> Vec<Arc<Client>> {
        let clients = self.parts.clients.snapshot().into_iter();
        clients.filter(|client| client.nvm_log.is_some()).collect()
    }
}
