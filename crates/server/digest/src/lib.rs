//! Digest: from update logs to the volume (DESIGN §6, Strata §3.3).
//!
//! Four steps for each chunk of records, each a module, each after the one before:
//!
//! 1. *scan* ([`gather`]): records are copied out of the log, checked and decoded.
//! 2. *plan* ([`coalesce`], [`mod@plan`], [`layout`]): what the records do together, checked
//!    record by record against volume, lease and permission. Pure.
//! 3. *data* (`data`): new blocks are allocated and written, and blocks that stay get the bytes that are new, which their
//!    records, still in the log, repeat after a crash. Then who asked for the chunk may have its
//!    records hardened ([`AccessPolicy::harden`]).
//! 4. *structure* (`apply`): one transaction links the blocks, changes inodes and
//!    directories, and moves the log's digested position.
//!
//! A crash before the commit leaves the volume as it was, but for bytes that the log overwrites; then the same chunk is
//! digested again, which is the normal path at recovery. A crash after it leaves the
//! volume as after it. Same records and same volume give the same result, however the
//! records are cut into chunks.
//!
//! Chunk after chunk of a log, and what becomes of one that fails, is [`digest_chunks`]: while the volume is used and
//! at recovery.
//!
//! Locks: chunks of several logs may be digested at the same time as long as leases keep
//! what they change apart; commits follow one another under the volume's transaction
//! lock. Where blocks are short a chunk runs alone
//! ([`Digester::chunk_alone`]): the reserve for what a digest needs for a moment is enough
//! for one transaction, not for one of each log.
#![forbid(unsafe_code)]

pub mod access_policy;
mod apply;
mod chunk_image;
pub mod coalesce;
pub mod content;
mod data;
mod dirent_prefetch;
mod driver;
mod estimate;
pub mod image;
pub mod item;
pub mod layout;
pub mod plan;
mod poison;
pub mod ranges;
mod run_set;
pub mod scan;
pub mod stats;
pub mod tail_block_cache;

#[cfg(test)]
mod tests;

pub use access_policy::{AccessPolicy, Change, NewRun, Operation, OwnLog, Placement};
pub use driver::{Chunks, digest_chunks};
pub use item::{Item, Refused};
pub use plan::{Plan, PlanError};
pub use run_set::RunSet;
pub use scan::{Bounds, LogSource, Mode, Survey, survey};
pub use stats::DigestStats;

use crate::tail_block_cache::TailBlockCache;
use chunk_image::ChunkImage;
use parking_lot::RwLock;
use poison::AbandonedBlocks;
use scan::{BatchLimits, RecordBatch};
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, FileBlock, Ino, LogPos, TxId};
use shale_sys::{failpoints, mutants};
use shale_volume::{Run, Volume, VolumeError};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A chunk could not be digested. The volume is as it was.
#[derive(Debug, thiserror::Error)]
pub enum DigestError {
    /// The volume refused, or is damaged. `NoSpace` and `JournalFull`: even the
    /// chunk's first transaction alone does not fit.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// Something changed under the client's lease between plan and commit.
    #[error("inode {} changed while a log was digested that holds its lease", ino.0)]
    Moved {
        /// The inode.
        ino: Ino,
    },
    /// A block below NVM of which a part stays cannot be read. [`Digester::give_up`] lets the chunk go on.
    #[error("block {} of inode {} cannot be read, so a change of a part of it is lost: {why}", at.0, ino.0)]
    Poisoned {
        /// The inode.
        ino: Ino,
        /// The block of the file.
        at: FileBlock,
        /// Where it lies.
        addr: BlockAddr,
        /// Why not.
        why: VolumeError,
    },
    /// The log is not durable as far as the chunk goes ([`AccessPolicy::harden`]), and cannot be made so now.
    #[error("what was logged is not hardened: {0}")]
    NotHardened(String),
    /// The log file has become shorter while it was digested.
    #[error("the file of log {slot} was cut short: there is nothing at {}", pos.0)]
    Cut {
        /// Slot of the log.
        slot: u32,
        /// Position of the bytes that are gone.
        pos: LogPos,
    },
    /// The chunk does not begin where the log's slot says.
    #[error("log {slot} is digested up to {}, not {}", found.0, expected.0)]
    Position {
        /// Slot of the log.
        slot: u32,
        /// Where the chunk begins.
        expected: LogPos,
        /// What the slot says.
        found: LogPos,
    },
}

impl DigestError {
    /// Whether the same chunk may work later: freed blocks come back after the next grace period, and
    /// a plan that a commit of another log overtook is rebuilt.
    pub fn passes_with_time(&self) -> bool {
        self.is_short() || matches!(self, DigestError::Moved { .. })
    }

    /// Whether free blocks are missing, and nothing else.
    pub fn is_short(&self) -> bool {
        matches!(self, DigestError::Volume(VolumeError::NoSpace { .. }))
    }
}

/// What digesting one chunk did.
#[derive(Clone, Debug, Default)]
pub struct ChunkDone {
    /// Records before this position are in the volume. Durable.
    pub upto: LogPos,
    /// The transaction; `None`: there was nothing to do.
    pub txid: Option<TxId>,
    /// Whether the log, or the part of it that was asked for, ends at `upto`. Else
    /// there is another chunk, unless a record was refused.
    pub at_end: bool,
    /// Bytes of the volume that the records had reserved; they are spent or not needed.
    pub reserve_released: u64,
    /// Blocks freed; not to be reused before every client has passed the epoch.
    pub freed: Vec<Run>,
    /// Granted blocks that are part of files now.
    pub linked: Vec<Run>,
    /// Granted blocks named by records, which no file needs any more.
    pub unused: Vec<Run>,
    /// Granted inode numbers used by records before `upto`, also for inodes that are
    /// gone again. Only what is named here and in `linked` and `unused` is used up: the
    /// access_policy may have been asked about records that are left for a later chunk.
    pub created: Vec<Ino>,
    /// Of these, the numbers of inodes that are gone again and never reached the volume: they
    /// stay granted until [`Volume::return_inodes`].
    pub vanished: Vec<Ino>,
    /// Numbers of inodes that the volume had and has no more. They may have been granted again.
    pub removed: Vec<Ino>,
    /// The record at `upto` or in the transaction there that must not be digested: the
    /// log stops here.
    pub refused: Option<Refused>,
    /// Blocks of files that are new, where the volume has lower tiers.
    pub touched: Vec<(u64, Range<u64>)>,
    /// New blocks that were placed directly on a lower tier, and whose they are.
    pub below: Vec<(Ino, Run)>,
    /// Counts.
    pub stats: DigestStats,
}

impl ChunkDone {
    /// Nothing was digested: the first transaction of the batch must not be.
    fn refused(batch: &RecordBatch, from: LogPos, why: String) -> Self {
        let header = batch.items.first().map(|i| &i.header);
        Self {
            upto: from,
            refused: Some(Refused {
                pos: from,
                kind: header.map(|h| h.kind()),
                ino: Ino(header.map_or(0, |h| h.ino)),
                why,
            }),
            ..Self::default()
        }
    }
}

/// Digests update logs into one volume.
pub struct Digester {
    volume: Arc<Volume>,
    bounds: Bounds,
    plan_commit_lock: RwLock<()>,
    /// Records to read for the next chunk: as many as fitted the journal when a chunk
    /// had to be cut, slowly more after that. Only a guess that saves planning twice.
    records: AtomicUsize,
    given_up: AbandonedBlocks,
    tail_blocks: TailBlockCache,
    /// Blocks that somebody copies.
    copied: RwLock<RunSet>,
}

/// A chunk of a write buffer is no more than its ring divided by this.
const BUFFER_PARTS: u64 = 2;

/// The most that one chunk of one log has, beside [`Bounds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkMost {
    /// Bytes of the volume that its records have reserved.
    pub reserved: u64,
    /// The log is a write buffer: a chunk may be half of its ring, since what is overwritten or removed within a chunk is not written.
    pub buffer: bool,
}

impl Default for ChunkMost {
    fn default() -> Self {
        Self {
            reserved: u64::MAX,
            buffer: false,
        }
    }
}

/// Blocks that no digest changes where they are, until this is dropped.
pub struct StableBlocks<'d>(&'d Digester);

impl Drop for StableBlocks<'_> {
    fn drop(&mut self) {
        *self.0.copied.write() = RunSet::default();
    }
}

impl Digester {
    /// A digester with the default bounds of a chunk.
    pub fn new(volume: Arc<Volume>) -> Self {
        Self::with_bounds(volume, Bounds::default())
    }

    /// A digester with chunks of these bounds.
    pub fn with_bounds(volume: Arc<Volume>, bounds: Bounds) -> Self {
        Self {
            volume,
            bounds,
            plan_commit_lock: RwLock::new(()),
            records: AtomicUsize::new(bounds.records_max),
            given_up: AbandonedBlocks::default(),
            tail_blocks: TailBlockCache::default(),
            copied: RwLock::default(),
        }
    }

    /// The volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Last blocks of files below NVM.
    pub fn tail_blocks(&self) -> &TailBlockCache {
        &self.tail_blocks
    }

    /// Digests the next chunk of a log: records from `from`, the slot's digested
    /// position, up to `limit` at most. A chunk that needs more space or journal than
    /// there is is cut, down to one transaction.
    ///
    /// # Errors
    /// The volume refuses or is damaged; then nothing has changed.
    pub fn chunk(
        &self,
        log: &LogSource<'_>,
        from: LogPos,
        limit: LogPos,
        access_policy: &dyn AccessPolicy,
        mode: Mode,
    ) -> Result<ChunkDone, DigestError> {
        self.chunk_of(
            ChunkMost::default(),
            log,
            (from, limit),
            access_policy,
            mode,
        )
    }

    /// As [`Self::chunk`], with records of no more than `most`, if they are in several transactions.
    ///
    /// # Errors
    /// As for [`Self::chunk`].
    pub fn chunk_of(
        &self,
        most: ChunkMost,
        log: &LogSource<'_>,
        (from, limit): (LogPos, LogPos),
        access_policy: &dyn AccessPolicy,
        mode: Mode,
    ) -> Result<ChunkDone, DigestError> {
        let batch = self.gather(most, log, from, limit, mode);
        failpoints::reach("digest-scan");
        if batch.moves_directories() {
            // Whether a directory would come to lie below itself is known only while
            // nobody else moves one.
            let _alone = self.plan_commit_lock.write();
            return self.any_chunk(log, &batch, from, access_policy);
        }
        let _together = self.plan_commit_lock.read();
        self.any_chunk(log, &batch, from, access_policy)
    }

    /// As [`Self::chunk`], while no other chunk holds blocks that it has not committed.
    ///
    /// # Errors
    /// As for [`Self::chunk`].
    pub fn chunk_alone(
        &self,
        log: &LogSource<'_>,
        from: LogPos,
        limit: LogPos,
        access_policy: &dyn AccessPolicy,
        mode: Mode,
    ) -> Result<ChunkDone, DigestError> {
        let batch = self.gather(ChunkMost::default(), log, from, limit, mode);
        let _alone = self.plan_commit_lock.write();
        self.any_chunk(log, &batch, from, access_policy)
    }

    /// Gives up the block that a chunk could not read: digested again, the chunk makes it unreadable for good,
    /// and what was to change in it is lost. `false`: it was given up already, or something else is wrong.
    pub fn give_up(&self, error: &DigestError) -> bool {
        let first = self.given_up.add(error);
        if first {
            tracing::error!("{error}");
        }
        first
    }

    /// Runs `f` while no chunk is between its plan and its commit.
    pub fn between_chunks<T>(&self, f: impl FnOnce() -> T) -> T {
        let _alone = self.plan_commit_lock.write();
        f()
    }

    /// Keeps blocks in NVM from being changed where they are: from now on, no chunk being between its plan and its commit, a
    /// digest writes what is new in them to new blocks. So who copies them and finds them mapped at a commit
    /// ([`Self::between_chunks`]) has what they hold. For one who copies at a time.
    pub fn keep_stable(&self, runs: RunSet) -> StableBlocks<'_> {
        if runs.is_empty() || !self.volume.takes_any_stores() {
            return StableBlocks(self);
        }
        self.between_chunks(|| {
            let before = std::mem::replace(&mut *self.copied.write(), runs);
            assert!(before.is_empty(), "blocks are copied by one at a time");
        });
        StableBlocks(self)
    }

    fn gather(
        &self,
        chunk: ChunkMost,
        log: &LogSource<'_>,
        from: LogPos,
        limit: LogPos,
        mode: Mode,
    ) -> RecordBatch {
        let most = BatchLimits {
            records: self.guess().min(self.bounds.records_max),
            reserved: chunk.reserved,
            bytes: self.bounds.bytes_max,
            log_bytes: match mode {
                Mode::Live if chunk.buffer => log.ring_bytes / BUFFER_PARTS,
                Mode::Live => log.ring_bytes / self.bounds.ring_parts,
                Mode::Recovery => u64::MAX,
            },
            journal_bytes: part_to_fill(self.volume.journal_capacity()),
        };
        scan::gather(log, &self.volume.view(), from, limit, mode, &most)
    }

    fn guess(&self) -> usize {
        self.records.load(Ordering::Relaxed)
    }

    fn any_chunk(
        &self,
        log: &LogSource<'_>,
        batch: &RecordBatch,
        from: LogPos,
        access_policy: &dyn AccessPolicy,
    ) -> Result<ChunkDone, DigestError> {
        let guess = self.guess();
        let mut records = batch.whole(batch.items.len());
        let mut cut = None;
        let mut unreadable = BTreeSet::new();
        loop {
            let error = match self.attempt(log, batch, records, from, access_policy) {
                Ok((done, wanted)) => {
                    let fitting = fitting(records, wanted, self.volume.journal_capacity());
                    let more = (guess + guess / 2 + 1).min(fitting).max(guess);
                    self.records.store(cut.unwrap_or(more), Ordering::Relaxed);
                    return Ok(done);
                }
                Err(error) => error,
            };
            if let DigestError::Volume(VolumeError::Unreadable { block }) = &error
                && unreadable.insert(*block)
            {
                // One that is a file's is not stored to from now on: what is new in it goes to another one.
                if self.volume.retire(*block) {
                    tracing::error!(block, "memory error: the block is not used any more");
                }
                continue;
            }
            let less = match &error {
                DigestError::Volume(VolumeError::NoSpace { .. } | VolumeError::Growth { .. }) => {
                    batch.whole(records / 2)
                }
                DigestError::Volume(VolumeError::JournalFull { wanted, capacity }) => {
                    let fitting = fitting(records, *wanted, *capacity).max(1);
                    cut = Some(fitting);
                    batch.whole(fitting)
                }
                _ => records,
            };
            if less >= records {
                return match error {
                    DigestError::Volume(VolumeError::Growth { .. }) => {
                        Ok(ChunkDone::refused(batch, from, error.to_string()))
                    }
                    other => Err(other),
                };
            }
            tracing::debug!(log.slot, records, less, %error, "chunk is cut");
            records = less;
        }
    }

    /// Plans the first `records` records of a batch, or fewer: so many as come before one that
    /// must not be digested, or as are enough work.
    fn plan(
        &self,
        batch: &RecordBatch,
        mut records: usize,
        access_policy: &dyn AccessPolicy,
    ) -> Result<(Plan, usize, Option<Refused>), DigestError> {
        let takes_stores = |run| {
            let copied = !mutants::is_on("store-while-copied") && self.copied.read().overlaps(run);
            let repeated = access_policy.records_survive() || mutants::is_on("store-unsafe");
            repeated && !copied && self.volume.takes_stores(run)
        };
        let view = self.volume.view();
        let image = ChunkImage::new(view, &batch.items[..records], &takes_stores);
        let mut refused = None;
        loop {
            match plan::plan(&batch.items[..records], &image, access_policy) {
                Ok(plan) => return Ok((plan, records, refused)),
                Err(PlanError::Volume(e)) => return Err(e.into()),
                Err(PlanError::Enough { keep }) => (records, refused) = (keep, None),
                Err(PlanError::Refused { refused: why, keep }) => {
                    (records, refused) = (keep, Some(why));
                }
            }
        }
    }

    /// Digests the first `records` records of a batch. Gives also the journal bytes
    /// that it was estimated to need.
    fn attempt(
        &self,
        log: &LogSource<'_>,
        batch: &RecordBatch,
        records: usize,
        from: LogPos,
        access_policy: &dyn AccessPolicy,
    ) -> Result<(ChunkDone, u64), DigestError> {
        let (mut plan, records, mut refused) = self.plan(batch, records, access_policy)?;
        let lost = self.given_up.take(&self.volume.view(), &mut plan)?;
        failpoints::reach("digest-plan");
        let all = refused.is_none() && records == batch.items.len();
        if all {
            refused = batch.refused.clone();
        }
        let upto = batch.end(records, from);
        let mut done = ChunkDone {
            upto,
            txid: None,
            at_end: all && batch.ended && refused.is_none(),
            reserve_released: plan.reserve_bytes,
            freed: Vec::new(),
            linked: plan.linked.clone(),
            unused: plan.unused.clone(),
            created: plan.created.clone(),
            vanished: plan.vanished.clone(),
            removed: plan.removed().collect(),
            touched: Vec::new(),
            below: Vec::new(),
            refused,
            stats: plan.stats,
        };
        if upto == from {
            return Ok((done, plan.journal_bytes));
        }
        let capacity = self.volume.journal_capacity();
        if plan.journal_bytes > capacity && batch.whole(records / 2) < records {
            let wanted = plan.journal_bytes;
            return Err(VolumeError::JournalFull { wanted, capacity }.into());
        }
        let growth = growth(&plan, access_policy)?;
        let placed = data::allocate(&self.volume, &plan, access_policy)?;
        let late = mutants::is_on("commit-before-data");
        let (into, items) = ((&*self.volume, &self.tail_blocks), &batch.items);
        let write = || data::write(into, log, items, &plan, &placed);
        let logged = match late {
            true => Vec::new(),
            false => write()?,
        };
        access_policy.harden(upto, &logged)?;
        self.given_up.lose(&self.volume, &self.tail_blocks, &lost)?;
        failpoints::reach("digest-data");
        let (extents, positions) = (&placed.extents, (from, upto));
        let committed = apply::commit(&self.volume, log, &plan, extents, positions, growth)?;
        if late {
            write()?;
        }
        failpoints::reach("digest-commit");
        self.given_up.done(&lost);
        done.below = placed.keep();
        done.txid = Some(committed.txid);
        done.freed = committed.freed;
        done.stats.commits = 1;
        if self.volume.is_tiered() {
            done.touched = touched(&plan);
        }
        Ok((done, plan.journal_bytes))
    }
}

/// Blocks that a plan may use at most: what a record of this client may need was reserved by its own word.
fn growth(plan: &Plan, access_policy: &dyn AccessPolicy) -> Result<Option<u64>, VolumeError> {
    let growth = access_policy
        .credit()
        .filter(|_| !mutants::is_on("growth-unchecked"))
        .map(|_| plan.reserve_bytes / BLOCK_BYTES as u64);
    let wanted = plan.unwritten_blocks();
    match growth.filter(|&reserved| wanted > reserved) {
        Some(reserved) => Err(VolumeError::Growth { wanted, reserved }),
        None => Ok(growth),
    }
}

/// Blocks of files that a plan writes, changes or links.
fn touched(plan: &Plan) -> Vec<(u64, Range<u64>)> {
    let of = |inode: &plan::InodePlan| {
        let copies = inode.file.copies.iter().map(|c| c.at..c.at + c.blocks);
        let links = inode.file.links.iter().map(|l| l.at..l.at + l.blocks);
        let ino = inode.ino.0;
        let stores = inode.file.stores.iter().map(|s| s.at..s.at + s.blocks);
        let all = copies.chain(links).chain(stores);
        let all: Vec<_> = all.map(|r| (ino, r)).collect();
        all
    };
    plan.inodes.iter().flat_map(of).collect()
}

/// Bytes of a journal with this capacity that a chunk is made to need, by estimate.
fn part_to_fill(capacity: u64) -> u64 {
    let growing = capacity.saturating_sub(estimate::FIXED_BYTES);
    estimate::FIXED_BYTES + growing / 16 * 15
}

/// How many of the records fit if all of them want `wanted` bytes of journal, most of
/// them in proportion to their number.
fn fitting(records: usize, wanted: u64, capacity: u64) -> usize {
    let each = wanted.saturating_sub(estimate::FIXED_BYTES).max(1);
    let growing = part_to_fill(capacity) - estimate::FIXED_BYTES;
    let fitting = u128::from(records as u64) * u128::from(growing) / u128::from(each);
    fitting.min(usize::MAX as u128) as usize
}
