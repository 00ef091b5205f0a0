//! A session: what its calls do, step by step as `Session::run` and `Op` do it.

use super::errno::{Errno, Result, Stop};
use super::lease::AcquireLocks;
use super::node::Node;
use super::read_section::ReadSection;
use super::sync::{SharedWords, mutants};
use crate::daemon_side::client::{Client, ClientState, RECORD, Record};
use crate::daemon_side::lease_table::LeaseRequest;
use crate::daemon_side::shared::Shared;
use crate::memory;
use crate::world::World;
use shale_format::LogPos;
use shale_proto::shared_pages::{client_page, daemon_page};
use shale_proto::{LeaseMode, LeaseRequestMode, Reply, Request};
use std::collections::HashMap;
use std::sync::Arc;

/// The volume, for reading.
pub(crate) struct View(pub(crate) Arc<Shared>);

/// Inodes in memory.
#[derive(Default)]
pub(crate) struct Nodes(std::sync::Mutex<HashMap<u64, Arc<Node>>>);

impl Nodes {
    pub(crate) fn get(&self, ino: u64) -> Option<Arc<Node>> {
        let nodes = self.0.lock().expect("nobody fails holding it");
        nodes.get(&ino).cloned()
    }

    /// Nodes are never dropped here, so it does not matter what is digested.
    pub(crate) fn add(&self, node: Arc<Node>, _digested: LogPos) -> Arc<Node> {
        let mut nodes = self.0.lock().expect("nobody fails holding it");
        nodes.entry(node.ino).or_insert(node).clone()
    }
}

/// A call that had to stop for so many leases asks to hold one.
const PATIENCE: u32 = 2;

pub(crate) fn final_errno(stop: Stop) -> Errno {
    match stop {
        Stop::Errno(e) => e,
        Stop::Lease(_) => Errno::IO,
    }
}

pub(crate) struct Session {
    world: Arc<World>,
    shared: Arc<Shared>,
    pub(crate) client: Arc<Client>,
    pub(crate) daemon_words: SharedWords,
    client_words: SharedWords,
    pub(crate) log_words: SharedWords,
    pub(crate) nodes: Nodes,
    pub(crate) acquire_locks: AcquireLocks,
    pub(crate) view: View,
}

impl Session {
    pub(crate) fn new(world: &Arc<World>, client: &Arc<Client>) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            shared: world.shared.clone(),
            client: client.clone(),
            daemon_words: client.daemon_page.0.clone(),
            client_words: client.client_page.0.clone(),
            log_words: client.log_fd.words.clone(),
            nodes: Nodes::default(),
            acquire_locks: AcquireLocks::new(),
            view: View(world.shared.clone()),
        })
    }

    pub(crate) fn lease_word(&self, ino: u64) -> u32 {
        self.daemon_words.load_u32(daemon_page::bucket(ino))
    }

    pub(crate) fn client_words(&self) -> &SharedWords {
        &self.client_words
    }

    pub(crate) fn epoch(&self) -> u64 {
        0
    }

    pub(crate) fn digested(&self) -> LogPos {
        LogPos(0)
    }

    pub(crate) fn load(&self, ino: u64, _epoch: u64) -> std::result::Result<Arc<Node>, Stop> {
        let node = Node::new(ino, self.shared.in_volume(ino));
        Ok(self.nodes.add(node, self.digested()))
    }

    pub(crate) fn get_lacking(&self, stop: Stop) -> Result<()> {
        Err(final_errno(stop))
    }

    /// A message and its answer.
    pub(crate) fn ask(&self, request: Request) -> Result<Reply> {
        memory::fence();
        if matches!(*self.client.client_state.lock(), ClientState::Evicted(_)) {
            return Err(Errno::IO);
        }
        let reply = match request {
            Request::Lease {
                ino,
                mode,
                request_mode,
            } => {
                let client = self.client.id;
                let wish = LeaseRequest {
                    client,
                    ino,
                    mode,
                    request_mode,
                };
                match self.shared.leases.acquire(&self.client, &wish) {
                    Ok(Some(given)) => Reply::Leased {
                        generation: given.grant.generation,
                        fresh: given.grant.fresh,
                        mode: given.grant.mode,
                        used: given.used,
                        watched: given.watched,
                        shared: given.shared,
                    },
                    Ok(None) => Reply::NotLeased,
                    Err(_) => return Err(Errno::IO),
                }
            }
            Request::Unlease { ino } => {
                let done = self.shared.leases.give_back(&self.client, ino);
                done.map(|()| Reply::Done).map_err(|_| Errno::IO)?
            }
            other => panic!("{other:?} is no part of the model"),
        };
        memory::step();
        Ok(reply)
    }

    /// Runs a call under a lease, again until the lease stands.
    fn run(
        &self,
        ino: u64,
        mode: LeaseMode,
        f: impl Fn(&Node) -> std::result::Result<u64, Stop>,
    ) -> Result<u64> {
        let mut leases = 0;
        loop {
            match self.once(ino, mode, &f) {
                Ok(value) => {
                    if mode == LeaseMode::Shared {
                        self.still_served().map_err(final_errno)?;
                    }
                    return Ok(value);
                }
                Err(Stop::Errno(e)) => return Err(e),
                Err(Stop::Lease(mode)) => {
                    leases += 1;
                    let request_mode = match leases > PATIENCE {
                        true => LeaseRequestMode::RevokeAndHold,
                        false => LeaseRequestMode::Revoke,
                    };
                    self.acquire(ino, mode, request_mode)?;
                }
            }
        }
    }

    fn once(
        &self,
        ino: u64,
        mode: LeaseMode,
        f: impl Fn(&Node) -> std::result::Result<u64, Stop>,
    ) -> std::result::Result<u64, Stop> {
        let early = mutants::is_on("gate-after-look");
        let mut inside = (!early).then(|| ReadSection::enter(self.client_words()));
        let node = self.nodes.get(ino);
        let node = node
            .filter(|n| self.holds(n, mode))
            .ok_or(Stop::Lease(mode))?;
        inside.get_or_insert_with(|| ReadSection::enter(self.client_words()));
        self.world.enter(&self.client, ino, mode);
        let result = f(&node);
        self.world.leave(&self.client, ino, mode);
        result
    }

    /// Adds one to an inode's number; what it is then.
    pub(crate) fn write(&self, ino: u64) -> Result<u64> {
        self.run(ino, LeaseMode::Exclusive, |node| {
            let mut state = node.state.lock();
            self.world.perhaps_stop(&self.client);
            let value = *state + 1;
            let end = self.append(Record { ino, value });
            self.world.perhaps_stop(&self.client);
            self.log_goes_on(end)?;
            *state = value;
            Ok(value)
        })
    }

    /// An inode's number.
    pub(crate) fn read(&self, ino: u64) -> Result<u64> {
        self.run(ino, LeaseMode::Shared, |node| {
            self.world.perhaps_stop(&self.client);
            let value = *node.state.lock();
            self.world.perhaps_stop(&self.client);
            Ok(value)
        })
    }

    /// Records are announced in their order, as the ring does it: without a lock.
    fn append(&self, record: Record) -> LogPos {
        let end = {
            let mut log = self.client.log_fd.records.lock().expect("nobody fails");
            log.push(record);
            log.len() as u64 * RECORD
        };
        self.world.perhaps_stop(&self.client);
        while self.client_words.load_u64(client_page::PUBLISHED) != end - RECORD {
            shuttle::thread::yield_now();
        }
        self.client_words.store_u64(client_page::PUBLISHED, end);
        LogPos(end)
    }
}
