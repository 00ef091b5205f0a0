//! One run of a call: inside the read section, with a permit for the log.

use crate::client::services::Services;
use crate::client::space::reservation::UNIT;
use crate::client::volume_reader::VolumeReader;
use crate::errno::{Errno, Stop};
use crate::inodes::attr::Caller;
use crate::inodes::node::{Node, NodeState};
use shale_format::LogPos;
use shale_nvm::MappedRegion;
use shale_oplog::{LogReservation, Part};
use shale_proto::LeaseMode;
use shale_sys::biased_rwlock::{ReadGuard, WriteGuard};
use shale_sys::{failpoints, mutants};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a call works with. Its runs have it one after the other, each inside the read section;
/// what one has been given and not used, the next one has.
pub(crate) struct CallContext<'s> {
    services: &'s Services,
    pub caller: &'s Caller,
    /// Time of the run, ns since 1970.
    pub now_ns: i64,
    /// Epoch in which the run is.
    pub epoch: u64,
    digested: LogPos,
    /// The calling thread's reader slot.
    thread: usize,
    permit: Option<LogReservation<'s>>,
    /// Bytes of space in the volume.
    reserved: u64,
    /// The run has come to what it works on by names.
    by_name: Cell<bool>,
    /// Position behind the last record that was appended; 0: none was.
    pub(crate) appended: LogPos,
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

fn may_append() {
    assert!(
        !PANICKED.load(Ordering::Acquire),
        "another call of the process has panicked"
    );
}

impl<'s> CallContext<'s> {
    /// A call that has yet to enter the read section.
    #[inline(always)]
    pub(crate) fn new(
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
            appended: LogPos(0),
        }
    }

    /// Begins a run: the thread is inside the read section, and stays until the run ends.
    #[inline(always)]
    pub(crate) fn begin(&mut self) {
        self.epoch = self.services.daemon.epoch();
        self.digested = self.services.daemon.digested();
        self.now_ns = self.services.clock.realtime_ns();
        self.by_name.set(false);
        failpoints::reach("call-inside");
    }

    /// The inode, loaded and leased. `ENOENT` if there is none.
    pub(crate) fn node(&self, ino: u64) -> std::result::Result<Arc<Node>, Stop> {
        self.leased(ino, LeaseMode::Shared)
    }

    /// As [`Self::node`], for a call that changes the inode.
    pub(crate) fn node_to_change(&self, ino: u64) -> std::result::Result<Arc<Node>, Stop> {
        self.leased(ino, LeaseMode::Exclusive)
    }

    /// The inode, loaded and leased in this mode.
    pub(crate) fn leased(&self, ino: u64, mode: LeaseMode) -> std::result::Result<Arc<Node>, Stop> {
        let missing = Stop::Lease(ino, mode);
        match self.services.nodes.get(ino) {
            Some(node) if self.usable_now(&node, mode) => Ok(node),
            _ => Err(missing),
        }
    }

    /// Whether a call may change this node at once: the lease on it stands.
    #[inline]
    pub(crate) fn may_change(&self, node: &Node) -> bool {
        self.usable_now(node, LeaseMode::Exclusive)
    }

    /// Whether a call may read this node at once: the lease on it stands.
    #[inline]
    pub(crate) fn may_read(&self, node: &Node) -> bool {
        self.usable_now(node, LeaseMode::Shared)
    }

    #[inline]
    fn usable_now(&self, node: &Node, mode: LeaseMode) -> bool {
        let holds = self.services.leases.holds(node, mode);
        if holds {
            self.services.kernel.note_use(node.ino);
        }
        holds
    }

    /// The node of an inode, if it is in memory, whatever lease there is on it.
    pub(crate) fn in_memory(&self, ino: u64) -> Option<Arc<Node>> {
        self.services.nodes.get(ino)
    }

    /// Whether the lease on a node stands, for reading.
    pub(crate) fn holds(&self, node: &Node) -> bool {
        self.services.leases.holds(node, LeaseMode::Shared)
    }

    /// Generation word of the lease on `ino`.
    pub(crate) fn lease_word(&self, ino: u64) -> u32 {
        self.services.daemon.lease_word(ino)
    }

    /// The volume, and what this client's log holds, for reading.
    #[inline(always)]
    pub(crate) fn volume(&self) -> &'s VolumeReader {
        &self.services.volume
    }

    /// Whether the volume has lower tiers, until the run ends.
    #[inline(always)]
    pub(crate) fn is_tiered(&self) -> bool {
        self.services.daemon.is_tiered()
    }

    /// What was read must not be returned if the daemon has cut this client off.
    #[inline(always)]
    pub(crate) fn still_served(&self) -> std::result::Result<(), Stop> {
        self.services.connection.still_served()
    }

    /// Whether the call is a kernel's, which has decided about rights before.
    pub(crate) fn is_kernels(&self) -> bool {
        self.services.kernel.is_served()
    }

    /// Whether a kernel is known to have a reference to an inode.
    pub(crate) fn kernel_knows(&self, ino: u64) -> bool {
        self.services.kernel.knows(ino)
    }

    /// Whether the caller can do the call through the mount instead.
    pub(crate) fn yields(&self) -> bool {
        self.services.options.yields
    }

    /// Whether an inode that loses its last name lives on until the kernel has forgotten it.
    pub(crate) fn kernel_references(&self) -> bool {
        self.services.options.kernel_references
    }

    /// Where granted blocks lie, for records that are appended with the blocks that they name.
    #[inline(always)]
    pub(crate) fn granted_region(&self) -> &'s MappedRegion {
        self.services.space.region()
    }

    /// A number for a new inode in directory `parent`.
    pub(crate) fn new_number(&self, parent: u64) -> std::result::Result<u64, Stop> {
        let number = self.services.numbers.take(parent);
        number.ok_or(Stop::Inodes(parent))
    }

    /// Puts an inode that was just made, and is open from then on or not, into memory. Its number was
    /// granted to this client, and with it the lease.
    pub(crate) fn add_new(&self, state: NodeState, opened: bool) -> Arc<Node> {
        let ino = state.inode.ino;
        let node: Arc<Node> = Node::new(ino, state);
        if opened {
            self.open(&node);
        }
        self.services.kernel.note_use(ino);
        node.lease.set(self.lease_word(ino), LeaseMode::Exclusive);
        let digested = self.services.daemon.digested();
        self.services.nodes.replace(node.clone(), digested);
        node
    }

    /// An inode was freed by the record that ends at `end`.
    pub(crate) fn bury(&self, node: &Arc<Node>, end: LogPos) {
        let digested = self.services.daemon.digested();
        self.services.nodes.bury(node, end, digested);
    }

    /// Counts an open file; the call holds a lease on the node.
    pub(crate) fn open(&self, node: &Node) {
        node.handles.fetch_add(1, Ordering::AcqRel);
        self.services.count_open(node.ino, 1);
    }

    /// The kernel gets a reference to an inode that the call holds a lease on.
    pub(crate) fn refer(&self, ino: u64) {
        self.services.kernel.refer(ino);
    }

    /// The state of a node, for reading, in the call's epoch.
    #[inline(always)]
    pub(crate) fn read<'n>(
        &self,
        node: &'n Node,
    ) -> std::result::Result<ReadGuard<'n, NodeState>, Stop> {
        loop {
            let state = node.state.read();
            if state.epoch >= self.epoch || mutants::is_on("epoch-read") {
                return self.usable(node, &state).map(|()| state);
            }
            drop(state);
            node.refresh(&self.services.volume, self.epoch, self.digested)?;
        }
    }

    /// The state of a node, for changing, in the call's epoch.
    #[inline]
    pub(crate) fn write<'n>(
        &self,
        node: &'n Node,
    ) -> std::result::Result<WriteGuard<'n, NodeState>, Stop> {
        if !self.services.leases.holds(node, LeaseMode::Exclusive) {
            return Err(Stop::Lease(node.ino, LeaseMode::Exclusive));
        }
        self.lock(node)
    }

    /// Stops a call that would make a file longer, to `end`, which others use through the mount: the
    /// kernel does that, so that it never knows such a file too small.
    #[inline(always)]
    pub(crate) fn may_end_at(
        &self,
        node: &Node,
        state: &NodeState,
        end: u64,
    ) -> std::result::Result<(), Stop> {
        if end > state.inode.size && self.services.options.yields {
            return self.may_grow(node);
        }
        Ok(())
    }

    fn may_grow(&self, node: &Node) -> std::result::Result<(), Stop> {
        match node.shared.load(Ordering::Acquire) {
            true => Err(Stop::Grow(node.ino)),
            false => Ok(()),
        }
    }

    /// The state of a node, for keeping more of what the volume says in memory.
    #[inline(always)]
    pub(crate) fn lock<'n>(
        &self,
        node: &'n Node,
    ) -> std::result::Result<WriteGuard<'n, NodeState>, Stop> {
        loop {
            let state = node.state.write();
            if state.epoch >= self.epoch {
                return self.usable(node, &state).map(|()| state);
            }
            drop(state);
            node.refresh(&self.services.volume, self.epoch, self.digested)?;
        }
    }

    /// Whether a call may work with this state now.
    #[inline(always)]
    fn usable(&self, node: &Node, state: &NodeState) -> std::result::Result<(), Stop> {
        if state.dead || state.shifting {
            return Err(self.unusable(node, state));
        }
        Ok(())
    }

    #[cold]
    fn unusable(&self, node: &Node, state: &NodeState) -> Stop {
        if state.dead && state.newest <= self.digested {
            // The number is free again, so another client may have made an inode of it.
            self.services.nodes.remove(node);
            // Who still has the node looks the inode up again.
            node.lease.clear();
            return Stop::Lease(node.ino, LeaseMode::Shared);
        }
        if state.dead { self.gone() } else { Stop::Again }
    }

    /// From here on the run works on what names lead to.
    pub(crate) fn follows_names(&self) {
        self.by_name.set(true);
    }

    /// Why a run stops that finds its inode removed. A name that it has followed leads elsewhere by
    /// now; the giver of a number is notified.
    pub(crate) fn gone(&self) -> Stop {
        if self.by_name.get() {
            Stop::Again
        } else {
            Errno::NOENT.into()
        }
    }

    /// Refuses what is no directory (`ENOTDIR`), and one that was removed ([`Self::gone`]).
    pub(crate) fn live_dir(&self, state: &NodeState) -> std::result::Result<(), Stop> {
        if !state.inode.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        if state.orphan {
            Err(self.gone())
        } else {
            Ok(())
        }
    }

    /// Ends a shift of a file's blocks: the volume has it now.
    pub(crate) fn end_shift(&self, node: &Node) -> std::result::Result<(), Stop> {
        if !node.state.read().shifting {
            // The lease was elsewhere meanwhile, and what came with it may be changed already.
            return Ok(());
        }
        node.reload(&self.services.volume, self.epoch)
    }

    /// Makes sure that records of `bytes` bytes can be appended, where that is more than was known before.
    pub(crate) fn need_log(&self, bytes: u64) -> std::result::Result<(), Stop> {
        match &self.permit {
            Some(permit) if permit.left() >= bytes => Ok(()),
            _ => Err(Stop::Log(bytes)),
        }
    }

    /// Makes sure that the record may add `bytes` to the volume.
    #[inline]
    pub(crate) fn reserve_space(&mut self, bytes: u64) -> std::result::Result<(), Stop> {
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

    fn take_reserve(&mut self) -> u32 {
        let units = (self.reserved / UNIT) as u32;
        self.reserved = 0;
        units
    }

    /// Appends the call's record; the space taken so far goes into it. Durable on
    /// return; `part.payload_at()` then tells where its payload lies. Returns the
    /// position behind the record.
    #[inline]
    pub(crate) fn append(&mut self, part: &mut Part<'_>) -> std::result::Result<LogPos, Stop> {
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
    pub(crate) fn append_chain(
        &mut self,
        parts: &mut [Part<'_>],
    ) -> std::result::Result<LogPos, Stop> {
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

impl Drop for CallContext<'_> {
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
