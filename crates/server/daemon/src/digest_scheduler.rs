//! When logs are digested, and what follows from each chunk (DESIGN §6).
//!
//! A log is digested when its client rings, when it is 30% full (the write buffer of a buffered client: 70%), when somebody waits
//! for it, and when its client goes. One thread at a time works on a log; logs are
//! worked on in parallel. After each chunk's commit, in this order: the position is published,
//! the epoch raised, credit taken back, and a grace period requested; nobody waits
//! for that grace period here.
//!
//! A refused record ends its log: the client is cut off and reported, others go on. An
//! error of the medium stops the log, which is kept: nothing is dropped for it, but a change of a part of
//! a block below NVM that cannot be read; that block is given up (see `digest::lost`).
//!
//! A chunk that finds too few free blocks waits for a grace period, which gives out
//! what earlier chunks freed, then runs alone, in pieces down to one transaction ([`shale_digest::digest_chunks`]).
//! Space was reserved for every record (see [`shale_clients::space_credits`]), so that is enough; where a
//! client has logged more than it reserved, its log waits and is tried again.

mod staging;
pub(crate) mod write_back;

use crate::connections::permissions::RecordValidator;
use crate::connections::write_accounting::WriteAccounting;
use crate::tiering::{DirectWriteGuard, LogDigester, Tiering};
use parking_lot::Mutex;
use shale_clients::client::{Client, ClientState, Work};
use shale_clients::clients::Clients;
use shale_clients::space_credits::{FreeSpace, SpaceCredits};
use shale_coherence::digest_queue::{Next, Queue};
use shale_coherence::digest_stop::{DigestStop, DigestTurn};
use shale_coherence::fence::{Fence, is_over};
use shale_coherence::lease_manager::{LeaseManager, LogFlusher};
use shale_coherence::reclaimer::Reclaimer;
use shale_digest::{
    ChunkDone, ChunkMost, Chunks, DigestError, DigestStats, Digester, LogSource, Mode,
    digest_chunks,
};
use shale_format::limits::BLOCK_BYTES;
use shale_format::{Ino, LogPos};
use shale_hardening::Staged;
use shale_hardening::hardener::Hardener;
use shale_sys::{Clock, failpoints, mutants};
use shale_volume::{Volume, VolumeError};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How often logs are looked at whose clients forgot to ring.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Longest wait for one grace period while a chunk lacks blocks.
const GRACE_WAIT: Duration = Duration::from_secs(10);

/// Most space that the records of a chunk have reserved, as a part of all: it comes back with the chunk.
const CHUNK_RESERVED_PART: u64 = 4;

/// Counters of all digests since the start.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) stats: Mutex<DigestStats>,
    pub(crate) chunks: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) last_error: Mutex<Option<String>>,
}

/// What [`DigestScheduler`] is made of.
pub(crate) struct Parts {
    pub(crate) volume: Arc<Volume>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) fence: Arc<Fence>,
    pub(crate) digester: Arc<Digester>,
    pub(crate) reclaimer: Arc<Reclaimer>,
    pub(crate) leases: Arc<LeaseManager>,
    pub(crate) tiering: Arc<Tiering>,
    pub(crate) credits: Arc<SpaceCredits>,
    pub(crate) accounts: Arc<WriteAccounting>,
    /// Percentage of a log at which its digest begins: of one whose records are durable, and of a write buffer.
    pub(crate) digest_at_percent: (u32, u32),
    /// What hardens logs before they are digested, where they lie in memory.
    pub(crate) staged: Option<Staged>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Has logs digested, and what follows from each chunk done.
pub(crate) struct DigestScheduler {
    parts: Parts,
    /// As [`Parts::digest_at_percent`] has it at first.
    digest_at_percent: [AtomicU32; 2],
    totals: Totals,
}

impl DigestScheduler {
    pub(crate) fn new(parts: Parts) -> Self {
        let (durable, buffer) = parts.digest_at_percent;
        Self {
            parts,
            digest_at_percent: [durable, buffer].map(AtomicU32::new),
            totals: Totals::default(),
        }
    }

    /// Percentages of a log at which its digest begins: of one whose records are durable, and of a write buffer.
    pub(crate) fn digest_percents(&self) -> (u32, u32) {
        let [durable, buffer] = &self.digest_at_percent;
        (
            durable.load(Ordering::Relaxed),
            buffer.load(Ordering::Relaxed),
        )
    }

    /// Has digests begin at other percentages.
    pub(crate) fn set_digest_percents(&self, (durable, buffer): (u32, u32)) {
        self.digest_at_percent[0].store(durable, Ordering::Relaxed);
        self.digest_at_percent[1].store(buffer, Ordering::Relaxed);
    }

    /// The leases that it asks about.
    pub(crate) fn leases(&self) -> &Arc<LeaseManager> {
        &self.parts.leases
    }

    /// What places data below NVM.
    pub(crate) fn tiering(&self) -> &Arc<Tiering> {
        &self.parts.tiering
    }

    /// Counters of all digests since the start.
    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// A digest thread, until the queue is stopped. One of them looks at logs that nobody rings for, and does
    /// `also` as often.
    pub(crate) fn run(&self, also: Option<impl Fn()>) {
        let wait = match also {
            Some(_) => LOOK_EVERY,
            None => Duration::from_secs(3600),
        };
        loop {
            match self.parts.queue.pop(wait) {
                Next::Log(client) => {
                    // The outcome is in the client's fate and in the totals.
                    let _ = self.digest_to(&client, u64::MAX);
                    self.after_eviction(&client);
                }
                Next::Nothing => {}
                Next::Stop => break,
            }
            if let Some(also) = &also {
                self.look();
                also();
            }
        }
    }

    /// A client that was cut off loses its leases once its log is in the volume.
    fn after_eviction(&self, client: &Client) {
        if is_over(client) {
            self.parts.leases.table().release_all(client.id);
            self.parts.credits.close(client.id);
        }
    }

    /// Digests a log up to `target`, or to what its client has published if that is less.
    ///
    /// # Errors
    /// See [`DigestStop`].
    pub(crate) fn digest_to(&self, client: &Arc<Client>, target: u64) -> Result<(), DigestStop> {
        let Some(mut turn) = DigestTurn::wait(client, target) else {
            return Ok(());
        };
        while let Some((from, limit)) = turn.next_chunk()? {
            self.chunk(client, &mut turn.work, from, limit)?;
        }
        Ok(())
    }

    /// Queues logs that are fuller than they should be, and whose clients forgot to ring.
    fn look(&self) {
        for client in self.parts.clients.snapshot() {
            let (durable, buffer) = self.digest_percents();
            let percent = match client.nvm_log {
                Some(_) => buffer,
                None => durable,
            };
            let mark = client.ring_bytes / 100 * u64::from(percent);
            if client.backlog() >= mark && client.served() {
                self.parts.queue.push(&client);
            }
        }
    }

    /// Digests every log as far as it is published when this begins: what clients go on logging
    /// meanwhile does not keep it from ending.
    pub(crate) fn digest_all(&self) {
        let clients = self.parts.clients.snapshot();
        let ends: Vec<u64> = clients.iter().map(|c| c.published().pos().0).collect();
        for (client, end) in clients.iter().zip(ends) {
            // A client that cannot be digested has been reported; the others count.
            let _ = self.digest_to(client, end);
        }
    }

    /// See [`LogDigester::digest_until`].
    fn digest_until(&self, enough: &mut dyn FnMut() -> bool) {
        let clients = self.parts.clients.snapshot();
        let ends: Vec<u64> = clients.iter().map(|c| c.published().pos().0).collect();
        for (client, end) in clients.iter().zip(ends) {
            while client.digested() < end && self.digest_to(client, client.digested() + 1).is_ok() {
                if enough() {
                    return;
                }
            }
        }
        enough();
    }

    /// Digests one chunk. What stops the log for good is noted in `work` or in the fate.
    pub(crate) fn chunk(
        &self,
        client: &Arc<Client>,
        work: &mut Work,
        from: LogPos,
        limit: LogPos,
    ) -> Result<(), DigestStop> {
        // `work` is held, and with it the position.
        assert_eq!(
            from.0,
            client.digested(),
            "a chunk begins where the last ended"
        );
        assert!(from <= limit, "a chunk from {} to {}", from.0, limit.0);
        let in_place = self.hardens_in_place(client, from, limit);
        let direct = in_place.then(|| self.direct_writes(from, limit)).flatten();
        let waited = in_place && direct.is_none();
        if let Some(direct) = direct
            && let Some(done) = self.chunk_hardened_in_place(client, work, from..limit, direct)
        {
            return done;
        }
        let limit = self.hardened_limit(client, from, limit)?;
        // What a buffered client has copied to NVM goes by itself: it may be stored to where blocks are.
        let limit = match LogPos(client.copied()) {
            copied if from < copied && copied < limit => copied,
            _ => limit,
        };
        // Who has waited for the right to write below once waits no second time.
        let direct = (!waited).then(|| self.direct_writes(from, limit)).flatten();
        let done = digest_chunks(&mut self.live_chunk(client, work, from..limit, (direct, None)));
        self.after_chunk(client, work, done)
    }

    /// The right to write what is logged from `from` to `limit` below NVM, if it is to go there.
    fn direct_writes(&self, from: LogPos, limit: LogPos) -> Option<DirectWriteGuard<'_>> {
        let logged = limit.0.saturating_sub(from.0);
        self.parts.tiering.lock_direct_writes(logged)
    }

    fn live_chunk<'a>(
        &'a self,
        client: &'a Arc<Client>,
        work: &'a mut Work,
        range: Range<LogPos>,
        (direct, hardener): (Option<DirectWriteGuard<'a>>, Option<&'a Hardener>),
    ) -> LiveChunk<'a> {
        LiveChunk {
            survives: range.end.0 <= client.copied(),
            scheduler: self,
            client,
            work,
            range,
            most: ChunkMost {
                reserved: FreeSpace::of(&self.parts.volume).whole() / CHUNK_RESERVED_PART,
                buffer: client.nvm_log.is_some(),
            },
            direct,
            hardener,
        }
    }

    /// What follows from how a chunk ended.
    fn after_chunk(
        &self,
        client: &Arc<Client>,
        work: &mut Work,
        done: Result<(), DigestError>,
    ) -> Result<(), DigestStop> {
        match done {
            Ok(()) => {}
            Err(e) if e.is_short() => return Err(self.short(client, &e)),
            Err(e @ DigestError::Cut { pos, .. }) => {
                self.refuse(client, work, (pos, e.to_string()));
            }
            Err(e) => self.stuck(client, &e),
        }
        Ok(())
    }

    /// Gives up a block below NVM that cannot be read, of which a record changes a part.
    fn give_up(&self, error: &DigestError) -> bool {
        if let DigestError::Poisoned { addr, .. } = error {
            self.parts.tiering.bad_blocks.note(*addr, error);
            *self.totals.last_error.lock() = Some(error.to_string());
        }
        self.parts.digester.give_up(error)
    }

    fn chunk_done(
        &self,
        (client, work): (&Arc<Client>, &mut Work),
        Range {
            start: from,
            end: limit,
        }: Range<LogPos>,
        done: &ChunkDone,
    ) {
        assert!(
            (from..=limit).contains(&done.upto),
            "a chunk from {} to {} was digested to {}",
            from.0,
            limit.0,
            done.upto.0
        );
        if done.upto > from {
            self.use_up(client, done);
            client.set_digested(done.upto);
            failpoints::reach("publish-digested");
            if let Some(txid) = done.txid {
                self.parts.clients.publish(txid);
                failpoints::reach("publish-epoch");
            }
            for (ino, blocks) in &done.touched {
                self.parts.tiering.recency.touch(*ino, blocks);
            }
            self.parts.accounts.add_chunk(client, done);
            if self.parts.staged.is_some() {
                let below: u64 = done.below.iter().map(|(_, run)| run.len).sum();
                self.parts
                    .credits
                    .hold_for_checkpoint(below * BLOCK_BYTES as u64);
            }
            self.parts
                .credits
                .release_credit(client.id, done.reserve_released);
            self.parts.reclaimer.request();
            client
                .records
                .fetch_add(done.stats.records, Ordering::Relaxed);
            self.totals.chunks.fetch_add(1, Ordering::Relaxed);
            *self.totals.stats.lock() += done.stats;
        }
        let refused = match &done.refused {
            Some(refused) => Some((refused.pos, refused.to_string())),
            None if done.upto <= from && from < limit => Some((
                from,
                format!(
                    "no valid record at {} although the client published up to {}",
                    from.0, limit.0
                ),
            )),
            None => None,
        };
        if let Some(refused) = refused {
            self.refuse(client, work, refused);
        }
    }

    /// Nothing from this position of the log on counts: the client is cut off.
    fn refuse(&self, client: &Arc<Client>, work: &mut Work, (pos, why): (LogPos, String)) {
        self.totals.refused.fetch_add(1, Ordering::Relaxed);
        *self.totals.last_error.lock() = Some(why.clone());
        work.refused = Some((pos, why.clone()));
        self.parts.fence.evict(client, why);
    }

    /// Takes numbers and blocks that digested records used out of the client's grant.
    fn use_up(&self, client: &Client, done: &ChunkDone) {
        let mut grants = client.grants.lock();
        for ino in &done.created {
            grants.inos.remove(&ino.0);
        }
        let used = done.linked.iter().chain(&done.unused);
        grants.blocks.remove_all(used.copied().collect());
        drop(grants);
        // Before this nobody else could be granted them.
        self.parts.volume.return_inodes(&done.vanished);
        self.forget_inodes(done);
        // A thread of the client may still be reading them: they are free after the next grace period.
        self.parts.reclaimer.defer_free(&done.unused);
    }

    /// Nothing is kept of inodes that are no more.
    fn forget_inodes(&self, done: &ChunkDone) {
        let gone = || done.vanished.iter().chain(&done.removed).map(|ino| ino.0);
        if gone().next().is_none() || mutants::is_on("freed-remembered") {
            return;
        }
        let is_free = |ino| self.parts.volume.is_free_inode(Ino(ino));
        self.parts.leases.table().forget(gone(), is_free);
        self.parts.accounts.forget(gone());
        self.parts.tiering.recency.forget(gone());
        for client in self.parts.clients.snapshot() {
            let mut opened = client.opened.lock();
            if !opened.is_empty() {
                for ino in gone() {
                    opened.remove(&ino);
                }
            }
        }
    }

    fn short(&self, client: &Client, error: &DigestError) -> DigestStop {
        let why = error.to_string();
        tracing::error!(
            client = client.id,
            log = %client.log_path.display(),
            "digest waits for space: {why}"
        );
        *self.totals.last_error.lock() = Some(why.clone());
        DigestStop::NoSpace(why)
    }

    fn stuck(&self, client: &Client, error: &DigestError) {
        let why = error.to_string();
        tracing::error!(
            client = client.id,
            log = %client.log_path.display(),
            "digest stops, the log is kept: {why}"
        );
        *self.totals.last_error.lock() = Some(why.clone());
        *client.client_state.lock() = ClientState::Stuck(why);
    }
}

/// One chunk of a client's log, with the tries that it takes.
struct LiveChunk<'a> {
    scheduler: &'a DigestScheduler,
    client: &'a Arc<Client>,
    work: &'a mut Work,
    /// Where it begins, and up to where its client has published.
    range: Range<LogPos>,
    /// The most that it has.
    most: ChunkMost,
    /// The right to write below NVM, and which data goes there.
    direct: Option<DirectWriteGuard<'a>>,
    /// Hardens its records once their data is written; `None`: they are hardened.
    hardener: Option<&'a Hardener>,
    /// Its records survive a power cut: those of a buffered client are read from NVM then.
    survives: bool,
}

impl Chunks for LiveChunk<'_> {
    fn chunk(&mut self, alone: bool) -> Result<ChunkDone, DigestError> {
        let (client, parts) = (self.client, &self.scheduler.parts);
        let nvm_log = client.nvm_log.as_ref().filter(|_| self.survives);
        let source = LogSource {
            bytes: nvm_log.map_or(&*client.log, |log| &*log.read),
            salt: client.salt,
            ring_bytes: client.ring_bytes,
            slot: client.slot,
        };
        let rule = self.direct.as_ref().map(|guard| guard.rule);
        let with = (self.hardener, self.survives);
        let rights = RecordValidator::new(client, &parts.credits, &parts.leases, rule, with);
        let Range { start, end } = self.range;
        let _reader = parts.reclaimer.read();
        let digester = &parts.digester;
        match alone {
            false => digester.chunk_of(self.most, &source, (start, end), &rights, Mode::Live),
            true => digester.chunk_alone(&source, start, end, &rights, Mode::Live),
        }
    }

    fn done(&mut self, chunk: ChunkDone) -> bool {
        let tiering = &self.scheduler.parts.tiering;
        if let Err(e) = tiering.placed_directly(&chunk.below) {
            tiering.migration_failed(&e);
        }
        self.direct = None;
        if self.survives && self.client.nvm_log.is_some() {
            self.client.daemon_page.set_linked(chunk.upto.0);
        }
        let of = (self.client, &mut *self.work);
        self.scheduler.chunk_done(of, self.range.clone(), &chunk);
        // Those who wait to digest this log look after each.
        false
    }

    fn goes_elsewhere(&mut self, error: &DigestError) -> bool {
        let (DigestError::Volume(e), true) = (error, self.direct.is_some()) else {
            return false;
        };
        match e {
            // It finds another zone.
            VolumeError::WornZone(_) => {}
            // A device that failed gets nothing more: it goes to NVM.
            VolumeError::Lower(_) | VolumeError::LowerFull(_) => self.direct = None,
            _ => return false,
        }
        self.scheduler.parts.tiering.migration_failed(error);
        true
    }

    fn wait(&mut self) {
        self.direct = None;
        let reclaimer = &self.scheduler.parts.reclaimer;
        reclaimer.wait_grace_period_within(GRACE_WAIT);
        // What was freed waits for a checkpoint, too.
        if mutants::is_on("checkpoint-space") {
            return;
        }
        if let Err(e) = self.scheduler.checkpoint(false) {
            tracing::error!("space is not freed: no checkpoint: {e}");
        }
    }

    fn give_up(&mut self, error: &DigestError) -> bool {
        self.scheduler.give_up(error)
    }
}

impl LogDigester for DigestScheduler {
    fn digest_all(&self) {
        DigestScheduler::digest_all(self);
    }

    fn digest_until(&self, enough: &mut dyn FnMut() -> bool) {
        DigestScheduler::digest_until(self, enough);
    }
}

impl LogFlusher for DigestScheduler {
    fn digest_to(&self, client: &Arc<Client>, target: u64) -> Result<(), DigestStop> {
        let target = match mutants::is_on("lease-before-copy") && client.nvm_log.is_some() {
            true => target.min(client.copied()),
            false => target,
        };
        DigestScheduler::digest_to(self, client, target)
    }
}
