//! What a run of a call holds of the session: the time and epoch in which it is, its permit for the log, and space.
//!
//! The crate above adds inodes, and decides what a run does with them. A run appends at most one transaction.

use crate::caller::Caller;
use crate::errno::{Errno, Stop};
use crate::lease::LeasedInode;
use crate::services::Services;
use crate::space::reservation::UNIT;
use crate::volume_reader::VolumeReader;
use shale_format::LogPos;
use shale_nvm::MappedRegion;
use shale_oplog::{LogReservation, Part};
use shale_proto::LeaseMode;
use shale_sys::{failpoints, mutants};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a call works with. Its runs have it one after the other, each inside the read section;
/// what one has been given and not used, the next one has.
pub struct CallFrame<'s> {
    services: &'s Services,
    /// Who the call is made for.
    pub caller: &'s Caller,
    /// Time of the run, ns since 1970.
    pub now_ns: i64,
    /// Epoch in which the run is.
    pub epoch: u64,
    /// Position up to which the volume had the log when the run began.
    pub digested: LogPos,
    /// The calling thread's reader slot.
    thread: usize,
    permit: Option<LogReservation<'s>>,
    /// Bytes of space in the volume.
    reserved: u64,
    /// The run has come to what it works on by names.
    by_name: Cell<bool>,
    /// It changes an inode of which each change is to be durable at return.
    syncs: Cell<bool>,
    /// Position behind the last record that was appended; 0: none was.
    pub appended: LogPos,
}

thread_local! {
    // Nothing to drop: it is there to the thread's very end.
    static APPENDED: Cell<bool> = const { Cell::new(false) };
}

/// After a panic in a call of this thread: whether it came when the call, or the piece of it that was in
/// progress, was in the log already. Asked once.
pub fn panicked_after_append() -> bool {
    APPENDED.take()
}

/// A call of this process has panicked: its record may be in the log while what the process has of its inode is as
/// it was before, and the locks that it held are free.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Ends appending in this process: each later record panics instead, before it is in a log. For the hook that is
/// called at a panic, before locks are left: who waits for one would go by a size that is too small, and write over
/// what the record holds.
pub fn stop_appending() {
    PANICKED.store(true, Ordering::Release);
}

#[inline]
fn may_append() {
    assert!(
        !PANICKED.load(Ordering::Acquire),
        "another call of the process has panicked"
    );
}

impl<'s> CallFrame<'s> {
    /// A call that has yet to enter the read section.
    #[inline(always)]
    pub fn new(
        services: &'s Services,
        caller: &'s Caller,
        thread: usize,
        permit: Option<LogReservation<'s>>,
    ) -> Self {
        Self {
            services,
            caller,
            now_ns: 0,
            epoch: 0,
            digested: LogPos(0),
            thread,
            permit,
            reserved: 0,
            by_name: Cell::new(false),
            syncs: Cell::new(false),
            appended: LogPos(0),
        }
    }

    /// Begins a run: the thread is inside the read section, and stays until the run ends.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.epoch = self.services.daemon.epoch();
        self.digested = self.services.daemon.digested();
        self.now_ns = self.services.clock.realtime_ns();
        self.by_name.set(false);
        self.syncs.set(false);
        failpoints::reach("call-inside");
    }

    /// Whether the run may append, and must not: the volume is frozen. Until the run ends the answer `false` holds.
    #[inline(always)]
    pub fn has_to_wait(&self) -> bool {
        self.permit.is_some()
            && self.services.daemon.is_frozen()
            && !mutants::is_on("freeze-unseen")
    }

    /// Whether the lease on an inode stands and suffices, until the run ends.
    #[inline]
    pub fn lease_stands(&self, inode: &impl LeasedInode, mode: LeaseMode) -> bool {
        let mode = match mutants::is_on("change-shared") {
            true => LeaseMode::Shared,
            false => mode,
        };
        self.services.leases.holds(inode, mode)
    }

    /// As [`Self::lease_stands`]; the kernel, if one is served, may cache what the run then finds.
    #[inline]
    pub fn may_use(&self, inode: &impl LeasedInode, mode: LeaseMode) -> bool {
        let holds = self.lease_stands(inode, mode);
        if holds {
            self.note_use(inode.number());
        }
        holds
    }

    /// The kernel, if one is served, may cache something of the inode.
    #[inline]
    pub fn note_use(&self, ino: u64) {
        self.services.kernel.note_use(ino);
    }

    /// Counts an open file of inode `ino` where the daemon sees it.
    #[inline]
    pub fn count_open(&self, ino: u64) {
        self.services.count_open(ino, 1);
    }

    /// Counts a path of a directory that was looked up where the daemon sees it.
    #[inline]
    pub fn count_path(&self, is_known: bool) {
        self.services.count_path(is_known);
    }

    /// Position up to which the volume has the log by now. That at the begin of the run: [`Self::digested`].
    #[inline]
    pub fn digested_now(&self) -> LogPos {
        self.services.daemon.digested()
    }

    /// Generation word of the lease on `ino`.
    #[inline]
    pub fn lease_word(&self, ino: u64) -> u32 {
        self.services.daemon.lease_word(ino)
    }

    /// The volume, and what this client's log holds, for reading.
    #[inline(always)]
    pub fn volume(&self) -> &'s VolumeReader {
        &self.services.volume
    }

    /// Whether the volume has lower tiers, until the run ends.
    #[inline(always)]
    pub fn is_tiered(&self) -> bool {
        self.services.daemon.is_tiered()
    }

    /// What was read must not be returned if the daemon has cut this client off.
    #[inline(always)]
    pub fn still_served(&self) -> std::result::Result<(), Stop> {
        self.services.connection.still_served()
    }

    /// Whether the call is a kernel's, which has decided about rights before.
    #[inline]
    pub fn is_kernels(&self) -> bool {
        self.services.kernel.is_served()
    }

    /// Whether a kernel is known to have a reference to an inode.
    pub fn kernel_knows(&self, ino: u64) -> bool {
        self.services.kernel.knows(ino)
    }

    /// Whether the caller can do the call through the mount instead.
    #[inline]
    pub fn yields(&self) -> bool {
        self.services.options.yields
    }

    /// Whether an inode that loses its last name lives on until the kernel has forgotten it.
    #[inline]
    pub fn kernel_references(&self) -> bool {
        self.services.options.kernel_references
    }

    /// Where granted blocks lie, for records that are appended with the blocks that they name.
    #[inline(always)]
    pub fn granted_region(&self) -> &'s MappedRegion {
        self.services.space.region()
    }

    /// Refuses (`EPERM`) to give an inode a group of the process that its user would not have when the log is recovered: what was done
    /// with it could not be judged then, and would be lost.
    pub fn may_use_group(&self, gid: u32) -> std::result::Result<(), Stop> {
        match self.services.groups {
            Some(known) if !known.contains(&gid) => Err(Errno::PERM.into()),
            _ => Ok(()),
        }
    }

    /// A number for a new inode in directory `parent`.
    pub fn new_number(&self, parent: u64) -> std::result::Result<u64, Stop> {
        let number = self.services.numbers.take(parent);
        number.ok_or(Stop::Inodes(parent))
    }

    /// The kernel gets a reference to an inode that the call holds a lease on.
    pub fn refer(&self, ino: u64) {
        self.services.kernel.refer(ino);
    }

    /// From here on the run works on what names lead to.
    #[inline]
    pub fn follows_names(&self) {
        self.by_name.set(true);
    }

    /// The run changes an inode of which each change is followed by what fsync(2) does (`chattr +S`, `+D`); `false`: it does not after all.
    #[inline]
    pub fn changes_synced(&self, does: bool) {
        self.syncs.set(does);
    }

    /// Whether the run has changed such an inode.
    #[inline(always)]
    pub fn has_changed_synced(&self) -> bool {
        self.syncs.get()
    }

    /// Why a run stops that finds its inode removed. A name that it has followed leads elsewhere by
    /// now; the giver of a number is notified.
    #[inline]
    pub fn gone(&self) -> Stop {
        if self.by_name.get() {
            Stop::Again
        } else {
            Errno::NOENT.into()
        }
    }

    /// Makes sure that records of `bytes` bytes can be appended, where that is more than was known before.
    #[inline]
    pub fn need_log(&self, bytes: u64) -> std::result::Result<(), Stop> {
        match &self.permit {
            Some(permit) if permit.left() >= bytes => Ok(()),
            _ => Err(Stop::Log(bytes)),
        }
    }

    /// Makes sure that the record may add `bytes` to the volume.
    #[inline]
    pub fn reserve_space(&mut self, bytes: u64) -> std::result::Result<(), Stop> {
        let bytes = bytes.next_multiple_of(UNIT);
        if self.reserved < bytes {
            let missing = bytes - self.reserved;
            if !self.services.space.take(missing) {
                return Err(Stop::NeedSpace(missing));
            }
            self.reserved = bytes;
        }
        Ok(())
    }

    #[inline]
    fn take_reserve(&mut self) -> u32 {
        let units = (self.reserved / UNIT) as u32;
        self.reserved = 0;
        units
    }

    /// Appends the call's record; the space taken so far goes into it. Durable on
    /// return; `part.payload_at()` then tells where its payload lies. Returns the
    /// position behind the record.
    #[inline]
    pub fn append(&mut self, part: &mut Part<'_>) -> std::result::Result<LogPos, Stop> {
        may_append();
        self.sign(part);
        part.header.reserve = self.take_reserve();
        let permit = self.permit.as_mut().ok_or(Errno::IO)?;
        let end = self.services.log.append(permit, part);
        self.appended = end;
        failpoints::reach("call-appended");
        self.services.log.goes_on(end)?;
        Ok(end)
    }

    /// Says in a record when and for whom it is made.
    #[inline]
    fn sign(&self, part: &mut Part<'_>) {
        part.header.time_ns = self.now_ns;
        part.header.request = self.caller.request;
    }

    /// Appends several records as one transaction.
    pub fn append_chain(&mut self, parts: &mut [Part<'_>]) -> std::result::Result<LogPos, Stop> {
        may_append();
        let mut reserve = self.take_reserve();
        for part in parts.iter_mut() {
            self.sign(part);
            part.header.reserve = std::mem::take(&mut reserve);
        }
        let permit = self.permit.as_mut().ok_or(Errno::IO)?;
        if mutants::is_on("call-in-pieces") {
            let ends = parts
                .iter_mut()
                .map(|p| self.services.log.append(permit, p));
            return ends.last().ok_or(Errno::IO.into());
        }
        let end = self.services.log.append_chain(permit, parts);
        self.appended = end;
        failpoints::reach("call-appended");
        self.services.log.goes_on(end)?;
        Ok(end)
    }
}

impl Drop for CallFrame<'_> {
    /// Gives back the space that was not used, and keeps the permit.
    #[inline(always)]
    fn drop(&mut self) {
        self.services.space.put(self.reserved);
        if let Some(permit) = &mut self.permit {
            self.services.log.park(self.thread, permit);
        }
        if self.appended > LogPos(0) && std::thread::panicking() {
            APPENDED.set(true);
            stop_appending();
        }
    }
}
