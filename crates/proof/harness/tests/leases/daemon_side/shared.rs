//! What the daemon's threads share: clients, leases, and a volume of one number per inode.

use super::barrier::Barrier;
use super::client::{Client, RECORD, Work};
use super::halt::Halt;
use super::lease::{LeaseHook, Leases};
use super::sync::{AtomicBool, Condvar, Mutex, Ordering};
use crate::memory;
use shale_device::Clock;
use shale_format::LogPos;
use shale_proto::LeaseMode;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Of the daemon's configuration what the protocol asks for.
pub(crate) struct Config {
    pub(crate) gate_timeout: Duration,
}

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

/// Room, of which there is enough.
pub(crate) struct Credits;

impl Credits {
    pub(crate) fn close(&self, _client: u32) {}
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
    pub(crate) config: Config,
    pub(crate) barrier: Barrier,
    pub(crate) clients: Mutex<BTreeMap<u32, Arc<Client>>>,
    pub(crate) leases: Leases,
    pub(crate) credits: Credits,
    pub(crate) queue: Queue,
    pub(crate) hook: Mutex<Option<Arc<dyn LeaseHook>>>,
    pub(crate) closing: AtomicBool,
    volume: std::sync::Mutex<HashMap<u64, u64>>,
}

impl Shared {
    /// `leases_max`: entries of leases that stay while nobody needs them.
    pub(crate) fn new(gate_timeout: Duration, leases_max: usize) -> Arc<Self> {
        Arc::new(Self {
            config: Config { gate_timeout },
            barrier: Barrier,
            clients: Mutex::default(),
            leases: Leases::new(Arc::new(Time::default()), leases_max),
            credits: Credits,
            queue: Queue::default(),
            hook: Mutex::default(),
            closing: AtomicBool::new(false),
            volume: std::sync::Mutex::default(),
        })
    }

    pub(crate) fn register(&self, client: &Arc<Client>) {
        self.clients.lock().insert(client.id, client.clone());
    }

    pub(crate) fn clients(&self) -> Vec<Arc<Client>> {
        self.clients.lock().values().cloned().collect()
    }

    pub(crate) fn client(&self, id: u32) -> Option<Arc<Client>> {
        self.clients.lock().get(&id).cloned()
    }

    pub(crate) fn remember(&self, _client: &Client, _why: String) {}

    /// What the volume says about an inode.
    pub(crate) fn in_volume(&self, ino: u64) -> u64 {
        memory::step();
        let volume = self.volume.lock().expect("nobody fails holding it");
        volume.get(&ino).copied().unwrap_or(0)
    }

    /// Digests what the log says, as far as it is committed.
    pub(crate) fn chunk(
        self: &Arc<Self>,
        client: &Arc<Client>,
        _work: &mut Work,
        from: LogPos,
        limit: LogPos,
    ) -> Result<(), Halt> {
        for at in (from.0 / RECORD)..(limit.0 / RECORD) {
            let record = {
                let log = client
                    .log_fd
                    .records
                    .lock()
                    .expect("nobody fails holding it");
                *log.get(at as usize)
                    .expect("committed before it was written")
            };
            let mode = self.leases.mode(client.id, record.ino);
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
        Ok(())
    }

    /// The digest thread.
    pub(crate) fn digest_loop(self: &Arc<Self>) {
        while let Some(client) = self.queue.pop() {
            // The outcome is in the client's fate.
            let _ = self.digest_to(&client, u64::MAX);
            self.after_eviction(&client);
        }
        self.closing.store(true, Ordering::Release);
    }
}
