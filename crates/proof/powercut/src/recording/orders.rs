//! Which orders of calls that ran at the same time are right, and what they come to.
//!
//! Right is any order that keeps each client's order and real time (a call that had returned
//! before another began comes first), and in which the model answers each call that had returned
//! as the volume did. At a cut, calls in progress may have been done or not. For each moment the
//! trees of all such orders are searched, and what is recovered has to be one of them.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::recording::track::{Parts, parts};
use shale_model::compare::shown;
use shale_model::{Act, Memory, Outcome, Side, Snapshot};

/// Nodes of one search at most: beyond, a moment is not looked at.
const NODES_MAX: usize = 60_000;

/// Steps that had returned and had begun, of each client.
type Windows = Vec<(usize, usize)>;

/// One call of a client.
pub struct Call {
    /// Number of the step.
    pub number: usize,
    /// None: a digest, which changes nothing that can be seen.
    pub act: Option<Act>,
    /// Its answer.
    pub outcome: Outcome,
    /// Real time, as numbers that are given out once.
    pub begun: u64,
    /// Likewise, when it returned.
    pub returned: u64,
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
    /// Of clients that began with `model`.
    pub fn new(clients: Vec<Vec<Call>>, model: Memory) -> Orders {
        Orders {
            clients,
            model,
            known: Mutex::default(),
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use shale_model::Said;

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
        Orders::new(clients, Memory::new(0o755))
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
