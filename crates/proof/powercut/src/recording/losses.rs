//! What a power cut may leave of buffered clients that take turns on one tree.
//!
//! Of each client the first of its calls are kept, all up to some point: at least those before the last fsync of its own, the last sync of
//! anybody, and the last digest. What is kept of all of them comes to the tree, in the order in which it was done.
//!
//! And what one client could have seen of another one is kept, since a lease moves behind a digest: with what is kept of the others, each
//! call of a client that had returned answers in the model as it did, also where the call itself is lost; and if it changed a file or
//! directory in place, so is each such change by another client that came before it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use parking_lot::Mutex;

use crate::recording::track::{Parts, parts};
use shale_model::{Act, FileAct, Memory, Outcome, Side, Snapshot};

/// One call of a client.
#[derive(Debug)]
struct Turn {
    client: usize,
    /// Which of its client's calls.
    number: usize,
    act: Act,
    outcome: Outcome,
    /// Files and directories that it changed in place, by identity.
    changed: BTreeSet<u64>,
}

/// How many calls of each client.
type Kept = Vec<usize>;

/// The calls of buffered clients that took turns.
#[derive(Debug)]
pub struct Losses {
    /// Before the first call.
    before: Memory,
    /// After the last one.
    model: Memory,
    turns: Vec<Turn>,
    /// Of each client: how many of its calls are among the first steps of its tracks.
    calls: Vec<Vec<usize>>,
    /// The tree that each choice of calls comes to.
    trees: Mutex<HashMap<Kept, Parts>>,
}

/// Whether an operation changes what a file or directory is, and no name.
fn is_in_place(act: &Act) -> bool {
    match act {
        Act::Chmod(..) | Act::Chown(..) | Act::Truncate(..) => true,
        Act::SetXattr(..) | Act::RemoveXattr(..) => true,
        Act::File(_, act) => !matches!(act, FileAct::Link(_)),
        _ => false,
    }
}

type Facts = BTreeMap<u64, shale_model::snapshot::Facts>;

/// What every file and directory is, whatever its names.
fn facts(model: &mut Memory) -> Facts {
    let tree = Snapshot::of(model).expect("the model's tree can be walked");
    let of = tree.paths.into_iter().filter_map(|(path, mut facts)| {
        facts.same_as = None;
        Some((model.identity(&path).ok()?, facts))
    });
    of.collect()
}

impl Losses {
    /// Of `clients` clients that begin with `model`.
    pub fn new(clients: usize, model: Memory) -> Losses {
        Losses {
            before: model.clone(),
            model,
            turns: Vec::new(),
            calls: vec![vec![0]; clients],
            trees: Mutex::default(),
        }
    }

    /// A step that is in the tracks of these clients; a call, if it is one of the first of them.
    pub fn step(&mut self, clients: &[usize], call: Option<Act>) {
        for &client in clients {
            let calls = *self.calls[client].last().expect("there is a first");
            self.calls[client].push(calls + usize::from(call.is_some()));
        }
        let Some(act) = call else { return };
        let client = clients[0];
        self.model.set_client(client);
        let in_place = is_in_place(&act);
        let was = in_place.then(|| facts(&mut self.model));
        let outcome = self.model.act(&act);
        let is = in_place.then(|| facts(&mut self.model));
        let mut changed = BTreeSet::new();
        if let (Some(was), Some(is)) = (was, is) {
            let other = |(id, facts): &(&u64, _)| was.get(id).is_some_and(|was| was != *facts);
            changed.extend(is.iter().filter(other).map(|(id, _)| *id));
        }
        let number = self.calls[client].last().map_or(0, |calls| calls - 1);
        self.turns.push(Turn {
            client,
            number,
            act,
            outcome,
            changed,
        });
    }

    /// Of each client the least calls that are kept, the most, and how many had returned: `windows` are those of the tracks that end with
    /// the last promise, then those of the tracks that end with the last step.
    fn ranges(&self, windows: &[(usize, usize)]) -> Vec<(usize, usize, usize)> {
        let clients = self.calls.len();
        let of = |client: usize| {
            let calls = &self.calls[client];
            let (promised, begun) = windows[client];
            (
                calls[promised],
                calls[begun],
                calls[windows[clients + client].0],
            )
        };
        (0..clients).map(of).collect()
    }

    /// The tree with these calls, and no others.
    fn tree(&self, kept: &Kept) -> Snapshot {
        let mut model = self.before.clone();
        for turn in self.turns.iter().filter(|t| t.number < kept[t.client]) {
            model.set_client(turn.client);
            let _ = model.act(&turn.act);
        }
        Snapshot::of(&mut model).expect("the model's tree can be walked")
    }

    fn parts(&self, kept: &Kept) -> Parts {
        if let Some(known) = self.trees.lock().get(kept) {
            return *known;
        }
        let found = parts(&self.tree(kept));
        self.trees.lock().insert(kept.clone(), found);
        found
    }

    /// The first call of a client that saw something which is not kept, where `returned` of its calls had.
    fn unexplained(&self, kept: &Kept, client: usize, returned: usize) -> Option<&Turn> {
        let end = returned.max(kept[client]);
        let mut model = self.before.clone();
        for (n, turn) in self.turns.iter().enumerate() {
            let own = turn.client == client;
            if turn.number >= if own { end } else { kept[turn.client] } {
                continue;
            }
            model.set_client(turn.client);
            let outcome = model.act(&turn.act);
            if own && (outcome != turn.outcome || self.follows_a_lost_one(kept, n)) {
                return Some(turn);
            }
        }
        None
    }

    /// Whether turn `n` changed something in place that a call of another client had changed so, which is not kept.
    fn follows_a_lost_one(&self, kept: &Kept, n: usize) -> bool {
        let (earlier, turn) = (&self.turns[..n], &self.turns[n]);
        let others = earlier.iter().filter(|t| t.client != turn.client);
        let mut lost = others.filter(|t| t.number >= kept[t.client]);
        lost.any(|t| !t.changed.is_disjoint(&turn.changed))
    }

    /// All choices of calls within these ranges.
    fn choices(ranges: &[(usize, usize, usize)]) -> Vec<Kept> {
        let mut all = vec![Kept::new()];
        for &(least, most, _) in ranges {
            let with = |kept: &Kept, n| [&kept[..], &[n]].concat();
            let longer = |kept: Kept| (least..=most).map(move |n| with(&kept, n));
            all = all.into_iter().flat_map(longer).collect();
        }
        all
    }

    /// Whether calls that a power cut may leave at this moment come to this tree.
    pub fn is_right(&self, windows: &[(usize, usize)], tree: &Parts) -> bool {
        let ranges = self.ranges(windows);
        // Most often nearly all is kept.
        Self::choices(&ranges).into_iter().rev().any(|kept| {
            let mut clients = ranges.iter().enumerate();
            self.parts(&kept) == *tree
                && clients.all(|(client, range)| self.unexplained(&kept, client, range.2).is_none())
        })
    }

    /// Why `found` is not right, for people.
    pub fn explain(&self, windows: &[(usize, usize)], found: &Snapshot) -> String {
        let (ranges, tree) = (self.ranges(windows), parts(found));
        let whole = |calls: &Vec<usize>| (0, *calls.last().expect("there is a first"), 0);
        let all: Vec<_> = self.calls.iter().map(whole).collect();
        let mut text = "no calls that may be kept give this tree".to_owned();
        for (client, (least, most, returned)) in ranges.iter().enumerate() {
            text += &format!("; of client {client} {least} to {most} are, {returned} returned");
        }
        let mut choices = Self::choices(&all).into_iter();
        match choices.find(|kept| self.parts(kept) == tree) {
            None => {
                let most = ranges.iter().map(|range| range.1).collect();
                let differences = self.tree(&most).differences(found);
                text += &format!("; all give it but for {}", differences.join("; "));
            }
            Some(kept) => {
                text += &format!("; {kept:?} calls of them give it");
                let seen = (0..kept.len())
                    .find_map(|client| self.unexplained(&kept, client, ranges[client].2));
                if let Some(Turn { client, act, .. }) = seen {
                    text += &format!(", without what client {client} found: {act:?}");
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_libfs::OFlags;
    use shale_model::Fill;

    fn path(text: &str) -> Vec<u8> {
        text.as_bytes().to_vec()
    }

    fn mkdir(name: &str) -> Act {
        Act::Mkdir(path(name), 0o755)
    }

    /// The calls of two clients, one after the other.
    fn losses(calls: &[(usize, Act)]) -> Losses {
        let mut losses = Losses::new(2, Memory::new(0o755));
        for (client, act) in calls {
            losses.step(&[*client], Some(act.clone()));
        }
        losses
    }

    fn tree(calls: &[Act]) -> Parts {
        let mut model = Memory::new(0o755);
        for act in calls {
            model.act(act).unwrap();
        }
        parts(&Snapshot::of(&mut model).unwrap())
    }

    /// Nothing was promised; so many calls of each had returned.
    fn returned(first: usize, second: usize) -> [(usize, usize); 4] {
        [(0, first), (0, second), (first, first), (second, second)]
    }

    #[test]
    fn each_client_loses_the_last_of_its_calls() {
        let calls = [(0, mkdir("a")), (1, mkdir("b")), (0, mkdir("c"))];
        let losses = losses(&calls);
        let is_right = |names: &[&str]| {
            let calls: Vec<Act> = names.iter().map(|name| mkdir(name)).collect();
            losses.is_right(&returned(2, 1), &tree(&calls))
        };
        for right in [&[][..], &["a"], &["b"], &["a", "b"], &["a", "b", "c"]] {
            assert!(is_right(right), "{right:?}");
        }
        assert!(!is_right(&["c"]), "the first without the one before it");
        let promised = [(1, 2), (0, 1), (2, 2), (1, 1)];
        assert!(losses.is_right(&promised, &tree(&[mkdir("a")])));
        assert!(!losses.is_right(&promised, &tree(&[mkdir("b")])));
    }

    #[test]
    fn what_another_client_has_seen_is_kept() {
        let calls = [(0, mkdir("a")), (1, Act::Stat(path("a"), true))];
        let losses = losses(&calls);
        let (empty, made) = (tree(&[]), tree(&[mkdir("a")]));
        assert!(losses.is_right(&returned(1, 0), &empty));
        assert!(!losses.is_right(&returned(1, 1), &empty));
        assert!(losses.is_right(&returned(1, 1), &made));
        // It had begun: it may have seen nothing yet.
        assert!(losses.is_right(&[(0, 1), (0, 1), (1, 1), (0, 1)], &empty));
    }

    #[test]
    fn what_another_client_has_written_over_is_kept() {
        let create = OFlags::CREATE | OFlags::RDWR;
        let fill = |seed, len| Fill { seed, len };
        let write = |fill| Act::File(0, FileAct::Write(0, fill));
        let open = Act::Open(0, path("f"), create, 0o644);
        let calls = [
            (0, open.clone()),
            (1, open.clone()),
            (0, write(fill(1, 9))),
            (1, write(fill(2, 4))),
        ];
        let losses = losses(&calls);
        let without = tree(&[open.clone(), write(fill(2, 4))]);
        let with = tree(&[open.clone(), write(fill(1, 9)), write(fill(2, 4))]);
        assert!(!losses.is_right(&returned(2, 2), &without));
        assert!(losses.is_right(&returned(2, 2), &with));
        assert!(!losses.is_right(&returned(2, 2), &tree(&[open])));
    }
}
