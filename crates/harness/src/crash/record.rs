//! Runs a workload and notes every store, flush and fence of its clients and its daemon.
//!
//! The model does every step too: what an operation answers has to be the same, and the
//! model's tree after each step is what a power cut may leave.

use std::sync::Arc;

use shale_daemon::Daemon;
use shale_device::sim::{Recorded, set_operation};
use shale_libfs::Session;

use super::base::{Base, Place, attach, side};
use crate::Result;
use crate::model::compare::shown;
use crate::model::{Act, Memory, Shale, Side, Snapshot};
use crate::workload::alphabet::{OPEN, Step, Workload, act_at};

/// A workload that has run.
pub struct Run {
    /// What happened to the media, from the first client's attaching on.
    pub events: Vec<Recorded>,
    /// For each step the numbers of events before it began and when it had returned.
    pub steps: Vec<(usize, usize)>,
    /// The tree before the first step and after each one.
    pub trees: Vec<Arc<Snapshot>>,
    /// [`Snapshot::digest`] of each of them.
    pub digests: Vec<u64>,
    /// Logs that existed.
    pub logs: usize,
}

/// Something of Shale's that is wrong, as found while a workload ran.
pub type Wrong = String;

struct Running {
    daemon: Arc<Daemon>,
    shales: Vec<Shale>,
    sessions: Vec<Arc<Session>>,
    model: Memory,
}

impl Running {
    fn start(place: &Place, base: &Base, workload: &Workload) -> Result<Self> {
        let daemon = Daemon::start(place.config(workload.wraps), super::base::clock())?;
        let mut running = Running {
            daemon,
            shales: Vec::new(),
            sessions: Vec::new(),
            model: base.model.clone(),
        };
        for client in 0..workload.clients() {
            let session = attach(&running.daemon, &place.maps(client), workload.log_all)?;
            running.shales.push(side(&session));
            running.sessions.push(session);
        }
        Ok(running)
    }

    fn act(&mut self, client: usize, act: &Act) -> std::result::Result<(), Wrong> {
        self.model.set_client(client);
        let (should, did) = (self.model.act(act), self.shales[client].act(act));
        match should == did {
            true => Ok(()),
            false => Err(format!(
                "client {client}, {act:?}: expected {}, found {}",
                shown(&should),
                shown(&did)
            )),
        }
    }

    fn open_files(&mut self) -> std::result::Result<(), Wrong> {
        for client in 0..self.shales.len() {
            for (slot, (path, flags)) in OPEN.into_iter().enumerate() {
                let path = path.as_bytes().to_vec();
                self.act(client, &Act::Open(slot, path, flags, 0))?;
            }
        }
        Ok(())
    }

    fn step(&mut self, number: usize, step: Step) -> std::result::Result<(), Wrong> {
        set_operation(number as u64 + 1);
        let done = match step {
            Step::Item { client, item } => self.act(client, &act_at(item, number)),
            Step::Digest => {
                self.daemon.quiesce();
                Ok(())
            }
        };
        set_operation(0);
        done
    }

    fn tree(&mut self) -> Arc<Snapshot> {
        Arc::new(Snapshot::of(&mut self.model).expect("the model's tree can be walked"))
    }

    /// Compares what LibFS shows now with the model.
    fn compare(&mut self) -> std::result::Result<(), Wrong> {
        let should = self.tree();
        let did = Snapshot::of(&mut self.shales[0]).map_err(|e| format!("the walk: {e}"))?;
        match *should == did {
            true => Ok(()),
            false => Err(format!(
                "before any cut: {}",
                should.differences(&did).join("; ")
            )),
        }
    }
}

/// Runs `workload` at `place`, which holds the base and does so again afterwards.
///
/// # Errors
/// The outer error: it could not run. The inner one: Shale did not do what the model did.
pub fn run(
    place: &mut Place,
    base: &Base,
    workload: &Workload,
) -> Result<std::result::Result<Run, Wrong>> {
    let mut running = Running::start(place, base, workload)?;
    let done = record(&mut running, place, workload);
    // What closing files logs belongs to no workload.
    drop(running.shales);
    running.daemon.abandon();
    drop(running.sessions);
    drop(running.daemon);
    if let Ok(run) = &done {
        place.touch_all(&run.events);
    }
    place.reset(base)?;
    Ok(done)
}

fn record(
    running: &mut Running,
    place: &Place,
    workload: &Workload,
) -> std::result::Result<Run, Wrong> {
    running.open_files()?;
    let recording = place.recording.clone();
    let first = running.tree();
    let mut run = Run {
        events: Vec::new(),
        steps: Vec::new(),
        digests: vec![first.digest()],
        trees: vec![first],
        logs: workload.clients(),
    };
    for (number, &step) in workload.steps.iter().enumerate() {
        let before = recording.event_count();
        let done = running.step(number, step);
        run.steps.push((before, recording.event_count()));
        if let Err(wrong) = done {
            return Err(format!("step {number}: {wrong}"));
        }
        if step == Step::Digest {
            // A digest changes nothing that can be seen.
            let last = run.trees.len() - 1;
            run.trees.push(run.trees[last].clone());
            run.digests.push(run.digests[last]);
        } else {
            let tree = running.tree();
            run.digests.push(tree.digest());
            run.trees.push(tree);
        }
    }
    run.events = recording.take_events();
    running.compare()?;
    Ok(run)
}

impl Run {
    /// Steps that had returned, and steps that had begun, when `event` events had happened.
    pub fn window(&self, event: usize) -> (usize, usize) {
        let returned = self.steps.iter().filter(|s| s.1 <= event).count();
        let begun = self.steps.iter().filter(|s| s.0 < event).count();
        (returned, begun.max(returned))
    }
}
