//! Group commit: records of logs in memory go to the staging area of a device.
//!
//! One thread at a time writes a batch; the others wait. A thread that finds none writing takes what all who wait have
//! published, appends it as one batch, which is one write that is durable when it returns, and wakes them: so while one batch is
//! on its way the next one collects. A batch has a piece of each log: raw bytes of its ring, cut behind a record that ends a
//! transaction. What other clients have logged and nobody waits for is not in it. A thread that waits for several logs (`sync`) waits
//! for all of them at once; logs that a call waits for alone (`fsync`) are taken first, so it finds its own in the next batch, and what is hardened for a digest is
//! cut so that it waits for little of that.
//!
//! Of a log that is being digested, what the digest has written to its place below NVM already is not written again: a piece names
//! where it lies (full-page steal; StageFS §3.2). Zones that a batch names are not erased before a checkpoint has freed the batch.
//!
//! The first failed write ends it for good: nobody knows what the device holds then. Every waiter and every later call gets the
//! error; what was hardened before stays.

use crate::commit_times::{CommitTimes, CommitTimesStatus};
use crate::taken::{NotHardened, Taken, read, take};
use crate::waiters::{State, Waiter};
use parking_lot::Mutex;
use shale_clients::client::Client;
use shale_clients::clients::Clients;
use shale_format::LogPos;
use shale_format::log::{LogSlot, slot_state};
use shale_format::staged::PlacedEntry;
use shale_oplog::PERMIT_PART;
use shale_persist::staged::{BatchNumber, PersistError, Piece, StagedArea};
use shale_proto::commits::BytesBeside;
use shale_sys::{Clock, mutants};
use shale_volume::{Run, Volume};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};

/// A batch that no checkpoint holds yet: its number, and how far it goes in each log.
struct StagedBatch {
    number: BatchNumber,
    /// Slot, salt and end of each piece.
    ends: Vec<(u32, u64, u64)>,
    /// What it names in zones, which are pinned.
    placed: Vec<PlacedEntry>,
}

/// Which batches have to be kept.
pub(crate) struct Kept {
    /// The first one.
    pub(crate) from: BatchNumber,
    /// What those before it name in zones, for [`Hardener::unpin`].
    pub(crate) placed: Vec<PlacedEntry>,
}

/// A log, and the position before which its records are waited for.
pub type Awaited = (Arc<Client>, u64);

/// See the module.
pub struct Hardener {
    area: Arc<StagedArea>,
    clients: Arc<Clients>,
    volume: Arc<Volume>,
    /// Of logs that are being digested, by client: the end of the chunk, and what of it lies in zones already. A leaf among the locks.
    digesting: Mutex<BTreeMap<u32, (u64, Vec<PlacedEntry>)>>,
    placed_bytes: AtomicU64,
    /// Of the standard library, as its condition wakes all who wait at once: one after the other, the last would wait as long as for a commit.
    state: std::sync::Mutex<State>,
    changed: Condvar,
    /// The batch that is being written is the last one. A leaf among the locks.
    kept: Mutex<VecDeque<StagedBatch>>,
    waiters: AtomicU64,
    clock: Arc<dyn Clock>,
    times: CommitTimes,
    beside: BytesBeside,
    /// Monotonic time up to which everything that was published is hardened, for `status`.
    all_hardened_ns: AtomicU64,
}

impl Hardener {
    /// One for the logs of `clients`, which writes to `area` and pins zones of `volume`.
    pub fn new(
        area: Arc<StagedArea>,
        clients: Arc<Clients>,
        volume: Arc<Volume>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            area,
            clients,
            volume,
            digesting: Mutex::default(),
            placed_bytes: AtomicU64::new(0),
            state: std::sync::Mutex::default(),
            changed: Condvar::new(),
            kept: Mutex::default(),
            waiters: AtomicU64::new(0),
            clock,
            times: CommitTimes::new(),
            beside: BytesBeside::default(),
            all_hardened_ns: AtomicU64::new(0),
        }
    }

    /// Most bytes of a log whose every transaction fits a batch: one takes a quarter of a log at most.
    pub fn ring_bytes_max(&self) -> u64 {
        self.area.batch_bytes_max() as u64 * PERMIT_PART
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the records of `client` before `upto` survive a power cut, or all that it has published if that is less.
    ///
    /// # Errors
    /// The staging area is full, the log holds no record where it should, or the device has failed, now or before: see [`NotHardened`]. What was
    /// hardened before stays so.
    pub fn harden(&self, client: &Arc<Client>, upto: u64) -> Result<(), NotHardened> {
        self.harden_log(client, upto, Waiter::Call)
    }

    /// As [`Self::harden`], for a digest: calls do not wait for it.
    ///
    /// # Errors
    /// As there.
    pub fn harden_to_digest(&self, client: &Arc<Client>, upto: u64) -> Result<(), NotHardened> {
        self.harden_log(client, upto, Waiter::Digest)
    }

    /// Returns when the records of `client` before `upto` survive a power cut, of which a digest has written `placed` below NVM, durable:
    /// ascending, none twice.
    ///
    /// # Errors
    /// As [`Self::harden`].
    pub fn harden_placed(
        &self,
        client: &Arc<Client>,
        upto: u64,
        placed: &[PlacedEntry],
    ) -> Result<(), NotHardened> {
        let chunk = (upto, placed.to_vec());
        let before = self.digesting.lock().insert(client.id, chunk);
        assert!(before.is_none(), "one digest at a time works on a log");
        let hardened = self.harden_log(client, upto, Waiter::Digest);
        self.digesting.lock().remove(&client.id);
        hardened
    }

    fn harden_log(
        &self,
        client: &Arc<Client>,
        upto: u64,
        waiter: Waiter,
    ) -> Result<(), NotHardened> {
        let upto = upto.min(client.published().pos().0);
        match client.hardened() >= upto {
            true => self.is_well(),
            false => self.harden_logs(vec![(client.clone(), upto)], waiter),
        }
    }

    /// What every client has published by now: the logs for [`Self::harden_all`]. One that is leaving is among them until its
    /// log is in the volume, which it is not before it is hardened.
    pub fn published(&self) -> Vec<Awaited> {
        let clients = self.clients.snapshot().into_iter();
        clients
            .map(|client| {
                let published = client.published().pos().0;
                (client, published)
            })
            .collect()
    }

    /// Returns when all of `logs` survive a power cut. One that holds no record where it should is passed over: nothing that a call
    /// returned from is in it, and others must not lose their promise by it.
    ///
    /// # Errors
    /// As [`Self::harden`], of any of them; the others may be hardened.
    pub fn harden_all(&self, logs: &[Awaited]) -> Result<(), NotHardened> {
        let is_missing = |(client, upto): &&Awaited| client.hardened() < *upto;
        let missing: Vec<Awaited> = logs.iter().filter(is_missing).cloned().collect();
        match missing.is_empty() {
            true => self.is_well(),
            false => self.harden_logs(missing, Waiter::All),
        }
    }

    /// Notes for `status` that everything that was published at this monotonic time is hardened.
    pub fn note_all_hardened(&self, at_ns: u64) {
        self.all_hardened_ns.fetch_max(at_ns, Ordering::Relaxed);
    }

    /// Waits for logs that are not hardened.
    fn harden_logs(&self, mut logs: Vec<Awaited>, waiter: Waiter) -> Result<(), NotHardened> {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        for (client, _) in &logs {
            state.wait_for(client, waiter);
        }
        let hardened = loop {
            if let Some(why) = &state.failed {
                break Err(NotHardened::Failed(why.clone()));
            }
            logs.retain(|(client, upto)| {
                let waits = client.hardened() < *upto;
                if !waits {
                    state.wait_no_more(client.id, waiter);
                }
                waits
            });
            let Some((first, _)) = logs.first().cloned() else {
                break Ok(());
            };
            if state.writing {
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let wanted = state.in_order();
            let bytes_max = match state.others_wait(first.id) && !mutants::is_on("batches-unshared")
            {
                true => self.beside.bytes() as usize,
                false => usize::MAX,
            };
            state.writing = true;
            drop(state);
            let written = self.write_batch(&first, &wanted, bytes_max);
            state = self.state();
            state.writing = false;
            state.batches += 1;
            self.changed.notify_all();
            match written {
                Ok(()) => {}
                Err(NotHardened::Failed(why)) if mutants::is_on("staging-failure-forgotten") => {
                    break Err(NotHardened::Failed(why));
                }
                Err(NotHardened::Failed(why)) => {
                    state.failed = Some(why);
                    self.clients.tell_hardening_failed();
                }
                Err(NotHardened::NoRecord) if waiter == Waiter::All => {
                    state.wait_no_more(first.id, waiter);
                    logs.remove(0);
                }
                Err(own) => break Err(own),
            }
        };
        for (client, _) in &logs {
            state.wait_no_more(client.id, waiter);
        }
        hardened
    }

    /// Monotonic time in nanoseconds before which everything that was published is hardened.
    pub(crate) fn all_hardened_ns(&self) -> u64 {
        self.all_hardened_ns.load(Ordering::Relaxed)
    }

    /// How often a call waited.
    pub(crate) fn waiters(&self) -> u64 {
        self.waiters.load(Ordering::Relaxed)
    }

    /// How long batches took.
    pub(crate) fn times(&self) -> CommitTimesStatus {
        self.times.status()
    }

    /// What failed, if anything did.
    pub(crate) fn failure(&self) -> Option<String> {
        self.state().failed.clone()
    }

    /// The device has failed elsewhere: nothing is written to the staging area any more.
    pub(crate) fn give_up(&self, why: String) {
        if mutants::is_on("staging-failure-forgotten") {
            return;
        }
        self.state().failed.get_or_insert(why);
        self.changed.notify_all();
        self.clients.tell_hardening_failed();
    }

    fn is_well(&self) -> Result<(), NotHardened> {
        match self.failure() {
            None => Ok(()),
            Some(why) => Err(NotHardened::Failed(why)),
        }
    }

    /// Writes one batch with the log of `first` and those of `wanted`, as far as they fit. `bytes_max`: about so many bytes of it.
    fn write_batch(
        &self,
        first: &Arc<Client>,
        wanted: &[Arc<Client>],
        bytes_max: usize,
    ) -> Result<(), NotHardened> {
        let begun_ns = self.clock.monotonic_ns();
        let most = self.area.batch_bytes_max();
        let mut left = most.min(bytes_max);
        let begun = match self.take(first, left) {
            // It begins with a transaction that is larger.
            Err(NotHardened::NoRecord) if left < most => self.take(first, most)?,
            other => other?,
        };
        let mut taken = Vec::from_iter(begun);
        let bytes: usize = taken.iter().map(|t| t.piece().batch_bytes()).sum();
        left = left.saturating_sub(bytes);
        for client in wanted.iter().filter(|c| c.id != first.id) {
            // One that cannot be read, or does not fit, finds out when it is the first.
            if let Ok(Some(more)) = self.take(client, left) {
                left -= more.piece().batch_bytes();
                taken.push(more);
            }
        }
        if taken.is_empty() {
            return Ok(());
        }
        let pieces: Vec<Piece<'_>> = taken.iter().map(Taken::piece).collect();
        let ends = taken.iter().map(|t| (t.client.slot, t.client.salt, t.end));
        let placed: Vec<PlacedEntry> = taken.iter().flat_map(|t| t.placed.clone()).collect();
        let placed_bytes: u64 = placed.iter().map(|p| p.bytes).sum();
        self.pin(&placed)?;
        // Noted before it is written: a checkpoint that begins meanwhile must not take it for free.
        let number = self.area.next_batch();
        self.kept.lock().push_back(StagedBatch {
            number,
            ends: ends.collect(),
            placed,
        });
        match self.area.append(&pieces) {
            Ok(written) => assert_eq!(written, number, "one thread at a time writes batches"),
            Err(e) => {
                // It may be gone: of a log that was cut off meanwhile nothing has to be kept.
                let removed = self.forget_batch(number);
                return Err(match e {
                    PersistError::Full { .. } => {
                        self.unpin(&removed);
                        NotHardened::Full
                    }
                    // The device may have it: its zones stay as they are.
                    e => NotHardened::Failed(format!("the staging area: {e}")),
                });
            }
        }
        for piece in taken {
            piece.client.set_hardened(LogPos(piece.end));
        }
        self.placed_bytes.fetch_add(placed_bytes, Ordering::Relaxed);
        let took_ns = self.clock.monotonic_ns().saturating_sub(begun_ns);
        self.times.note(took_ns);
        self.beside.note(took_ns);
        Ok(())
    }

    /// Takes a batch out that was not written; gives what it names in zones.
    fn forget_batch(&self, number: BatchNumber) -> Vec<PlacedEntry> {
        let mut kept = self.kept.lock();
        match kept.iter().position(|batch| batch.number == number) {
            Some(at) => kept.remove(at).map_or(Vec::new(), |batch| batch.placed),
            None => Vec::new(),
        }
    }

    fn pin(&self, placed: &[PlacedEntry]) -> Result<(), NotHardened> {
        for run in placed.iter().map(run_of) {
            let pinned = self.volume.pin_zones(run);
            pinned.map_err(|e| NotHardened::Failed(e.to_string()))?;
        }
        Ok(())
    }

    /// Batches that named these are free: their zones may be erased.
    pub(crate) fn unpin(&self, placed: &[PlacedEntry]) {
        for run in placed.iter().map(run_of) {
            if let Err(e) = self.volume.unpin_zones(run) {
                tracing::error!("a zone stays as it is: {e}");
            }
        }
    }

    /// Bytes of logs that were hardened where they lie in zones.
    pub(crate) fn placed_bytes(&self) -> u64 {
        self.placed_bytes.load(Ordering::Relaxed)
    }

    /// What has to be kept where logs are digested as `slots` says: of every batch before the first one all records are in the volume.
    pub(crate) fn keep_from(&self, slots: &[LogSlot]) -> Kept {
        let mut placed = Vec::new();
        let mut kept = self.kept.lock();
        let is_digested = |&(slot, salt, end): &(u32, u64, u64)| {
            if mutants::is_on("batch-freed-early") {
                return true;
            }
            let slot = slots[slot as usize];
            // A log that is no more is digested, or what is left of it does not count.
            slot.state != slot_state::LIVE || slot.salt != salt || slot.digested >= end
        };
        while kept.front().is_some_and(|b| b.ends.iter().all(is_digested)) {
            placed.extend(kept.pop_front().into_iter().flat_map(|b| b.placed));
        }
        let from = match kept.front() {
            Some(batch) => batch.number,
            None => self.area.next_batch(),
        };
        Kept { from, placed }
    }

    /// What a client has published and is not hardened, `most` bytes of it; `None`: there is nothing.
    fn take(&self, client: &Arc<Client>, most: usize) -> Result<Option<Taken>, NotHardened> {
        let from = client.hardened();
        let digesting = self.digesting.lock().get(&client.id).cloned();
        if let Some((end, placed)) = digesting.filter(|(end, _)| *end > from) {
            let placed = placed.into_iter().filter(|one| one.from >= from).collect();
            let taken = read(client, from..end, placed)?;
            // Else it has to be cut, and is staged like any other.
            if taken.piece().batch_bytes() <= most {
                return Ok(Some(taken));
            }
        }
        take(client, most)
    }
}

/// The blocks of an entry.
fn run_of(placed: &PlacedEntry) -> Run {
    let (addr, len) = placed.blocks();
    Run { addr, len }
}
