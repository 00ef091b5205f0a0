//! Replay: what the staging area holds that the restored image of the memory tier does not.
//!
//! Batches are taken in their order. A piece is put where it was in the ring of its log, whose slot and file are made again if the image
//! is older than the log, and is digested before a piece of another log is: so each record finds the volume as what it builds on left it
//! (`shale_hardening`). What the image has already is passed over by the digested position in its log table. After it,
//! recovery goes on as after a kill: no record is left, slots go.
//!
//! Cut off by another power cut, all of it is done again from the image; by a kill, too: the memory tier counts only once the
//! checkpoint after recovery is durable.

use crate::error::{RecoveryError, Result};
use crate::recover::Recovery;
use crate::recovered_log::RecoveredLog;
use shale_clients::log_reader::FdLogReader;
use shale_digest::DigestStats;
use shale_format::checksum::crc32c;
use shale_format::log::{LOG_MAGIC, LogHeader, LogSlot, RING_AT, TAIL_AT, file_name, slot_state};
use shale_format::staged::PlacedEntry;
use shale_format::{BlockAddr, LogPos};
use shale_persist::staged::{LogIdentity, PersistError, StagedArea, StagedPiece};
use shale_pool::PoolError;
use shale_pool::nvm_dir::remove;
use shale_sys::{mutants, private};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use zerocopy::FromZeros;

/// Batches on their way into a restored volume.
pub(crate) struct Replay<'r> {
    recovery: &'r Recovery<'r>,
    /// Bytes of the volume's credit, for logs of users.
    credit: u64,
    logs: BTreeMap<u32, RecoveredLog>,
    replayed: Replayed,
    /// The slot of the log that has pieces which are not digested yet.
    open: Option<u32>,
}

/// What was done.
#[derive(Default)]
pub(crate) struct Replayed {
    pub(crate) batches: u64,
    /// Bytes of logs digested.
    pub(crate) bytes: u64,
    pub(crate) digest: DigestStats,
}

impl Replayed {
    fn add(&mut self, log: &RecoveredLog) {
        self.bytes += log.outcome.end - log.slot.digested;
        self.digest += log.outcome.stats;
    }
}

impl<'r> Replay<'r> {
    pub(crate) fn new(recovery: &'r Recovery<'r>, credit: u64) -> Self {
        Self {
            recovery,
            credit,
            logs: BTreeMap::new(),
            replayed: Replayed::default(),
            open: None,
        }
    }

    /// Digests every batch of `area`.
    ///
    /// # Errors
    /// The area or the volume cannot be read; a log finds too little space: nothing is lost, the batches stay.
    pub(crate) fn run(mut self, area: &StagedArea) -> Result<Replayed> {
        let mut failed = None;
        area.for_each_batch(&mut |batch| {
            self.replayed.batches += 1;
            let done = { batch.pieces }.iter().try_for_each(|p| self.add(p));
            match done {
                Ok(()) => ControlFlow::Continue(()),
                Err(e) => {
                    failed = Some(e);
                    ControlFlow::Break(())
                }
            }
        })?;
        match failed {
            Some(e) => Err(e),
            None => {
                self.digest_open()?;
                self.free_idle_slots()?;
                self.logs.values().for_each(|log| self.replayed.add(log));
                Ok(self.replayed)
            }
        }
    }

    /// Frees slots that the image has and of which nothing was staged since: all of their logs is in the volume.
    fn free_idle_slots(&self) -> Result<()> {
        let volume = self.recovery.volume;
        let slots = (0..).zip(volume.log_slots());
        let idle = |n: &u32| !self.logs.contains_key(n);
        let live = slots.filter(|(_, slot)| slot.state == slot_state::LIVE);
        let idle: Vec<u32> = live.map(|(n, _)| n).filter(idle).collect();
        if idle.is_empty() {
            return Ok(());
        }
        let mut txn = volume.begin();
        for n in idle {
            txn.set_log_slot(n, &FromZeros::new_zeroed())?;
        }
        txn.commit()?;
        Ok(())
    }

    fn add(&mut self, piece: &StagedPiece) -> Result<()> {
        let (slot, end) = (piece.log.slot, piece.from.0 + piece.bytes.len() as u64);
        let is_other = |open: u32| {
            let log = &self.logs[&open];
            open != slot
                || log.slot.salt != piece.log.salt
                || end - log.outcome.end > log.slot.ring_bytes
        };
        if self.open.is_some_and(is_other) {
            self.digest_open()?;
        }
        if self
            .logs
            .get(&slot)
            .is_none_or(|l| l.slot.salt != piece.log.salt)
        {
            let log = self.open_log(&piece.log, piece.from)?;
            if let Some(before) = self.logs.insert(slot, log) {
                self.replayed.add(&before);
            }
        }
        let log = &self.logs[&slot];
        if log.outcome.refused || end <= log.outcome.end {
            return Ok(());
        }
        assert!(
            piece.from <= log.head,
            "log {slot} has pieces to {} and then from {}",
            log.head.0,
            piece.from.0
        );
        log.put(piece.from, &piece.bytes)?;
        // What is digested is not read again, and may have lost its place.
        let digested = log.outcome.end;
        for placed in piece.placed.iter().filter(|p| p.end() > digested) {
            if !mutants::is_on("placed-unread") {
                log.put(LogPos(placed.from), &self.read_placed(placed)?)?;
            }
        }
        if let Some(log) = self.logs.get_mut(&slot) {
            log.head = LogPos(end);
        }
        self.open = Some(slot);
        Ok(())
    }

    /// Reads what was written to its place below NVM before the batch that names it. No digest of the image knows these blocks.
    fn read_placed(&self, placed: &PlacedEntry) -> Result<Vec<u8>> {
        let mut bytes = vec![0; placed.bytes as usize];
        let volume = self.recovery.volume;
        let addr = BlockAddr::from_raw(placed.addr);
        volume.read_lower_raw(addr, placed.byte, &mut bytes)?;
        match crc32c(&bytes) == placed.crc {
            true => Ok(bytes),
            false => Err(PersistError::Damaged {
                why: format!(
                    "what was logged at {} lies in {addr:?}, and is not what was written there",
                    placed.from
                ),
            }
            .into()),
        }
    }

    fn digest_open(&mut self) -> Result<()> {
        let Some(slot) = self.open.take() else {
            return Ok(());
        };
        let log = self.logs.get_mut(&slot).expect("a log that is open");
        self.recovery.digest_log(log);
        self.recovery.release();
        let outcome = &log.outcome;
        match &outcome.problem {
            Some(problem) if !outcome.refused => Err(PoolError::NvmDir {
                dir: self.recovery.nvm_dir.to_path_buf(),
                why: format!(
                    "what was staged of log {slot} cannot be brought into the volume, and stays staged: {problem}"
                ),
            }
            .into()),
            // What is refused now was refused then, or came from a client that lied: recovery reports it.
            _ => Ok(()),
        }
    }

    /// The log of a piece that begins at `from`: its slot as the image has it or, if the log is younger, made.
    fn open_log(&self, of: &LogIdentity, from: LogPos) -> Result<RecoveredLog> {
        let volume = self.recovery.volume;
        let there = volume.log_slots()[of.slot as usize];
        let is_live = there.state == slot_state::LIVE && there.is_sound();
        let is_there = is_live && there.salt == of.salt;
        let slot = match is_there || mutants::is_on("replay-slot") {
            true => there,
            false => {
                let made = LogSlot {
                    state: slot_state::LIVE,
                    uid: of.uid,
                    salt: of.salt,
                    ring_bytes: of.ring_bytes,
                    digested: from.0,
                    connection: of.connection,
                    ..FromZeros::new_zeroed()
                };
                let mut txn = volume.begin();
                txn.set_log_slot(of.slot, &made)?;
                txn.commit()?;
                made
            }
        };
        let path = self.recovery.nvm_dir.join(file_name(of.slot));
        remove(&path)?;
        let header = LogHeader {
            magic: LOG_MAGIC,
            uuid: volume.superblock().uuid,
            salt: slot.salt,
            ring_bytes: slot.ring_bytes,
            uid: slot.uid,
            slot: of.slot,
            created_ns: self.recovery.clock.realtime_ns(),
            ..FromZeros::new_zeroed()
        };
        private::create_new(&path)
            .and_then(|file| {
                file.set_len(RING_AT as u64 + slot.ring_bytes)?;
                file.write_all_at(&header.encode(), 0)?;
                file.write_all_at(&slot.digested.to_le_bytes(), TAIL_AT as u64)
            })
            .map_err(|e| RecoveryError::file(&path, "make the log again", e))?;
        let map = FdLogReader::open(&path)?;
        Ok(RecoveredLog::unread(
            of.slot,
            slot,
            path,
            Some(map),
            self.credit,
        ))
    }
}
