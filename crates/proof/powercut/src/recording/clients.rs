//! Clients in threads of their own, at the same time, on one tree: leases are taken from one
//! another, digests come in between.
//!
//! What is right is not a sequence that is known beforehand: see [`crate::recording::orders`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shale_daemon::Daemon;
use shale_libfs::Session;
use shale_record::{Recording, set_operation};

use crate::recording::orders::{Call, Orders};
use crate::recording::run::Run;
use crate::recording::track::{Track, parts};
use crate::volume::base::Base;
use crate::volume::sessions::side;
use crate::volume::unrest::Unrest;
use crate::wrong::Checked;
use shale_model::workload::alphabet::OPEN;
use shale_model::workload::words::{Step, Workload};
use shale_model::{Act, Shale, Side, Snapshot};

/// What the threads of a run share.
struct Shared<'r> {
    recording: &'r Recording,
    daemon: &'r Daemon,
    time: AtomicU64,
    start: std::sync::Barrier,
}

impl Shared<'_> {
    fn now(&self) -> u64 {
        self.time.fetch_add(1, Ordering::SeqCst)
    }

    /// Does the steps of one client.
    fn follow(
        &self,
        workload: &Workload,
        steps: &[(usize, Step)],
        shale: &mut Shale,
        track: &mut Track,
    ) -> Vec<Call> {
        self.start.wait();
        let mut calls = Vec::new();
        for &(number, step) in steps {
            let (before, begun) = (self.recording.event_count(), self.now());
            set_operation(number as u64 + 1);
            let act = match step {
                Step::Item { item, .. } => Some(workload.act(item, number)),
                _ => None,
            };
            let outcome = match &act {
                Some(act) => shale.act(act),
                None => {
                    self.daemon.quiesce();
                    Ok(shale_model::Said::Done)
                }
            };
            set_operation(0);
            let (returned, after) = (self.now(), self.recording.event_count());
            track.add(before, after, None);
            calls.push(Call {
                number,
                act,
                outcome,
                begun,
                returned,
            });
        }
        calls
    }
}

/// The steps of one of `clients` clients, with their numbers; digests are shared out.
fn steps_of(workload: &Workload, mine: usize, clients: usize) -> Vec<(usize, Step)> {
    let is_mine = |&(number, step): &(usize, Step)| match step {
        Step::Item { client, .. } => client == mine,
        _ => number % clients == mine,
    };
    let steps = workload.steps.iter().copied().enumerate();
    steps.filter(is_mine).collect()
}

/// Runs the steps of all clients at the same time.
pub(crate) fn at_once(
    (recording, daemon): (&Recording, &Daemon),
    (sessions, unrest): (&[Arc<Session>], &Unrest),
    base: &Base,
    workload: &Workload,
    run: &mut Run,
) -> Checked<()> {
    let mut shales: Vec<Shale> = sessions.iter().map(side).collect();
    let mut model = base.model.clone();
    for (client, shale) in shales.iter_mut().enumerate() {
        model.set_client(client);
        for (slot, (path, flags)) in OPEN.into_iter().enumerate() {
            let act = Act::Open(slot, path.as_bytes().to_vec(), flags, 0);
            if model.act(&act) != shale.act(&act) {
                return Err(format!("client {client} cannot open its files"));
            }
        }
    }
    let before = Arc::new(Snapshot::of(&mut model).expect("the model's tree can be walked"));
    let clients = shales.len();
    let shared = Shared {
        recording,
        daemon,
        time: AtomicU64::new(0),
        start: std::sync::Barrier::new(clients),
    };
    unrest.set(Some(workload.steps.len() as u64 * 0x51ed));
    let done: Vec<Option<(Track, Vec<Call>)>> = std::thread::scope(|scope| {
        let threads = shales.iter_mut().enumerate().map(|(mine, shale)| {
            let steps = steps_of(workload, mine, clients);
            let (shared, before) = (&shared, before.clone());
            scope.spawn(move || {
                let mut track = Track::new(None, before);
                let calls = shared.follow(workload, &steps, shale, &mut track);
                (track, calls)
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|t| t.join().ok()).collect()
    });
    unrest.set(None);
    run.events = recording.take_events();
    let mut clients = Vec::new();
    for done in done {
        let (track, calls) = done.ok_or("a panic in a call")?;
        run.tracks.push(track);
        clients.push(calls);
    }
    let found = Snapshot::of(&mut shales[0]).map_err(|e| format!("the walk: {e}"))?;
    let all: Vec<_> = clients.iter().map(|c| (c.len(), c.len())).collect();
    let orders = Orders::new(clients, model);
    let right = orders.is_right(&all, &parts(&found));
    let wrong = (!right).then(|| format!("before any cut: {}", orders.explain(&all, &found)));
    run.orders = Some(orders);
    wrong.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::base::More;
    use crate::volume::place::Place;
    use crate::volume::sessions::{attach, clock, once_free};
    use rustix::io::Errno;
    use shale_libfs::OFlags;
    use shale_model::{Fill, Said};
    use std::sync::atomic::AtomicBool;

    const ROUNDS: usize = 150;

    fn path(text: &str) -> Vec<u8> {
        text.as_bytes().to_vec()
    }

    /// Every call finds its place and acts there in one step.
    #[test]
    fn a_name_that_is_replaced_is_found_by_every_call() {
        replaced_all_the_time();
    }

    /// One client puts another file, another directory, in place of `f` and `x`, again and
    /// again. Both names lead somewhere all the time, so no call of the other's may miss.
    fn replaced_all_the_time() {
        let shm = "/dev/shm".as_ref();
        let base = Base::make(shm, More::Nothing).unwrap();
        let place = Place::new(shm, &base).unwrap();
        let time = clock();
        let daemon = once_free(|| Daemon::start(place.config(false, 0), time.clone())).unwrap();
        let sessions = [0, 1].map(|n| attach(&daemon, &place.maps(n), true).unwrap());
        let [mut one, mut other] = sessions.each_ref().map(side);
        place.unrest.set(Some(7));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let make = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                while !over.load(Ordering::Relaxed) {
                    for act in [
                        Act::Open(0, path("new"), make, 0o644),
                        Act::File(0, shale_model::FileAct::Close),
                        Act::Rename(path("new"), path("d/f"), 0),
                        Act::Mkdir(path("new"), 0o755),
                        Act::Rename(path("new"), path("x"), 0),
                    ] {
                        match one.act(&act) {
                            Ok(_) => {}
                            // The other has just put something into it.
                            Err(Errno::NOTEMPTY) => drop(one.act(&Act::Rmdir(path("new")))),
                            Err(e) => panic!("{act:?}: {e}"),
                        }
                    }
                }
            });
            let fill = Fill { seed: 1, len: 3 };
            // Names of its own for each round: what one call leaves is in no other's way.
            let acts = |round: usize| {
                let (dir, file) = (format!("x/d{round}"), format!("x/f{round}"));
                [
                    Act::Link(path("d/f"), path("l")),
                    Act::Unlink(path("l")),
                    Act::Chmod(path("d/f"), 0o600),
                    Act::Truncate(path("d/f"), 9),
                    Act::SetXattr(path("d/f"), path("user.a"), fill, 0),
                    Act::Mkdir(path(&dir), 0o755),
                    Act::Rmdir(path(&dir)),
                    Act::Open(0, path(&file), OFlags::CREATE | OFlags::RDWR, 0o644),
                    Act::Unlink(path(&file)),
                ]
            };
            let missed = (0..ROUNDS).find_map(|round| {
                let mut done = acts(round).into_iter().map(|act| (other.act(&act), act));
                let failed = done.find(|(done, _)| done.is_err());
                failed.map(|(done, act)| (round, act, done))
            });
            over.store(true, Ordering::Relaxed);
            assert_eq!(missed, None);
        });
        assert!(matches!(one.act(&Act::List(path("x"))), Ok(Said::Names(_))));
        daemon.abandon();
    }
}
