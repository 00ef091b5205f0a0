//! A client's session with the daemon: mappings, log, grants, and the frame that
//! every call runs in.
//!
//! A call first gets what it needs from the daemon (space in the log, space in the
//! volume, leases, numbers) while it is outside of the read section and locks; then it enters
//! the read section, takes node locks, appends at most one transaction to the log, and
//! leaves. When something is missing on the way it leaves, gets it and starts
//! again, having changed nothing.

use crate::client::call::CallContext;
use crate::client::grants::{BlockRun, Blocks, InodeNumbers, Runs, within_segments};
use crate::client::lease::AcquireLocks;
pub use crate::client::options::{SessionMaps, SessionOptions};
use crate::client::permit_cache::Permits;
use crate::client::prefault::Prefault;
use crate::client::read_section::{self, ReadSection};
use crate::client::reader_slot;
use crate::client::requests::Requests;
use crate::client::reservation::{Reservation, UNIT, ahead_bytes};
use crate::client::retry::RetryPolicy;
use crate::client::throttle::Pauses;
use crate::errno::{Errno, Result, Stop, device, proto, refusal, volume};
use crate::inodes::attr::Caller;
use crate::inodes::kernel_refs::KernelRefs;
use crate::inodes::node::Nodes;
use crate::lower_tiers::block_cache::BlockCache;
use crate::lower_tiers::direct_device_read::FlashDevices;
use crate::namespace::path_cache::PathCache;
use parking_lot::Mutex;
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, Durability, LogPos};
use shale_nvm::{Access, Map, MapOptions, Piece, SharedWords};
use shale_oplog::{Log, LogReservation, ParkedPermit, PublishedWord, Recent, Writer};
use shale_proto::message::{Attached, BlockRun as GrantedRun, PROTO_VERSION, Space};
use shale_proto::shared_pages::{client_page, daemon_page};
use shale_proto::{Channel, LeaseMode, LeaseRequestMode, Reply, Request};
use shale_sys::Memory;
use shale_sys::clock::Clock;
use shale_volume::View;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A client of a volume.
pub struct Session {
    pub(crate) channel: Arc<dyn Channel>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) nvm: Arc<Map>,
    pub(crate) view: View,
    pub(crate) log: Writer,
    pub(crate) daemon_words: SharedWords,
    client_words: SharedWords,
    pub(crate) log_words: SharedWords,
    pub(crate) client_page: Arc<Map>,
    pub(crate) log_map: Arc<Map>,
    pub(crate) permits: Permits,
    pub(crate) nodes: Nodes,
    pub(crate) acquire_locks: AcquireLocks,
    pub(crate) kernel: OnceLock<KernelRefs>,
    pub(crate) reservation: Reservation,
    pub(crate) numbers: InodeNumbers,
    pub(crate) blocks: Blocks,
    pub(crate) requests: Requests,
    pub(crate) recent: Recent,
    pub(crate) rename_lock: Mutex<()>,
    pub(crate) lower: Arc<BlockCache>,
    pub(crate) flash: FlashDevices,
    pub(crate) paths: PathCache,
    reclaimed: AtomicU64,
    notified: AtomicU64,
    pub(crate) pauses: Pauses,
    /// A name was seen that does not lead to what it says ([`RetryPolicy::retry_changed`]).
    damaged: AtomicBool,
    pub(crate) options: SessionOptions,
    /// Whether the records of every call are hardened when it returns.
    hardens_at_return: bool,
    attached: Attached,
}

/// What a call may need at most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Need {
    /// Bytes of log.
    pub log: u64,
    /// The call returns when its records are hardened, whatever the policy of the volume (`O_SYNC`, `O_DSYNC`).
    pub sync: bool,
}

impl Need {
    /// So many bytes of log.
    pub(crate) fn log(bytes: u64) -> Self {
        Self {
            log: bytes,
            sync: false,
        }
    }
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
        let log_map = map(&maps.log, log_bytes, Access::ReadWrite)?;
        if options.present {
            log_map.populate().map_err(|e| device(&e))?;
        }
        let daemon_page = map(&plain, daemon_page::BYTES, Access::ReadOnly)?;
        let client_page = map(&maps.client_page, client_page::BYTES, Access::ReadWrite)?;
        let nvm = Arc::new(map_segments(channel.as_ref(), &attached, &maps.nvm)?);
        let (view, _) = View::open(nvm.clone()).map_err(|e| volume(&e))?;
        let lower = Arc::new(BlockCache::default());
        let view = view.given_by(lower.clone());
        let log = new_writer(&log_map, &client_page).map_err(|e| crate::errno::log(&e))?;
        let policy = Durability::from_number(attached.durability).unwrap_or_default();
        let hardens_at_return = log.domain().hardens_at_return(policy);
        let absent = attached.ring_bytes * u64::from(!options.present);
        let begin = log.reserved().0;
        let present = Prefault::new(log_map.clone(), begin, absent);
        Ok(Arc::new(Self {
            channel,
            clock,
            nvm,
            view,
            log,
            daemon_words: SharedWords::new(daemon_page),
            client_words: SharedWords::new(client_page.clone()),
            log_words: SharedWords::new(log_map.clone()),
            client_page,
            log_map,
            permits: Permits::new(present),
            nodes: Nodes::new(),
            acquire_locks: AcquireLocks::new(),
            kernel: OnceLock::new(),
            reservation: Reservation::default(),
            numbers: InodeNumbers::default(),
            blocks: Blocks::default(),
            requests: Requests::default(),
            recent,
            rename_lock: Mutex::new(()),
            lower,
            flash: FlashDevices::default(),
            paths: PathCache::new(),
            reclaimed: AtomicU64::new(begin),
            notified: AtomicU64::new(0),
            pauses: Pauses::default(),
            damaged: AtomicBool::new(false),
            options,
            hardens_at_return,
            attached,
        }))
    }

    /// Whether every call is durable when it returns, so that fsync(2) has nothing to do.
    pub fn is_durable_at_return(&self) -> bool {
        self.hardens_at_return
    }

    /// Whether the daemon still serves this client.
    pub fn is_served(&self) -> bool {
        let served = self.run(&Caller::default(), Need::default(), |_| self.still_served());
        served.is_ok()
    }

    /// Returns when the records before `upto` survive a power cut: the one place where a call waits for that, and
    /// where fsync(2) does. In NVM a record is hardened when it is published, so nobody waits; what can keep it
    /// from being there is a memory error in the log (`EIO`).
    #[inline(always)]
    pub(crate) fn harden(&self, upto: LogPos) -> Result<()> {
        self.log_is_whole()?;
        debug_assert!(
            upto <= self.log.hardened().pos(),
            "a call has appended up to {upto:?} and the log is at {:?}",
            self.log.hardened()
        );
        Ok(())
    }

    /// Bytes of this client's update log.
    pub fn log_bytes(&self) -> u64 {
        self.attached.ring_bytes
    }

    /// Number that the daemon knows this client by.
    pub fn client(&self) -> u32 {
        self.attached.client
    }

    /// Device counters of the NVM tier, as this process moved bytes.
    pub fn nvm_counts(&self) -> shale_nvm::counters::Snapshot {
        self.nvm.counts()
    }

    /// Device counters of the update log.
    pub fn log_counts(&self) -> shale_nvm::counters::Snapshot {
        self.log_map.counts()
    }

    /// Position up to which the volume has this client's log.
    #[inline]
    pub(crate) fn digested(&self) -> LogPos {
        LogPos(self.daemon_words.load_u64(daemon_page::DIGESTED))
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.daemon_words.load_u64(daemon_page::EPOCH)
    }

    /// Generation word of the lease on `ino`.
    pub(crate) fn lease_word(&self, ino: u64) -> u32 {
        self.daemon_words.load_u32(daemon_page::bucket(ino))
    }

    pub(crate) fn client_words(&self) -> &SharedWords {
        &self.client_words
    }

    /// Counts an open file of inode `ino` where the daemon sees it.
    pub(crate) fn count_open(&self, ino: u64, by: i32) {
        let word = shale_proto::shared_pages::client_page::uses(ino);
        self.client_page.fetch_add_u32(word, by.cast_unsigned());
    }

    /// Asks the daemon; a refusal becomes its errno.
    pub(crate) fn ask(&self, request: Request) -> Result<Reply> {
        match self.channel.call(request).map_err(|e| proto(&e))?.0 {
            Reply::Refused { errno, why } => {
                if errno != libc::ENOENT {
                    tracing::warn!("daemon refuses: {why}");
                }
                Err(Errno::from_raw_os_error(errno))
            }
            reply => Ok(reply),
        }
    }

    /// Runs one call. `f` may be run several times; it changes something only in
    /// the run that succeeds.
    pub(crate) fn run<T>(
        &self,
        caller: &Caller,
        need: Need,
        mut f: impl FnMut(&mut CallContext<'_>) -> std::result::Result<T, Stop>,
    ) -> Result<T> {
        if self.options.memory.is_some_and(Memory::is_short) {
            return Err(Errno::NOMEM);
        }
        let thread = reader_slot::number();
        let admitted = |bytes| {
            Ok(match bytes {
                0 => None,
                bytes => Some(self.log.resume(self.reserve_log(thread, bytes)?)),
            })
        };
        let permit = admitted(need.log)?;
        if permit.is_some() && caller.request != 0 {
            self.requests.begin(caller.request, || self.log.reserved());
        }
        let mut op = CallContext::new(self, caller, thread, permit);
        let mut search = RetryPolicy::default();
        loop {
            // Made in its place and never moved: loading together what was stored apart a
            // moment ago would stall.
            let result = {
                let _inside = ReadSection::enter_as(&self.client_words, thread);
                op.begin();
                f(&mut op)
            };
            match result {
                Ok(value) => {
                    match need.log {
                        0 => self.still_served().map_err(final_errno)?,
                        _ if need.sync || self.hardens_at_return => self.harden(op.appended)?,
                        _ => {}
                    }
                    return Ok(value);
                }
                Err(Stop::Rights(ino, bits)) => {
                    // Gives its space in the log back: a client that takes the rights away waits for some.
                    drop(op);
                    self.take_rights(caller, ino, bits)?;
                    op = CallContext::new(self, caller, thread, admitted(need.log)?);
                }
                Err(Stop::Log(bytes)) => {
                    drop(op);
                    op = CallContext::new(self, caller, thread, admitted(need.log.max(bytes))?);
                }
                Err(stop) => self.resolve_stop(stop, &mut search)?,
            }
        }
    }

    /// Gets what a run stopped for, so that the call may be run once more.
    #[cold]
    fn resolve_stop(&self, stop: Stop, search: &mut RetryPolicy) -> Result<()> {
        match stop {
            Stop::Errno(e) => Err(e),
            // Resolved where the call's space in the log can be given back.
            Stop::Rights(..) | Stop::Log(_) => Err(Errno::IO),
            Stop::Again => search.retry_changed(&self.damaged),
            Stop::Lease(ino, mode) => self.get_lease(ino, mode, search),
            Stop::Grow(ino) => self
                .acquire(ino, LeaseMode::Exclusive, LeaseRequestMode::GrowOrDefer)
                .map(|_| ()),
            Stop::Inodes(parent) => self.get_numbers(parent),
            Stop::Blocks(lacking) => self.get_blocks(lacking),
            Stop::NeedSpace(bytes) => match self.acquire_space(bytes) {
                // The daemon has digested everything to find space, which can lessen the
                // need: look once more.
                Err(Errno::NOSPC) if !search.last_try => {
                    search.last_try = true;
                    Ok(())
                }
                other => other,
            },
        }
    }

    /// Space in the log for `bytes`, waiting for digest while the log is full. To be resumed.
    #[inline(always)]
    fn reserve_log(&self, thread: usize, bytes: u64) -> Result<ParkedPermit> {
        self.may_append()?;
        self.reclaim();
        let published = self.log.published().pos().0;
        if published >= self.daemon_words.load_u64(daemon_page::ALLOWED) {
            self.keep_pace()?;
        }
        let behind = published.saturating_sub(self.digested().0);
        if behind > self.attached.ring_bytes / 10 * 3 {
            self.notify_daemon(published)?;
            self.slow_down(published);
        }
        match self.permits.take(&self.log, thread, bytes) {
            Some(kept) => Ok(kept),
            None => Ok(self.reserve_log_slow(bytes)?.keep()),
        }
    }

    #[cold]
    fn reserve_log_slow(&self, bytes: u64) -> Result<LogReservation<'_>> {
        self.count_stop();
        loop {
            // As little as helps: the answer comes when the chunk is digested in which that is.
            let upto = self.digested().0 + bytes;
            self.ask(Request::Digest {
                upto: upto.min(self.log.published().pos().0),
            })?;
            self.reclaim();
            if let Some(permit) = self.log.try_reserve(bytes) {
                return Ok(permit);
            }
            self.still_served().map_err(final_errno)?;
            self.log
                .wait_for_space(bytes, Some(Duration::from_millis(1)));
        }
    }

    /// Tells the daemon once that the log has filled above the mark.
    #[cold]
    fn notify_daemon(&self, published: u64) -> Result<()> {
        let last = self.notified.load(Ordering::Relaxed);
        let due = published.saturating_sub(last) > self.attached.ring_bytes / 20;
        let mine = due
            && self
                .notified
                .compare_exchange(last, published, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if mine {
            self.ask(Request::Notify)?;
        }
        Ok(())
    }

    /// Gives the space of digested records back to the log, if there is any.
    #[inline]
    fn reclaim(&self) {
        let free_below = self.daemon_words.load_u64(daemon_page::RECLAIM);
        if free_below > self.reclaimed.load(Ordering::Relaxed) {
            self.reclaim_below(free_below);
        }
    }

    /// Records before this position have no space in the log any more, as far as was looked.
    pub(crate) fn reclaimed(&self) -> u64 {
        self.reclaimed.load(Ordering::Relaxed)
    }

    #[cold]
    fn reclaim_below(&self, free_below: u64) {
        let free_below = self.requests.tail_limit(LogPos(free_below)).0;
        let last = self.reclaimed.load(Ordering::Relaxed);
        let mine = free_below > last
            && self
                .reclaimed
                .compare_exchange(last, free_below, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if mine {
            self.log.set_tail(LogPos(free_below));
        }
    }

    /// Gets a lease for a call. That there is no such inode can mean that what the call
    /// looked up has changed since: it looks once more.
    fn get_lease(&self, ino: u64, mode: LeaseMode, search: &mut RetryPolicy) -> Result<()> {
        let request_mode = if search.has_to_hold() {
            LeaseRequestMode::RevokeAndHold
        } else if self.options.yields {
            LeaseRequestMode::RevokeOrDefer
        } else {
            LeaseRequestMode::Revoke
        };
        match self.acquire(ino, mode, request_mode) {
            Err(Errno::NOENT) if search.may_retry_missing(ino) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Gets space so that `bytes` are free for the caller.
    pub(crate) fn acquire_space(&self, bytes: u64) -> Result<()> {
        let ask = |wanted| match self.ask(Request::Reserve {
            wanted,
            least: bytes,
        })? {
            Reply::Credit { bytes } => {
                self.reservation.add(bytes / UNIT * UNIT);
                Ok(true)
            }
            Reply::NoSpace => Ok(false),
            _ => Err(Errno::PROTO),
        };
        if ask(bytes.max(ahead_bytes(self.nvm.bytes() as u64)))? {
            return Ok(());
        }
        self.return_grants()?;
        if ask(bytes)? {
            Ok(())
        } else {
            Err(Errno::NOSPC)
        }
    }

    /// Gives blocks and space that no record uses back to the daemon.
    pub(crate) fn return_grants(&self) -> Result<()> {
        let runs: Vec<_> = self.blocks.drain();
        for some in runs.chunks(1024) {
            let runs: Vec<_> = some
                .iter()
                .map(|r| GrantedRun {
                    addr: r.addr.raw(),
                    blocks: r.blocks as u32,
                })
                .collect();
            self.close_runs(&runs);
            self.ask(Request::ReturnBlocks { runs })?;
        }
        self.return_space()
    }

    /// Gives space that no record uses back to the daemon.
    pub(crate) fn return_space(&self) -> Result<()> {
        let bytes = self.reservation.drain();
        if bytes > 0 {
            self.ask(Request::ReturnCredit { bytes })?;
        }
        Ok(())
    }

    /// Whether this client writes into granted blocks at all.
    pub(crate) fn may_steal(&self) -> bool {
        self.attached.may_steal && !self.options.log_all
    }

    /// Takes `blocks` granted blocks, asking for more if needed; `false`: there are
    /// none to be had, so the bytes go through the log.
    pub(crate) fn take_blocks(&self, blocks: u64, into: &mut Runs) -> Result<bool> {
        if !self.may_steal() {
            return Ok(false);
        }
        if self.blocks.take(blocks, into) {
            return Ok(true);
        }
        // What a large call lacks, so that nothing of it stays behind; for small ones ahead.
        let lacking = blocks.saturating_sub(self.blocks.count());
        let ahead = ahead_bytes(self.nvm.bytes() as u64) / BLOCK_BYTES as u64;
        let ask = Request::GrantBlocks {
            blocks: lacking.max(ahead) as u32,
        };
        let (reply, fds) = self.channel.call(ask).map_err(|e| proto(&e))?;
        let Reply::Blocks { runs, segments } = reply else {
            return Ok(false);
        };
        let (runs, closed) = self.open_runs(runs, &segments, &fds);
        if !closed.is_empty() {
            // No descriptor, or no memory, for their segments: the bytes go through the log.
            self.ask(Request::ReturnBlocks { runs: closed })?;
        }
        self.blocks.add(runs.iter().map(|r| BlockRun {
            addr: BlockAddr::from_raw(r.addr),
            blocks: r.blocks.into(),
        }));
        Ok(self.blocks.take(blocks, into))
    }

    /// Makes granted runs writable, as far as there are descriptors for them (the kernel leaves out
    /// those that this process has no numbers for) and memory. Gives those that are and those
    /// that are not. Blocks stay writable when their file gives them up, and are present then: a client that
    /// overwrites in any order is granted the same blocks again and again, one by one, and pays for each once.
    fn open_runs(
        &self,
        runs: Vec<GrantedRun>,
        segments: &[u32],
        fds: &[OwnedFd],
    ) -> (Vec<GrantedRun>, Vec<GrantedRun>) {
        runs.into_iter().partition(|run| {
            within_segments(run).all(|(segment, range)| {
                if self.nvm.is_writable(range.clone()) {
                    return true;
                }
                let fd = segments.iter().position(|&s| s as usize == segment);
                let opened = match fd.and_then(|at| fds.get(at)) {
                    Some(fd) => self.nvm.remap_writable(range.clone(), fd),
                    None => return false,
                };
                match &opened {
                    Ok(()) => self.nvm.expect_stores(range.start, range.len()),
                    Err(e) => tracing::warn!("granted blocks stay read-only: {e}"),
                }
                opened.is_ok()
            })
        })
    }

    /// Makes runs read-only again that go back.
    fn close_runs(&self, runs: &[GrantedRun]) {
        for (_, range) in runs.iter().flat_map(within_segments) {
            // What stays writable is this process's own loss only if it stores astray.
            if let Err(e) = self.nvm.remap_read_only(range) {
                tracing::warn!("returned blocks stay writable: {e}");
            }
        }
    }

    /// Has everything that was logged so far brought into the volume.
    pub fn digest(&self) -> Result<()> {
        self.ask(Request::Digest {
            upto: self.log.published().pos().0,
        })?;
        Ok(())
    }

    /// Space of the volume. What was deleted counts as free at once.
    pub fn space(&self) -> Result<Space> {
        if self.digested() < self.log.published().pos() {
            self.digest()?;
        }
        match self.ask(Request::Space)? {
            Reply::Space(mut s) => {
                let unused = self.reservation.free() + s.spare_bytes;
                let own = unused / BLOCK_BYTES as u64 + self.blocks.count();
                s.free = (s.free + own).min(s.total);
                Ok(s)
            }
            _ => Err(Errno::PROTO),
        }
    }

    /// State of the volume as JSON.
    pub fn status(&self) -> Result<String> {
        match self.ask(Request::Status)? {
            Reply::Status(text) => Ok(text),
            _ => Err(Errno::PROTO),
        }
    }

    /// Leaves the volume: everything is digested when this returns.
    pub fn detach(&self) -> Result<()> {
        self.ask(Request::Detach)?;
        Ok(())
    }
}

/// The writer of a log that was just made, which is empty: its tail is where it begins.
fn new_writer(
    log: &Arc<Map>,
    page: &Arc<Map>,
) -> std::result::Result<Writer, shale_oplog::OplogError> {
    let word = PublishedWord {
        map: page.clone(),
        offset: client_page::PUBLISHED,
    };
    let log = Log::open(log.clone())?;
    let start = LogPos(log.tail_word());
    Writer::new(Arc::new(log), start, word)
}

pub(crate) fn final_errno(stop: Stop) -> Errno {
    match stop {
        Stop::Errno(e) => e,
        _ => Errno::IO,
    }
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
