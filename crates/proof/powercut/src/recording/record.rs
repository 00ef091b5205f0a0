//! Runs a workload and notes every store, flush and fence of its clients and its daemon.
//!
//! The model does every step too: what an operation answers has to be the same, and the
//! model's tree after each step is what a power cut may leave.
//!
//! Steps that follow one another are a [`Track`]. Clients that take turns share one; threads of
//! one client that run at the same time have one each, on a part of the tree of its own.

use crate::recording::doer::{Doer, PANIC, has_panicked};
use crate::recording::run::Run;
use crate::recording::track::Track;
use crate::wrong::Checked;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use shale_daemon::Daemon;
use shale_format::{Durability, Ino};
use shale_libfs::{Caller, Session};
use shale_record::Recording;

use crate::recording::buffered;
use crate::recording::clients;
use crate::recording::turned;
use crate::volume::base::Base;
use crate::volume::place::Place;
use crate::volume::sessions::{attach, clock, once_free, side};
use crate::volume::shadow::all_recorded;
use crate::volume::unrest::Unrest;
use shale_bench::Result;
use shale_model::workload::alphabet::TWIN;
use shale_model::workload::words::{Step, Workload};

/// Runs `workload` at `place`, which holds the base and does so again afterwards.
///
/// # Errors
/// The outer error: it could not run. The inner one: Shale did not do what the model did.
pub fn run(place: &mut Place, base: &Base, workload: &Workload) -> Result<Checked<Run>> {
    let before = match workload.turned {
        true => {
            let earlier = Workload {
                turned: false,
                ..workload.clone()
            };
            match run(place, base, &earlier)? {
                Ok(run) => turned::rings_of(&run),
                Err(wrong) => return Ok(Err(wrong)),
            }
        }
        false => Vec::new(),
    };
    let config = || place.config_with_logs(workload.wraps, workload.turned.into(), 0);
    let time = clock();
    let daemon = once_free(|| Daemon::start(config(), time.clone()))?;
    let logs = if workload.threads {
        1
    } else {
        workload.clients()
    };
    place.link_logs(logs)?;
    let mut sessions = Vec::new();
    for client in 0..logs {
        sessions.push(attach(&daemon, &place.maps(client), workload.log_all)?);
    }
    turned::put(place, &before)?;
    let mut run = Run {
        events: Vec::new(),
        tracks: Vec::new(),
        logs,
        orders: None,
        losses: None,
        program: workload.whole_program(),
        items: workload.steps.iter().map(|&s| s != Step::Digest).collect(),
    };
    let with = (&*place.recording.clone(), &*daemon);
    let done = match workload.threads {
        true => at_once(
            with,
            (&sessions[0], &place.unrest),
            base,
            workload,
            &mut run,
        ),
        false if workload.at_once => {
            let them = (&sessions[..], &*place.unrest);
            clients::at_once(with, them, base, workload, &mut run)
        }
        false if base.policy.has_buffer() && logs > 1 => {
            buffered::in_turns(with, &sessions, base, workload, &mut run)
        }
        false => in_turns(with, &sessions, base, workload, &mut run),
    };
    // What closing files stored belongs to no workload.
    let late = place.recording.take_events();
    let shadow = match is_compared(workload) {
        true => all_recorded(place, base, &[&run.events, &late], logs),
        false => Ok(()),
    };
    place.touch_all(&late);
    daemon.abandon();
    match has_panicked(&done) {
        true => std::mem::forget(sessions),
        false => drop(sessions),
    }
    drop(daemon);
    place.touch_all(&run.events);
    place.reset(base)?;
    Ok(done.and(shadow).map(|()| run))
}

/// Short workloads of which one is compared: they are many, and do the same things.
const COMPARED_ONE_IN: u64 = 64;
/// Operations of a short workload.
const SHORT: Range<usize> = 2..4;

/// Whether what is on the media is compared with what was recorded: it takes as long as
/// some ten images, so not each time.
fn is_compared(workload: &Workload) -> bool {
    let items = workload.steps.iter().filter(|&&step| step != Step::Digest);
    if SHORT.contains(&items.count()) {
        let mut hasher = DefaultHasher::new();
        workload.hash(&mut hasher);
        if !hasher.finish().is_multiple_of(COMPARED_ONE_IN) {
            return false;
        }
    }
    !workload.threads && !workload.at_once
}

fn numbered(workload: &Workload) -> Vec<(usize, Step)> {
    workload.steps.iter().copied().enumerate().collect()
}

/// Has the client call fsync; whether that makes durable what the client has done.
pub(crate) fn fsync(session: &Session, policy: Durability) -> Checked<bool> {
    let done = session.fsync(&Caller::default(), Ino::ROOT.0, false);
    done.map(|()| policy.fsync_waits())
        .map_err(|e| format!("fsync: {e}"))
}

/// Clients take turns.
fn in_turns(
    with: (&Recording, &Daemon),
    sessions: &[Arc<Session>],
    base: &Base,
    workload: &Workload,
    run: &mut Run,
) -> Checked<()> {
    let fsync = || fsync(&sessions[0], base.policy);
    let mut doer = Doer {
        workload,
        shales: sessions.iter().map(side).collect(),
        model: base.model.clone(),
        root: b"",
        full: base.full,
        fsync: base.policy.has_buffer().then_some(&fsync),
        synced: base.synced(),
        was_synced: false,
    };
    doer.open_files()?;
    let mut track = Track::new(None, doer.tree());
    let done = doer.follow(with, &numbered(workload), |client| client, &mut track);
    run.events = with.0.take_events();
    let done = done.and_then(|()| doer.compare(&track));
    run.tracks.push(track);
    if has_panicked(&done) {
        std::mem::forget(doer);
    }
    done
}

/// Two threads of one client, each on a tree of its own.
fn at_once(
    with: (&Recording, &Daemon),
    (session, unrest): (&Arc<Session>, &Unrest),
    base: &Base,
    workload: &Workload,
    run: &mut Run,
) -> Checked<()> {
    let fsync = || fsync(session, base.policy);
    let mut doers = Vec::new();
    for root in [b"" as &[u8], TWIN] {
        let mut doer = Doer {
            workload,
            shales: vec![side(session)],
            model: base.model.clone(),
            root,
            full: base.full,
            fsync: base.policy.has_buffer().then_some(&fsync),
            synced: None,
            was_synced: false,
        };
        doer.open_files()?;
        let track = Track::new(Some(doers.len()), doer.tree());
        doers.push((doer, track));
    }
    let start = std::sync::Barrier::new(doers.len());
    unrest.set(Some(workload.steps.len() as u64 * 0x9e37));
    let done: Vec<Checked<()>> = std::thread::scope(|scope| {
        let threads = doers.iter_mut().enumerate().map(|(mine, (doer, track))| {
            let is_mine = |step: &Step| match step {
                Step::Item { client, .. } => client % 2 == mine,
                _ => mine == 0,
            };
            let mut steps = numbered(workload);
            steps.retain(|(_, step)| is_mine(step));
            let start = &start;
            scope.spawn(move || {
                start.wait();
                doer.follow(with, &steps, |_| 0, track)
            })
        });
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|done| done.unwrap_or_else(|_| Err(PANIC.to_owned())))
            .collect()
    });
    unrest.set(None);
    run.events = with.0.take_events();
    for (doer, track) in &mut doers {
        if done.iter().all(|done| done.is_ok()) {
            doer.compare(track)?;
        }
    }
    run.tracks = doers.into_iter().map(|(_, track)| track).collect();
    done.into_iter().collect()
}
