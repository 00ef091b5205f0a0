//! Migration by its own thread, and all that moves data down: for the mark, for who waits, by command.

use super::{DOWN_PERCENT, Tiering};
use crate::counts::MigrateProgress;
use crate::leaf_state::Of;
use crate::move_request::{BATCH_BLOCKS, BLOCK};
use shale_format::TierId;
use shale_pool::devices::LOWER;
use shale_pool::host_space::HostSpace;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the file systems of images that found no space are looked at, in nanoseconds.
const FULL_RETRY_NS: u64 = 10_000_000_000;
/// Bytes that such a file system has to have for its image to be used again.
const FULL_RETRY_BYTES: u64 = 16 << 20;
/// How often the mark is looked at.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The same while there is nowhere to move to: the first device below NVM wakes the thread.
const IDLE: Duration = Duration::from_secs(3600);
/// Where nothing can be moved the mark is looked at so often, or when a batch more is in use: each time all files are looked at.
const FUTILE_WAIT_NS: u64 = 5_000_000_000;
/// Wait after an error before the next try.
const ERROR_WAIT: Duration = Duration::from_secs(2);

impl Tiering {
    /// The thread that moves data in the background.
    pub fn run(&self) {
        let every = |tiered| if tiered { LOOK_EVERY } else { IDLE };
        let (mut retried_ns, mut futile) = (self.clock.monotonic_ns(), None);
        while self.wakeup.wait(every(self.is_tiered())) {
            let now = self.clock.monotonic_ns();
            if now.saturating_sub(retried_ns) >= FULL_RETRY_NS {
                retried_ns = now;
                self.retry_full();
            }
            self.take_reports();
            // What waits for space gets the lock in between.
            if self.may_move() && self.empty_devices() > 0 {
                self.wake();
            }
            let moved = self.demote(&mut futile).and_then(|()| self.promote());
            let moved = moved.and_then(|()| self.keep_ready());
            let moved = moved.and_then(|()| self.erase_dead());
            if let Err(e) = moved {
                self.migration_failed(&e);
                std::thread::sleep(ERROR_WAIT.min(LOOK_EVERY * 5));
            }
        }
    }

    /// Uses devices again whose images found no space, when their file system has some.
    fn retry_full(&self) {
        let has_space = |path: &str| {
            let space = HostSpace::of(Path::new(path));
            space.is_ok_and(|s| s.free_bytes >= FULL_RETRY_BYTES)
        };
        for tier in LOWER {
            if self.volume.retry_full(tier, has_space) {
                *self.last_error.lock() = None;
            }
        }
    }

    /// Moves the coldest data down if NVM is too full, and where there is none extents, inodes and directories. `futile`: blocks
    /// in use when nothing could be moved last, and until when it is not tried again with as many.
    fn demote(&self, futile: &mut Option<(u64, u64)>) -> shale_volume::Result<()> {
        let percent = self.migrate_percent();
        let (used, mark) = self.used_and_mark(percent);
        if used <= mark {
            *futile = None;
            return Ok(());
        }
        let now = self.clock.monotonic_ns();
        if futile.is_some_and(|(most, until)| used < most + BATCH_BLOCKS && now < until) {
            return Ok(());
        }
        let [low, structure] =
            [percent, self.structure_percent()].map(|p| p.saturating_sub(DOWN_PERCENT));
        while self.may_move() {
            let above = self.above(low);
            if above == 0 {
                break;
            }
            let blocks = above.min(self.at_once(BATCH_BLOCKS));
            // Who waits for space gets the lock after each batch.
            let moved = match self.above(structure) {
                0 => self.move_down(blocks, false)?,
                _ => self.move_down_all(blocks, false)?,
            };
            if moved == 0 {
                *futile = Some((self.used_and_mark(percent).0, now + FUTILE_WAIT_NS));
                break;
            }
            self.keep_to_limit();
        }
        Ok(())
    }

    /// Moves data down, and where that frees no space leaves of extents, then inodes, then directories. Gives the
    /// blocks. `asked`: somebody waits.
    fn move_down_all(&self, blocks: u64, asked: bool) -> shale_volume::Result<u64> {
        let moved = match self.move_down(blocks, asked)? {
            0 => self.demote_leaves(Of::Files, blocks, asked)?,
            moved => moved,
        };
        let moved = match moved {
            0 => self.demote_inodes(blocks, asked)?,
            moved => moved,
        };
        match moved {
            0 => self.demote_leaves(Of::Directories, blocks, asked),
            moved => Ok(moved),
        }
    }

    /// Reclaims space in NVM for somebody who waits: at least `bytes`, if there is that much to
    /// move and space below. Whether anything moved, or others made the space meanwhile.
    pub(crate) fn reclaim_space(&self, bytes: u64) -> bool {
        self.counts.space_waits.fetch_add(1, Ordering::Relaxed);
        if self.wait_for_mover() && self.available_now() >= bytes {
            return true;
        }
        match self.move_down_all(bytes / BLOCK + BATCH_BLOCKS, true) {
            Ok(blocks) => blocks > 0,
            Err(e) => {
                self.migration_failed(&e);
                false
            }
        }
    }

    /// Moves as much down as NVM holds when this begins, or `bytes` of it: `shale migrate`. What clients write
    /// meanwhile does not keep it from ending. Gives the bytes. `progress` can end it.
    ///
    /// # Errors
    /// A device fails.
    pub fn migrate_now(
        &self,
        bytes: Option<u64>,
        progress: &mut dyn FnMut(MigrateProgress) -> ControlFlow<()>,
    ) -> Result<u64, shale_volume::VolumeError> {
        if !self.is_tiered() {
            return Ok(0);
        }
        self.digest_all_logs();
        let asked = bytes.map_or(u64::MAX, |b| b.div_ceil(BLOCK));
        let wanted = asked.min(self.movable_blocks()?);
        let mut moved = 0;
        let mut goes_on = |moved: u64| {
            let (done, of) = (moved * BLOCK, wanted * BLOCK);
            progress(MigrateProgress { done, of }).is_continue() && !self.stopped()
        };
        while moved < wanted && goes_on(moved) {
            match self.move_down((wanted - moved).min(BATCH_BLOCKS), true)? {
                0 => break,
                blocks => moved += blocks,
            }
        }
        Ok(moved * BLOCK)
    }

    /// Blocks of files' data in NVM that may move down.
    fn movable_blocks(&self) -> shale_volume::Result<u64> {
        let mut blocks = 0;
        self.each_lying(Some(TierId::Nvm), &mut |inode, lies| {
            if inode.pin() != Some(TierId::Nvm) {
                blocks += u64::from(lies.extent.len);
            }
        })?;
        Ok(blocks)
    }
}
