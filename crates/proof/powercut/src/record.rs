//! Runs a workload and notes every store, flush and fence of its clients and its daemon.
//!
//! The model does every step too: what an operation answers has to be the same, and the
//! model's tree after each step is what a power cut may leave.
//!
//! Steps that follow one another are a [`Track`]. Clients that take turns share one; threads of
//! one client that run at the same time have one each, on a part of the tree of its own.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use shale_daemon::Daemon;
use shale_libfs::Session;
use shale_record::{Recorded, Recording, set_operation};

use super::base::{Base, Place, attach, clock, once_free, side};
use super::clients;
use super::orders::Orders;
use super::shadow::all_recorded;
use super::turned;
use super::unrest::Unrest;
use rustix::io::Errno;
use shale_bench::Result;
use shale_model::compare::shown;
use shale_model::workload::alphabet::{OPEN, TWIN, within};
use shale_model::workload::programs::Program;
use shale_model::workload::words::{Step, Workload};
use shale_model::{Act, FileAct, Fill, Memory, Outcome, Said, Shale, Side, Snapshot};

/// Something of Shale's that is wrong, as found while a workload ran.
pub type Wrong = String;

type Checked<T> = std::result::Result<T, Wrong>;

/// [`Snapshot::digest`] of what is outside of the twin tree, and of the twin tree.
pub type Parts = [u64; 2];

/// Both of a tree.
pub fn parts(tree: &Snapshot) -> Parts {
    let is_collision = |p: &[u8]| p.first().is_none_or(|&b| b == b'/');
    let below = |path: &[u8]| path.strip_prefix(TWIN).is_some_and(is_collision);
    [false, true].map(|twin| tree.digest(|path| below(path) == twin))
}

/// Steps that follow one another.
pub struct Track {
    /// The part of the tree that these steps alone change; none: all of it.
    part: Option<usize>,
    /// For each step the numbers of events before it began and when it had returned.
    pub steps: Vec<(usize, usize)>,
    /// The tree before the first step and after each one.
    pub trees: Vec<Arc<Snapshot>>,
    /// [`parts`] of each of them.
    parts: Vec<Parts>,
}

impl Track {
    pub(super) fn new(part: Option<usize>, tree: Arc<Snapshot>) -> Self {
        Track {
            part,
            steps: Vec::new(),
            parts: vec![parts(&tree)],
            trees: vec![tree],
        }
    }

    /// One more step; no tree: it changed nothing.
    pub(super) fn add(&mut self, begun: usize, returned: usize, tree: Option<Arc<Snapshot>>) {
        self.steps.push((begun, returned));
        // A digest changes nothing that can be seen.
        let last = self.trees.len() - 1;
        let of = tree.as_deref().map_or(self.parts[last], parts);
        self.parts.push(of);
        self.trees
            .push(tree.unwrap_or_else(|| self.trees[last].clone()));
    }

    /// Steps that had returned, and steps that had begun, when `event` events had happened.
    pub fn window(&self, event: usize) -> (usize, usize) {
        let returned = self.steps.iter().filter(|s| s.1 <= event).count();
        let begun = self.steps.iter().filter(|s| s.0 < event).count();
        (returned, begun.max(returned))
    }

    /// Whether a tree is that after `k` steps, as far as these steps go.
    pub fn is_after(&self, k: usize, tree: &Parts) -> bool {
        match self.part {
            Some(part) => self.parts[k][part] == tree[part],
            None => self.parts[k] == *tree,
        }
    }
}

/// A workload that has run.
pub struct Run {
    /// What happened to the media, from the first client's attaching on.
    pub events: Vec<Recorded>,
    /// Steps that follow one another.
    pub tracks: Vec<Track>,
    /// Logs that existed.
    pub logs: usize,
    /// Clients at the same time on one tree: what may come of their calls. Then the tracks tell
    /// when steps were done, not to what end.
    pub orders: Option<Orders>,
    /// A program whose operations the steps are, from the first on.
    pub program: Option<Program>,
    /// Which steps are operations.
    pub(super) items: Vec<bool>,
}

impl Run {
    /// [`Track::window`] of each track.
    pub fn windows(&self, event: usize) -> Vec<(usize, usize)> {
        self.tracks
            .iter()
            .map(|track| track.window(event))
            .collect()
    }

    /// Transactions that a program had answered, if this is one.
    pub fn answered(&self, windows: &[(usize, usize)]) -> Option<u64> {
        let returned = windows.first()?.0;
        let done = self.items.get(..returned)?.iter().filter(|&&item| item);
        self.program.map(|program| program.answered(done.count()))
    }

    /// Whether a tree is right for these windows.
    pub fn is_right(&self, windows: &[(usize, usize)], tree: &Parts) -> bool {
        if let Some(orders) = &self.orders {
            return orders.is_right(windows, tree);
        }
        let mut tracks = self.tracks.iter().zip(windows);
        tracks.all(|(track, &(from, to))| (from..=to).any(|k| track.is_after(k, tree)))
    }
}

/// What an operation did that met with a full volume: a part of it, or nothing. `None`: it did
/// not meet with one.
fn part_done(act: &Act, did: &Outcome) -> Option<Option<Act>> {
    let less = |fill: &Fill, n: usize| Fill { len: n, ..*fill };
    let part = |slot: &usize, part| Some(Some(Act::File(*slot, part)));
    match (act, did) {
        (Act::Open(slot, ..), Err(Errno::NOSPC)) => part(slot, FileAct::Close),
        (_, Err(Errno::NOSPC)) => Some(None),
        (Act::File(slot, FileAct::Write(at, fill)), Ok(Said::Count(n))) if *n < fill.len => {
            part(slot, FileAct::Write(*at, less(fill, *n)))
        }
        (Act::File(slot, FileAct::WriteNext(fill)), Ok(Said::Count(n))) if *n < fill.len => {
            part(slot, FileAct::WriteNext(less(fill, *n)))
        }
        _ => None,
    }
}

/// One that does steps, and the model of what it does.
pub(super) struct Doer<'w> {
    pub(super) workload: &'w Workload,
    pub(super) shales: Vec<Shale>,
    pub(super) model: Memory,
    /// In front of all paths.
    pub(super) root: &'static [u8],
    /// The volume has little space.
    pub(super) full: bool,
}

/// How a call of Shale's that panicked begins in [`Wrong`].
const PANIC: &str = "a panic";

impl Doer<'_> {
    pub(super) fn act(&mut self, client: usize, act: &Act) -> Checked<()> {
        let act = within(self.root, act.clone());
        self.model.set_client(client);
        let shale = &mut self.shales[client];
        let did = catch_unwind(AssertUnwindSafe(|| shale.act(&act)))
            .map_err(|_| format!("{PANIC} in client {client}, {act:?}"))?;
        if self.full
            && let Some(part) = part_done(&act, &did)
        {
            // There was no space, or not enough: that much was done.
            let _ = part.map(|part| self.model.act(&part));
            return Ok(());
        }
        let should = self.model.act(&act);
        match should == did {
            true => Ok(()),
            false => Err(format!(
                "client {client}, {act:?}: expected {}, found {}",
                shown(&should),
                shown(&did)
            )),
        }
    }

    pub(super) fn open_files(&mut self) -> Checked<()> {
        for client in 0..self.shales.len() {
            for (slot, (path, flags)) in OPEN.into_iter().enumerate() {
                let path = path.as_bytes().to_vec();
                self.act(client, &Act::Open(slot, path, flags, 0))?;
            }
        }
        Ok(())
    }

    pub(super) fn tree(&mut self) -> Arc<Snapshot> {
        Arc::new(Snapshot::of(&mut self.model).expect("the model's tree can be walked"))
    }

    /// Does steps one after the other. `client`: which of the shales does a step.
    fn follow(
        &mut self,
        (recording, daemon): (&Recording, &Daemon),
        steps: &[(usize, Step)],
        client: impl Fn(usize) -> usize,
        track: &mut Track,
    ) -> Checked<()> {
        for &(number, step) in steps {
            let before = recording.event_count();
            set_operation(number as u64 + 1);
            let done = match step {
                Step::Item { client: who, item } => {
                    self.act(client(who), &self.workload.act(item, number))
                }
                _ => {
                    daemon.quiesce();
                    Ok(())
                }
            };
            set_operation(0);
            let after = recording.event_count();
            done.map_err(|wrong| format!("step {number}: {wrong}"))?;
            let tree = (step != Step::Digest).then(|| self.tree());
            track.add(before, after, tree);
        }
        Ok(())
    }

    /// What LibFS shows now is what the model shows, as far as `track` goes.
    pub(super) fn compare(&mut self, track: &Track) -> Checked<()> {
        let shale = &mut self.shales[0];
        let did = catch_unwind(AssertUnwindSafe(|| Snapshot::of(shale)))
            .map_err(|_| format!("{PANIC} in a walk"))?
            .map_err(|e| format!("the walk: {e}"))?;
        let last = track.trees.len() - 1;
        match track.is_after(last, &parts(&did)) {
            true => Ok(()),
            false => Err(format!(
                "before any cut: {}",
                track.trees[last].differences(&did).join("; ")
            )),
        }
    }
}

/// Runs `workload` at `place`, which holds the base and does so again afterwards.
///
/// # Errors
/// The outer error: it could not run. The inner one: Shale did not do what the model did.
pub fn run(place: &mut Place, base: &Base, workload: &Workload) -> Result<Checked<Run>> {
    let before = match workload.turned {
        true => match turned::last_turn(place, base, workload)? {
            Ok(logs) => logs,
            Err(wrong) => return Ok(Err(wrong)),
        },
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

/// Clients take turns.
fn in_turns(
    with: (&Recording, &Daemon),
    sessions: &[Arc<Session>],
    base: &Base,
    workload: &Workload,
    run: &mut Run,
) -> Checked<()> {
    let mut doer = Doer {
        workload,
        shales: sessions.iter().map(side).collect(),
        model: base.model.clone(),
        root: b"",
        full: base.full,
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

/// Whether a call of Shale's panicked. What it was at will never be done, and to wait for it, as
/// closing a file or a session may, would be for ever.
pub(super) fn has_panicked<T>(done: &Checked<T>) -> bool {
    done.as_ref().is_err_and(|wrong| wrong.contains(PANIC))
}

/// Two threads of one client, each on a tree of its own.
fn at_once(
    with: (&Recording, &Daemon),
    (session, unrest): (&Arc<Session>, &Unrest),
    base: &Base,
    workload: &Workload,
    run: &mut Run,
) -> Checked<()> {
    let mut doers = Vec::new();
    for root in [b"" as &[u8], TWIN] {
        let mut doer = Doer {
            workload,
            shales: vec![side(session)],
            model: base.model.clone(),
            root,
            full: base.full,
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
