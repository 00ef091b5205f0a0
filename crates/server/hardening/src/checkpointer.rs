//! Checkpoints: the memory tier as it is at one moment, on the device of the staging area.
//!
//! Under the volume's transaction lock the pages that the older image lacks are copied; then they are written
//! without it. A page is marked changed after it was stored to and before anything refers to it, so a copy under the lock never misses
//! a page that the structure of that moment leads to. When a checkpoint is durable, batches before it are free, and zones below that
//! were without live blocks when it began may be erased: no image that a restore could take leads there any more.

use crate::commit_times::CommitTimesStatus;
use crate::hardener::Hardener;
use parking_lot::Mutex;
use serde::Serialize;
use shale_clients::space_credits::SpaceCredits;
use shale_nvm::Map;
use shale_persist::staged::{DirtyPages, PAGE_BYTES, PersistError, StagedArea};
use shale_sys::mutants;
use shale_volume::Volume;
use std::sync::Arc;

/// Pages that have changed are written once there are so many: 32 MiB.
const PAGES_MAX: u64 = (32 << 20) / PAGE_BYTES as u64;
/// A checkpoint is written once so much of the staging area is in use, as a part of it.
const STAGED_PART: u64 = 4;
/// A checkpoint is written once freed blocks that wait for it are so much of the memory tier, as a part of it.
const PENDING_PART: u64 = 8;
/// What has changed is written after this time in any case, in nanoseconds.
const AGE_MAX_NS: u64 = 30_000_000_000;

/// See the module.
pub struct Checkpointer {
    area: Arc<StagedArea>,
    volume: Arc<Volume>,
    map: Arc<Map>,
    dirty: Arc<DirtyPages>,
    hardener: Arc<Hardener>,
    credits: Arc<SpaceCredits>,
    /// Held while one is written.
    writing: Mutex<()>,
    /// A leaf among the locks.
    last: Mutex<Last>,
}

#[derive(Clone, Copy, Default)]
struct Last {
    /// When it began, monotonic.
    ns: u64,
    pages: u64,
    took_ns: u64,
}

/// Staging area and checkpoints, for `status`.
#[derive(Clone, Debug, Serialize)]
pub struct StagedStatus {
    /// Bytes of the staging area.
    pub staging_bytes: u64,
    /// Of these, in use by batches that no checkpoint holds yet.
    pub staged_bytes: u64,
    /// Bytes that are published and not hardened: what a power cut would lose now.
    pub unhardened_bytes: u64,
    /// Seconds since everything that was published then was hardened: a power cut loses nothing older.
    pub unhardened_s: f64,
    /// Batches since the start of the daemon.
    pub commits: u64,
    /// Bytes of these as they were written, with headers and padding.
    pub commit_bytes: u64,
    /// Bytes of logs that were hardened where digests wrote them, in zones, and not in batches.
    pub placed_bytes: u64,
    /// Calls that waited for one.
    pub commit_waiters: u64,
    /// How long commits took.
    pub commit_times: CommitTimesStatus,
    /// Checkpoints since the start of the daemon.
    pub checkpoints: u64,
    /// Pages of 4 KiB that they wrote.
    pub checkpoint_pages: u64,
    /// Pages of the last one.
    pub last_checkpoint_pages: u64,
    /// Milliseconds that it took.
    pub last_checkpoint_ms: f64,
    /// Seconds since it began: how far checkpoints lag behind.
    pub last_checkpoint_s: f64,
    /// Pages that have changed since.
    pub dirty_pages: u64,
    /// Why nothing can be hardened any more; none: it can.
    pub failure: Option<String>,
}

impl Checkpointer {
    /// One for the memory tier `map` of `volume`; `dirty` gets each page of it after it was stored to. Only this and `hardener` write to
    /// `area`.
    pub fn new(
        area: Arc<StagedArea>,
        volume: Arc<Volume>,
        map: Arc<Map>,
        dirty: Arc<DirtyPages>,
        hardener: Arc<Hardener>,
        credits: Arc<SpaceCredits>,
    ) -> Self {
        Self {
            area,
            volume,
            map,
            dirty,
            hardener,
            credits,
            writing: Mutex::default(),
            last: Mutex::default(),
        }
    }

    /// Whether one is due: by the staging area in use, the pages that have changed, the space that waits for it, or its age.
    pub fn is_due(&self, now_ns: u64) -> bool {
        // What was staged, or written to its place instead: a restore brings all of it into the memory tier.
        let staged = self
            .area
            .staged_bytes()
            .max(self.credits.held_for_checkpoint());
        let dirty = self.dirty.len();
        let old = now_ns.saturating_sub(self.last.lock().ns) > AGE_MAX_NS;
        let space = self.volume.space();
        staged > self.area.layout().staging_bytes / STAGED_PART
            || dirty > PAGES_MAX
            || space.pending > space.total / PENDING_PART && !mutants::is_on("checkpoint-space")
            || old && (dirty > 0 || staged > 0)
    }

    /// Writes a checkpoint. `clean`: no log is left and nobody changes anything any more. `clock_ns`: monotonic time.
    ///
    /// # Errors
    /// The device fails: nothing is written to the area any more.
    pub fn write(&self, clean: bool, clock_ns: &dyn Fn() -> u64) -> Result<(), PersistError> {
        let _one = self.writing.lock();
        let begun_ns = clock_ns();
        // All of it is committed.
        let held = self.credits.held_for_checkpoint();
        let copied = self.volume.between_batches(|txid, slots| {
            let pages = self.area.pages_to_copy(&self.dirty.take());
            let mut bytes = vec![[0; PAGE_BYTES]; pages.len()];
            for (page, copy) in pages.iter().zip(&mut bytes) {
                self.map.peek(*page as usize * PAGE_BYTES, copy);
            }
            (txid, pages, bytes, self.hardener.keep_from(slots))
        });
        // What a memory error has left half done is for no restore.
        let Some((txid, pages, bytes, kept)) = copied else {
            return Ok(());
        };
        let mut copies = pages.iter().copied().zip(&bytes);
        let written = self
            .area
            .write_checkpoint(&mut copies, txid.0, kept.from, clean);
        if let Err(e) = &written {
            self.hardener.give_up(format!("a checkpoint: {e}"));
        }
        written?;
        self.hardener.unpin(&kept.placed);
        self.volume.checkpointed(txid);
        self.credits.checkpointed(held);
        *self.last.lock() = Last {
            ns: begun_ns,
            pages: pages.len() as u64,
            took_ns: clock_ns().saturating_sub(begun_ns),
        };
        tracing::debug!(pages = pages.len(), txid = txid.0, "checkpoint");
        Ok(())
    }

    /// The state now. `unhardened`: bytes that are published and not hardened; `now_ns`: monotonic time.
    pub fn status(&self, unhardened: u64, now_ns: u64) -> StagedStatus {
        let counts = self.area.counts();
        let last = *self.last.lock();
        let age_ns = match unhardened {
            0 => 0,
            _ => now_ns.saturating_sub(self.hardener.all_hardened_ns()),
        };
        StagedStatus {
            staging_bytes: self.area.layout().staging_bytes,
            staged_bytes: self.area.staged_bytes(),
            unhardened_bytes: unhardened,
            unhardened_s: (age_ns / 1_000_000) as f64 / 1000.0,
            commits: counts.batches,
            commit_bytes: counts.batch_bytes,
            placed_bytes: self.hardener.placed_bytes(),
            commit_waiters: self.hardener.waiters(),
            commit_times: self.hardener.times(),
            checkpoints: counts.checkpoints,
            checkpoint_pages: counts.pages_written,
            last_checkpoint_pages: last.pages,
            last_checkpoint_ms: (last.took_ns / 1000) as f64 / 1000.0,
            last_checkpoint_s: (now_ns.saturating_sub(last.ns) / 1_000_000) as f64 / 1000.0,
            dirty_pages: self.dirty.len(),
            failure: self.hardener.failure(),
        }
    }
}
