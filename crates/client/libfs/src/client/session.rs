//! A client's session with the daemon, as its callers see it.
//!
//! A session is made of services, each with its own state, behind the frame that calls run in ([`CallRunner`]), and of what is kept
//! about names. It does nothing itself: attaching puts the services together, and each call is a function of its area that is
//! given what it may touch (`session/`: content, names, attributes, kernel).

mod attributes;
mod content;
mod kernel;
mod names;

use crate::client::access_sampling::AccessSampling;
use crate::client::call::CallContext;
use crate::client::call_runner::CallRunner;
use crate::client::connection_state::ConnectionState;
use crate::client::daemon_link::DaemonLink;
use crate::client::lease::Leases;
use crate::client::log::client_log::{ClientLog, Need};
use crate::client::log::requests::Requests;
use crate::client::log::throttle::Waits;
pub use crate::client::options::{SessionMaps, SessionOptions};
use crate::client::read_section;
use crate::client::services::Services;
use crate::client::space::granted_space::GrantedSpace;
use crate::client::space::grants::InodeNumbers;
use crate::client::volume_reader::VolumeReader;
use crate::errno::{Errno, Result, device, proto, refusal, volume};
use crate::inodes::attr::Caller;
use crate::inodes::kernel_refs::KernelRefs;
use crate::inodes::node::Nodes;
use crate::lower_tiers::block_cache::BlockCache;
use crate::lower_tiers::direct_device_read::FlashDevices;
use crate::lower_tiers::lower_blocks::LowerBlocks;
use crate::namespace::names::Names;
use crate::namespace::rights::take_rights;
use shale_format::Durability;
use shale_nvm::{Access, Map, MapOptions, Piece, SharedWords};
use shale_oplog::Recent;
use shale_proto::message::{Attached, PROTO_VERSION, Space};
use shale_proto::shared_pages::{client_page, daemon_page};
use shale_proto::{Channel, LeaseMode, LeaseRequestMode, Reply, Request};
use shale_sys::clock::Clock;
use shale_volume::View;
use std::sync::Arc;

/// A client of a volume.
pub struct Session {
    pub(crate) calls: CallRunner,
    pub(crate) names: Names,
    /// Number that the daemon knows this client by.
    client: u32,
}

impl Session {
    /// Attaches to the daemon behind `channel`. `recent`: requests that were done
    /// before a crash (empty for a new client).
    pub fn attach(
        channel: Arc<dyn Channel>,
        clock: Arc<dyn Clock>,
        recent: Recent,
        options: SessionOptions,
    ) -> Result<Arc<Self>> {
        Self::attach_mapped(channel, clock, recent, options, &SessionMaps::default())
    }

    /// As [`Self::attach`], with maps made as `maps` says.
    pub fn attach_mapped(
        channel: Arc<dyn Channel>,
        clock: Arc<dyn Clock>,
        recent: Recent,
        options: SessionOptions,
        maps: &SessionMaps,
    ) -> Result<Arc<Self>> {
        read_section::register_barriers();
        let ask = Request::Attach {
            version: PROTO_VERSION,
            log_bytes: options.log_bytes,
        };
        let (reply, fds) = channel.call(ask).map_err(|e| proto(&e))?;
        let attached = match reply {
            Reply::Attached(a) => a,
            other => return Err(refusal(&other)),
        };
        let mut fds = fds.into_iter();
        let mut map = |options: &MapOptions, bytes: usize, access| -> Result<Arc<Map>> {
            // The kernel leaves out what this process has no numbers for.
            let fd = fds.next().ok_or(Errno::MFILE)?;
            let opened = options.open(vec![Piece { fd, bytes }], access);
            Ok(Arc::new(opened.map_err(|e| device(&e))?))
        };
        let plain = MapOptions::new();
        let log_bytes = attached.ring_bytes as usize + shale_format::log::RING_AT;
        let log = map(&maps.log, log_bytes, Access::ReadWrite)?;
        if options.present {
            log.populate().map_err(|e| device(&e))?;
        }
        let daemon_page = map(&plain, daemon_page::BYTES, Access::ReadOnly)?;
        let client_page = map(&maps.client_page, client_page::BYTES, Access::ReadWrite)?;
        let nvm = Arc::new(map_segments(channel.as_ref(), &attached, &maps.nvm)?);
        let given = Given {
            channel,
            nvm,
            log,
            daemon_page,
            client_page,
        };
        let services = services(given, &attached, (clock, recent), options)?;
        Ok(Arc::new(Self {
            calls: CallRunner::new(services, take_rights),
            names: Names::new(),
            client: attached.client,
        }))
    }

    fn services(&self) -> &Services {
        &self.calls.services
    }

    /// Whether every call is durable when it returns, so that fsync(2) has nothing to do.
    pub fn is_durable_at_return(&self) -> bool {
        self.services().log.hardens_at_return()
    }

    /// Whether the daemon still serves this client.
    pub fn is_served(&self) -> bool {
        let served = |op: &mut CallContext<'_>| op.still_served();
        let served = self.calls.run(&Caller::default(), Need::default(), served);
        served.is_ok()
    }

    /// Bytes of this client's update log.
    pub fn log_bytes(&self) -> u64 {
        self.services().log.ring_bytes()
    }

    /// Number that the daemon knows this client by.
    pub fn client(&self) -> u32 {
        self.client
    }

    /// Device counters of the NVM tier, as this process moved bytes.
    pub fn nvm_counts(&self) -> shale_nvm::counters::Snapshot {
        self.services().volume.counts()
    }

    /// Device counters of the update log.
    pub fn log_counts(&self) -> shale_nvm::counters::Snapshot {
        self.services().log.counts()
    }

    /// How this client was slowed because its log filled.
    pub fn waits(&self) -> Waits {
        self.services().log.waits()
    }

    /// Walks along paths that were found in the table of whole paths, and those that
    /// had to be walked.
    pub fn path_counts(&self) -> (u64, u64) {
        self.names.paths.counts()
    }

    /// Has everything that was logged so far brought into the volume.
    pub fn digest(&self) -> Result<()> {
        self.services().log.digest()
    }

    /// Space of the volume. What was deleted counts as free at once.
    pub fn space(&self) -> Result<Space> {
        self.calls.volume_space()
    }

    /// State of the volume as JSON.
    pub fn status(&self) -> Result<String> {
        match self.services().daemon.ask(Request::Status)? {
            Reply::Status(text) => Ok(text),
            _ => Err(Errno::PROTO),
        }
    }

    /// Gets a lease before it is needed; others lose theirs. Kept until another client
    /// takes it, or [`Self::give_back`]. Errors: `ENOENT`.
    pub fn lease(&self, ino: u64, mode: LeaseMode) -> Result<()> {
        let got = self.calls.acquire(ino, mode, LeaseRequestMode::Revoke);
        got.map(|_| ())
    }

    /// Gives a lease back. What was written under it is in the volume when this returns.
    pub fn give_back(&self, ino: u64) -> Result<()> {
        let Services { leases, nodes, .. } = self.services();
        leases.give_back(nodes, ino)
    }

    /// Leaves the volume: everything is digested when this returns.
    pub fn detach(&self) -> Result<()> {
        self.services().daemon.ask(Request::Detach).map(|_| ())
    }
}

/// What the daemon has handed out, mapped.
struct Given {
    channel: Arc<dyn Channel>,
    nvm: Arc<Map>,
    log: Arc<Map>,
    daemon_page: Arc<Map>,
    client_page: Arc<Map>,
}

/// Puts the services of a client together.
fn services(
    given: Given,
    attached: &Attached,
    (clock, recent): (Arc<dyn Clock>, Recent),
    options: SessionOptions,
) -> Result<Services> {
    let Given {
        channel,
        nvm,
        log: log_map,
        daemon_page,
        client_page,
    } = given;
    let page = || SharedWords::new(client_page.clone());
    let daemon = DaemonLink::new(channel, daemon_page.clone());
    let connection = || {
        let log = SharedWords::new(log_map.clone());
        ConnectionState::new(SharedWords::new(daemon_page.clone()), log)
    };
    let policy = Durability::from_number(attached.durability).unwrap_or_default();
    let log = ClientLog::new(
        log_map.clone(),
        client_page.clone(),
        (daemon.clone(), connection()),
        Requests::new(recent),
        (attached.ring_bytes, options.present),
        (policy, attached.staged),
    )?;
    let (view, _) = View::open(nvm.clone()).map_err(|e| volume(&e))?;
    let cache = Arc::new(BlockCache::default());
    let flash = FlashDevices::new(daemon.clone(), client_page.clone());
    let volume = VolumeReader::new(
        view.with_block_source(cache.clone()),
        nvm.clone(),
        log.content(),
        LowerBlocks::new(cache, flash, daemon.clone()),
        AccessSampling::new(page(), daemon.clone()),
    );
    let may_steal = attached.may_steal && !options.log_all;
    Ok(Services {
        options,
        clock,
        sections: page(),
        page: client_page.clone(),
        connection: connection(),
        volume,
        nodes: Nodes::new(),
        leases: Leases::new(daemon.clone(), page()),
        kernel: KernelRefs::default(),
        numbers: InodeNumbers::new(daemon.clone()),
        space: GrantedSpace::new(daemon.clone(), connection(), nvm, may_steal),
        log,
        daemon,
    })
}

fn map_segments(channel: &dyn Channel, attached: &Attached, options: &MapOptions) -> Result<Map> {
    let mut pieces = Vec::new();
    while pieces.len() < attached.segments as usize {
        let ask = Request::Segments {
            first: pieces.len() as u32,
        };
        let (reply, fds) = channel.call(ask).map_err(|e| proto(&e))?;
        let Reply::Segments { bytes, .. } = reply else {
            return Err(refusal(&reply));
        };
        if bytes.is_empty() || fds.len() > bytes.len() {
            return Err(Errno::PROTO);
        }
        if fds.len() < bytes.len() {
            return Err(Errno::MFILE);
        }
        pieces.extend(fds.into_iter().zip(bytes).map(|(fd, b)| Piece {
            fd,
            bytes: b as usize,
        }));
    }
    let map = options.open(pieces, Access::ReadOnly);
    map.map_err(|e| device(&e))
}
