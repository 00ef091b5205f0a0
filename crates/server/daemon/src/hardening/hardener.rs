//! Group commit: records of logs in memory go to the staging area of a device.
//!
//! One thread at a time writes a batch; the others wait. A thread that finds none writing takes what all who wait have
//! published, appends it as one batch, which is one write that is durable when it returns, and wakes them: so while one batch is
//! on its way the next one collects. A batch has a piece of each log: raw bytes of its ring, cut behind a record that ends a
//! transaction. What other clients have logged and nobody waits for is not in it. A thread that waits for several logs (`sync`) waits
//! for all of them at once; logs that a call waits for alone (`fsync`) are taken first, so it finds its own in the next batch.
//!
//! The first failed write ends it for good: nobody knows what the device holds then. Every waiter and every later call gets the
//! error; what was hardened before stays.

use crate::hardening::commit_times::{CommitTimes, CommitTimesStatus};
use parking_lot::Mutex;
use shale_clients::client::Client;
use shale_clients::clients::Clients;
use shale_format::LogPos;
use shale_format::log::{LogSlot, RING_AT, slot_state};
use shale_oplog::{PERMIT_PART, Scan};
use shale_persist::staged::{BatchNumber, LogIdentity, PersistError, Piece, StagedArea};
use shale_sys::{Clock, mutants};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};

/// Why records are not hardened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotHardened {
    /// The staging area is full: a checkpoint has to come first.
    Full,
    /// What the client says that it has published is no log: there is no record where one should begin.
    NoRecord,
    /// The device failed, or the log cannot be read; says what.
    Failed(String),
}

/// A batch that no checkpoint holds yet: its number, and how far it goes in each log.
struct StagedBatch {
    number: BatchNumber,
    /// Slot, salt and end of each piece.
    ends: Vec<(u32, u64, u64)>,
}

/// A log, and the position before which its records are waited for.
pub(crate) type Awaited = (Arc<Client>, u64);

/// A log whose records are waited for.
struct Waiting {
    client: Arc<Client>,
    /// Calls that wait for it.
    calls: u32,
    /// Of these, calls that wait for no other log.
    alone: u32,
}

#[derive(Default)]
struct State {
    /// A batch is being written.
    writing: bool,
    waiting: BTreeMap<u32, Waiting>,
    failed: Option<String>,
}

impl State {
    fn wait_for(&mut self, client: &Arc<Client>, alone: bool) {
        let waiting = self.waiting.entry(client.id).or_insert_with(|| Waiting {
            client: client.clone(),
            calls: 0,
            alone: 0,
        });
        waiting.calls += 1;
        waiting.alone += u32::from(alone);
    }

    fn wait_no_more(&mut self, id: u32, alone: bool) {
        let Some(waiting) = self.waiting.get_mut(&id) else {
            return;
        };
        waiting.calls -= 1;
        waiting.alone -= u32::from(alone);
        if waiting.calls == 0 {
            self.waiting.remove(&id);
        }
    }

    /// All of them, those first that somebody waits for alone.
    fn in_order(&self) -> Vec<Arc<Client>> {
        let of = |alone: bool| {
            let such = move |w: &&Waiting| (w.alone > 0) == alone;
            self.waiting.values().filter(such)
        };
        of(true)
            .chain(of(false))
            .map(|w| w.client.clone())
            .collect()
    }
}

/// See the module.
pub(crate) struct Hardener {
    area: Arc<StagedArea>,
    clients: Arc<Clients>,
    /// Of the standard library, as its condition wakes all who wait at once: one after the other, the last would wait as long as for a commit.
    state: std::sync::Mutex<State>,
    changed: Condvar,
    /// The batch that is being written is the last one. A leaf among the locks.
    kept: Mutex<VecDeque<StagedBatch>>,
    waiters: AtomicU64,
    clock: Arc<dyn Clock>,
    times: CommitTimes,
    /// Monotonic time up to which everything that was published is hardened, for `status`.
    all_hardened_ns: AtomicU64,
}

/// Bytes of one log for a batch.
struct Taken {
    client: Arc<Client>,
    from: u64,
    /// Where the bytes end, and a transaction.
    end: u64,
    bytes: Vec<u8>,
}

impl Hardener {
    pub(crate) fn new(area: Arc<StagedArea>, clients: Arc<Clients>, clock: Arc<dyn Clock>) -> Self {
        Self {
            area,
            clients,
            state: std::sync::Mutex::default(),
            changed: Condvar::new(),
            kept: Mutex::default(),
            waiters: AtomicU64::new(0),
            clock,
            times: CommitTimes::new(),
            all_hardened_ns: AtomicU64::new(0),
        }
    }

    /// Most bytes of a log whose every transaction fits a batch: one takes a quarter of a log at most.
    pub(crate) fn ring_bytes_max(&self) -> u64 {
        self.area.batch_bytes_max() as u64 * PERMIT_PART
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the records of `client` before `upto` survive a power cut, or all that it has published if that is less.
    pub(crate) fn harden(&self, client: &Arc<Client>, upto: u64) -> Result<(), NotHardened> {
        let upto = upto.min(client.published().pos().0);
        if client.hardened() >= upto {
            return self.is_well();
        }
        self.harden_logs(vec![(client.clone(), upto)], true)
    }

    /// What every client has published by now: the logs for [`Self::harden_all`]. One that is leaving is among them until its
    /// log is in the volume, which it is not before it is hardened.
    pub(crate) fn published(&self) -> Vec<Awaited> {
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
    pub(crate) fn harden_all(&self, logs: &[Awaited]) -> Result<(), NotHardened> {
        let is_missing = |(client, upto): &&Awaited| client.hardened() < *upto;
        let missing: Vec<Awaited> = logs.iter().filter(is_missing).cloned().collect();
        match missing.is_empty() {
            true => self.is_well(),
            false => self.harden_logs(missing, false),
        }
    }

    /// Notes for `status` that everything that was published at this monotonic time is hardened.
    pub(crate) fn note_all_hardened(&self, at_ns: u64) {
        self.all_hardened_ns.fetch_max(at_ns, Ordering::Relaxed);
    }

    /// Waits for logs that are not hardened; `alone`: for one, as a call does that is about it.
    fn harden_logs(&self, mut logs: Vec<Awaited>, alone: bool) -> Result<(), NotHardened> {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        for (client, _) in &logs {
            state.wait_for(client, alone);
        }
        let hardened = loop {
            if let Some(why) = &state.failed {
                break Err(NotHardened::Failed(why.clone()));
            }
            logs.retain(|(client, upto)| {
                let waits = client.hardened() < *upto;
                if !waits {
                    state.wait_no_more(client.id, alone);
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
            state.writing = true;
            drop(state);
            let written = self.write_batch(&first, &wanted);
            state = self.state();
            state.writing = false;
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
                Err(NotHardened::NoRecord) if !alone => {
                    state.wait_no_more(first.id, alone);
                    logs.remove(0);
                }
                Err(own) => break Err(own),
            }
        };
        for (client, _) in &logs {
            state.wait_no_more(client.id, alone);
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

    /// Writes one batch with the log of `first` and those of `wanted`, as far as they fit.
    fn write_batch(&self, first: &Arc<Client>, wanted: &[Arc<Client>]) -> Result<(), NotHardened> {
        let begun_ns = self.clock.monotonic_ns();
        let mut left = self.area.batch_bytes_max();
        let mut taken = Vec::from_iter(take(first, left)?);
        left -= taken.iter().map(|t| t.bytes.len()).sum::<usize>();
        for client in wanted.iter().filter(|c| c.id != first.id) {
            // One that cannot be read, or does not fit, finds out when it is the first.
            if let Ok(Some(more)) = take(client, left) {
                left -= more.bytes.len();
                taken.push(more);
            }
        }
        if taken.is_empty() {
            return Ok(());
        }
        let pieces: Vec<Piece<'_>> = taken
            .iter()
            .map(|t| Piece {
                log: identity(&t.client),
                from: LogPos(t.from),
                bytes: &t.bytes,
            })
            .collect();
        let ends = taken.iter().map(|t| (t.client.slot, t.client.salt, t.end));
        // Noted before it is written: a checkpoint that begins meanwhile must not take it for free.
        let number = self.area.next_batch();
        self.kept.lock().push_back(StagedBatch {
            number,
            ends: ends.collect(),
        });
        match self.area.append(&pieces) {
            Ok(written) => assert_eq!(written, number, "one thread at a time writes batches"),
            Err(e) => {
                // It may be gone: of a log that was cut off meanwhile nothing has to be kept.
                self.kept.lock().retain(|batch| batch.number != number);
                return Err(match e {
                    PersistError::Full { .. } => NotHardened::Full,
                    e => NotHardened::Failed(format!("the staging area: {e}")),
                });
            }
        }
        for piece in taken {
            piece.client.set_hardened(LogPos(piece.end));
        }
        self.times
            .note(self.clock.monotonic_ns().saturating_sub(begun_ns));
        Ok(())
    }

    /// The first batch that has to be kept where logs are digested as `slots` says: of every batch before it all
    /// records are in the volume.
    pub(crate) fn keep_from(&self, slots: &[LogSlot]) -> BatchNumber {
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
            kept.pop_front();
        }
        match kept.front() {
            Some(batch) => batch.number,
            None => self.area.next_batch(),
        }
    }
}

/// All that is needed to make the slot of a client's log again.
fn identity(client: &Client) -> LogIdentity {
    LogIdentity {
        slot: client.slot,
        uid: client.person.uid,
        salt: client.salt,
        ring_bytes: client.ring_bytes,
        connection: client.connection,
    }
}

/// What a client has published and is not hardened, `most` bytes of it; `None`: there is nothing.
fn take(client: &Arc<Client>, most: usize) -> Result<Option<Taken>, NotHardened> {
    let (from, published) = (client.hardened(), client.published().pos().0);
    assert!(
        from <= published,
        "hardened to {from}, published to {published}"
    );
    let end = match published - from {
        0 => return Ok(None),
        all if all <= most as u64 => published,
        // A transaction takes a quarter of a ring at most, which fits a batch.
        _ => last_end(client, from, from + most as u64).ok_or(NotHardened::NoRecord)?,
    };
    let mut bytes = vec![0; (end - from) as usize];
    let (ring, at) = (client.ring_bytes, from % client.ring_bytes);
    let to_end = ((ring - at) as usize).min(bytes.len());
    let (first, second) = bytes.split_at_mut(to_end);
    let read = client.log.load(RING_AT + at as usize, first)
        && (second.is_empty() || client.log.load(RING_AT, second));
    // A file that its process has cut short holds no record there.
    let taken = Taken {
        client: client.clone(),
        from,
        end,
        bytes,
    };
    read.then_some(Some(taken)).ok_or(NotHardened::NoRecord)
}

/// The end of the last transaction that ends at or before `limit`, if one begins at `from`.
fn last_end(client: &Client, from: u64, limit: u64) -> Option<u64> {
    let scan = Scan::new(&*client.log, client.salt, client.ring_bytes, LogPos(from));
    let ends = scan
        .take_while(|record| record.end().0 <= limit)
        .filter(|record| !record.more());
    ends.last().map(|record| record.end().0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_clients::client::Transport;
    use shale_clients::testing::lone;

    #[test]
    fn a_log_that_a_call_waits_for_alone_comes_first() {
        let client = |id| Arc::new(lone(id, Transport::Socket));
        let (first, second, third) = (client(1), client(2), client(3));
        let mut state = State::default();
        let order = |state: &State| -> Vec<u32> {
            let logs = state.in_order().into_iter();
            logs.map(|client| client.id).collect()
        };
        for client in [&first, &second, &third] {
            state.wait_for(client, false);
        }
        assert_eq!(order(&state), [1, 2, 3]);
        state.wait_for(&third, true);
        assert_eq!(order(&state), [3, 1, 2]);
        state.wait_no_more(third.id, true);
        assert_eq!(order(&state), [1, 2, 3]);
        state.wait_no_more(second.id, false);
        state.wait_no_more(second.id, false);
        assert_eq!(order(&state), [1, 3]);
    }
}
