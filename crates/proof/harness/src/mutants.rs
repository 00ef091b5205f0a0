//! Deliberate mistakes in Shale, and how long it takes to find each: by power cuts, by the table
//! of faults, by hostile clients.

use std::time::{Duration, Instant};

use shale_bench::Result;
use shale_faults::volume::load::Load;
use shale_hostile::campaign as hostile;
use shale_powercut::explore::explorer::Depth;
use shale_powercut::staged::{self, Case, FailingCase, FullCase, explore_failing, explore_full};
use shale_powercut::workloads::campaign::{self, Options, Switched};
use shale_powercut::workloads::sequences::Kind;

/// Cuts of one case of a volume without NVM.
const STAGED_CUTS: usize = 12;

/// A mistake, by the name that the code asks for.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// What is wrong with it.
    pub what: &'static str,
    /// Who has to find it.
    pub hunter: Hunter,
}

/// Who looks for a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hunter {
    /// The explorer of power cuts.
    Crash,
    /// The same, with several threads.
    Threads,
    /// The same, where a dozen blocks are free.
    Full,
    /// The same, with lower tiers.
    Tiers,
    /// The same, with writes above 1 MiB.
    Huge,
    /// The explorer of power cuts of volumes without NVM.
    Staged,
    /// The row of faults whose name contains this.
    Faults(&'static str),
    /// The hostile case whose name contains this; all of them.
    Hostile(&'static str),
}

const fn mutant(name: &'static str, what: &'static str) -> Mutant {
    let hunter = Hunter::Crash;
    Mutant { name, what, hunter }
}

const fn of_faults(name: &'static str, what: &'static str, row: &'static str) -> Mutant {
    let hunter = Hunter::Faults(row);
    Mutant { name, what, hunter }
}

const fn of_tiers(name: &'static str, what: &'static str) -> Mutant {
    let hunter = Hunter::Tiers;
    Mutant { name, what, hunter }
}

const fn of_threads(name: &'static str, what: &'static str) -> Mutant {
    let hunter = Hunter::Threads;
    Mutant { name, what, hunter }
}

const fn of_huge(name: &'static str, what: &'static str) -> Mutant {
    let hunter = Hunter::Huge;
    Mutant { name, what, hunter }
}

const fn of_staged(name: &'static str, what: &'static str) -> Mutant {
    let hunter = Hunter::Staged;
    Mutant { name, what, hunter }
}

const fn of_hostile(name: &'static str, what: &'static str) -> Mutant {
    let hunter = Hunter::Hostile("");
    Mutant { name, what, hunter }
}

/// All of them.
pub const MUTANTS: [Mutant; 109] = [
    mutant(
        "append-fence",
        "a record is not fenced before the call returns",
    ),
    mutant(
        "append-data-fence",
        "large data and its header share one fence",
    ),
    of_threads(
        "publish-before-fence",
        "a record is published before it is fenced: hardened runs ahead",
    ),
    of_threads(
        "publish-over-gap",
        "a record is published before those that come before it",
    ),
    mutant("scan-checksum", "a record's checksum is not verified"),
    mutant("scan-chain", "a transaction whose end is missing counts"),
    mutant("scan-steal", "stolen blocks are not verified at recovery"),
    mutant("pad-fence", "a pad at the end of the ring is not fenced"),
    mutant("slot-before-log", "the table names a log before it is made"),
    mutant(
        "call-in-pieces",
        "the records of one call are not one transaction",
    ),
    of_huge("call-cut", "a write above 1 MiB is several transactions"),
    of_huge(
        "chain-ends",
        "each record of a large write ends a transaction",
    ),
    mutant("steal-fence", "stolen data is not fenced before its record"),
    mutant(
        "partial-line-flush",
        "parts of lines are stored and not flushed",
    ),
    mutant(
        "journal-body-fence",
        "the journal's body and header share one fence",
    ),
    mutant(
        "journal-header-fence",
        "ranges are written in place before the commit is durable",
    ),
    mutant("journal-apply-fence", "ranges in place are not fenced"),
    mutant("journal-replay", "a batch that waits is not applied"),
    mutant(
        "journal-body-checksum",
        "the journal's body is not verified",
    ),
    mutant("journal-wipe", "a torn header of the journal stays"),
    mutant(
        "nodes-after-commit",
        "tree nodes are written after the commit",
    ),
    mutant("bitmap-journal", "the bitmap is not part of the batch"),
    mutant("commit-before-data", "data is written after the commit"),
    mutant(
        "direct-without-flush",
        "data copied from log to block is not flushed",
    ),
    mutant("digested-stored", "the digested position is not stored"),
    mutant(
        "digested-early",
        "the digested position is stored before the digest",
    ),
    mutant(
        "old-bytes",
        "the rest of a block that is written in part becomes zeros",
    ),
    mutant(
        "survey-takes",
        "recovery does not take stolen blocks before it allocates",
    ),
    mutant("orphans-go", "orphans stay after a crash"),
    mutant(
        "lease-generation",
        "a lease is taken without a new generation",
    ),
    mutant(
        "lease-digest",
        "a lease is taken without a digest of its holder's log",
    ),
    mutant("epoch-read", "a read goes on with roots of an old epoch"),
    mutant(
        "fast-read-unleased",
        "a read on the fast path needs no lease",
    ),
    mutant(
        "extent-hint-kept",
        "the run of blocks looked up last outlives its epoch",
    ),
    mutant(
        "slots-freed-first",
        "recovery frees a log before it is digested",
    ),
    mutant("ring-wrap", "a record may go one line over the ring's end"),
    mutant(
        "record-position",
        "a record's position is not verified: one of the lap before counts",
    ),
    mutant("links-kept", "digest does not lower the count of names"),
    mutant(
        "orphan-freed",
        "an inode is freed with its last name, though it is open",
    ),
    mutant(
        "rename-parent",
        "a directory that is moved keeps its old parent",
    ),
    mutant("truncate-longer", "truncate does not make a file longer"),
    mutant(
        "truncate-rest",
        "what a truncation leaves of the last block is not zeroed",
    ),
    mutant(
        "punch-edges",
        "parts of blocks at the ends of a hole are not zeroed",
    ),
    mutant("zeros-left-out", "zeros of a new block are not written"),
    mutant(
        "unwritten-flag",
        "blocks that become zeros are not marked unwritten",
    ),
    mutant(
        "xattrs-lost",
        "an attribute that is set replaces all others",
    ),
    mutant("epoch-kept", "the epoch is not raised after a digest"),
    mutant("numbers-twice", "inode numbers are granted to two clients"),
    mutant("old-blocks", "blocks that are replaced stay marked used"),
    mutant("used-count", "the count of used blocks is not lowered"),
    mutant(
        "journal-header-checksum",
        "the journal's header is not verified",
    ),
    mutant("superblock-checksum", "a superblock is not verified"),
    mutant("root-checksum", "the root block is not verified"),
    mutant("slot-checksum", "slots of the log table are not verified"),
    mutant("bitmap-checksum", "the bitmap is not verified"),
    mutant("inode-checksum", "inodes are not verified"),
    mutant("node-checksum", "nodes of trees are not verified"),
    mutant(
        "mkfs-wipe",
        "the old superblocks stay while a volume is made",
    ),
    mutant(
        "mkfs-fence",
        "a new volume's superblock is written before its contents are durable",
    ),
    mutant("mkfs-second", "the second superblock is not written"),
    mutant(
        "requests-unknown",
        "what requests of a mount that survives did is not looked for",
    ),
    mutant(
        "requests-tail",
        "a request without an answer does not hold the log's tail",
    ),
    mutant(
        "requests-kept",
        "a log that knows requests goes with its recovery",
    ),
    of_faults(
        "freed-early",
        "blocks are given out before all have left the calls that see them",
        "call-goes-on",
    ),
    of_faults(
        "reclaim-grace",
        "log space is given back before all have left the calls that see it",
        "call-goes-on",
    ),
    of_faults(
        "reclaim-early",
        "log space is given back before its records are digested",
        "call-goes-on",
    ),
    Mutant {
        name: "credit-forgotten",
        what: "space credit that was given out is not counted",
        hunter: Hunter::Full,
    },
    of_tiers(
        "lower-flush",
        "blocks are linked before their device is flushed",
    ),
    of_tiers(
        "direct-flush",
        "new data that goes directly to a lower tier is linked before its device is flushed",
    ),
    of_tiers("lower-bitmap", "the bitmap of a tier is not in the batch"),
    of_tiers("zone-pointer", "write pointers are not in the batch"),
    of_tiers(
        "migrate-freed-early",
        "old blocks are freed before the new ones are linked",
    ),
    of_tiers(
        "migrate-unchecked",
        "a block that was rewritten meanwhile is replaced by its copy",
    ),
    of_tiers(
        "inodes-flush",
        "inodes are linked below before their device is flushed",
    ),
    of_tiers(
        "inodes-feature",
        "inodes are linked below, and the superblocks do not say so",
    ),
    of_tiers(
        "directories-flush",
        "leaves of trees are linked below before their device is flushed",
    ),
    of_tiers(
        "directories-feature",
        "leaves of directories are linked below, and the superblocks do not say so",
    ),
    of_tiers(
        "extents-feature",
        "leaves of extents are linked below, and the superblocks do not say so",
    ),
    of_tiers(
        "zones-start-feature",
        "zones of a device begin later than older programs think, and the superblocks do not say so",
    ),
    of_tiers("lower-sums", "checksums are stored and not flushed"),
    of_tiers("zone-order", "zones are written from their ends"),
    of_faults(
        "target-checksum",
        "targets of symbolic links are not verified",
        "rot-link-target",
    ),
    of_faults(
        "lower-checksum",
        "blocks below NVM are not verified",
        "lower-rot",
    ),
    of_faults(
        "lower-flush-error",
        "a flush that fails counts as done",
        "lower-write",
    ),
    of_faults(
        "migrate-unread",
        "a block that cannot be read moves as zeros",
        "lower-read",
    ),
    of_faults(
        "zone-generation",
        "a zone that is erased keeps its generation",
        "lower-full",
    ),
    of_faults(
        "zone-reserve",
        "the zone that is kept for cleaning is written",
        "lower-full",
    ),
    of_faults(
        "zone-erased-early",
        "a zone is erased before all have left the calls that see it",
        "lower-held",
    ),
    of_hostile("record-salt", "all logs have the same salt"),
    of_hostile("lease-unchecked", "records need no lease"),
    of_hostile("permission-unchecked", "anybody may write any file"),
    of_hostile(
        "reads-unchecked",
        "clients are believed about reads of files that they may not read",
    ),
    of_hostile("sticky-unchecked", "sticky directories are not"),
    of_hostile("flags-unchecked", "immutable files and directories are not"),
    of_hostile("acl-unchecked", "access control lists forbid nothing"),
    of_hostile(
        "acl-of-others",
        "anybody may set the access control list of any inode",
    ),
    mutant(
        "acl-without-mode",
        "a change of the mode leaves the access control list as it is",
    ),
    mutant(
        "acls-feature",
        "the feature is not set with the first access control list",
    ),
    of_hostile("grant-unchecked", "any block can be stolen"),
    of_hostile("ring-unchecked", "a directory may be moved below itself"),
    of_hostile(
        "chain-long",
        "a transaction above a quarter of the log counts",
    ),
    of_hostile(
        "growth-unchecked",
        "records may add more to the volume than they reserved",
    ),
    of_staged(
        "fsync-early",
        "fsync returns before its records are hardened",
    ),
    of_staged(
        "digest-unhardened",
        "a log is digested, and its leases move, before it is hardened",
    ),
    of_staged(
        "staged-steal",
        "a client writes blocks itself that no log has, and that are not staged",
    ),
    of_staged(
        "batch-freed-early",
        "a checkpoint frees batches whose records are not all digested",
    ),
    of_staged(
        "checkpoint-space",
        "space that was freed, or placed below, since the last checkpoint is given away before the next one",
    ),
    of_staged(
        "staging-failure-forgotten",
        "after a write to the staging area has failed the next one is taken for durable",
    ),
    of_staged(
        "replay-slot",
        "a log that is younger than the image has no slot when it is replayed",
    ),
];

/// As much of what is wrong is kept.
const WRONG_CHARS: usize = 160;
/// Mutants that only requests can show.
const OF_REQUESTS: &str = "requests-";

/// What became of a mutant.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Fate {
    /// Its name.
    pub name: String,
    /// What is wrong with it.
    pub what: String,
    /// The failure that showed it; none: it lives.
    pub killed_by: Option<String>,
    /// Workload of that failure.
    pub workload: Option<String>,
    /// Seconds until then.
    pub seconds: f64,
    /// States looked at until then.
    pub states: u64,
}

impl Fate {
    /// One row of a table for docs/runs.
    pub fn row(&self) -> String {
        const WORKLOAD_CHARS: usize = 40;
        let (name, what) = (&self.name, &self.what);
        let (Some(wrong), Some(workload)) = (&self.killed_by, &self.workload) else {
            return format!("| {name} | {what} | lives | |");
        };
        let mut words = workload.clone();
        if words.len() > WORKLOAD_CHARS {
            words.truncate(WORKLOAD_CHARS);
            words.truncate(words.rfind(' ').unwrap_or(0));
            words += " …";
        }
        let (by, seconds) = (kind_of(wrong), self.seconds);
        format!("| {name} | {what} | `{words}`: {by} | {seconds:.1} |")
    }
}

/// What showed it, in a word or two.
fn kind_of(wrong: &str) -> &'static str {
    let kinds = [
        ("process: ", "the process ends"),
        ("faults: ", "faults"),
        ("hostile: ", "hostile"),
        ("before any cut", "the model, without a cut"),
        ("bit rot", "a flipped bit"),
        ("mkfs", "a cut in mkfs"),
        ("cut again", "a second cut"),
        ("a panic", "a panic"),
        ("after recovery", "what is done after recovery"),
        ("recovery:", "recovery refuses"),
        ("the recovered tree", "the tree cannot be read"),
        ("fsck", "fsck"),
        ("everything deleted", "space does not come back"),
        (" again, ", "a request sent again"),
        ("the restore: ", "the restore refuses"),
        ("the tree is none that", "another tree"),
        ("the tree is that after", "another tree"),
        ("no order of the calls", "another tree"),
        ("as after", "another tree"),
        ("no order", "no order of the calls"),
        ("is not known", "a request sent again"),
        (" again, ", "a request sent again"),
    ];
    let found = kinds.into_iter().find(|kind| wrong.contains(kind.0));
    found.map_or("the model, without a cut", |kind| kind.1)
}

/// Switches on a mutant and hunts it until it is found, for at most `limit` (twice that, where
/// threads have to be tried, too).
///
/// # Errors
/// It could not be done. Without the feature `mutants` nothing is wrong, and all live.
pub fn hunt(options: &Options, limit: Duration, mutant: Mutant) -> Result<Fate> {
    match mutant.hunter {
        Hunter::Crash | Hunter::Threads | Hunter::Full | Hunter::Tiers | Hunter::Huge => {
            by_crash(options, limit, mutant)
        }
        Hunter::Staged => by_staged(options, limit, mutant),
        Hunter::Faults(row) => by_faults(options, limit, mutant, row),
        Hunter::Hostile(case) => Ok(by_hostile(limit, mutant, case)),
    }
}

impl Fate {
    /// The process in which a mutant was hunted has come to an end of another kind.
    pub fn of_process(mutant: Mutant, begun: Instant, end: String) -> Fate {
        fate(
            mutant,
            begun,
            0,
            Some(("any".to_owned(), format!("process: {end}"))),
        )
    }
}

/// What it came to, `begun` so long ago; `found`: workload and what is wrong.
fn fate(mutant: Mutant, begun: Instant, states: u64, found: Option<(String, String)>) -> Fate {
    Fate {
        name: mutant.name.to_owned(),
        what: mutant.what.to_owned(),
        workload: found.as_ref().map(|f| f.0.clone()),
        killed_by: found.map(|f| f.1.chars().take(WRONG_CHARS).collect()),
        seconds: begun.elapsed().as_secs_f64(),
        states,
    }
}

/// A power cut of a volume without NVM shows it.
fn by_staged(options: &Options, limit: Duration, mutant: Mutant) -> Result<Fate> {
    let begun = Instant::now();
    let (mut cuts, mut found) = (0, None);
    for number in options.seed.. {
        if begun.elapsed() >= limit || found.is_some() {
            break;
        }
        let case = Case::numbered(number, STAGED_CUTS, Some(mutant.name));
        match staged::explore(&case, &options.dir)? {
            Ok(tally) => cuts += tally.cuts,
            Err(wrong) => found = Some((format!("staged {number}"), wrong)),
        }
        let failing = FailingCase::numbered(number, Some(mutant.name));
        if let Err(wrong) = explore_failing(&failing, &options.dir)? {
            found = found.or(Some((format!("staged {number}, failing"), wrong)));
        }
        let full = FullCase::numbered(number, Some(mutant.name));
        match explore_full(&full, &options.dir)? {
            Ok(tally) => cuts += tally.cuts,
            Err(wrong) => found = found.or(Some((format!("staged {number}, full"), wrong))),
        }
    }
    Ok(fate(mutant, begun, cuts, found))
}

/// The row of faults breaks its promise with it.
fn by_faults(options: &Options, limit: Duration, mutant: Mutant, row: &str) -> Result<Fate> {
    let begun = Instant::now();
    let loads = Load::ALL;
    let options = shale_faults::Options {
        dir: options.dir.clone(),
        only: row.to_owned(),
        loads: loads.to_vec(),
        seed: options.seed,
        row_limit: limit / loads.len() as u32,
        time_limit: limit,
        quick: false,
    };
    let (mut cases, mut found) = (0, None);
    for load in loads {
        let options = shale_faults::Options {
            loads: vec![load],
            ..options.clone()
        };
        let switched = Switched::on(Some(mutant.name), false);
        let outcomes = shale_faults::run(&options, &|_| ());
        drop(switched);
        for outcome in outcomes? {
            cases += outcome.cases;
            let wrong = outcome.wrong.map(|wrong| format!("faults: {wrong}"));
            let workload = format!("{} with {}", outcome.fault, load.name());
            found = found.or(wrong.map(|wrong| (workload, wrong)));
        }
        if found.is_some() {
            break;
        }
    }
    Ok(fate(mutant, begun, cases, found))
}

/// A hostile case does harm with it.
fn by_hostile(limit: Duration, mutant: Mutant, case: &str) -> Fate {
    let begun = Instant::now();
    let options = hostile::Options {
        only: case.to_owned(),
        pairs: hostile::Pairs::None,
        time_limit: limit,
        first: true,
    };
    let switched = Switched::on(Some(mutant.name), false);
    let summary = hostile::run(&options, &|_| ());
    drop(switched);
    let tried = summary.sum().tried;
    let found = summary.failures.into_iter().next();
    let found = found.map(|f| (f.cases.join(" and "), format!("hostile: {}", f.wrong)));
    fate(mutant, begun, tried, found)
}

/// A workload is not recovered to what it has to be with it.
fn by_crash(options: &Options, limit: Duration, mutant: Mutant) -> Result<Fate> {
    let begun = Instant::now();
    let options = Options {
        time_limit: limit,
        failures_max: 1,
        mutant: Some(mutant.name),
        full: mutant.hunter == Hunter::Full,
        depth: match mutant.hunter {
            Hunter::Tiers => Depth::TIERS,
            Hunter::Huge => Depth::HUGE,
            _ => options.depth,
        },
        kinds: match mutant.hunter {
            Hunter::Tiers => vec![(Kind::Tiers, 100_000)],
            Hunter::Huge => vec![(Kind::Huge, 100_000)],
            Hunter::Threads => vec![(Kind::Threads, 100_000)],
            _ if mutant.name.starts_with(OF_REQUESTS) => vec![(Kind::Requests, 10_000)],
            _ => options.kinds.clone(),
        },
        ..options.clone()
    };
    let mut summary = campaign::run(&options, &|_, _| ())?;
    if summary.failures.is_empty() && matches!(mutant.hunter, Hunter::Crash | Hunter::Full) {
        // What only several threads can show.
        let threads = Options {
            kinds: vec![(Kind::Threads, 100_000)],
            ..options
        };
        summary = campaign::run(&threads, &|_, _| ())?;
    }
    let found = summary.failures.into_iter().next();
    let found = found.map(|f| (f.workload, f.wrong));
    Ok(fate(mutant, begun, summary.states, found))
}
