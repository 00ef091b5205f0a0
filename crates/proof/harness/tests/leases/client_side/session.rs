//! A session: what its calls do, step by step as `CallRunner::run` and `CallContext` do it.

use super::daemon_link::DaemonLink;
use super::errno::{Errno, Result, Stop};
use super::lease::{LeasedInodes, Leases};
use super::node::{Node, Nodes};
use super::read_section::ReadSection;
use super::served::ConnectionState;
use super::sync::{SharedWords, mutants};
use super::volume_reader::VolumeReader;
use crate::daemon_side::client::{Client, RECORD, Record};
use crate::world::World;
use shale_format::LogPos;
use shale_proto::shared_pages::client_page;
use shale_proto::{LeaseMode, LeaseRequestMode};
use std::sync::Arc;

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
    pub(crate) client: Arc<Client>,
    client_words: SharedWords,
    connection: ConnectionState,
    leases: Leases,
    nodes: Nodes,
    volume: VolumeReader,
    /// How it asks for leases.
    asks: LeaseRequestMode,
}

impl Session {
    pub(crate) fn new(world: &Arc<World>, client: &Arc<Client>) -> Arc<Self> {
        Self::of(world, client, LeaseRequestMode::Revoke)
    }

    /// Of a client that can go through the mount.
    pub(crate) fn yielding(world: &Arc<World>, client: &Arc<Client>) -> Arc<Self> {
        Self::of(world, client, LeaseRequestMode::RevokeOrDefer)
    }

    fn of(world: &Arc<World>, client: &Arc<Client>, asks: LeaseRequestMode) -> Arc<Self> {
        let daemon = DaemonLink::new(world.shared.clone(), client.clone());
        let client_words = client.client_page.0.clone();
        let log_words = client.log_fd.words.clone();
        Arc::new(Self {
            world: world.clone(),
            client: client.clone(),
            client_words: client_words.clone(),
            connection: ConnectionState::new(client.daemon_page.0.clone(), log_words),
            leases: Leases::new(daemon, client_words),
            nodes: Nodes::default(),
            volume: VolumeReader(world.shared.clone()),
            asks,
        })
    }

    fn acquire(&self, ino: u64, mode: LeaseMode, request_mode: LeaseRequestMode) -> Result<()> {
        let got = (self.leases).acquire(&self.nodes, &self.volume, ino, mode, request_mode);
        got.map(|_| ())
    }

    pub(crate) fn lease(&self, ino: u64, mode: LeaseMode) -> Result<()> {
        self.acquire(ino, mode, LeaseRequestMode::Revoke)
    }

    pub(crate) fn give_back(&self, ino: u64) -> Result<()> {
        self.leases.give_back(&self.nodes, ino)
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
                        self.connection.still_served().map_err(final_errno)?;
                    }
                    return Ok(value);
                }
                Err(Stop::Errno(e)) => return Err(e),
                Err(Stop::Lease(mode)) => {
                    leases += 1;
                    let request_mode = match leases > PATIENCE {
                        true if !self.asks.yields() => LeaseRequestMode::RevokeAndHold,
                        _ => self.asks,
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
        let early = mutants::is_on("section-after-look");
        let mut inside = (!early).then(|| ReadSection::enter(&self.client_words));
        let node = self.nodes.get(ino);
        let node = node
            .filter(|n| self.leases.holds(&**n, mode))
            .ok_or(Stop::Lease(mode))?;
        inside.get_or_insert_with(|| ReadSection::enter(&self.client_words));
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
            self.connection.log_goes_on(end)?;
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
