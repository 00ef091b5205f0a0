//! Clients in threads of their own, at the same time, on one tree: leases are taken from one
//! another, digests come in between.
//!
//! What is right is not a sequence that is known beforehand: any order of the calls is
//! right that keeps each client's order and real time (a call that had returned before another
//! began comes first), and in which the model answers each call that had returned as the volume
//! did. At a cut, calls in progress may have been done or not. So for each moment the trees of
//! all such orders are searched, and what is recovered has to be one of them.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use shale_daemon::Daemon;
use shale_device::Clock;
use shale_device::sim::{Recording, set_operation};
use shale_libfs::Session;

use super::base::{Base, side};
use super::record::{Parts, Run, Track, Wrong, parts};
use super::unrest::Unrest;
use crate::model::compare::shown;
use crate::model::{Act, Memory, Outcome, Shale, Side, Snapshot};
use crate::workload::alphabet::OPEN;
use crate::workload::words::{Step, Workload};

type Checked<T> = std::result::Result<T, Wrong>;

/// Nodes of one search at most: beyond, a moment is not looked at.
const NODES_MAX: usize = 60_000;

/// Steps that had returned and had begun, of each client.
type Windows = Vec<(usize, usize)>;

/// One call of a client.
struct Call {
    number: usize,
    /// None: a digest, which changes nothing that can be seen.
    act: Option<Act>,
    outcome: Outcome,
    /// Real time, as numbers that are given out once.
    begun: u64,
    returned: u64,
}

/// The calls of all clients, and the orders they may have had.
pub struct Orders {
    clients: Vec<Vec<Call>>,
    /// Before the first call.
    model: Memory,
    known: Mutex<HashMap<Windows, Arc<Trees>>>,
}

/// What orders come to.
struct Trees {
    /// None: there are too many orders.
    parts: Option<HashSet<Parts>>,
    /// One of them, for people.
    one: Option<Snapshot>,
}

/// Time of day stands still, so that the same calls store the same; leases are held for a time.
pub struct Hours {
    still: Arc<dyn Clock>,
    since: Instant,
}

impl Hours {
    /// Shows the time of day that `still` shows.
    pub fn new(still: Arc<dyn Clock>) -> Hours {
        Hours {
            still,
            since: Instant::now(),
        }
    }
}

impl Clock for Hours {
    fn realtime_ns(&self) -> i64 {
        self.still.realtime_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        self.still.monotonic_ns() + self.since.elapsed().as_nanos() as u64
    }
}

/// A search for orders.
struct Search<'o> {
    orders: &'o Orders,
    windows: &'o [(usize, usize)],
    seen: HashSet<(Vec<usize>, u64)>,
    trees: HashSet<Parts>,
    one: Option<Snapshot>,
    nodes: usize,
}

fn fingerprint(model: &Memory) -> u64 {
    let mut hasher = DefaultHasher::new();
    model.hash(&mut hasher);
    hasher.finish()
}

impl Search<'_> {
    /// Goes on from `model`, when `done` calls of each client have been done.
    fn visit(&mut self, done: &mut [usize], mut model: Memory) {
        self.nodes += 1;
        if self.nodes > NODES_MAX || !self.seen.insert((done.to_vec(), fingerprint(&model))) {
            return;
        }
        if done
            .iter()
            .zip(self.windows)
            .all(|(k, window)| *k >= window.0)
        {
            let tree = Snapshot::of(&mut model).expect("the model's tree can be walked");
            self.trees.insert(parts(&tree));
            self.one.get_or_insert(tree);
        }
        for client in 0..done.len() {
            let k = done[client];
            let (returned, begun) = self.windows[client];
            if k >= begun || !self.may_be_next(done, client) {
                continue;
            }
            let call = &self.orders.clients[client][k];
            let mut next = model.clone();
            if let Some(act) = &call.act {
                next.set_client(client);
                if next.act(act) != call.outcome && k < returned {
                    continue;
                }
            }
            done[client] += 1;
            self.visit(done, next);
            done[client] -= 1;
        }
    }

    /// Whether no other call that is still to come had returned before the client's next began.
    fn may_be_next(&self, done: &[usize], client: usize) -> bool {
        let begun = self.orders.clients[client][done[client]].begun;
        let clients = self.orders.clients.iter().zip(done).zip(self.windows);
        !clients
            .filter(|((_, k), window)| **k < window.0)
            .any(|((calls, &k), _)| calls[k].returned < begun)
    }
}

impl Orders {
    fn trees(&self, windows: &[(usize, usize)]) -> Arc<Trees> {
        if let Some(known) = self.known.lock().get(windows) {
            return known.clone();
        }
        let mut search = Search {
            orders: self,
            windows,
            seen: HashSet::new(),
            trees: HashSet::new(),
            one: None,
            nodes: 0,
        };
        search.visit(&mut vec![0; self.clients.len()], self.model.clone());
        let trees = Arc::new(Trees {
            parts: (search.nodes <= NODES_MAX).then_some(search.trees),
            one: search.one,
        });
        self.known.lock().insert(windows.to_vec(), trees.clone());
        trees
    }

    /// Whether an order that is right at a moment ends with this tree.
    pub fn is_right(&self, windows: &[(usize, usize)], tree: &Parts) -> bool {
        let trees = self.trees(windows);
        trees
            .parts
            .as_ref()
            .is_none_or(|trees| trees.contains(tree))
    }

    /// Why `found` is not right, for people.
    pub fn explain(&self, windows: &[(usize, usize)], found: &Snapshot) -> String {
        let trees = self.trees(windows);
        let mut text = match &trees.one {
            Some(one) => format!(
                "no order of the calls gives this tree; one gives it but for {}",
                one.differences(found).join("; ")
            ),
            None => "no order of the calls explains what they answered".to_owned(),
        };
        for (client, calls) in self.clients.iter().enumerate() {
            for (call, k) in calls.iter().zip(0..windows[client].1) {
                let answer = match k < windows[client].0 {
                    true => shown(&call.outcome),
                    false => "in progress".to_owned(),
                };
                text += &format!(
                    "\n    client {client}, step {}, {} to {}: {:?}: {answer}",
                    call.number, call.begun, call.returned, call.act
                );
            }
        }
        text
    }
}

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
                Step::Digest => None,
            };
            let outcome = match &act {
                Some(act) => shale.act(act),
                None => {
                    self.daemon.quiesce();
                    Ok(crate::model::Said::Done)
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
        Step::Digest => number % clients == mine,
    };
    let steps = workload.steps.iter().copied().enumerate();
    steps.filter(is_mine).collect()
}

/// Runs the steps of all clients at the same time.
pub(super) fn at_once(
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
    let mut orders = Orders {
        clients: Vec::new(),
        model,
        known: Mutex::default(),
    };
    for done in done {
        let (track, calls) = done.ok_or("a panic in a call")?;
        run.tracks.push(track);
        orders.clients.push(calls);
    }
    let found = Snapshot::of(&mut shales[0]).map_err(|e| format!("the walk: {e}"))?;
    let all: Windows = orders.clients.iter().map(|c| (c.len(), c.len())).collect();
    let right = orders.is_right(&all, &parts(&found));
    let wrong = (!right).then(|| format!("before any cut: {}", orders.explain(&all, &found)));
    run.orders = Some(orders);
    wrong.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Said;
    use rustix::io::Errno;

    fn call(number: usize, path: &str, outcome: Outcome, (begun, returned): (u64, u64)) -> Call {
        Call {
            number,
            act: Some(Act::Mkdir(path.as_bytes().to_vec(), 0o755)),
            outcome,
            begun,
            returned,
        }
    }

    fn orders(clients: Vec<Vec<Call>>) -> Orders {
        Orders {
            clients,
            model: Memory::new(0o755),
            known: Mutex::default(),
        }
    }

    fn tree(paths: &[&str]) -> Parts {
        let mut model = Memory::new(0o755);
        for path in paths {
            model
                .act(&Act::Mkdir(path.as_bytes().to_vec(), 0o755))
                .unwrap();
        }
        parts(&Snapshot::of(&mut model).unwrap())
    }

    #[test]
    fn orders_keep_answers_and_real_time() {
        let (made, exists) = (Ok(Said::Done), Err(Errno::EXIST));
        // At the same time: one of the two made it, whichever.
        let both = |second: (u64, u64)| {
            orders(vec![
                vec![call(0, "n", exists.clone(), (0, 2))],
                vec![call(1, "n", made.clone(), second)],
            ])
        };
        let whole = [(1, 1), (1, 1)];
        assert!(both((1, 3)).is_right(&whole, &tree(&["n"])));
        assert!(!both((1, 3)).is_right(&whole, &tree(&[])));
        // One after the other: the first cannot have found what the second made.
        assert!(!both((3, 4)).is_right(&whole, &tree(&["n"])));
        // In progress: done or not, whatever it answered later.
        let cut = [(0, 1), (0, 1)];
        assert!(both((1, 3)).is_right(&cut, &tree(&[])));
        assert!(both((1, 3)).is_right(&cut, &tree(&["n"])));
        assert!(!both((1, 3)).is_right(&cut, &tree(&["m"])));
    }
}
