//! The frame that every call runs in.
//!
//! A call first gets what it needs from the daemon (space in the log, space in the
//! volume, leases, numbers) while it is outside of the read section and locks; then it enters
//! the read section, takes node locks, appends at most one transaction to the log, and
//! leaves. When something is missing on the way it leaves, gets it and starts
//! again, having changed nothing.
//!
//! Operations are functions that are given this and what else they may touch. Within a run they have a [`CallContext`];
//! outside of one there is what this offers besides [`CallRunner::run`], and no more.

use crate::client::call::CallContext;
use shale_format::LogPos;
use shale_inodes::node::{Node, NodeState, Nodes};
use shale_oplog::{Done, LogReservation};
use shale_proto::message::Space;
use shale_proto::{LeaseMode, LeaseRequestMode, Reply, Request};
use shale_session::call_frame::CallFrame;
use shale_session::caller::Caller;
use shale_session::errno::{Errno, Result, Stop};
use shale_session::log::client_log::{Need, Promise};
use shale_session::read_section::ReadSection;
use shale_session::reader_slot;
use shale_session::retry::RetryPolicy;
use shale_session::services::Services;
use shale_session::volume_reader::VolumeReader;
use shale_sys::{failpoints, mutants};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Takes these mode bits and the capability from a file: an operation of its own, for a call that has to stop for it.
pub(crate) type TakeRights = fn(&CallRunner, &Caller, u64, u32) -> Result<()>;

/// See the module.
pub(crate) struct CallRunner {
    pub(super) services: Services,
    pub(super) nodes: Nodes,
    take_rights: TakeRights,
    /// A name was seen that does not lead to what it says ([`RetryPolicy::retry_changed`]).
    damaged: AtomicBool,
}

impl CallRunner {
    pub(crate) fn new(services: Services, take_rights: TakeRights) -> Self {
        Self {
            services,
            nodes: Nodes::default(),
            take_rights,
            damaged: AtomicBool::new(false),
        }
    }

    /// Runs one call. `f` may be run several times; it changes something only in
    /// the run that succeeds.
    // Each operation has a copy of its own in any case: so it costs no call.
    #[inline(always)]
    pub(crate) fn run<T>(
        &self,
        caller: &Caller,
        need: Need,
        mut f: impl FnMut(&mut CallContext<'_>) -> std::result::Result<T, Stop>,
    ) -> Result<T> {
        let services = &self.services;
        services.has_memory()?;
        let thread = reader_slot::number();
        let permit = services.admit(thread, need.log)?;
        if permit.is_some() {
            services.begin_request(caller);
        }
        let mut op = self.context(caller, thread, permit);
        let mut search = RetryPolicy::default();
        loop {
            // Made in its place and never moved: loading together what was stored apart a
            // moment ago would stall.
            let result = {
                let _inside = ReadSection::enter_as(&services.sections, thread);
                op.begin();
                match op.has_to_wait() {
                    true => Err(Stop::Frozen),
                    false => f(&mut op),
                }
            };
            match result {
                Ok(value) => {
                    services.end_call(need, op.appended, op.has_changed_synced())?;
                    return Ok(value);
                }
                Err(Stop::Rights(ino, bits)) => {
                    // Gives its space in the log back: a client that takes the rights away waits for some.
                    drop(op);
                    (self.take_rights)(self, caller, ino, bits)?;
                    let permit = services.admit(thread, need.log)?;
                    op = self.context(caller, thread, permit);
                }
                Err(Stop::Log(bytes)) => {
                    drop(op);
                    let permit = services.admit(thread, need.log.max(bytes))?;
                    op = self.context(caller, thread, permit);
                }
                Err(stop) => self.resolve_stop(stop, &mut search)?,
            }
        }
    }

    /// A call that has yet to enter the read section.
    #[inline(always)]
    fn context<'s>(
        &'s self,
        caller: &'s Caller,
        thread: usize,
        permit: Option<LogReservation<'s>>,
    ) -> CallContext<'s> {
        let frame = CallFrame::new(&self.services, caller, thread, permit);
        CallContext::new(frame, &self.nodes)
    }

    /// Gets what a run stopped for, so that the call may be run once more.
    #[cold]
    fn resolve_stop(&self, stop: Stop, search: &mut RetryPolicy) -> Result<()> {
        match stop {
            // Resolved where the call's space in the log can be given back.
            Stop::Rights(..) | Stop::Log(_) => Err(Errno::IO),
            Stop::Again => search.retry_changed(&self.damaged),
            Stop::Lease(ino, mode) => self.get_lease(ino, mode, search),
            Stop::Grow(ino) => self
                .acquire(ino, LeaseMode::Exclusive, LeaseRequestMode::GrowOrDefer)
                .map(|_| ()),
            other => self.services.get_lacking(other, search),
        }
    }

    /// Gets a lease for a call. That there is no such inode can mean that what the call
    /// looked up has changed since: it looks once more.
    fn get_lease(&self, ino: u64, mode: LeaseMode, search: &mut RetryPolicy) -> Result<()> {
        let request_mode = if search.has_to_hold() {
            LeaseRequestMode::RevokeAndHold
        } else if self.services.options.yields {
            LeaseRequestMode::RevokeOrDefer
        } else {
            LeaseRequestMode::Revoke
        };
        match self.acquire(ino, mode, request_mode) {
            Err(Errno::NOENT) if search.may_retry_missing(ino) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Gets a lease and brings the inode in memory up to date.
    pub(super) fn acquire(
        &self,
        ino: u64,
        mode: LeaseMode,
        request_mode: LeaseRequestMode,
    ) -> Result<bool> {
        let Services { leases, volume, .. } = &self.services;
        leases.acquire(&self.nodes, volume, ino, mode, request_mode)
    }

    /// Gets an exclusive lease if nobody has to lose one; whether it has it.
    pub(crate) fn try_lease(&self, ino: u64) -> Result<bool> {
        self.acquire(ino, LeaseMode::Exclusive, LeaseRequestMode::Try)
    }

    /// Gets the lease to note an access, if nobody loses one for that. What others refuse is
    /// not asked for again before leases have moved.
    pub(crate) fn may_note_access(&self, ino: u64) -> Result<bool> {
        let Services { daemon, leases, .. } = &self.services;
        if !daemon.notes_access() {
            return Ok(false);
        }
        let Some(node) = self.nodes.get(ino) else {
            return Ok(false);
        };
        if leases.holds(&*node, LeaseMode::Exclusive) {
            return Ok(true);
        }
        let now = u64::from(daemon.lease_word(ino)) | 1 << 32;
        if node.access_refused.load(Ordering::Relaxed) == now {
            return Ok(false);
        }
        let may = self.try_lease(ino)?;
        if !may {
            node.access_refused.store(now, Ordering::Relaxed);
        }
        Ok(may)
    }

    /// One run that reads a file whose lease stands and whose state is at hand, without waiting for anything and without an
    /// allocation: calls `f` with the state, what it may read, and the time. `None`: not that simple, or `f` says so; then
    /// [`Self::run`] finds out what to do. It looks at what mostly is so, in the order of that.
    #[inline(always)]
    pub(crate) fn read_at_once<T>(
        &self,
        node: &Node,
        f: impl FnOnce(&NodeState, &VolumeReader, i64) -> Option<T>,
    ) -> Option<T> {
        let services = &self.services;
        // The kernel wants to know of each use.
        if services.kernel.is_served() {
            return None;
        }
        let read = {
            let _inside = ReadSection::enter_as(&services.sections, reader_slot::number());
            let epoch = services.daemon.epoch();
            failpoints::reach("call-inside");
            if !services.leases.holds(node, LeaseMode::Shared)
                && !mutants::is_on("fast-read-unleased")
            {
                return None;
            }
            let state = node.state.try_read()?;
            let now = state.epoch >= epoch || mutants::is_on("epoch-read");
            if !now || state.dead || state.shifting || !state.inode.is_file() {
                return None;
            }
            f(&state, &services.volume, services.clock.realtime_ns())?
        };
        services.connection.still_served().is_ok().then_some(read)
    }

    /// Asks the volume about an inode that is not in memory, for once, if nobody has to lose a lease for that.
    pub(crate) fn glance<T>(
        &self,
        ino: u64,
        f: impl FnOnce(&VolumeReader) -> Result<T>,
    ) -> Result<Option<T>> {
        let Services { leases, volume, .. } = &self.services;
        leases.glance(&self.nodes, ino, || f(volume))
    }

    /// The node of an inode, if it is in memory.
    pub(crate) fn in_memory(&self, ino: u64) -> Option<Arc<Node>> {
        self.nodes.get(ino)
    }

    /// Whether the lease on a node in memory stands, for reading.
    #[inline]
    pub(crate) fn holds(&self, node: &Node) -> bool {
        self.services.leases.holds(node, LeaseMode::Shared)
    }

    /// A handle of an open file goes.
    pub(crate) fn uncount_open(&self, ino: u64) {
        self.services.count_open(ino, -1);
    }

    /// Whether an inode that loses its last name lives on until the kernel has forgotten it.
    pub(crate) fn kernel_references(&self) -> bool {
        self.services.options.kernel_references
    }

    /// Whether the volume has lower tiers.
    pub(crate) fn is_tiered(&self) -> bool {
        self.services.daemon.is_tiered()
    }

    /// What the caller's request did before a crash, if it did something.
    pub(crate) fn done_before(&self, caller: &Caller) -> Option<Done> {
        self.services.log.requests.done_before(caller)
    }

    /// Where the caller's request began to write before a crash, and how many bytes it
    /// wrote, if it did.
    pub(crate) fn written_before(&self, caller: &Caller) -> Option<(u64, u64)> {
        self.services.log.requests.written_before(caller)
    }

    /// See [`ClientLog::is_eager`](shale_session::log::client_log::ClientLog::is_eager).
    #[inline]
    pub(crate) fn is_eager(&self, ino: u64, range: Range<u64>, sync: bool) -> bool {
        self.services.log.is_eager(ino, range, sync)
    }

    /// See [`ClientLog::note_write`](shale_session::log::client_log::ClientLog::note_write).
    #[inline]
    pub(crate) fn note_write(&self, ino: u64, range: Range<u64>, end: LogPos, eager: u64) {
        self.services.log.note_write(ino, range, end, eager);
    }

    /// Whether whole blocks can go to memory first.
    pub(crate) fn is_buffer(&self) -> bool {
        self.services.log.is_buffer()
    }

    /// Most bytes of log that one call may be given.
    pub(crate) fn log_bytes_max(&self) -> u64 {
        self.services.log.permit_bytes_max()
    }

    /// What fsync(2) does of a file whose newest record ends at `newest`: by the policy of the volume.
    pub(crate) fn fsync(&self, newest: LogPos) -> Result<()> {
        self.services.log.fsync(newest, &self.services.space)
    }

    /// Returns when the records before `upto` survive a power cut.
    pub(crate) fn wait_hardened(&self, upto: LogPos) -> Result<()> {
        self.services.log.wait_hardened(upto)
    }

    /// Returns when what any client of the volume has published survives a power cut.
    pub(crate) fn harden_all(&self) -> Result<()> {
        self.services.log.harden_all()
    }

    /// See [`ClientLog::to_harden`](shale_session::log::client_log::ClientLog::to_harden).
    pub(crate) fn to_harden(&self, promise: Promise) -> Result<Option<LogPos>> {
        self.services.log.to_harden(promise)
    }

    /// Has everything that was logged so far brought into the volume.
    pub(crate) fn digest(&self) -> Result<()> {
        self.services.log.digest()
    }

    /// Has the log brought into the volume up to this position, if it is not.
    pub(crate) fn digest_to(&self, upto: LogPos) -> Result<()> {
        self.services.digest_to(upto)
    }

    /// See [`crate::Session::freeze`].
    pub(crate) fn freeze(&self, max: std::time::Duration) -> Result<()> {
        let max_ns = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX);
        self.services
            .daemon
            .ask(Request::Freeze { max_ns })
            .map(|_| ())
    }

    /// See [`crate::Session::thaw`].
    pub(crate) fn thaw(&self) -> Result<std::time::Duration> {
        match self.services.daemon.ask(Request::Thaw)? {
            Reply::Thawed { ns } => Ok(std::time::Duration::from_nanos(ns)),
            _ => Err(Errno::PROTO),
        }
    }

    /// Space of the volume. What was deleted counts as free at once.
    pub(crate) fn volume_space(&self) -> Result<Space> {
        self.services.volume_space()
    }
}
