//! A system that says no: to the n-th request for a file, a mapping, a descriptor or a thread,
//! once and from then on; limits on descriptors and memory; a clock that is set back.

use crate::processes::child::{Point, Process, join, was_refused};
use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::stage::{Checked, Stage, attach_to, both, close_all, side, tree};
use shale_bench::Result;
use shale_model::{Memory, Side};

use rustix::io::Errno;
use shale_libfs::{Recent, Session, SessionOptions};
use shale_proto::InProcess;
use shale_sys::clock::ManualClock;
use std::sync::Arc;

/// Operations of a client whose daemon is short of something.
const ACTS: usize = 60;

/// Serves with a daemon that is short of something, then with one that is not: what returned is
/// there. Gives whether it was served at all, and what the daemon wrote.
fn short(stage: &Stage, trial: &Trial<'_>, mut daemon: Process) -> Result<Checked<(bool, String)>> {
    let mut model = Memory::new(0o755);
    let mut last = model.clone();
    let mut served = false;
    if daemon.ready()? {
        // One that is refused tries again, as programs do.
        let session = join(stage).or_else(|_| join(stage));
        if let Ok(session) = session {
            served = true;
            let mut shale = side(&session);
            for act in trial.filled.load.acts(trial.options.seed).take(ACTS) {
                last = model.clone();
                let (should, did) = (model.act(&act), shale.act(&act));
                if should != did {
                    let fine = matches!(
                        did,
                        Err(Errno::IO | Errno::NOMEM | Errno::MFILE | Errno::NFILE)
                    );
                    if !fine {
                        return Ok(Err(format!("{act:?}: expected {should:?}, found {did:?}")));
                    }
                    break;
                }
                last = model.clone();
            }
            drop(shale);
            let _ = session.detach();
        }
    }
    daemon.end();
    let status = kept!(daemon.status());
    let errors = daemon.errors();
    if !(status.success() || was_refused(status)) || errors.contains("panicked") {
        return Ok(Err(format!("the daemon ended with {status}: {errors}")));
    }
    if was_refused(status) && !errors.contains("refused: ") {
        return Ok(Err(format!("it does not say why: {errors}")));
    }
    drop(daemon);
    kept!(whole(stage, [last, model]));
    Ok(Ok((served, errors)))
}

/// With all there is to be had, the tree is one of these.
fn whole(stage: &Stage, models: [Memory; 2]) -> Checked<()> {
    let daemon = stage.start()?;
    let session = attach_to(&daemon)?;
    let mut shale = side(&session);
    let found = tree(&mut shale)?;
    drop(shale);
    session.detach().map_err(|e| format!("detach: {e}"))?;
    daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
    let mut right = false;
    for mut model in models {
        close_all(&mut model);
        right |= tree(&mut model)? == found;
    }
    let report = stage.fsck()?;
    match right && report.clean() {
        true => Ok(()),
        false => Err(format!("tree as it should be: {right}; fsck:\n{report}")),
    }
}

/// The n-th request is refused, for every n that there is.
pub fn requests(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    if !trial.armed() {
        return Ok(Ok(()));
    }
    let empty = trial.stage()?.image()?;
    let stage = trial.stage()?;
    let (mut all, mut served) = (true, 0);
    for what in ["once", "ever"] {
        for number in 1.. {
            if !trial.next_case() {
                all = false;
                break;
            }
            stage.put(&empty)?;
            let point = Point {
                name: "io",
                number,
                what,
            };
            let daemon = Process::daemon(&stage, Some(&point), "")?;
            let done = short(&stage, trial, daemon)?;
            let (one, errors) = kept!(done.map_err(|wrong| format!("{point}: {wrong}")));
            served += u64::from(one);
            if !errors.contains("failpoint io") {
                break;
            }
        }
    }
    let all = if all {
        "every request"
    } else {
        "as many as there was time for"
    };
    trial.seen = format!("{all}, once and from then on; {served} served all the same");
    Ok(Ok(()))
}

/// What this program takes of an address space before it does anything, in KiB: its files.
fn loaded_kib() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let bytes = maps.lines().filter_map(|line| {
        let range = line.split(' ').next().filter(|_| line.contains(" /"))?;
        let (from, to) = range.split_once('-')?;
        let at = |hex| u64::from_str_radix(hex, 16).ok();
        at(to)?.checked_sub(at(from)?)
    });
    bytes.sum::<u64>() >> 10
}

/// Few descriptors, little memory.
pub fn limits(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let empty = trial.stage()?.image()?;
    let stage = trial.stage()?;
    // With fewer than four the program is not even loaded.
    let descriptors = (4..40).step_by(3).map(|n| format!("ulimit -n {n};"));
    // With less than it is loaded into it is ended by the kernel before it begins.
    let loaded = loaded_kib();
    let memory = [10_000, 50_000, 80_000, 110_000, 190_000, 390_000];
    let memory = memory.map(|kib| format!("ulimit -v {};", loaded + kib));
    let mut served = 0;
    for limit in descriptors.chain(memory) {
        if !trial.next_case() {
            break;
        }
        stage.put(&empty)?;
        let daemon = Process::daemon(&stage, None, &limit)?;
        let done = short(&stage, trial, daemon)?;
        let (one, _) = kept!(done.map_err(|wrong| format!("{limit} {wrong}")));
        served += u64::from(one);
    }
    trial.seen = format!("{served} of {} limits were enough to serve", trial.cases);
    Ok(Ok(()))
}

/// The clock is set back while the volume is served.
pub fn clock(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    const YEAR_NS: i64 = 365 * 24 * 3600 * 1_000_000_000;
    let stage = trial.stage()?;
    while trial.next_case() {
        let mut model = Memory::new(0o755);
        stage.put(&trial.stage()?.image()?)?;
        for years in [54, 1, 0, 40] {
            let clock: Arc<dyn shale_sys::Clock> = Arc::new(ManualClock::new(years * YEAR_NS));
            let start = || shale_daemon::Daemon::start(stage.config(), clock.clone());
            let daemon = kept!(
                shale_powercut::volume::sessions::once_free(start).map_err(|e| e.to_string())
            );
            let channel = Arc::new(InProcess(daemon.attach_in_process(0)));
            let options = SessionOptions::default();
            let session = Session::attach(channel, clock.clone(), Recent::default(), options);
            let session = kept!(session.map_err(|e| format!("attach: {e}")));
            let mut shale = side(&session);
            let seed = trial.options.seed + years as u64;
            for act in trial.filled.load.acts(seed).take(80) {
                let done = both(&mut model, &mut shale, &act);
                kept!(done.map_err(|wrong| format!("{years} years: {wrong}")));
            }
            close_all(&mut shale);
            close_all(&mut model);
            let right = tree(&mut shale) == tree(&mut model);
            drop(shale);
            kept!(session.detach().map_err(|e| format!("detach: {e}")));
            kept!(daemon.shutdown().map_err(|e| format!("shutdown: {e}")));
            let report = kept!(stage.fsck());
            if !right || !report.clean() {
                return Ok(Err(format!(
                    "{years} years: tree right: {right}; fsck:\n{report}"
                )));
            }
        }
    }
    trial.seen = "1970 + 54, 1, 0 and 40 years, one start each".to_owned();
    Ok(Ok(()))
}
