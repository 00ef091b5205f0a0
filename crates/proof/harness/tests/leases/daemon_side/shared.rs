//! What the daemon's threads share: clients, leases, and a volume of one number per inode.

use super::barrier::Barrier;
use super::client::{Client, RECORD};
use super::clients::Clients;
use super::digest_stop::{DigestStop, DigestTurn};
use super::fence::{Fence, is_over};
use super::grace::GracePeriods;
use super::lease_manager::{LeaseManager, LogFlusher};
use super::lease_table::LeaseTable;
use super::sync::{Condvar, Mutex};
use crate::memory;
use shale_format::LogPos;
use shale_proto::LeaseMode;
use shale_sys::Clock;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Logs that wait for the digest thread.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<(VecDeque<Arc<Client>>, bool)>,
    wake: Condvar,
}

impl Queue {
    pub(crate) fn push(&self, client: &Arc<Client>) {
        self.state.lock().0.push_back(client.clone());
        self.wake.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.state.lock().1 = true;
        self.wake.notify_all();
    }

    fn pop(&self) -> Option<Arc<Client>> {
        let mut state = self.state.lock();
        loop {
            match state.0.pop_front() {
                Some(client) => return Some(client),
                None if state.1 => return None,
                None => self.wake.wait(&mut state),
            }
        }
    }
}

/// A clock that advances whenever somebody looks.
#[derive(Default)]
struct Time(std::sync::atomic::AtomicU64);

impl Clock for Time {
    fn realtime_ns(&self) -> i64 {
        0
    }

    fn monotonic_ns(&self) -> u64 {
        self.0
            .fetch_add(100_000, std::sync::atomic::Ordering::Relaxed)
    }
}

pub(crate) struct Shared {
    pub(crate) clients: Arc<Clients>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) fence: Arc<Fence>,
    pub(crate) leases: LeaseManager,
    volume: std::sync::Mutex<HashMap<u64, u64>>,
}

impl LogFlusher for Shared {
    fn digest_to(&self, client: &Arc<Client>, target: u64) -> Result<(), DigestStop> {
        let published = client.published().pos().0;
        assert!(
            target <= published,
            "who asks for a lease waits for what its holder logs later: {target}, {published}"
        );
        self.digest_up_to(client, target)
    }
}

impl Shared {
    /// Digests a log up to `target`, or to what its client has published if that is less.
    pub(crate) fn digest_up_to(&self, client: &Arc<Client>, target: u64) -> Result<(), DigestStop> {
        if let Some(mut turn) = DigestTurn::wait(client, target) {
            while let Some((from, limit)) = turn.next_chunk()? {
                self.chunk(client, from, limit);
            }
        }
        Ok(())
    }
}

impl Shared {
    /// `leases_max`: entries of leases that stay while nobody needs them.
    pub(crate) fn new(limit: Duration, leases_max: usize) -> Arc<Self> {
        let clients: Arc<Clients> = Arc::default();
        let queue: Arc<Queue> = Arc::default();
        let fence = Arc::new(Fence::new(Barrier, clients.clone(), queue.clone()));
        let grace = GracePeriods::new(Barrier, clients.clone(), fence.clone(), limit);
        let table = LeaseTable::new(Arc::new(Time::default()), leases_max);
        Arc::new_cyclic(|shared: &Weak<Shared>| Self {
            leases: LeaseManager::new(table, clients.clone(), Arc::new(grace), shared.clone()),
            clients,
            queue,
            fence,
            volume: std::sync::Mutex::default(),
        })
    }

    /// What the volume says about an inode.
    pub(crate) fn in_volume(&self, ino: u64) -> u64 {
        memory::step();
        let volume = self.volume.lock().expect("nobody fails holding it");
        volume.get(&ino).copied().unwrap_or(0)
    }

    /// Digests what the log says, as far as it is published.
    fn chunk(&self, client: &Client, from: LogPos, limit: LogPos) {
        for at in (from.0 / RECORD)..(limit.0 / RECORD) {
            let record = {
                let log = client
                    .log_fd
                    .records
                    .lock()
                    .expect("nobody fails holding it");
                *log.get(at as usize)
                    .expect("published before it was written")
            };
            let mode = self.leases.table().mode(client.id, record.ino);
            assert_eq!(
                mode,
                Some(LeaseMode::Exclusive),
                "violation: a record of client {} without a lease",
                client.id
            );
            let before = self.in_volume(record.ino);
            assert_eq!(
                before + 1,
                record.value,
                "violation: a write of client {} did not see the one before it",
                client.id
            );
            let mut volume = self.volume.lock().expect("nobody fails holding it");
            volume.insert(record.ino, record.value);
        }
        client.set_digested(limit);
    }

    /// The digest thread.
    pub(crate) fn digest_loop(&self) {
        while let Some(client) = self.queue.pop() {
            // The outcome is in the client's fate.
            let _ = self.digest_up_to(&client, u64::MAX);
            if is_over(&client) {
                self.leases.table().release_all(client.id);
            }
        }
        self.clients.close();
    }
}
