//! A client's session with the daemon, as its callers see it.
//!
//! A session is made of services (`shale_session`), each with its own state, and the inodes in memory, behind the frame that calls run
//! in ([`CallRunner`]), and of what is kept about names. It does nothing itself: each call is a function of its area that is given what it
//! may touch (`session/`: content, names, attributes, kernel).

mod attributes;
mod content;
mod kernel;
mod names;

use crate::client::call::CallContext;
use crate::client::call_runner::CallRunner;
use crate::namespace::names::Names;
use crate::namespace::rights::take_rights;
use shale_oplog::Recent;
use shale_proto::message::Space;
use shale_proto::{Channel, LeaseMode, LeaseRequestMode, Reply, Request, open_name};
use shale_session::attach::attach;
use shale_session::caller::Caller;
use shale_session::errno::{Errno, Result};
use shale_session::log::client_log::Need;
use shale_session::log::throttle::Waits;
use shale_session::options::{SessionMaps, SessionOptions};
use shale_session::services::Services;
use shale_sys::clock::Clock;
use std::sync::Arc;
use std::time::Duration;

/// A client of a volume.
pub struct Session {
    pub(crate) calls: CallRunner,
    pub(crate) names: Names,
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
        let services = attach(channel, (clock, recent), options, maps)?;
        Ok(Arc::new(Self {
            calls: CallRunner::new(services, take_rights),
            names: Names::new(),
        }))
    }

    fn services(&self) -> &Services {
        &self.calls.services
    }

    /// Whether every call is durable when it returns.
    pub fn is_durable_at_return(&self) -> bool {
        self.services().log.hardens_at_return()
    }

    /// Whether fsync(2) has nothing to do, and nothing to report: every call is durable when it returns, or within a second, in its order,
    /// by itself.
    pub fn needs_no_fsync(&self) -> bool {
        self.services().log.needs_no_fsync()
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
        self.services().client
    }

    /// Groups of the process by which the daemon judges what it does to names, also when its log is recovered; `None`: it does not.
    pub fn groups(&self) -> Option<&'static [u32]> {
        self.services().groups
    }

    /// The name in the root directory of the mount by which a process of this client opens the regular file `ino`, whatever names that has
    /// (see [`open_name`]). It can be found while the client is attached.
    pub fn kernel_name(&self, ino: u64) -> Vec<u8> {
        open_name::name_of(self.services().open_token, ino)
    }

    /// Whether an inode is a directory that this process has in memory: it may be one that it has no lease on any more. `None`: it knows nothing
    /// of that inode.
    pub fn is_directory(&self, ino: u64) -> Option<bool> {
        let node = self.calls.nodes.get(ino)?;
        let mode = node.state.read().inode.mode;
        Some(mode & libc::S_IFMT == libc::S_IFDIR)
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

    /// How often a lease that this client alone had was taken for somebody else, each time after a digest of its log: what it makes, others use at once.
    #[inline]
    pub fn leases_taken(&self) -> u32 {
        self.services().daemon.taken()
    }

    /// Gets a lease before it is needed; others lose theirs. Kept until another client
    /// takes it, or [`Self::give_back`]. Errors: `ENOENT`.
    pub fn lease(&self, ino: u64, mode: LeaseMode) -> Result<()> {
        let got = self.calls.acquire(ino, mode, LeaseRequestMode::Revoke);
        got.map(|_| ())
    }

    /// Gives a lease back. What was written under it is in the volume when this returns.
    pub fn give_back(&self, ino: u64) -> Result<()> {
        self.services().leases.give_back(&self.calls.nodes, ino)
    }

    /// Has every call of every client wait that would change something, for `max` at most, and returns when nothing changes any more: what
    /// this session reads until [`Self::thaw`] is the state of one moment, and no other client loses a lease for it. A session that
    /// ends, or is killed, thaws. Errors: `EBUSY`, somebody else has done so; `EPERM`; `ETIMEDOUT`, logs could not be digested in
    /// time; `EIO`, or not at all.
    pub fn freeze(&self, max: Duration) -> Result<()> {
        self.calls.freeze(max)
    }

    /// Has calls go on. Gives for how long they have waited. Errors: `ETIMEDOUT`, they have gone on before this was asked, so what was
    /// read is not of one moment.
    pub fn thaw(&self) -> Result<Duration> {
        self.calls.thaw()
    }

    /// Leaves the volume: everything is digested when this returns.
    pub fn detach(&self) -> Result<()> {
        self.services().daemon.ask(Request::Detach).map(|_| ())
    }
}
