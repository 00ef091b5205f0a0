//! Update logs that a crash left, damaged before recovery: what comes before the damage is kept,
//! nothing comes half.

use std::path::{Path, PathBuf};

use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::stage::{Checked, Stage, attach_to, both, close_all, side, tree};
use shale_bench::BenchError;
use shale_bench::Result;
use shale_bench::chance::Chance;
use shale_format::Ino;
use shale_format::limits::BLOCK_BYTES;
use shale_format::log::{LogSlot, slot_state};
use shale_format::superblock::LOG_TABLE_BLOCK;
use shale_libfs::Caller;
use shale_model::{Memory, Snapshot};
use shale_pool::buffer_dir::make_private_dir;

/// Operations whose records are in the log.
const LOGGED: usize = 60;

/// Of these, operations that a buffered client called fsync behind.
const SYNCED: usize = 20;

/// A log file, and what it holds.
type LogFile = (PathBuf, Vec<u8>);

/// A volume with a log that was not digested.
pub(super) struct Left {
    pub(super) stage: Stage,
    image: Vec<u8>,
    /// The log; of a buffered client that in memory.
    pub(super) log: LogFile,
    /// The log in NVM of a buffered client.
    nvm_log: Option<LogFile>,
    /// The tree after each operation that is in the log only.
    pub(super) trees: Vec<Snapshot>,
}

impl Left {
    pub(super) fn make(trial: &Trial<'_>) -> Result<Checked<Left>> {
        let stage = trial.stage()?;
        let trees = kept!(crash(&stage, trial));
        let log_in = |dir: PathBuf| -> Result<LogFile> {
            let path = dir.join(shale_format::log::file_name(0));
            let log = std::fs::read(&path).map_err(BenchError::file(&path, "read"))?;
            Ok((path, log))
        };
        let in_nvm = log_in(stage.nvm())?;
        let (log, nvm_log) = match trial.buffered {
            true => (log_in(stage.buffer_dir())?, Some(in_nvm)),
            false => (in_nvm, None),
        };
        Ok(Ok(Left {
            image: stage.image()?,
            log,
            nvm_log,
            trees,
            stage,
        }))
    }

    /// The volume as it was left, with this as the log, or none.
    pub(super) fn put(&self, log: Option<&[u8]>) -> Result<()> {
        self.stage.put(&self.image)?;
        let write = |path: &Path, log: &[u8]| {
            std::fs::write(path, log).map_err(BenchError::file(path, "write"))
        };
        if let Some((path, log)) = &self.nvm_log {
            make_private_dir(&self.stage.buffer_dir())?;
            write(path, log)?;
        }
        log.map_or(Ok(()), |log| write(&self.log.0, log))
    }

    /// Operations after which the tree was last what it was when a buffered client had called fsync.
    pub(super) fn synced(&self) -> usize {
        let is_it = |tree: &Snapshot| *tree == self.trees[SYNCED];
        self.trees.iter().rposition(is_it).unwrap_or_default()
    }

    /// Recovers; gives after how many operations the tree is, and what recovery reported.
    pub(super) fn recover(&self) -> Checked<(usize, Vec<String>)> {
        let daemon = self.stage.start()?;
        let problems = daemon.recovery().problems.clone();
        let session = attach_to(&daemon)?;
        let mut shale = side(&session);
        let found = tree(&mut shale)?;
        drop(shale);
        session.detach().map_err(|e| format!("detach: {e}"))?;
        daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
        let at = self.trees.iter().rposition(|tree| *tree == found);
        let report = self.stage.fsck()?;
        match at {
            Some(at) if report.clean() => Ok((at, problems)),
            Some(_) => Err(format!("fsck after recovery:\n{report}")),
            None => Err("the tree is not that after any number of operations".to_owned()),
        }
    }
}

fn crash(stage: &Stage, trial: &Trial<'_>) -> Checked<Vec<Snapshot>> {
    let mut model = Memory::new(0o755);
    let daemon = stage.start()?;
    let session = attach_to(&daemon)?;
    let mut shale = side(&session);
    let mut acts = trial.acts();
    for act in acts.by_ref().take(150) {
        both(&mut model, &mut shale, &act)?;
    }
    close_all(&mut shale);
    close_all(&mut model);
    session.digest().map_err(|e| format!("digest: {e}"))?;
    daemon.quiesce();
    let mut trees = vec![tree(&mut model)?];
    for act in acts.take(LOGGED) {
        both(&mut model, &mut shale, &act)?;
        trees.push(tree(&mut model)?);
        if trial.buffered && trees.len() == SYNCED + 1 {
            let synced = session.fsync(&Caller::default(), Ino::ROOT.0, false);
            synced.map_err(|e| format!("fsync: {e}"))?;
        }
    }
    daemon.abandon();
    Ok(trees)
}

/// Where records lie: the ring begins behind the header.
fn used(log: &[u8]) -> usize {
    log.iter().rposition(|&b| b != 0).map_or(0, |at| at + 1)
}

pub(super) fn noted(what: &str, wrong: String) -> Result<Checked<()>> {
    Ok(Err(format!("{what}: {wrong}")))
}

/// The header of a log that was left.
pub fn header(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let left = kept!(Left::make(trial)?);
    let last = left.trees.len() - 1;
    while trial.next_case() {
        let mut log = left.log.1.clone();
        let byte = trial.chance.below(128) as usize;
        log[byte] ^= 1 << trial.chance.below(8);
        left.put(Some(&log))?;
        let report = kept!(left.stage.fsck());
        let what = format!("byte {byte} of the log's header");
        match left.recover() {
            Err(wrong) => return noted(&what, wrong),
            Ok(_) if report.clean() => return noted(&what, "fsck finds nothing".to_owned()),
            Ok((at, problems)) if at < last || problems.is_empty() => {
                return noted(
                    &what,
                    format!("{at} of {last} operations; told: {problems:?}"),
                );
            }
            Ok(_) => {}
        }
    }
    trial.seen = "salt and length are in the log table too: nothing is lost".to_owned();
    Ok(Ok(()))
}

/// Records of a log that was left.
pub fn records(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let left = kept!(Left::make(trial)?);
    left.put(None)?;
    let slot = left.stage.view()?.log_slot(0);
    // What is before that is in the volume; nobody reads it.
    let digested = kept!(slot.map_err(|e| e.to_string())).digested as usize;
    let begin = shale_format::log::RING_AT + digested;
    let end = used(&left.log.1);
    if end <= begin {
        return Ok(Err("the log is empty".to_owned()));
    }
    let last = left.trees.len() - 1;
    let (mut kept_operations, mut unsynced) = (0, 0);
    while trial.next_case() {
        let mut log = left.log.1.clone();
        let byte = begin + trial.chance.below((end - begin) as u64) as usize;
        let how = spoil(&mut log, byte, &mut trial.chance);
        left.put(Some(&log))?;
        kept!(left.stage.fsck());
        match left.recover() {
            Err(wrong) => return noted(&format!("byte {byte} of the log {how}"), wrong),
            Ok((at, _)) => {
                kept_operations += at;
                unsynced += usize::from(at < left.synced());
            }
        }
    }
    let cases = trial.cases.max(1) as usize;
    trial.seen = format!(
        "{} of {last} operations kept on average",
        kept_operations / cases
    );
    if trial.buffered {
        trial.seen += &format!("; {unsynced} times fewer than were synced");
    }
    Ok(Ok(()))
}

fn spoil(log: &mut [u8], byte: usize, chance: &mut Chance) -> &'static str {
    match chance.below(3) {
        0 => {
            log[byte] ^= 1 << chance.below(8);
            "flipped"
        }
        1 => {
            let line = byte / 64 * 64;
            log[line..line + 64].fill(0);
            "a line of zeros"
        }
        _ => {
            let page = byte / 4096 * 4096;
            let noise = chance.bytes(4096);
            log[page..page + 4096].copy_from_slice(&noise);
            "a page of noise"
        }
    }
}

/// The log file itself: missing, cut short, another log's.
pub fn file(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let left = kept!(Left::make(trial)?);
    let whole = &left.log.1;
    let mut other = whole.clone();
    // The salt: a log of another volume, or another one of this.
    other[24..32].iter_mut().for_each(|b| *b ^= 0x5a);
    let cases: [(&str, Option<&[u8]>); 5] = [
        ("missing", None),
        ("empty", Some(&[])),
        ("a page", Some(&whole[..4096])),
        ("cut in the middle", Some(&whole[..whole.len() / 2])),
        ("of another salt", Some(&other)),
    ];
    for (what, log) in cases {
        left.put(log)?;
        trial.cases += 1;
        match left.recover() {
            Err(wrong) => return noted(what, wrong),
            Ok((_, problems)) if !problems.iter().any(|p| p.contains("log-000")) => {
                return noted(what, format!("the log is not named: {problems:?}"));
            }
            Ok(_) => {}
        }
    }
    trial.seen =
        "missing, empty, cut, another's: named, and the digested state is whole".to_owned();
    Ok(Ok(()))
}

/// The slot of the log in the table, with a right checksum: only an image that somebody made by hand has such a one.
pub fn slot(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let mut left = kept!(Left::make(trial)?);
    let at = (LOG_TABLE_BLOCK as usize) * BLOCK_BYTES;
    let whole = match LogSlot::decode(&left.image[at..], 0) {
        Ok(slot) if slot.state == slot_state::LIVE => slot,
        other => return noted("the log's slot", format!("{other:?}")),
    };
    // The last batch is in its place; from the journal it would bring the slot back.
    let journal = left.stage.view()?.superblock().journal_block as usize * BLOCK_BYTES;
    left.image[journal..journal + 64].fill(0);
    type Change = fn(&mut LogSlot);
    let cases: [(&str, Change); 5] = [
        ("a ring of 0 bytes", |s| s.ring_bytes = 0),
        ("a ring that wraps around", |s| s.ring_bytes = u64::MAX),
        ("a ring of half a block more", |s| s.ring_bytes += 2048),
        ("digested to a half record", |s| s.digested += 1),
        ("digested to the end of time", |s| {
            s.digested = u64::MAX - 63
        }),
    ];
    for (what, change) in cases {
        let mut slot = whole;
        change(&mut slot);
        left.image[at..at + LogSlot::BYTES].copy_from_slice(&slot.encode());
        left.put(Some(&left.log.1))?;
        trial.cases += 1;
        let report = kept!(left.stage.fsck());
        match left.recover() {
            Err(wrong) => return noted(what, wrong),
            Ok(_) if report.clean() => return noted(what, "fsck finds nothing".to_owned()),
            Ok((_, problems)) if !problems.iter().any(|p| p.contains("makes no sense")) => {
                return noted(what, format!("the slot is not named: {problems:?}"));
            }
            Ok(_) => {}
        }
    }
    trial.seen =
        "no ring, too large a ring, positions between records: named, and the digested state is whole".to_owned();
    Ok(Ok(()))
}
