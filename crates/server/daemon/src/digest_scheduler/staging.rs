//! Digests of a volume whose logs lie in memory: hardened first, and what frees the staging area ([`shale_hardening`]).

use super::DigestScheduler;
use crate::tiering::DirectWriteGuard;
use shale_clients::client::{Client, Work};
use shale_coherence::digest_stop::DigestStop;
use shale_digest::{DigestError, digest_chunks};
use shale_format::{Durability, LogPos, ORDERED_AGE};
use shale_hardening::checkpointer::StagedStatus;
use shale_hardening::{NotHardened, Staged};
use shale_persist::staged::PersistError;
use shale_sys::mutants;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How often the thread of a staged volume looks whether something is due.
const STAGING_LOOK: Duration = Duration::from_millis(50);
/// Bytes of a log that are not hardened, from which on a call that waits for them has the log digested.
const IN_PLACE_BYTES: u64 = 1 << 20;
/// Part of the memory tier that has to be free for that.
const IN_PLACE_FREE_PART: u64 = 8;
/// Times a full staging area is emptied for one call: others may fill it again meanwhile.
const STAGING_TRIES: u32 = 100;

impl DigestScheduler {
    /// Up to where the log of `client`, which is published to `limit`, may be digested from `from` on: as far as it survives a power
    /// cut. What is hardened is digested first, which takes no staging space.
    pub(super) fn hardened_limit(
        &self,
        client: &Arc<Client>,
        from: LogPos,
        limit: LogPos,
    ) -> Result<LogPos, DigestStop> {
        let Some(staged) = &self.parts.staged else {
            return Ok(limit);
        };
        if mutants::is_on("digest-unhardened") {
            return Ok(limit);
        }
        if client.hardened() <= from.0 {
            let harden = || staged.hardener.harden_to_digest(client, limit.0);
            match self.with_staging_space(staged, harden) {
                Ok(()) => {}
                // The digester finds no record either, and says so.
                Err(NotHardened::NoRecord) => return Ok(limit),
                Err(NotHardened::Full) => {
                    return Err(DigestStop::NoSpace("the staging area is full".to_owned()));
                }
                Err(NotHardened::Failed(why)) => return Err(DigestStop::MediaError(why)),
            }
        }
        Ok(limit.min(LogPos(client.hardened().max(from.0))))
    }

    /// Whether the log of `client` from `from` on is hardened by its digest, with large data written once, to its place: where
    /// nothing of it is hardened yet, and some of it could go below NVM.
    pub(super) fn hardens_in_place(
        &self,
        client: &Arc<Client>,
        from: LogPos,
        limit: LogPos,
    ) -> bool {
        self.parts.staged.is_some()
            && client.hardened() <= from.0
            && limit.0 - from.0 >= self.parts.tiering.direct_placement_min_bytes()
            && !mutants::is_on("digest-unhardened")
    }

    /// Digests a chunk that is not hardened: its data is written, then its records are hardened, then it becomes part of the volume
    /// (StageFS §3.2, full-page steal). `None`: nothing happened, and it has to be hardened first.
    pub(super) fn chunk_hardened_in_place(
        &self,
        client: &Arc<Client>,
        work: &mut Work,
        range: Range<LogPos>,
        direct: DirectWriteGuard<'_>,
    ) -> Option<Result<(), DigestStop>> {
        let staged = self.parts.staged.as_ref()?;
        let with = (Some(direct), Some(&*staged.hardener));
        let done = digest_chunks(&mut self.live_chunk(client, work, range, with));
        match done {
            // Who hardens it by itself finds out what to do.
            Err(DigestError::NotHardened(_)) => None,
            done => Some(self.after_chunk(client, work, done)),
        }
    }

    /// Returns when the records of `client` before `upto` survive a power cut, or all that it has published if that is less.
    ///
    /// # Errors
    /// The device has failed; what is published is no log; the staging area is full, and digests free nothing of it.
    pub(crate) fn harden(&self, client: &Arc<Client>, upto: u64) -> Result<(), NotHardened> {
        match &self.parts.staged {
            Some(staged) => self.harden_with(staged, client, upto),
            None => Ok(()),
        }
    }

    fn harden_with(
        &self,
        staged: &Staged,
        client: &Arc<Client>,
        upto: u64,
    ) -> Result<(), NotHardened> {
        self.harden_large_in_place(client, upto);
        self.with_staging_space(staged, || staged.hardener.harden(client, upto))
    }

    /// Has a log digested up to `upto` if much of it is not hardened, so that its data is written once. Not where the memory tier is
    /// nearly full: who waits until something is durable does not wait for space.
    fn harden_large_in_place(&self, client: &Arc<Client>, upto: u64) {
        let upto = upto.min(client.published().pos().0);
        let space = self.parts.volume.space();
        if upto.saturating_sub(client.hardened()) >= IN_PLACE_BYTES
            && space.free > space.total / IN_PLACE_FREE_PART
        {
            // Who hardens it without that finds out what is wrong.
            let _ = self.digest_to(client, upto);
        }
    }

    /// Returns when what every client has published by now survives a power cut. `asking`: the client that wants to know, if it is
    /// one; a log of another one that holds no record where it should does not count.
    ///
    /// # Errors
    /// As of [`Self::harden`].
    pub(crate) fn harden_all(&self, asking: Option<&Arc<Client>>) -> Result<(), NotHardened> {
        let Some(staged) = &self.parts.staged else {
            return self.write_back_all(asking);
        };
        let now_ns = self.parts.clock.monotonic_ns();
        let logs = staged.hardener.published();
        if !mutants::is_on("sync-others-left") {
            for (client, upto) in &logs {
                self.harden_large_in_place(client, *upto);
            }
            self.with_staging_space(staged, || staged.hardener.harden_all(&logs))?;
            staged.hardener.note_all_hardened(now_ns);
        }
        let own = asking.and_then(|asking| logs.iter().find(|(c, _)| c.id == asking.id));
        match own {
            Some((client, upto)) => self.harden_with(staged, client, *upto),
            None => Ok(()),
        }
    }

    /// Does `harden`, and again with an empty staging area where that was full.
    fn with_staging_space(
        &self,
        staged: &Staged,
        harden: impl Fn() -> Result<(), NotHardened>,
    ) -> Result<(), NotHardened> {
        let mut tries = 0;
        loop {
            match harden() {
                Err(NotHardened::Full) if tries < STAGING_TRIES => {
                    tries += 1;
                    self.make_staging_space(staged)?;
                }
                done => return done,
            }
        }
    }

    /// Frees staging space: digests what is hardened of every log that nobody digests at the moment (those who do need no space for
    /// what is hardened either), then writes a checkpoint.
    fn make_staging_space(&self, staged: &Staged) -> Result<(), NotHardened> {
        for client in self.parts.clients.snapshot() {
            let Some(mut work) = client.work.try_lock() else {
                continue;
            };
            while client.digested() < client.hardened() && work.refused.is_none() {
                let (from, to) = (client.digested(), client.hardened());
                let done = self.chunk(&client, &mut work, LogPos(from), LogPos(to));
                if done.is_err() || client.digested() == from {
                    break;
                }
            }
        }
        let now = || self.parts.clock.monotonic_ns();
        let written = staged.checkpointer.write(false, &now);
        written.map_err(|e| NotHardened::Failed(e.to_string()))
    }

    /// The thread of a staged volume that hardens what nobody waits for every `every`, and writes checkpoints when they
    /// are due, until [`Self::stop_staging`].
    pub(crate) fn run_staging(&self, every: Duration) {
        let Some(staged) = &self.parts.staged else {
            return;
        };
        let mut hardened_ns = 0;
        staged.stop.every(STAGING_LOOK, || {
            let now = self.parts.clock.monotonic_ns();
            let mut done = Ok(());
            let clients = &self.parts.clients;
            let every = match clients.any(|client| client.policy == Durability::Ordered) {
                true => every.min(ORDERED_AGE),
                false => every,
            };
            if now.saturating_sub(hardened_ns) >= every.as_nanos() as u64 {
                hardened_ns = now;
                let logs = staged.hardener.published();
                // Where somebody digests it, that is done already, and this thread waits for no digest.
                let idle = logs.iter().filter(|(c, _)| c.work.try_lock().is_some());
                idle.for_each(|(client, upto)| self.harden_large_in_place(client, *upto));
                done = staged.hardener.harden_all(&logs);
                if done.is_ok() {
                    staged.hardener.note_all_hardened(now);
                }
            }
            if done == Err(NotHardened::Full) || staged.checkpointer.is_due(now) {
                done = self.make_staging_space(staged);
            }
            if let Err(NotHardened::Failed(why)) = done {
                *self.totals.last_error.lock() = Some(why);
            }
        });
    }

    /// Ends that thread.
    pub(crate) fn stop_staging(&self) {
        if let Some(staged) = &self.parts.staged {
            staged.stop.stop();
        }
    }

    /// Writes a checkpoint. `clean`: no log is left, and nobody changes the volume any more.
    ///
    /// # Errors
    /// The device has failed.
    pub(crate) fn checkpoint(&self, clean: bool) -> Result<(), PersistError> {
        let now = || self.parts.clock.monotonic_ns();
        match &self.parts.staged {
            Some(staged) => staged.checkpointer.write(clean, &now),
            None => Ok(()),
        }
    }

    /// Staging area and checkpoints; `None`: logs lie in NVM.
    pub(crate) fn staged_status(&self) -> Option<StagedStatus> {
        let staged = self.parts.staged.as_ref()?;
        let clients = self.parts.clients.snapshot();
        let behind = |c: &Arc<Client>| c.published().pos().0.saturating_sub(c.hardened());
        let unhardened = clients.iter().map(behind).sum();
        let now_ns = self.parts.clock.monotonic_ns();
        Some(staged.checkpointer.status(unhardened, now_ns))
    }
}
