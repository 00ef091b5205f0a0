//! Recovery: every log that the last daemon left is digested before a client is
//! accepted (DESIGN §12). It is the normal path: a clean stop leaves no logs.
//!
//! A client of the last daemon may still be there and append. So every log is *ended* first:
//! its client finds it in the file, and finds out before its call returns. Where it ends is
//! found once, and reported to the client when everything before it counts.
//!
//! Steps, each of which may be cut off and is then done again from the start:
//! 1. end and read every log in the table; take the blocks that its steal records name, before
//!    anything else is allocated;
//! 2. digest the logs, several at once; one that finds too little space again alone, after
//!    the others, and after orphans that no log names have gone;
//! 3. free the slots, all in one transaction, then remove the files;
//! 4. free orphans, unless the mount survived: then the kernel may still use them.
//!
//! Space is as it was for the last daemon, and more: idle grants are free again, and with
//! no client whatever a chunk frees is free for the next. So what could be digested then
//! can be now. A log that cannot (a damaged medium) is *left*: its slot, file, blocks and
//! space stay, and so do the inodes that it names, orphans too; nobody may change those.
//!
//! When the mount survived, the kernel sends unanswered requests again. What the logs of
//! its connection did for requests is collected *before* they go. A log that
//! knows such requests is *kept*, digested and small, until they have been answered: were
//! the daemon killed again before that, the next one would find them still.

use crate::error::Result;
use crate::orphans;
use crate::permissions::RecoveredRecordValidator;
use crate::recovered_log::{RecoveredLog, empty, shrink};
use crate::replay::Replay;
use parking_lot::Mutex;
use serde::Serialize;
use shale_clients::barrier::Barrier;
use shale_clients::log_reader::{FdLogReader, set_word, word};
use shale_coherence::readers::LocalReaders;
use shale_digest::{
    AccessPolicy, ChunkDone, Chunks, DigestError, DigestStats, Digester, Mode, OwnLog, Survey,
    digest_chunks, survey,
};
use shale_format::LogPos;
use shale_format::limits::BLOCK_BYTES;
use shale_format::log::{
    END_AT, LEFT_FILE, LogHeader, LogSlot, RING_AT, TAIL_AT, end, file_name, slot_state,
};
use shale_oplog::{LogReader, Recent, Scan};
use shale_persist::staged::StagedArea;
use shale_pool::nvm_dir::{remove, volume_files};
use shale_sys::{Clock, failpoints, mutants};
use shale_volume::Volume;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Logs kept for requests at most; more than that only a daemon that dies for ever leaves.
const KEPT_MAX: usize = 64;

/// What recovery found and did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RecoveryReport {
    /// Batches of the staging area that were digested after a power cut.
    pub batches: u64,
    /// Logs found.
    pub logs: usize,
    /// Logs that could not be digested and wait for the next start.
    pub logs_left: usize,
    /// Logs put aside because one of their records was refused.
    pub logs_refused: usize,
    /// Records digested.
    pub records: u64,
    /// Bytes of log digested.
    pub bytes: u64,
    /// Orphans freed.
    pub orphans_freed: u64,
    /// Requests of the surviving mount whose results are known.
    pub requests: usize,
    /// Milliseconds it took.
    pub ms: u64,
    /// What could not be recovered: file and reason, each.
    pub problems: Vec<String>,
    /// Counts of all its digests.
    pub digest: DigestStats,
}

/// What a recovery leaves behind.
pub struct Recovered {
    /// For `status`.
    pub report: RecoveryReport,
    /// What is kept for requests that the kernel sends again.
    pub kept: CompletedRequests,
    /// What logs that could not be digested hold on to.
    pub left: Undigested,
}

/// What logs that could not be digested hold on to.
#[derive(Default)]
pub struct Undigested {
    /// Space that their records have reserved.
    pub reserve_bytes: u64,
    /// Inodes that they change and that are no directories: those of others could not be
    /// distinguished by their number alone.
    pub inos: Vec<u64>,
}

/// Requests done before the crash, and the logs that prove it.
#[derive(Default)]
pub struct CompletedRequests {
    /// What was done for requests.
    pub recent: Recent,
    /// Slots of the logs.
    pub logs: Vec<u32>,
    /// Monotonic time up to which some request that is sent again may not have been read.
    pub since_ns: u64,
}

/// What recovery works with.
pub struct Recovery<'a> {
    /// Where to.
    pub volume: &'a Arc<Volume>,
    /// Who digests.
    pub digester: &'a Digester,
    /// Readers of this process.
    pub readers: &'a LocalReaders,
    /// Where the logs are.
    pub nvm_dir: &'a Path,
    /// Where in memory those of buffered clients are, which have more than their logs in NVM; after a power cut they are gone.
    pub buffer_dir: Option<&'a Path>,
    /// The time.
    pub clock: &'a dyn Clock,
    /// FUSE connection that survived, if one did.
    pub connection: Option<u64>,
    /// How many logs are digested at the same time.
    pub threads: usize,
    /// Orders the end of a log with what its client does.
    pub barrier: Barrier,
    /// Where batches are staged that the memory tier, which was just restored, does not hold.
    pub staged: Option<&'a StagedArea>,
}

impl Recovery<'_> {
    /// Recovers. Errors are those of the volume itself; what is wrong with one log is
    /// reported and does not stop the others.
    pub fn run(&self) -> Result<Recovered> {
        let started_ns = self.clock.monotonic_ns();
        let mut report = RecoveryReport::default();
        if let Some(area) = self.staged {
            let replayed = Replay::new(self, self.credit()).run(area)?;
            report.batches = replayed.batches;
            report.bytes = replayed.bytes;
            report.records = replayed.digest.records;
            report.digest = replayed.digest;
            failpoints::reach("recovery-replayed");
        }
        let mut logs = self.open_logs(&mut report);
        report.logs = logs.len();
        self.end_all(&logs);
        let credit = self.credit();
        for log in &mut logs {
            log.credit = credit;
        }
        failpoints::reach("recovery-open");
        self.survey(&mut logs);
        if mutants::is_on("slots-freed-first") {
            self.free_slots(&logs, &mut CompletedRequests::default())?;
        }
        failpoints::reach("recovery-survey");
        self.digest(&mut logs);
        failpoints::reach("recovery-digest");
        report.orphans_freed = self.digest_short(&mut logs)?;
        let mut kept = self.collect_requests(&logs);
        report.requests = kept.recent.len();
        for log in &mut logs {
            log.tell_end();
            self.report_log(log, &mut report);
        }
        self.release();
        failpoints::reach("recovery-settled");
        self.free_slots(&logs, &mut kept)?;
        failpoints::reach("recovery-slots");
        let left = self.left(&logs)?;
        // A log that is left knows more of them than it names: what is below a directory.
        let orphans_go = !mutants::is_on("orphans-go");
        if self.connection.is_none() && report.logs_left == 0 && orphans_go {
            report.orphans_freed += orphans::free_all(self.volume, &HashSet::new())?;
        }
        failpoints::reach("recovery-orphans");
        report.ms = (self.clock.monotonic_ns() - started_ns) / 1_000_000;
        kept.since_ns = self.clock.monotonic_ns();
        for problem in &report.problems {
            tracing::error!("recovery: {problem}");
        }
        if report.logs > 0 || report.batches > 0 {
            tracing::info!(
                batches = report.batches,
                logs = report.logs,
                records = report.records,
                ms = report.ms,
                "recovered"
            );
        }
        Ok(Recovered { report, kept, left })
    }

    /// Bytes that the records of a log may have reserved of which nobody knows.
    fn credit(&self) -> u64 {
        let space = self.volume.space();
        (space.free + space.pending) * BLOCK_BYTES as u64
    }

    /// Makes free what was freed: nobody reads but the threads here.
    pub(crate) fn release(&self) {
        let txid = self.volume.txid();
        self.readers.wait_for_all();
        self.volume.release_up_to(txid);
    }

    fn open_logs(&self, report: &mut RecoveryReport) -> Vec<RecoveredLog> {
        let slots = self.volume.log_slots();
        let live = slots
            .into_iter()
            .enumerate()
            .filter(|(_, slot)| slot.state == slot_state::LIVE);
        live.map(|(number, slot)| {
            let number = number as u32;
            let path = self.log_path(number, &slot, &mut report.problems);
            let map = match FdLogReader::open(&path) {
                // Only who has made the table by hand can have done that: its checksum is right.
                _ if !slot.is_sound() => {
                    report.problems.push(format!(
                        "{}: its slot in the log table makes no sense (a ring of {} bytes, digested up to {}): what was in it and not digested is lost",
                        path.display(),
                        slot.ring_bytes,
                        slot.digested
                    ));
                    None
                }
                Ok(map) if map.bytes() as u64 >= RING_AT as u64 + slot.ring_bytes => Some(map),
                Ok(map) => {
                    report.problems.push(format!(
                        "{}: {} bytes, expected {}: what was in it and not digested is lost",
                        path.display(),
                        map.bytes(),
                        RING_AT as u64 + slot.ring_bytes
                    ));
                    None
                }
                Err(e) => {
                    report
                        .problems
                        .push(format!("{e}: what was in it and not digested is lost"));
                    None
                }
            };
            if let Some(why) = map
                .as_ref()
                .and_then(|m| self.wrong_header(m, number, &slot))
            {
                // Salt and length come from the table, so its records can still be recognised.
                report.problems.push(format!("{}: {why}", path.display()));
            }
            let mut log = RecoveredLog::unread(number, slot, path, map, 0);
            log.survives = log.path.parent() == Some(self.nvm_dir);
            log
        })
        .collect()
    }

    /// The file of a log: the one in memory of a buffered client, if it is there and is that log, else the one in NVM, which has what was
    /// copied there. That one is there and is not that log is among the `problems`.
    fn log_path(&self, number: u32, slot: &LogSlot, problems: &mut Vec<String>) -> PathBuf {
        let name = file_name(number);
        let in_nvm = self.nvm_dir.join(&name);
        let in_memory = self.buffer_dir.map(|dir| dir.join(&name));
        // After a power cut there is none, which is no problem.
        let Some(path) = in_memory.filter(|path| path.symlink_metadata().is_ok()) else {
            return in_nvm;
        };
        let expected = RING_AT as u64 + slot.ring_bytes;
        let why = match FdLogReader::open(&path) {
            Err(e) => e.to_string(),
            Ok(log) if (log.bytes() as u64) < expected => {
                format!(
                    "{}: {} bytes, expected {expected}",
                    path.display(),
                    log.bytes()
                )
            }
            Ok(log) => match self.wrong_header(&log, number, slot) {
                None => return path,
                Some(why) => format!("{}: {why}", path.display()),
            },
        };
        let taken = in_nvm.display();
        problems.push(format!(
            "{why}: {taken} is taken, and what its client had not synced is lost"
        ));
        in_nvm
    }

    fn wrong_header(&self, map: &FdLogReader, number: u32, slot: &LogSlot) -> Option<String> {
        let mut bytes = [0; LogHeader::BYTES];
        if !map.load(0, &mut bytes) {
            return Some("its header cannot be read".to_owned());
        }
        let header = match LogHeader::decode(&bytes) {
            Ok(header) => header,
            Err(e) => return Some(e.to_string()),
        };
        let ours = header.uuid == self.volume.superblock().uuid
            && header.salt == slot.salt
            && header.ring_bytes == slot.ring_bytes
            && header.slot == number;
        (!ours).then(|| "the file is another log than the table says".to_owned())
    }

    /// Tells clients that are still there that their logs end.
    fn end_all(&self, logs: &[RecoveredLog]) {
        for map in logs.iter().filter_map(|l| l.map.as_ref()) {
            set_word(map.fd(), END_AT, end::SOUGHT);
        }
        self.barrier.run();
    }

    /// Takes the blocks that steal records name out of the free space.
    fn survey(&self, logs: &mut [RecoveredLog]) {
        let view = self.volume.view();
        let next = AtomicUsize::new(0);
        let logs_now = &*logs;
        let found: Vec<Mutex<Survey>> = logs.iter().map(|_| Mutex::default()).collect();
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(log) = logs_now.get(index) else {
                    break;
                };
                if let Some(map) = &log.map {
                    let from = LogPos(log.slot.digested);
                    *found[index].lock() = survey(&log.source(map), &view, from);
                }
            }
        };
        match self.threads.min(logs_now.len()) {
            0 | 1 => work(),
            threads => std::thread::scope(|scope| {
                (0..threads).for_each(|_| drop(scope.spawn(work)));
            }),
        }
        for (log, found) in logs.iter_mut().zip(found) {
            let found = found.into_inner();
            log.named = found.named;
            log.head = found.head.max(log.head);
            for run in found.stolen {
                // What is not free is not this log's: digest refuses the record.
                if !mutants::is_on("survey-takes") && self.volume.take(run).is_ok() {
                    log.taken.insert(run);
                }
            }
        }
    }

    fn digest(&self, logs: &mut [RecoveredLog]) {
        // A log whose writer may have lied about the space it needs comes after the others.
        let (foreign, own): (Vec<&mut RecoveredLog>, Vec<&mut RecoveredLog>) =
            logs.iter_mut().rev().partition(|l| l.writer.is_some());
        for jobs in [own, foreign] {
            self.digest_together(jobs);
        }
    }

    fn digest_together(&self, jobs: Vec<&mut RecoveredLog>) {
        if self.threads.min(jobs.len()) <= 1 {
            return jobs.into_iter().rev().for_each(|log| self.digest_log(log));
        }
        let jobs = Mutex::new(jobs);
        let threads = self.threads.min(jobs.lock().len());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let Some(log) = jobs.lock().pop() else { break };
                        self.digest_log(log);
                    }
                });
            }
        });
    }

    /// Digests a log from where its outcome ends.
    pub(crate) fn digest_log(&self, log: &mut RecoveredLog) {
        let Some(map) = log.map.take() else {
            return;
        };
        log.outcome.short = false;
        let digested = digest_chunks(&mut LogChunks {
            recovery: self,
            log,
            map: &map,
        });
        match digested {
            Ok(()) => {}
            Err(e @ DigestError::Cut { .. }) => {
                log.outcome.problem = Some(e.to_string());
                log.outcome.refused = true;
            }
            Err(e) => {
                log.outcome.problem = Some(format!("{e}: the log is kept"));
                log.outcome.short = e.is_short();
                log.outcome.keep = !log.outcome.short;
            }
        }
        log.map = Some(map);
    }

    /// Digests logs that found too little space, one by one: others have freed something
    /// since. At last, unless the kernel may still use them, orphans go that no record
    /// names. Gives their number.
    fn digest_short(&self, logs: &mut [RecoveredLog]) -> Result<u64> {
        self.digest_short_again(logs);
        let mut freed = 0;
        if self.connection.is_none() && logs.iter().any(|l| l.outcome.short) {
            let named = logs.iter().flat_map(|l| l.named.iter().copied());
            freed = orphans::free_all(self.volume, &named.collect())?;
            self.digest_short_again(logs);
        }
        for log in logs.iter_mut().filter(|l| l.outcome.short) {
            log.outcome.keep = true;
        }
        Ok(freed)
    }

    fn digest_short_again(&self, logs: &mut [RecoveredLog]) {
        let digested = |logs: &[RecoveredLog]| logs.iter().map(|l| l.outcome.end).sum::<u64>();
        loop {
            let before = digested(logs);
            for log in logs.iter_mut().filter(|l| l.outcome.short) {
                log.outcome.problem = None;
                self.digest_log(log);
            }
            if digested(logs) == before {
                return;
            }
        }
    }

    /// What must not be changed or given away while logs are left.
    fn left(&self, logs: &[RecoveredLog]) -> Result<Undigested> {
        let mut left = Undigested::default();
        let view = self.volume.view();
        for log in logs.iter().filter(|l| l.outcome.keep) {
            let Some(map) = &log.map else { continue };
            let found = survey(&log.source(map), &view, LogPos(log.outcome.end));
            left.reserve_bytes += found.reserve_bytes;
            let mut to_come = Vec::new();
            for ino in found.named {
                match view.inode(ino)? {
                    Some(inode) if !inode.is_dir() => left.inos.push(ino.0),
                    None if ino.is_user() => to_come.push(ino),
                    _ => {}
                }
            }
            // What it has yet to make must not be somebody else's by then.
            self.volume.hold_inodes(&to_come);
        }
        Ok(left)
    }

    /// What the logs of the surviving mount's connection did for its requests.
    fn collect_requests(&self, logs: &[RecoveredLog]) -> CompletedRequests {
        let mut kept = CompletedRequests::default();
        let Some(connection) = self.connection else {
            return kept;
        };
        for log in logs.iter().filter(|l| l.slot.connection == connection) {
            let Some(map) = &log.map else { continue };
            let end = log.outcome.end;
            let lowest = end.saturating_sub(log.slot.ring_bytes);
            let tail = word(map, TAIL_AT).clamp(lowest, end);
            if mutants::is_on("requests-unknown") {
                continue;
            }
            let before = kept.recent.len();
            let scan = Scan::new(map, log.slot.salt, log.slot.ring_bytes, LogPos(tail));
            for record in scan.until(LogPos(end)) {
                kept.recent.add(&record);
            }
            if kept.recent.len() > before && kept.logs.len() < KEPT_MAX {
                shrink(map, log.slot.ring_bytes, tail, end);
                kept.logs.push(log.number);
            }
        }
        kept
    }

    /// Adds a log to the report and returns blocks that it did not use.
    fn report_log(&self, log: &mut RecoveredLog, report: &mut RecoveryReport) {
        let outcome = &log.outcome;
        report.records += outcome.stats.records;
        report.bytes += outcome.end - log.slot.digested;
        report.digest += outcome.stats;
        if let Some(problem) = &outcome.problem {
            report
                .problems
                .push(format!("{}: {problem}", log.path.display()));
        }
        report.logs_refused += usize::from(outcome.refused);
        if outcome.keep {
            report.logs_left += 1;
            return;
        }
        for run in log.taken.iter() {
            self.volume.give_back(run);
        }
    }

    fn free_slots(&self, logs: &[RecoveredLog], kept: &mut CompletedRequests) -> Result<()> {
        if mutants::is_on("requests-kept") {
            kept.logs.clear();
        }
        let stays = |number| kept.logs.contains(&number);
        let gone: Vec<&RecoveredLog> = logs
            .iter()
            .filter(|l| !l.outcome.keep && !stays(l.number))
            .collect();
        if !gone.is_empty() {
            let mut txn = self.volume.begin();
            for log in &gone {
                txn.set_log_slot(log.number, &zerocopy::FromZeros::new_zeroed())?;
            }
            txn.commit()?;
        }
        for log in gone.iter().filter(|l| l.outcome.refused) {
            // Evidence: what a client wrote that the volume must not have.
            let aside = log.path.with_extension("refused");
            if let Err(e) = std::fs::rename(&log.path, &aside) {
                tracing::error!("recovery: {}: cannot put it aside: {e}", log.path.display());
            }
        }
        let slots = self.volume.log_slots();
        for dir in [Some(self.nvm_dir), self.buffer_dir].into_iter().flatten() {
            for name in volume_files(dir)? {
                let left = name == LEFT_FILE;
                let number = name.strip_prefix("log-").and_then(|n| n.parse().ok());
                let slot = number.and_then(|n: usize| slots.get(n));
                if (left || slot.is_some_and(|s| s.state == slot_state::FREE))
                    && let Err(e) = remove(&dir.join(&name))
                {
                    // Nothing of it counts any more, so it keeps nobody from starting.
                    tracing::error!("recovery: {e}");
                }
            }
        }
        for log in gone {
            if let Some(file) = &log.map {
                empty(file.fd(), log.slot.ring_bytes);
            }
        }
        Ok(())
    }
}

/// The chunks of one log, one after the other.
struct LogChunks<'a, 'r> {
    recovery: &'a Recovery<'r>,
    log: &'a mut RecoveredLog,
    map: &'a FdLogReader,
}

impl Chunks for LogChunks<'_, '_> {
    fn chunk(&mut self, alone: bool) -> std::result::Result<ChunkDone, DigestError> {
        let log = &*self.log;
        let source = log.source(self.map);
        let own = OwnLog::new(log.taken.iter().collect(), log.survives);
        let left;
        let policy: &dyn AccessPolicy = match log.writer.clone() {
            None => &own,
            Some(person) => {
                let credit = log.credit;
                left = RecoveredRecordValidator {
                    person,
                    own,
                    credit,
                };
                &left
            }
        };
        let (from, all) = (LogPos(log.outcome.end), log.head);
        let _reader = self.recovery.readers.enter();
        let digester = self.recovery.digester;
        match alone {
            false => digester.chunk(&source, from, all, policy, Mode::Recovery),
            true => digester.chunk_alone(&source, from, all, policy, Mode::Recovery),
        }
    }

    fn done(&mut self, chunk: ChunkDone) -> bool {
        let RecoveredLog {
            outcome,
            taken,
            head,
            ..
        } = &mut *self.log;
        let from = outcome.end;
        assert!(
            (from..=head.0.max(from)).contains(&chunk.upto.0),
            "a log from {from} to {} was digested to {}",
            head.0,
            chunk.upto.0
        );
        outcome.end = chunk.upto.0;
        outcome.stats += chunk.stats;
        for &run in chunk.linked.iter().chain(&chunk.unused) {
            taken.remove(run);
        }
        for run in chunk.unused {
            self.recovery.volume.give_back(run);
        }
        if let Some(refused) = chunk.refused {
            outcome.problem = Some(refused.to_string());
            outcome.refused = true;
            return false;
        }
        !chunk.at_end && chunk.upto.0 != from
    }

    fn wait(&mut self) {
        self.recovery.release();
    }

    fn give_up(&mut self, error: &DigestError) -> bool {
        let first = self.recovery.digester.give_up(error);
        if first {
            self.log.outcome.problem = Some(error.to_string());
        }
        first
    }
}
