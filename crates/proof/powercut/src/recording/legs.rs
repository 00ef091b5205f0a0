//! One leg of a long run: from a mount to a power cut or an unmount, clients in turns.

use std::sync::Arc;

use shale_daemon::Daemon;
use shale_libfs::Session;
use shale_record::{Noted, Recorded, set_operation};

use crate::recording::doer::{Doer, has_panicked};
use crate::recording::run::Run;
use crate::recording::track::Track;
use crate::volume::base::Base;
use crate::volume::lower_tiers;
use crate::volume::place::Place;
use crate::volume::sessions::{attach, clock, once_free, side};
use crate::wrong::Checked;
use shale_bench::Result;
use shale_bench::chance::Chance;
use shale_model::act::SLOTS;
use shale_model::workload::words::{Step, Workload};
use shale_model::{Act, FileAct, Memory, Side};

/// One step in so many is looked at closely, besides those in which power fails.
const LOOK_ONE_IN: u64 = 25;
/// One unmount in so many: each has many fences.
const UNMOUNT_ONE_IN: u64 = 4;

/// A step that is looked at.
pub(crate) struct Look {
    /// Events when it began.
    pub begun: usize,
    /// Events when it had returned.
    pub returned: usize,
    /// This step alone.
    pub run: Run,
}

/// A leg that is over.
pub(crate) struct Leg {
    /// What happened to the media, from the start of the daemon on.
    pub events: Vec<Recorded>,
    /// What devices below NVM were reported meanwhile.
    pub noted: Vec<Noted>,
    /// In order.
    pub looks: Vec<Look>,
    /// Before the last step, if it is looked at, and after it; no file is open any more.
    pub models: [Memory; 2],
}

/// Steps with their numbers.
pub(crate) type Steps<'s> = &'s [(usize, Step)];

/// Everybody who is there.
struct Crew<'w> {
    daemon: Arc<Daemon>,
    sessions: Vec<Arc<Session>>,
    doer: Doer<'w>,
}

/// No client of `model` has a file open.
fn without_files(mut model: Memory, clients: usize) -> Memory {
    (0..clients).for_each(|client| close_all(&mut model, client));
    model
}

/// A client of `model` has no file open.
pub(crate) fn close_all(model: &mut Memory, client: usize) {
    model.set_client(client);
    for slot in 0..SLOTS {
        let _ = model.act(&Act::File(slot, FileAct::Close));
    }
}

impl Crew<'_> {
    /// A client dies; another one does what it would have done.
    fn kill(&mut self, client: usize) {
        let other = (0..self.sessions.len()).find(|&n| {
            let (this, that) = (&self.sessions[client], &self.sessions[n]);
            !Arc::ptr_eq(this, that)
        });
        let Some(other) = other else { return };
        let dying = Arc::clone(&self.sessions[client]);
        for n in 0..self.sessions.len() {
            if Arc::ptr_eq(&self.sessions[n], &dying) {
                close_all(&mut self.doer.model, n);
                self.sessions[n] = Arc::clone(&self.sessions[other]);
                self.doer.shales[n] = side(&self.sessions[other]);
            }
        }
    }

    /// Everything moves down, and then extents, inodes and directories; the first client does `item` in the midst of it.
    fn migrate(&mut self, place: &Place, number: usize, item: Option<usize>) -> Checked<()> {
        let daemon = Arc::clone(&self.daemon);
        let migrate = || {
            let moved = daemon.migrate(None).and_then(|_| daemon.demote_extents());
            let moved = moved.and_then(|_| daemon.demote_inodes());
            let moved = moved.and_then(|_| daemon.demote_directories());
            let moved = moved.map_err(|e| format!("migration: {e}"));
            moved.map(|_| daemon.quiesce())
        };
        daemon.quiesce();
        let (Some(item), Some(below)) = (item, &place.below) else {
            return migrate();
        };
        let act = self.doer.workload.act(item, number);
        let (migrated, done) = below.while_flushing(migrate, || {
            self.doer.act(0, &act)?;
            let digested = self.sessions[0].digest();
            digested.map(drop).map_err(|e| format!("digest: {e}"))
        });
        done.and(migrated)
    }

    fn step(&mut self, place: &Place, number: usize, step: Step) -> Checked<()> {
        match step {
            Step::Item { client, item } => {
                let act = self.doer.workload.act(item, number);
                self.doer.act(client, &act).map(|_| ())
            }
            Step::Digest => {
                self.daemon.quiesce();
                Ok(())
            }
            Step::Kill(client) => {
                self.kill(client);
                Ok(())
            }
            Step::Migrate(item) => self.migrate(place, number, item),
            Step::Cut | Step::Stop => Ok(()),
        }
    }

    /// Does all steps; gives those that are looked at and the model before the last one.
    fn follow(
        &mut self,
        place: &Place,
        steps: Steps<'_>,
        seed: u64,
    ) -> Checked<(Vec<Look>, Memory)> {
        let is_last = |n: usize| matches!(steps.get(n + 1), Some((_, Step::Cut)));
        let mut looks = Vec::new();
        let mut before_last = self.doer.model.clone();
        for (n, &(number, step)) in steps.iter().enumerate() {
            if matches!(step, Step::Cut | Step::Stop) {
                break;
            }
            let mut chance = Chance::new(seed ^ (number as u64) << 32);
            let each = self.doer.workload.tiers;
            let looked = each || is_last(n) || chance.below(LOOK_ONE_IN) == 0;
            if is_last(n) {
                before_last = self.doer.model.clone();
            }
            let mut track = looked.then(|| Track::new(None, self.doer.tree()));
            let begun = place.recording.event_count();
            set_operation(number as u64 + 1);
            let done = self.step(place, number, step);
            set_operation(0);
            done.map_err(|wrong| format!("step {number}: {wrong}"))?;
            let returned = place.recording.event_count();
            if let Some(track) = track.take() {
                looks.push(self.look(track, (begun, returned)));
            }
        }
        Ok((looks, before_last))
    }

    /// What happened between two events, before which the tree was that of `track`.
    fn look(&mut self, mut track: Track, (begun, returned): (usize, usize)) -> Look {
        track.add(begun, returned, Some(self.doer.tree()));
        let run = Run {
            events: Vec::new(),
            tracks: vec![track],
            logs: self.sessions.len(),
            orders: None,
            losses: None,
            program: None,
            items: vec![true],
        };
        Look {
            begun,
            returned,
            run,
        }
    }

    /// Everybody is gone at once.
    fn abandon(self, panicked: bool) -> Checked<()> {
        self.daemon.abandon();
        if panicked {
            std::mem::forget(self);
        }
        Ok(())
    }

    /// Everybody leaves, in order.
    fn leave(mut self) -> Checked<()> {
        let last = Track::new(None, self.doer.tree());
        self.doer.compare(&last)?;
        self.doer.shales.clear();
        self.sessions.dedup_by(|a, b| Arc::ptr_eq(a, b));
        for session in &self.sessions {
            session.detach().map_err(|e| format!("detach: {e}"))?;
        }
        self.daemon
            .shutdown()
            .map_err(|e| format!("shutdown: {e}"))?;
        self.daemon.abandon();
        Ok(())
    }
}

/// Runs leg number `leg` at `place`, which holds the base and is left as the leg left it. `model`
/// is that of the base.
///
/// # Errors
/// The outer error: it could not run. The inner one: what is wrong.
pub(crate) fn run(
    place: &mut Place,
    base: &Base,
    workload: &Workload,
    (leg, steps): (u64, Steps<'_>),
    model: Memory,
    seed: u64,
) -> Result<Checked<Leg>> {
    let clients = workload.clients();
    let config = || place.config_with_logs(workload.wraps, 0, leg);
    let daemon = match once_free(|| Daemon::start(config(), clock())) {
        Ok(daemon) => daemon,
        Err(e) => return Ok(Err(format!("the start of leg {leg}: {e}"))),
    };
    place.link_logs(clients)?;
    let mut sessions = Vec::new();
    for client in 0..clients {
        sessions.push(attach(&daemon, &place.maps(client), workload.log_all)?);
    }
    let mut crew = Crew {
        doer: Doer {
            workload,
            shales: sessions.iter().map(side).collect(),
            model,
            root: b"",
            full: base.full,
            fsync: None,
            synced: None,
            was_synced: false,
        },
        daemon,
        sessions,
    };
    let is_cut = matches!(steps.last(), Some((_, Step::Cut)));
    let followed = crew.doer.open_files();
    let followed = followed.and_then(|()| crew.follow(place, steps, seed));
    let after = crew.doer.model.clone();
    let mut noted = place.take_reported(0);
    let mut events = place.recording.take_events();
    let chosen = Chance::new(seed ^ leg << 16).below(UNMOUNT_ONE_IN) == 0;
    let unmounts = (followed.is_ok() && !is_cut && chosen).then(|| {
        let track = Track::new(None, crew.doer.tree());
        crew.look(track, (events.len(), events.len()))
    });
    let left = match (followed.is_ok(), is_cut) {
        (true, false) => crew.leave(),
        _ => crew.abandon(has_panicked(&followed)),
    };
    let late_reported = place.take_reported(events.len());
    let late = place.recording.take_events();
    place.touch_all(&late);
    if !is_cut {
        events.extend(late);
        noted.extend(late_reported);
    }
    place.touch_all(&events);
    let ordered = lower_tiers::in_order(&noted);
    Ok(left.and(ordered).and(followed).map(|(mut looks, before)| {
        looks.extend(unmounts.map(|look| Look {
            returned: events.len(),
            ..look
        }));
        Leg {
            events,
            noted,
            looks,
            models: [before, after].map(|model| without_files(model, clients)),
        }
    }))
}
