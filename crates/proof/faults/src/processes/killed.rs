//! Daemons that are killed at each point that matters.

use rustix::io::Errno;

use crate::processes::child::{Point, Process, join, was_killed};
use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::stage::{Checked, Stage, attach_to, both, close_all, side, tree};
use shale_bench::Result;
use shale_model::{Act, Memory, Side};

/// Operations that a client does before it gives up waiting for a fault.
const ACTS: usize = 400;
/// One digest in so many operations, and one look by another client.
const DIGEST_EVERY: usize = 12;
/// Times that each point is tried at.
const NUMBERS: [u64; 5] = [1, 2, 3, 7, 20];

const DAEMON_POINTS: [&str; 19] = [
    "attach-log",
    "attach-slot",
    "lease-grant",
    "lease-taken",
    "lease-revoke",
    "digest-scan",
    "digest-plan",
    "digest-data",
    "journal-begin",
    "journal-body",
    "journal-header",
    "journal-apply",
    "digest-commit",
    "publish-digested",
    "publish-epoch",
    "log-freed",
    "unmount-begin",
    "unmount-logs",
    "unmount-end",
];

const RECOVERY_POINTS: [&str; 8] = [
    "recovery-open",
    "recovery-survey",
    "recovery-digest",
    "recovery-settled",
    "recovery-slots",
    "recovery-orphans",
    "journal-header",
    "journal-apply",
];

/// What the tree may be: the model after what returned, or with the call that did not.
pub(crate) struct May {
    pub(crate) before: Memory,
    pub(crate) after: Memory,
}

impl May {
    /// Compares with what there is; gives the model that it is.
    pub(crate) fn be(mut self, side: &mut dyn Side) -> Checked<Memory> {
        close_all(&mut self.before);
        close_all(&mut self.after);
        let found = tree(side)?;
        let before = tree(&mut self.before)?;
        if found == before {
            return Ok(self.before);
        }
        match found == tree(&mut self.after)? {
            true => Ok(self.after),
            false => Err(format!(
                "another tree: {}",
                before.differences(&found).join("; ")
            )),
        }
    }
}

/// Works until the daemon dies, or for `ACTS` operations. Gives what may be there then.
fn work(stage: &Stage, trial: &Trial<'_>) -> Checked<May> {
    let model = Memory::new(0o755);
    let may = |before: Memory, after| May { before, after };
    let Ok(session) = join(stage) else {
        return Ok(may(model.clone(), model));
    };
    let other = join(stage);
    let mut shale = side(&session);
    let mut model = model;
    for (n, act) in (1..=ACTS).zip(trial.acts()) {
        let before = model.clone();
        let (should, did) = (model.act(&act), shale.act(&act));
        if should != did {
            return match did {
                Err(Errno::IO) => Ok(may(before, model)),
                _ => Err(format!("{act:?}: expected {should:?}, found {did:?}")),
            };
        }
        if n % DIGEST_EVERY == 0 && session.digest().is_err() {
            break;
        }
        // Somebody else looks, for which this client has to give way.
        if n % DIGEST_EVERY == DIGEST_EVERY / 2
            && let Ok(other) = &other
            && side(other).act(&Act::List(b".".to_vec())).is_err()
        {
            break;
        }
    }
    drop(shale);
    // Whether it still answers does not matter: what returned counts.
    let _ = other.map(|other| other.detach());
    let _ = session.detach();
    Ok(may(model.clone(), model))
}

/// The volume is served by a new daemon: what returned is there, and it goes on.
fn goes_on(stage: &Stage, trial: &Trial<'_>, may: May) -> Checked<()> {
    let daemon = stage.start()?;
    if let Some(problem) = daemon.recovery().problems.first() {
        return Err(format!("recovery: {problem}"));
    }
    let session = attach_to(&daemon)?;
    let mut shale = side(&session);
    let mut model = may.be(&mut shale)?;
    for act in trial.filled.load.acts(trial.options.seed + 1).take(30) {
        both(&mut model, &mut shale, &act)?;
    }
    close_all(&mut shale);
    drop(shale);
    session.detach().map_err(|e| format!("detach: {e}"))?;
    daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
    let report = stage.fsck()?;
    match report.clean() {
        true => Ok(()),
        false => Err(format!("fsck:\n{report}")),
    }
}

/// Kills a daemon at a point; `None`: it was never reached.
fn kill_daemon(stage: &Stage, trial: &Trial<'_>, point: &Point) -> Result<Checked<Option<May>>> {
    let mut daemon = Process::daemon(stage, Some(point), "")?;
    let may = match daemon.ready()? {
        true => kept!(work(stage, trial)),
        false => May {
            before: Memory::new(0o755),
            after: Memory::new(0o755),
        },
    };
    daemon.end();
    let status = kept!(daemon.status());
    match was_killed(status) {
        true => Ok(Ok(Some(may))),
        false if status.success() => Ok(Ok(None)),
        false => Ok(Err(format!("{status}: {}", daemon.errors()))),
    }
}

/// As [`daemon`], of a buffered client that never calls fsync.
pub fn buffered_daemon(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    trial.buffered = true;
    daemon(trial)
}

/// As [`recovery`], of a buffered client that never calls fsync.
pub fn buffered_recovery(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    trial.buffered = true;
    recovery(trial)
}

/// The daemon is killed at each of its points.
pub fn daemon(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    if !trial.armed() {
        return Ok(Ok(()));
    }
    let empty = trial.stage()?.image()?;
    let stage = trial.stage()?;
    let (mut killed, mut names) = (0, std::collections::BTreeSet::new());
    'numbers: for number in NUMBERS {
        for name in DAEMON_POINTS {
            if !trial.next_case() {
                break 'numbers;
            }
            stage.put(&empty)?;
            let point = Point {
                name,
                number,
                what: "kill",
            };
            let at = |wrong: String| format!("killed at {point}: {wrong}");
            let Some(may) = kept!(kill_daemon(&stage, trial, &point)?.map_err(at)) else {
                continue;
            };
            kept!(goes_on(&stage, trial, may).map_err(at));
            names.insert(name);
            killed += 1;
        }
    }
    trial.seen = format!(
        "{killed} kills at {} of {} points",
        names.len(),
        DAEMON_POINTS.len()
    );
    Ok(Ok(()))
}

/// The daemon is killed in a digest, the next one while it recovers.
pub fn recovery(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    if !trial.armed() {
        return Ok(Ok(()));
    }
    let empty = trial.stage()?.image()?;
    let stage = trial.stage()?;
    let mut killed = 0;
    'numbers: for number in [1, 2, 3] {
        for name in RECOVERY_POINTS {
            if !trial.next_case() {
                break 'numbers;
            }
            stage.put(&empty)?;
            let first = Point {
                name: "digest-data",
                number: number + 1,
                what: "kill",
            };
            let Some(may) = kept!(kill_daemon(&stage, trial, &first)?) else {
                return Ok(Err("nothing was digested".to_owned()));
            };
            let point = Point {
                name,
                number,
                what: "kill",
            };
            let mut again = Process::daemon(&stage, Some(&point), "")?;
            let ready = again.ready()?;
            again.end();
            let status = kept!(again.status());
            if was_killed(status) {
                killed += 1;
            } else if !ready || !status.success() {
                return Ok(Err(format!("{point}: {status}: {}", again.errors())));
            }
            let done = goes_on(&stage, trial, may);
            kept!(done.map_err(|wrong| format!("recovery killed at {point}: {wrong}")));
        }
    }
    trial.seen = format!("{killed} recoveries killed");
    Ok(Ok(()))
}
