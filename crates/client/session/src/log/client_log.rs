//! This client's update log: space for what calls append, appending, and giving back what is digested.
//!
//! Owns the writer of the log, the permits that threads keep, the requests whose records the log has to keep, and what slows a
//! writer down. A call gets its space before it takes any lock ([`ClientLog::reserve`]), since it may have to wait
//! for a digest; appending never waits.

use crate::connection_state::ConnectionState;
use crate::daemon_link::DaemonLink;
use crate::errno::{self, Errno, Result, Stop, final_errno};
use crate::kernel_refs::KernelRefs;
use crate::log::benefit_model::{BenefitModel, Decisions};
use crate::log::fsync_pace::FsyncPace;
use crate::log::permit_cache::Permits;
use crate::log::prefault::Prefault;
use crate::log::requests::Requests;
use crate::log::throttle::{FillMarks, Pauses, Waits};
use crate::space::granted_space::GrantedSpace;
use crate::space::grants::{BlockRun, Runs};
use shale_format::{Durability, LogPos};
use shale_nvm::{Map, SharedWords, counters};
use shale_oplog::{
    FreeBlocks, HardenedCopy, Log, LogReservation, Named, ParkedPermit, Part, PublishedWord, Writer,
};
use shale_proto::shared_pages::client_page;
use shale_proto::{Reply, Request};
use shale_sys::{Clock, mutants};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a call may need at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Need {
    /// Bytes of log.
    pub log: u64,
    /// The call is followed by what fsync(2) does (`O_SYNC`, `O_DSYNC`): it returns when its records are hardened, but under `ordered`.
    pub sync: bool,
}

impl Need {
    /// So many bytes of log.
    pub fn log(bytes: u64) -> Self {
        Self {
            log: bytes,
            sync: false,
        }
    }
}

/// What is said of a call with its answer, beyond that it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It has changed something: durable where every call is (`strict`).
    Change,
    /// It has written with `O_SYNC` or `O_DSYNC`: durable but under `ordered`.
    SyncWrite,
    /// It was fsync(2): likewise.
    Fsync,
}

/// See the module.
pub struct ClientLog {
    writer: Writer,
    map: Arc<Map>,
    ring_bytes: u64,
    /// Bytes logged and not digested from which on the daemon is asked to digest, and writers may be slowed.
    digest_from: u64,
    daemon: DaemonLink,
    connection: ConnectionState,
    permits: Permits,
    /// Requests of the kernel that are not answered yet.
    pub requests: Requests,
    /// Records before this position have no space in the log any more.
    reclaimed: AtomicU64,
    notified: AtomicU64,
    pauses: Pauses,
    /// Whether the records of every call are hardened when it returns.
    hardens_at_return: bool,
    /// The log lies in memory: a record is hardened once the daemon has staged it.
    staged: bool,
    /// The log lies in memory, and this is its copy in NVM: a record is hardened once it is copied there, or digested.
    nvm_copy: Option<NvmCopy>,
    /// Whether fsync(2), and `O_SYNC`, wait until records are hardened; they are in order in any case.
    fsync_waits: bool,
    /// Whether a thread asks for records to be hardened, and who waits for that. Of the standard library, whose condition wakes all of them
    /// at once: one after the other would take as long as a commit.
    hardening: (Mutex<bool>, Condvar),
    fsync_pace: FsyncPace,
    /// Records before this are owed to calls that changed an inode with `S`: of a session that hardens later, whose requests tell nothing of that.
    owed: AtomicU64,
    /// Calls do not wait: see [`SessionOptions::hardens_later`](crate::options::SessionOptions::hardens_later).
    hardens_later: bool,
}

/// The copy in NVM of a log in memory, and the word that tells the daemon how far it goes.
struct NvmCopy {
    copy: HardenedCopy,
    /// Looked after before records are copied.
    present: Prefault,
    /// Blocks that records in it name which are not known to be digested, oldest first.
    named: parking_lot::Mutex<VecDeque<Named>>,
    page: SharedWords,
    /// Which whole blocks go directly to NVM.
    model: parking_lot::Mutex<BenefitModel>,
    clock: Arc<dyn Clock>,
}

impl NvmCopy {
    fn is_eager(&self, ino: u64, range: Range<u64>) -> bool {
        let now_ns = || self.clock.monotonic_ns();
        self.model.lock().is_eager(ino, range, now_ns)
    }

    fn note_write(&self, ino: u64, range: Range<u64>, end: LogPos, eager: u64) {
        let mut model = self.model.lock();
        model.note_write(ino, range, end, eager);
        let Decisions {
            eager_bytes,
            lazy_bytes,
            ..
        } = model.decisions();
        self.page.store_u64(client_page::EAGER_BYTES, eager_bytes);
        self.page.store_u64(client_page::LAZY_BYTES, lazy_bytes);
    }

    fn note_fsync(&self, digested: LogPos) {
        let mut model = self.model.lock();
        model.note_fsync(digested, self.clock.monotonic_ns());
        let Decisions { right, wrong, .. } = model.decisions();
        self.page.store_u64(client_page::DECIDED_RIGHT, right);
        self.page.store_u64(client_page::DECIDED_WRONG, wrong);
    }
}

/// A call that waits for the end of a freeze looks so often for it,
const FROZEN_PAUSE_NS: u64 = 500_000;
/// and whether the daemon is there after so many looks.
const FROZEN_TURNS: u32 = 40;

impl ClientLog {
    /// The log in `map`, which was just made and is empty, and its log in NVM with the model of its buffer if `map` is memory; `page`: the
    /// client page. `is_present`: all of it is in memory.
    pub(crate) fn new(
        (map, nvm_log): (Arc<Map>, Option<(Arc<Map>, BenefitModel)>),
        (page, clock): (Arc<Map>, Arc<dyn Clock>),
        (daemon, connection): (DaemonLink, ConnectionState),
        requests: Requests,
        (ring_bytes, is_present): (u64, bool),
        (policy, staged, hardens_later): (Durability, bool, bool),
    ) -> Result<Self> {
        let writer = new_writer(&map, page.clone()).map_err(|e| errno::log(&e))?;
        let begin = writer.reserved().0;
        let absent = ring_bytes * u64::from(!is_present);
        let nvm_copy = match nvm_log {
            Some((nvm, model)) => {
                let present = Prefault::new(nvm.clone(), begin, absent);
                let nvm = Log::open(nvm).map_err(|e| errno::log(&e))?;
                let copy = HardenedCopy::new(&writer, nvm).ok_or(Errno::PROTO)?;
                let page = SharedWords::new(page);
                Some(NvmCopy {
                    copy,
                    present,
                    named: Default::default(),
                    page,
                    model: parking_lot::Mutex::new(model),
                    clock,
                })
            }
            None => None,
        };
        let marks = match nvm_copy {
            Some(_) => FillMarks::BUFFERED,
            None => FillMarks::STRICT,
        };
        let prefault = Prefault::new(map.clone(), begin, absent);
        Ok(Self {
            hardens_at_return: writer.domain().hardens_at_return(policy),
            staged,
            nvm_copy,
            fsync_waits: policy.fsync_waits(),
            hardens_later,
            owed: AtomicU64::new(0),
            hardening: (Mutex::new(false), Condvar::new()),
            fsync_pace: FsyncPace::default(),
            writer,
            map,
            ring_bytes,
            digest_from: ring_bytes / 1000 * marks.digest_from,
            daemon,
            connection,
            permits: Permits::new(prefault),
            requests,
            reclaimed: AtomicU64::new(begin),
            notified: AtomicU64::new(0),
            pauses: Pauses::new(marks),
        })
    }

    /// What can be read of the log.
    pub(crate) fn content(&self) -> Arc<Log> {
        self.writer.log().clone()
    }

    /// Bytes of its ring.
    pub fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// Device counters of the log, as far as it lies in NVM.
    pub fn counts(&self) -> counters::Snapshot {
        match &self.nvm_copy {
            Some(nvm) => nvm.copy.map().counts(),
            None => self.map.counts(),
        }
    }

    /// How this client was slowed because its log filled.
    pub fn waits(&self) -> Waits {
        self.pauses.waits()
    }

    /// Most bytes that one call may be given.
    #[inline]
    pub fn permit_bytes_max(&self) -> u64 {
        self.writer.permit_bytes_max()
    }

    /// Where the next record may begin.
    #[inline]
    pub(crate) fn reserved(&self) -> LogPos {
        self.writer.reserved()
    }

    /// What is complete in the log.
    #[inline]
    pub fn published(&self) -> LogPos {
        self.writer.published().pos()
    }

    /// Has everything that was logged so far brought into the volume.
    pub fn digest(&self) -> Result<()> {
        self.daemon.digest(self.writer.published().pos())
    }

    /// Whether every call is durable when it returns.
    #[inline(always)]
    pub fn hardens_at_return(&self) -> bool {
        self.hardens_at_return
    }

    /// Whether fsync(2) has nothing to do, and nothing to report: every call is durable when it returns, or the daemon makes all of them durable
    /// in their order by itself, as long as it serves this client. A device that logs are staged on can fail, which fsync(2) reports.
    pub fn needs_no_fsync(&self) -> bool {
        self.hardens_at_return || !self.fsync_waits && !self.staged
    }

    /// Returns when the records before `upto` survive a power cut: the one place where a call waits for that, and
    /// where fsync(2) does. In NVM a record is hardened when it is published, so nobody waits; what can keep it
    /// from being there is a memory error in the log (`EIO`). A log in memory is staged by the daemon; `EIO`: the device that it is
    /// staged on has failed. A session that hardens later returns at once. A buffered client with a log in NVM copies the records there.
    #[inline(always)]
    pub(crate) fn harden(&self, upto: LogPos, space: &GrantedSpace) -> Result<()> {
        self.is_whole()?;
        if self.staged {
            return match self.hardens_later {
                true => Ok(()),
                false => self.wait_for_commit(upto),
            };
        }
        debug_assert!(
            upto <= self.writer.published().pos(),
            "a call has appended up to {upto:?} and the log is at {:?}",
            self.writer.published()
        );
        match &self.nvm_copy {
            Some(nvm) => self.copy_to_nvm(nvm, upto, space),
            None => Ok(()),
        }
    }

    /// Whether whole blocks, `range` of the bytes of inode `ino`, go directly to NVM, although this client's log lies in memory: since
    /// they are to survive a power cut when the call returns (`sync`), or an fsync is expected to follow (HiNFS §3.4.2). Of any other client
    /// `false`: it has no choice.
    #[inline]
    pub fn is_eager(&self, ino: u64, range: Range<u64>, sync: bool) -> bool {
        match &self.nvm_copy {
            Some(nvm) => sync && self.fsync_waits || nvm.is_eager(ino, range),
            None => false,
        }
    }

    /// Whether whole blocks of this client's writes can go to memory first.
    #[inline]
    pub fn is_buffer(&self) -> bool {
        self.nvm_copy.is_some()
    }

    /// Bytes `range` of inode `ino` were written, with a record that ends at `end`; `eager`: so many of them directly to NVM.
    #[inline]
    pub fn note_write(&self, ino: u64, range: Range<u64>, end: LogPos, eager: u64) {
        if let Some(nvm) = &self.nvm_copy {
            nvm.note_write(ino, range, end, eager);
        }
    }

    /// A buffered client copies by itself, and asks nobody: all that is published, so that who waits next finds it done.
    #[cold]
    fn copy_to_nvm(&self, nvm: &NvmCopy, upto: LogPos, space: &GrantedSpace) -> Result<()> {
        if nvm.copy.map().any_lost() {
            return Err(Errno::IO);
        }
        if nvm.copy.hardened() < upto && !mutants::is_on("copy-left") {
            self.put_unnamed_back(nvm, space);
            nvm.note_fsync(self.daemon.digested());
            let blocks = space.may_copy().then_some(space as &dyn FreeBlocks);
            let (digested, published) = (|| self.daemon.digested(), self.writer.published());
            let from = nvm.copy.hardened().max(digested()).0;
            nvm.present.cover(from..published.pos().0);
            let (hardened, named) = nvm.copy.harden(digested, published, blocks);
            let lost = nvm.copy.map().any_lost() || named.iter().any(|named| space.is_lost(named));
            assert!(hardened.pos() >= upto, "{hardened:?} of {upto:?}");
            // Under the lock the last thread to come stores the highest position.
            let mut all = nvm.named.lock();
            all.extend(named);
            if lost {
                return Err(Errno::IO);
            }
            let (bytes, upto) = (nvm.copy.copied_bytes(), nvm.copy.hardened());
            nvm.page.store_u64(client_page::COPIED_BYTES, bytes);
            if !mutants::is_on("fsync-alone") {
                nvm.page.store_u64(client_page::COPIED, upto.0);
            }
        }
        Ok(())
    }

    /// Blocks that a record in NVM names which was digested from memory are free, and still this client's.
    fn put_unnamed_back(&self, nvm: &NvmCopy, space: &GrantedSpace) {
        let mut named = nvm.named.lock();
        if named.is_empty() {
            return;
        }
        // In this order: what is linked is said before it is digested.
        let digested = self.daemon.digested();
        let linked = LogPos(self.daemon.linked());
        while named.front().is_some_and(|named| named.end <= digested) {
            let Some(Named { end, addr, blocks }) = named.pop_front() else {
                break;
            };
            if end > linked || mutants::is_on("named-reused") {
                space.put_blocks(&mut Runs::from_slice(&[BlockRun { addr, blocks }]));
            }
        }
    }

    /// One thread at a time asks: a commit has all that the client had published when it began, so most of those who wait for their turn
    /// find their records hardened then (group commit, StageFS §3.2).
    #[cold]
    fn wait_until_staged(&self, upto: LogPos) -> Result<()> {
        let (asking, asked) = &self.hardening;
        let mut busy = asking.lock().unwrap_or_else(PoisonError::into_inner);
        while *busy && !self.daemon.is_hardened(upto) {
            busy = asked.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        if self.daemon.is_hardened(upto) {
            return Ok(());
        }
        *busy = true;
        drop(busy);
        let hardened = self.daemon.harden(upto);
        let hardened = hardened.unwrap_or_else(|| self.harden_by_next_daemon(upto));
        *asking.lock().unwrap_or_else(PoisonError::into_inner) = false;
        asked.notify_all();
        hardened
    }

    /// The daemon was killed while it was asked. The records are in the log, and a daemon that is started again has brought what counts of it
    /// into the volume, durably, before it answers anybody: so the call is done, and must not be made again.
    #[cold]
    fn harden_by_next_daemon(&self, upto: LogPos) -> Result<()> {
        self.daemon.harden_all()?;
        self.connection.counts(upto).map_err(final_errno)
    }

    /// As [`Self::harden`], also where the session hardens later.
    pub fn wait_hardened(&self, upto: LogPos) -> Result<()> {
        self.is_whole()?;
        match self.staged {
            true => self.wait_for_commit(upto),
            false => Ok(()),
        }
    }

    fn wait_for_commit(&self, upto: LogPos) -> Result<()> {
        if self.daemon.is_hardened(upto) {
            return Ok(());
        }
        self.fsync_pace.awaited(upto.0, self.ring_bytes);
        let begun = Instant::now();
        let hardened = self.wait_until_staged(upto);
        self.fsync_pace.waited(begun.elapsed());
        hardened
    }

    /// Returns when what this and every other client of the volume had published when it was called survives a power cut: sync(2).
    pub fn harden_all(&self) -> Result<()> {
        self.is_whole()?;
        self.daemon.harden_all()
    }

    /// How far records have to be hardened before a call that was just done may be answered, where the session hardens later; `None`: it may
    /// be answered now. All that is published: the call's records are, and one commit serves all who wait. `EIO`: nothing
    /// can be hardened any more.
    pub fn to_harden(&self, promise: Promise) -> Result<Option<LogPos>> {
        let waits = match promise {
            // Another call's may be among them: it waits for no longer than that one.
            Promise::Change => self.hardens_at_return || !self.daemon.is_hardened(self.owed()),
            Promise::SyncWrite | Promise::Fsync => self.fsync_waits,
        };
        if !self.staged || !self.hardens_later {
            return Ok(None);
        }
        if self.daemon.hardening_failed() && (waits || promise != Promise::Change) {
            return Err(Errno::IO);
        }
        let upto = self.published();
        Ok(
            (waits && !mutants::is_on("answer-early") && !self.daemon.is_hardened(upto))
                .then_some(upto),
        )
    }

    /// What fsync(2) does of a file whose newest record ends at `newest`. A log in memory is hardened as far as it is published: records
    /// that made the file's name, and those before them, are in its order. `EIO` from the moment on when the daemon can harden
    /// nothing any more, for whatever file: who does not wait (`ordered`) hears of it here.
    pub fn fsync(&self, newest: LogPos, space: &GrantedSpace) -> Result<()> {
        match self.staged {
            _ if !self.fsync_waits && !mutants::is_on("fsync-alone") => self.is_in_order(),
            false if self.nvm_copy.is_some() => self.harden(self.published(), space),
            false => self.harden(newest, space),
            true if mutants::is_on("fsync-early") => Ok(()),
            true if self.daemon.hardening_failed() => Err(Errno::IO),
            true => self.harden(self.published(), space),
        }
    }

    /// A call that has appended up to `upto`, and whose request promises nothing by itself, is not to be answered before that is hardened.
    pub(crate) fn owe(&self, upto: LogPos) {
        if self.staged && self.hardens_later && self.fsync_waits {
            self.owed.fetch_max(upto.0, Ordering::AcqRel);
        }
    }

    fn owed(&self) -> LogPos {
        LogPos(self.owed.load(Ordering::Acquire))
    }

    /// What a call with `O_SYNC`, or on an inode with `S`, does at its end, which has appended up to `upto`.
    pub(crate) fn harden_sync(&self, upto: LogPos, space: &GrantedSpace) -> Result<()> {
        match self.fsync_waits {
            true => self.harden(upto, space),
            false => self.is_in_order(),
        }
    }

    /// All that fsync(2) does where it orders and does not wait: what is published is made durable in the log's order within a second, and
    /// nothing that comes later is there before it.
    fn is_in_order(&self) -> Result<()> {
        match self.daemon.hardening_failed() {
            true => Err(Errno::IO),
            false => self.is_whole(),
        }
    }

    /// Nothing is appended to a log with a memory error in it: whether its last record is there
    /// nobody knows.
    #[inline(always)]
    fn is_whole(&self) -> Result<()> {
        match self.map.any_lost() {
            false => Ok(()),
            true => Err(Errno::IO),
        }
    }

    /// Whether a call may append to the log at all. Errors: `EROFS` while the volume is mounted
    /// read-only, but for what the kernel asks for, which refuses calls by itself and only ends what
    /// was begun before; `EIO`, see [`Self::is_whole`].
    #[inline(always)]
    fn may_append(&self, kernel: &KernelRefs) -> Result<()> {
        if self.daemon.is_read_only() && !kernel.is_served() {
            return Err(Errno::ROFS);
        }
        self.is_whole()
    }

    /// Space in the log for `bytes`, waiting for digest while the log is full. `thread`: the caller's reader slot. `space`: what
    /// the daemon may want back of it first. To be resumed.
    #[inline(always)]
    pub(crate) fn reserve(
        &self,
        thread: usize,
        bytes: u64,
        kernel: &KernelRefs,
        space: &GrantedSpace,
    ) -> Result<ParkedPermit> {
        self.may_append(kernel)?;
        self.reclaim();
        let published = self.writer.published().pos().0;
        if published >= self.daemon.allowed() {
            self.keep_pace(space)?;
        }
        if self.staged && self.fsync_pace.is_due(published, self.daemon.hardened()) {
            // This call is promised nothing by it: who waits for the records hears that they cannot be hardened.
            let _ = self.wait_until_staged(LogPos(published));
        }
        let behind = published.saturating_sub(self.daemon.digested().0);
        if behind > self.digest_from {
            self.slow_down(published)?;
        }
        match self.permits.take(&self.writer, thread, bytes) {
            Some(kept) => Ok(kept),
            None => Ok(self.reserve_slow(bytes)?.keep()),
        }
    }

    #[cold]
    fn reserve_slow(&self, bytes: u64) -> Result<LogReservation<'_>> {
        self.pauses.count_stop();
        loop {
            // As little as helps: the answer comes when the chunk is digested in which that is.
            let upto = self.daemon.digested().0 + bytes;
            let upto = upto.min(self.writer.published().pos().0);
            self.daemon.digest(LogPos(upto))?;
            self.reclaim();
            if let Some(permit) = self.writer.try_reserve(bytes) {
                return Ok(permit);
            }
            self.connection.still_served().map_err(final_errno)?;
            self.writer
                .wait_for_space(bytes, Some(Duration::from_millis(1)));
        }
    }

    /// The log has filled above the mark: tells the daemon, and pauses if digest does not keep up.
    #[cold]
    fn slow_down(&self, published: u64) -> Result<()> {
        self.notify_daemon(published)?;
        let in_use = published.saturating_sub(self.reclaimed.load(Ordering::Relaxed));
        self.pauses.slow_down(in_use, published, self.ring_bytes);
        Ok(())
    }

    /// Tells the daemon once that the log has filled above the mark.
    fn notify_daemon(&self, published: u64) -> Result<()> {
        let last = self.notified.load(Ordering::Relaxed);
        let due = published.saturating_sub(last) > self.ring_bytes / 20;
        let mine = due
            && self
                .notified
                .compare_exchange(last, published, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if mine {
            self.daemon.ask(Request::Notify)?;
        }
        Ok(())
    }

    /// Waits as long as the daemon says.
    #[cold]
    fn keep_pace(&self, space: &GrantedSpace) -> Result<()> {
        loop {
            self.connection.still_served().map_err(final_errno)?;
            match self.daemon.ask(Request::Pace)? {
                Reply::Wait { ns, give_back } => {
                    if give_back {
                        space.give_back()?;
                    }
                    if ns == 0 {
                        return Ok(());
                    }
                    self.pauses.pause(ns);
                }
                _ => return Err(Errno::PROTO),
            }
        }
    }

    /// Waits while the volume is frozen. Outside of the read section and locks. Errors: the daemon does not serve this client any more.
    #[cold]
    pub(crate) fn wait_until_thawed(&self) -> Result<()> {
        for turn in 0u32.. {
            if !self.daemon.is_frozen() {
                break;
            }
            self.connection.still_served().map_err(final_errno)?;
            // One that was killed meanwhile never takes the word back.
            if turn % FROZEN_TURNS == FROZEN_TURNS - 1 {
                self.daemon.ask(Request::Pace)?;
            }
            self.pauses.pause(FROZEN_PAUSE_NS);
        }
        Ok(())
    }

    /// Gives the space of digested records back to the log, if there is any.
    #[inline]
    fn reclaim(&self) {
        let free_below = self.daemon.reclaimable();
        if free_below > self.reclaimed.load(Ordering::Relaxed) {
            self.reclaim_below(free_below);
        }
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
            let _not_copying = self.nvm_copy.as_ref().map(|nvm| nvm.copy.pause());
            self.writer.set_tail(LogPos(free_below));
        }
    }

    /// Space that was reserved, to append with.
    #[inline(always)]
    pub(crate) fn resume(&self, kept: ParkedPermit) -> LogReservation<'_> {
        self.writer.resume(kept)
    }

    /// Keeps what is left of a permit for the next call of thread `thread`.
    #[inline(always)]
    pub(crate) fn park(&self, thread: usize, permit: &mut LogReservation<'_>) {
        self.permits.put(thread, permit);
    }

    /// Appends a record; durable on return. Gives the position behind it.
    #[inline(always)]
    pub(crate) fn append(&self, permit: &mut LogReservation<'_>, part: &mut Part<'_>) -> LogPos {
        self.writer.append(permit, part).end
    }

    /// Appends several records as one transaction.
    pub(crate) fn append_chain(
        &self,
        permit: &mut LogReservation<'_>,
        parts: &mut [Part<'_>],
    ) -> LogPos {
        self.writer.append_chain(permit, parts).end
    }

    /// Whether a record that was just appended, up to `end`, counts: see [`ConnectionState::log_goes_on`].
    #[inline(always)]
    pub(crate) fn goes_on(&self, end: LogPos) -> std::result::Result<(), Stop> {
        self.connection.log_goes_on(end)
    }
}

/// The writer of a log that was just made, which is empty: its tail is where it begins.
fn new_writer(
    log: &Arc<Map>,
    page: Arc<Map>,
) -> std::result::Result<Writer, shale_oplog::OplogError> {
    let word = PublishedWord {
        map: page,
        offset: client_page::PUBLISHED,
    };
    let log = Log::open(log.clone())?;
    let start = LogPos(log.tail_word());
    Writer::new(Arc::new(log), start, word)
}
