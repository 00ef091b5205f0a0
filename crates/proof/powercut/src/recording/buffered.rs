//! Buffered clients that take turns on one tree: their calls are durable after fsync of the same client, after sync and after a digest; of
//! ordered clients after sync and a digest. Calls on what has `S` or `D` are durable at return ([`crate::recording::synced`]).
//!
//! What is right is known by [`crate::recording::losses`].

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use shale_daemon::Daemon;
use shale_format::Durability;
use shale_libfs::Session;
use shale_record::{Recording, set_operation};

use crate::recording::doer::{Doer, has_panicked};
use crate::recording::losses::Losses;
use crate::recording::record::fsync;
use crate::recording::run::Run;
use crate::recording::track::Track;
use crate::volume::base::Base;
use crate::volume::sessions::side;
use crate::wrong::Checked;
use shale_model::Act;
use shale_model::workload::words::{Step, Workload};

/// Steps of which one is followed by sync, and two by fsync.
const PROMISE_ONE_IN: u64 = 7;

/// What clients do that take turns.
struct Turns<'r> {
    recording: &'r Recording,
    sessions: &'r [Arc<Session>],
    policy: Durability,
    /// Of each client: how far it was promised; then of each how far it got.
    tracks: Vec<Track>,
    losses: Losses,
}

impl Turns<'_> {
    /// A step of these clients, begun after so many events: a call of the first of them, or what promises that all of theirs are durable.
    fn add(&mut self, clients: &[usize], begun: usize, (call, promises): (Option<Act>, bool)) {
        let (returned, all) = (self.recording.event_count(), self.sessions.len());
        for &client in clients {
            for track in [client, all + client] {
                self.tracks[track].add(begun, returned, None);
            }
            if !promises {
                self.tracks[client].break_promise();
            }
        }
        self.losses.step(clients, call);
    }

    /// What comes behind some steps: fsync of the client, or sync.
    fn promise(&mut self, workload: &Workload, number: usize, client: usize) -> Checked<()> {
        let begun = self.recording.event_count();
        let mut hasher = DefaultHasher::new();
        (workload, number).hash(&mut hasher);
        match hasher.finish() % PROMISE_ONE_IN {
            0 => {
                let synced = self.sessions[client].sync_all();
                synced.map_err(|e| format!("sync: {e}"))?;
                let all: Vec<usize> = (0..self.sessions.len()).collect();
                self.add(&all, begun, (None, true));
            }
            1 | 2 => {
                let promises = fsync(&self.sessions[client], self.policy)?;
                self.add(&[client], begun, (None, promises));
            }
            _ => {}
        }
        Ok(())
    }

    fn follow(&mut self, daemon: &Daemon, doer: &mut Doer<'_>) -> Checked<()> {
        let workload = doer.workload;
        for (number, &step) in workload.steps.iter().enumerate() {
            let begun = self.recording.event_count();
            set_operation(number as u64 + 1);
            let done = match step {
                Step::Item { client, item } => doer
                    .act(client, &workload.act(item, number))
                    .and_then(|call| {
                        self.add(&[client], begun, (call, doer.was_synced));
                        self.promise(workload, number, client)
                    }),
                _ => {
                    daemon.quiesce();
                    let all: Vec<usize> = (0..self.sessions.len()).collect();
                    self.add(&all, begun, (None, true));
                    Ok(())
                }
            };
            set_operation(0);
            done.map_err(|wrong| format!("step {number}: {wrong}"))?;
        }
        Ok(())
    }
}

/// Runs the steps, one after the other.
pub(crate) fn in_turns(
    (recording, daemon): (&Recording, &Daemon),
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
        fsync: None,
        synced: base.synced(),
        was_synced: false,
    };
    doer.open_files()?;
    let tree = doer.tree();
    let tracks = (0..2 * sessions.len()).map(|_| Track::new(None, tree.clone()));
    let mut turns = Turns {
        recording,
        sessions,
        policy: base.policy,
        tracks: tracks.collect(),
        losses: Losses::new(sessions.len(), doer.model.clone()),
    };
    let done = turns.follow(daemon, &mut doer);
    run.events = recording.take_events();
    let done = done.and_then(|()| {
        let last = Track::new(None, doer.tree());
        doer.compare(&last)
    });
    run.tracks = turns.tracks;
    run.losses = Some(turns.losses);
    if has_panicked(&done) {
        std::mem::forget(doer);
    }
    done
}
