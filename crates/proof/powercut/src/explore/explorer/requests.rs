//! A mount that survives its daemon: every request is done exactly once, and answered as it was
//! or would have been.
//!
//! The first client of such a workload is the mount ([`crate::recording::mount`]), the others are clients of
//! other processes, which die with the daemon. At many points the daemon is killed: everything
//! that was stored is there. At fences power is cut as well. Another daemon
//! recovers, its connection goes on, and every request that got no answer is sent again:
//! the one in progress, which may have been done or not, and a third of those before, whose
//! answers are taken to be late, in any order. The tree has to be the model's after all steps
//! that had begun, and each answer the first one's. Then again with the second daemon killed
//! anywhere, before it had answered anything.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use shale_daemon::{Daemon, DaemonConfig, LeaseHook};
use shale_format::log::slot_state;
use shale_libfs::{Caller, Errno, Session, SessionOptions};
use shale_proto::InProcess;
use shale_record::Recorded;

use crate::explore::explorer::{Explorer, Failure, add};
use crate::images::{ALL_SUBSETS, Cutter, Image};
use crate::recording::mount::{Mount, Noted, Sent};
use crate::recording::track::{Track, parts};
use crate::recovery::check;
use crate::volume::base::Base;
use crate::volume::media::{LOGS, medium_name};
use crate::volume::place::Place;
use crate::volume::sessions::{LINE_COSTS, clock, once_free, side};
use crate::wrong::Checked;
use shale_bench::BenchError;
use shale_bench::Result;
use shale_bench::chance::Chance;
use shale_bench::scratch::os_error;
use shale_model::compare::shown;
use shale_model::workload::alphabet::OPEN;
use shale_model::workload::words::{Step, Workload};
use shale_model::{Act, Memory, Shale, Side, Snapshot};

/// The connection that the mount is.
const CONNECTION: u64 = 77;
/// One answer in so many is late, and its request is sent again at every crash.
const LATE_ONE_IN: u64 = 3;
/// Kills between fences: one store in so many.
const KILL_ONE_IN: u64 = 6;
/// Images at a fence, besides the one with all stores.
const IMAGES: usize = 6;
/// One image in so many is recovered once more, with kills in between.
const AGAIN_ONE_IN: u64 = 24;
/// Daemons that are killed one after the other.
const GENERATIONS: u64 = 3;

/// A request of the mount, in the workload.
struct Asked {
    sent: Sent,
    /// Its step.
    step: usize,
    /// The answer goes out after the workload.
    late: bool,
    /// The model's tree changed.
    changes: bool,
}

/// A workload that has run.
struct Run {
    events: Vec<Recorded>,
    track: Track,
    asked: Vec<Asked>,
    /// Steps of the mount's.
    mounts: Vec<bool>,
    logs: usize,
}

/// A moment at which the daemon dies.
#[derive(Clone, Copy)]
struct Moment {
    returned: usize,
    begun: usize,
    /// How many daemons have died.
    generation: u64,
}

fn config(place: &Place, wraps: bool, generation: u64) -> DaemonConfig {
    let mut config = place.config(wraps, 0);
    config.connection = Some(CONNECTION);
    config.connection_continues = generation > 0;
    if let Some(fixed) = &mut config.fixed_logs {
        // Salts of two daemons are never the same.
        fixed.salt += generation << 16;
    }
    config
}

/// The log slot that the next client gets.
fn next_slot(daemon: &Daemon) -> usize {
    let slots = daemon.volume().log_slots();
    let free = slots.iter().position(|slot| slot.state == slot_state::FREE);
    free.unwrap_or(0)
}

/// What the daemon asks a kernel. It keeps nothing that it would have to drop.
struct Kernel(Weak<Session>);

impl LeaseHook for Kernel {
    fn drop_cached(&self, ino: u64) -> u64 {
        self.0.upgrade().map_or(0, |session| session.uses_of(ino))
    }

    fn used_since(&self, ino: u64, seen: u64) -> bool {
        self.0.upgrade().is_some_and(|s| s.uses_of(ino) != seen)
    }

    fn in_use(&self, ino: u64) -> bool {
        self.0.upgrade().is_some_and(|s| s.kernel_refers_to(ino))
    }
}

fn attach_mount(
    daemon: &Daemon,
    place: &Place,
    log_all: bool,
    again: bool,
) -> Result<Arc<Session>> {
    let options = SessionOptions {
        log_all,
        kernel_references: true,
        line_costs: Some(LINE_COSTS),
        ..SessionOptions::default()
    };
    let channel = Arc::new(InProcess(daemon.attach_in_process(0)));
    let maps = place.maps(next_slot(daemon));
    let recent = daemon.recent_requests();
    let session = Session::attach_mapped(channel, clock(), recent, options, &maps)
        .map_err(|e| BenchError::call("libfs", "attach")(os_error(e)))?;
    session.serve_kernel(again);
    daemon.set_lease_hook(Arc::new(Kernel(Arc::downgrade(&session))));
    Ok(session)
}

/// A client of another process.
fn attach_other(daemon: &Daemon, place: &Place, log_all: bool) -> Result<Shale> {
    let options = SessionOptions {
        log_all,
        line_costs: Some(LINE_COSTS),
        ..SessionOptions::default()
    };
    let channel = Arc::new(InProcess(daemon.attach_as(0, &[])));
    let maps = place.maps(next_slot(daemon));
    let session = Session::attach_mapped(channel, clock(), Default::default(), options, &maps)
        .map_err(|e| BenchError::call("libfs", "attach")(os_error(e)))?;
    Ok(side(&session))
}

/// The clients of a workload and the model of them.
struct Doer {
    mount: Mount,
    others: Vec<Shale>,
    model: Memory,
}

impl Doer {
    fn act(&mut self, client: usize, act: &Act) -> Checked<Option<Sent>> {
        self.model.set_client(client);
        let should = self.model.act(act);
        let (did, sent) = match client {
            0 => self.mount.act(act),
            n => (self.others[n - 1].act(act), None),
        };
        match should == did {
            true => Ok(sent),
            false => Err(format!(
                "client {client}, {act:?}: expected {}, found {}",
                shown(&should),
                shown(&did)
            )),
        }
    }

    fn tree(&mut self) -> Arc<Snapshot> {
        Arc::new(Snapshot::of(&mut self.model).expect("the model's tree can be walked"))
    }

    fn follow(
        &mut self,
        (place, daemon, session): (&Place, &Daemon, &Session),
        workload: &Workload,
        chance: &mut Chance,
        run: &mut Run,
    ) -> Checked<()> {
        for (number, &step) in workload.steps.iter().enumerate() {
            let before = place.recording.event_count();
            let sent = match step {
                Step::Item { client, item } => self
                    .act(client, &workload.act(item, number))
                    .map_err(|wrong| format!("step {number}: {wrong}"))?,
                _ => {
                    daemon.quiesce();
                    None
                }
            };
            let after = place.recording.event_count();
            let tree = (step != Step::Digest).then(|| self.tree());
            run.track.add(before, after, tree);
            run.mounts
                .push(matches!(step, Step::Item { client: 0, .. }));
            let Some(sent) = sent else { continue };
            let trees = &run.track.trees;
            let changes = trees[number] != trees[number + 1];
            let late = changes && chance.below(LATE_ONE_IN) == 0;
            if !late {
                session.answered(sent.request);
            }
            run.asked.push(Asked {
                sent,
                step: number,
                late,
                changes,
            });
        }
        Ok(())
    }
}

/// Runs `workload` at `place`, which holds the base and does so again afterwards.
fn run(place: &mut Place, base: &Base, workload: &Workload, seed: u64) -> Result<Checked<Run>> {
    let daemon = once_free(|| Daemon::start(config(place, workload.wraps, 0), clock()))?;
    let session = attach_mount(&daemon, place, workload.log_all, false)?;
    let logs = workload.clients().min(LOGS - 1);
    let mut others = Vec::new();
    for _ in 1..logs {
        others.push(attach_other(&daemon, place, workload.log_all)?);
    }
    let mut doer = Doer {
        mount: Mount::new(session.clone()),
        others,
        model: base.model.clone(),
    };
    let mut opened = Ok(());
    for client in 0..logs {
        for (slot, (path, flags)) in OPEN.into_iter().enumerate() {
            let act = Act::Open(slot, path.as_bytes().to_vec(), flags, 0);
            opened = opened.and(doer.act(client, &act).map(|_| ()));
        }
    }
    let mut run = Run {
        events: Vec::new(),
        track: Track::new(None, doer.tree()),
        asked: Vec::new(),
        mounts: Vec::new(),
        logs,
    };
    let mut chance = Chance::new(seed ^ 0x0a5c);
    let with = (&*place, &*daemon, &*session);
    let done = opened.and_then(|()| doer.follow(with, workload, &mut chance, &mut run));
    run.events = place.recording.take_events();
    drop(doer);
    daemon.abandon();
    drop(session);
    drop(daemon);
    place.touch_all(&run.events);
    place.reset(base)?;
    Ok(done.map(|()| run))
}

impl Run {
    /// Requests without an answer at a moment.
    fn unanswered(&self, moment: Moment) -> Vec<&Asked> {
        let is = |asked: &&Asked| {
            let in_progress = asked.step + 1 == moment.begun;
            in_progress || asked.late && asked.step < moment.returned
        };
        self.asked.iter().filter(is).collect()
    }

    /// The steps after which the tree may be once all requests have been sent again.
    fn ends(&self, moment: Moment) -> std::ops::RangeInclusive<usize> {
        match moment.begun.checked_sub(1) {
            // Another client's call has died with it.
            Some(last) if !self.mounts[last] => moment.returned..=moment.begun,
            _ => moment.begun..=moment.begun,
        }
    }

    fn is_after(&self, moment: Moment, found: &Snapshot) -> Checked<()> {
        let tree = parts(found);
        match self.ends(moment).any(|k| self.track.is_after(k, &tree)) {
            true => Ok(()),
            false => {
                let right = self.ends(moment).map(|k| (k, self.track.trees[k].clone()));
                Err(check::explain(found, &right.collect::<Vec<_>>()))
            }
        }
    }
}

impl Asked {
    /// Sends it to the next daemon and compares the answers; gives the new one. `before`: what a
    /// daemon after the first one answered.
    fn send_again(
        &self,
        session: &Session,
        before: Option<&Answer>,
        known: bool,
        returned: bool,
    ) -> Checked<Answer> {
        let Sent {
            request,
            ask,
            answer,
        } = &self.sent;
        let answer = before.unwrap_or(answer);
        let shown = |what: String| Err(format!("request {request} again, {ask:?}: {what}"));
        if returned && self.changes && !known {
            return shown("what it did is not known".to_owned());
        }
        let found = ask.send(session, *request);
        let same = match (answer, &found) {
            // A number that was not given out durably may be another the second time.
            (Ok(Noted::Inode(_)), Ok(Noted::Inode(_))) if !known => true,
            // Made, and gone since: there is nothing to tell of it.
            (Ok(Noted::Inode(ino)), Err(Errno::NOENT)) if known => {
                session.getattr(&Caller::default(), *ino).is_err()
            }
            (first, second) => first == second,
        };
        match same {
            true => Ok(found),
            false => shown(format!("answered {answer:?} first, now {found:?}")),
        }
    }
}

type Answer = std::result::Result<Noted, Errno>;
/// By request.
type Answers = HashMap<u64, Answer>;

/// What the next daemon did until all requests were answered.
struct Survived {
    events: Vec<Recorded>,
    marks: Marks,
}

/// Moments in a daemon's life, as numbers of events.
struct Marks {
    /// The mount attached.
    attached: usize,
    /// The medium of the log that it got.
    log: usize,
    /// All answers were known, and none had gone out.
    answered: usize,
    answers: Answers,
    /// What was in the logs by then besides what was recorded: recovery writes to their files.
    logs: Vec<(usize, Vec<u8>)>,
}

impl Explorer {
    /// As [`Explorer::explore`], for a workload whose operations are requests of a mount.
    pub(crate) fn explore_requests(
        &mut self,
        workload: &Workload,
        seed: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<std::result::Result<(), Box<Failure>>> {
        let base = Arc::clone(&self.base);
        let failure = |wrong| Failure {
            workload: workload.to_string(),
            event: None,
            windows: Vec::new(),
            survivors: None,
            wrong,
        };
        let run = match run(&mut self.stage, &base, workload, seed)? {
            Ok(run) => run,
            Err(wrong) => return Ok(Err(Box::new(failure(wrong)))),
        };
        let new = Image::default();
        let mut cutter = Cutter::new(&run.events, &base.segment, new, self.depth.caches);
        let mut chance = Chance::new(seed ^ 0x0ce);
        let mut seen = HashSet::new();
        loop {
            let at = cutter.at();
            let returns = run.track.steps.iter().any(|step| step.1 == at);
            let fence = cutter.before_fence();
            let (returned, begun) = run.track.window(at);
            let mut images = Vec::new();
            if !stop() && (fence || returns || chance.below(KILL_ONE_IN) == 0) {
                images = images_of(&cutter, if fence { IMAGES } else { 0 }, &mut chance);
                add(&self.known.counts.cuts);
            }
            for (survivors, image) in images {
                add(&self.known.counts.images);
                if !seen.insert((image.hash, returned, begun)) {
                    continue;
                }
                let moment = Moment {
                    returned,
                    begun,
                    generation: 1,
                };
                let before = Answers::new();
                let image = (image, &before);
                if let Err(wrong) = self.survive(&run, workload, image, moment, &mut chance)? {
                    return Ok(Err(Box::new(Failure {
                        event: Some(at),
                        windows: vec![(returned, begun)],
                        survivors: Some(survivors),
                        ..failure(wrong)
                    })));
                }
            }
            if !cutter.step() {
                return Ok(Ok(()));
            }
        }
    }

    /// Starts the next daemon on an image, sends requests again, and looks at everything;
    /// sometimes kills that daemon too.
    fn survive(
        &mut self,
        run: &Run,
        workload: &Workload,
        (image, before): (Image, &Answers),
        moment: Moment,
        chance: &mut Chance,
    ) -> Result<Checked<()>> {
        let counts = &self.known.counts;
        add(&counts.states);
        if moment.generation > 1 {
            add(&counts.states_again);
        }
        for (key, value) in image.units() {
            self.ward.touch(key.medium(), key.offset());
            self.ward.map(key.medium()).store(key.offset(), &value);
        }
        let logs = run.logs + moment.generation as usize - 1;
        self.ward.link_logs(logs.min(LOGS))?;
        let whole = chance.below(4) == 0;
        let again = moment.generation < GENERATIONS - 1 && chance.below(AGAIN_ONE_IN) == 0;
        let how = (whole, again);
        let served = || self.serve_again(run, workload, (moment, before), how, chance);
        let done = check::caught(served);
        let events = self.ward.recording.take_events();
        self.ward.touch_all(&events);
        let base = Arc::clone(&self.base);
        self.ward.reset(&base)?;
        let marks = match done {
            Ok(marks) => marks,
            Err(wrong) => {
                let daemon = moment.generation + 1;
                return Ok(Err(format!("daemon {daemon}: {wrong}")));
            }
        };
        match again {
            true => {
                let survived = Survived { events, marks };
                self.kill_again(run, workload, (image, &survived), moment, chance)
            }
            false => Ok(Ok(())),
        }
    }

    /// Recovers, sends again, compares. `whole`: stops cleanly and checks the volume. `again`:
    /// notes what the next recovery finds in the logs.
    fn serve_again(
        &self,
        run: &Run,
        workload: &Workload,
        (moment, before): (Moment, &Answers),
        (whole, again): (bool, bool),
        chance: &mut Chance,
    ) -> Checked<Marks> {
        let place = &self.ward;
        let start = || Daemon::start(config(place, workload.wraps, moment.generation), clock());
        let daemon = once_free(start).map_err(|e| format!("the start: {e}"))?;
        check::fine(daemon.recovery())?;
        let (attached, log) = (place.recording.event_count(), 1 + next_slot(&daemon));
        let logs = match again {
            true => logs_of(place).map_err(|e| e.to_string())?,
            false => Vec::new(),
        };
        let session = attach_mount(&daemon, place, workload.log_all, true)
            .map_err(|e| format!("attaching: {e}"))?;
        let recent = daemon.recent_requests();
        let mut unanswered = run.unanswered(moment);
        chance.shuffle(&mut unanswered);
        let mut answers = before.clone();
        for asked in unanswered {
            let request = asked.sent.request;
            let (known, before) = (recent.get(request).is_some(), before.get(&request));
            let returned = asked.step < moment.returned;
            let answer = asked.send_again(&session, before, known, returned)?;
            answers.insert(request, answer);
        }
        let marks = Marks {
            attached,
            log,
            answered: place.recording.event_count(),
            answers,
            logs,
        };
        let mut shale = side(&session);
        let tree = Snapshot::of(&mut shale).map_err(|e| format!("the walk: {e}"))?;
        run.is_after(moment, &tree)?;
        drop(shale);
        if whole {
            session.detach().map_err(|e| format!("detach: {e}"))?;
            daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
            let tree = check::tree(&daemon.volume().view()).map_err(|e| e.to_string())?;
            run.is_after(moment, &tree)?;
            add(&self.known.counts.volumes);
            check::fsck(place)?;
            if !place.other_files().is_ok_and(|files| files.is_empty()) {
                return Err("logs are left after a clean stop".to_owned());
            }
        }
        daemon.abandon();
        Ok(marks)
    }

    /// Kills the daemon that has recovered `image` anywhere on its way.
    fn kill_again(
        &mut self,
        run: &Run,
        workload: &Workload,
        (image, survived): (Image, &Survived),
        moment: Moment,
        chance: &mut Chance,
    ) -> Result<Checked<()>> {
        let base = Arc::clone(&self.base);
        let caches = self.depth.caches;
        let marks = &survived.marks;
        let events = &survived.events[..marks.answered];
        let mut cutter = Cutter::new(events, &base.segment, image, caches);
        let part = events.len() as u64 / 24 + 1;
        let moment = Moment {
            generation: moment.generation + 1,
            ..moment
        };
        loop {
            if cutter.at() == marks.attached {
                // Its log is another file than the one of that name in the image.
                for (medium, bytes) in &marks.logs {
                    cutter.is_now(*medium, bytes);
                }
                cutter.forget(marks.log);
            }
            if chance.below(part) == 0 {
                let images = if cutter.before_fence() { 2 } else { 0 };
                for (_, image) in images_of(&cutter, images, chance) {
                    let at = cutter.at();
                    let image = (image, &marks.answers);
                    if let Err(wrong) = self.survive(run, workload, image, moment, chance)? {
                        return Ok(Err(format!("killed again at event {at}: {wrong}")));
                    }
                }
            }
            if !cutter.step() {
                return Ok(Ok(()));
            }
        }
    }
}

#[cfg(test)]
mod tests;

/// The logs that are there, by medium, as far as workloads fill them.
fn logs_of(place: &Place) -> Result<Vec<(usize, Vec<u8>)>> {
    let mut logs = Vec::new();
    for name in place.other_files()? {
        let medium = (1..=LOGS).find(|&medium| medium_name(medium) == name);
        let path = place.nvm_dir().join(&name);
        let bytes = std::fs::read(&path).map_err(BenchError::file(path, "read"))?;
        logs.extend(medium.map(|medium| (medium, bytes)));
    }
    Ok(logs)
}

/// The image with all stores, which is what a kill leaves, and some that a power cut could leave.
fn images_of(cutter: &Cutter<'_>, cuts: usize, chance: &mut Chance) -> Vec<(String, Image)> {
    let cut = cutter.cut();
    let mut masks = vec![vec![true; cut.uncertain()]];
    if cuts > 0 {
        let mut more = cut.masks(cuts.max(16), ALL_SUBSETS, chance);
        chance.shuffle(&mut more);
        masks.extend(more.into_iter().take(cuts));
    }
    let image = |mut mask: Vec<bool>| {
        cut.hash(&mut mask);
        let bits = mask.iter().map(|&alive| if alive { '1' } else { '0' });
        (bits.collect(), cut.image(&mask))
    };
    masks.into_iter().map(image).collect()
}
