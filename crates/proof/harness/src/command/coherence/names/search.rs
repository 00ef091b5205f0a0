//! Looks for an order of calls: each takes effect in one moment between its beginning and its end, and gives what names denote then.
//!
//! All orders are followed at once, as *states*: what each name denotes, and which of the calls that go on have taken effect. When a call
//! returns, states in which it has not are given up, unless those that go on can be put before it. A call that only looks takes effect
//! as soon as it can: that takes nothing from any order. What a call would not change for another one is not put before it: it can come later as well.
//! After Wing and Gong, 1993, and Lowe, 2017.
//!
//! A link looks at its first name and makes its second one in two moments. What a directory is by number nobody who made it knows: the first
//! look says it ([`Inode::is_unknown`](super::table::Inode)).

use std::collections::HashSet;

use super::super::log::NEVER;
use super::table::{Act, Id, NOTHING, Op, Place, Table};

/// More are not followed: then nothing is known.
const STATES_MAX: usize = 20_000;
/// So many acts may go on at a time: one bit each.
const OPEN_MAX: usize = 128;

/// What is so far, in one of the orders.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    names: Vec<Id>,
    /// Of those that go on: which have taken effect.
    done: u128,
    /// What the first names of links that go on denoted meanwhile.
    held: Vec<(u8, Id)>,
}

/// Why there is none.
#[derive(Debug)]
pub struct NoOrder {
    pub how: &'static str,
    /// A name of the first call that has no place.
    pub place: Option<Place>,
    /// Calls of which one cannot be right; that one last.
    pub calls: Vec<usize>,
}

struct Search<'t> {
    table: &'t Table,
    /// Acts that go on, by their bit.
    open: Vec<Option<Op>>,
    states: HashSet<State>,
}

/// Whether all of them have an order.
pub fn search(table: &Table, ops: &[Op]) -> Result<(), NoOrder> {
    // Begins come before ends of the same time: then the two are at once.
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * ops.len());
    for (at, op) in ops.iter().enumerate() {
        events.push((op.start, false, at));
        if op.end != NEVER {
            events.push((op.end, true, at));
        }
    }
    events.sort_unstable();
    let mut search = Search {
        table,
        open: Vec::new(),
        states: HashSet::from([State {
            names: vec![NOTHING; table.places()],
            done: 0,
            held: Vec::new(),
        }]),
    };
    let mut bits = vec![0; ops.len()];
    for (_, is_end, at) in events {
        let op = ops[at];
        if is_end {
            search.ends(bits[at]);
            if search.states.is_empty() {
                return Err(NoOrder {
                    how: "no order of calls gives this",
                    place: Some(op.act.places()[0]),
                    calls: around(ops, at),
                });
            }
        } else {
            bits[at] = search.begins(op);
        }
        if search.states.len() > STATES_MAX || search.open.len() > OPEN_MAX {
            return Err(NoOrder {
                how: "too many orders to say",
                place: Some(op.act.places()[0]),
                calls: vec![op.call],
            });
        }
    }
    Ok(())
}

/// The calls to show for one that has no place: those on its names just before and meanwhile, that one last.
fn around(ops: &[Op], at: usize) -> Vec<usize> {
    let failed = ops[at];
    let names = failed.act.places();
    let about = |op: &&Op| op.act.places().iter().any(|place| names.contains(place));
    let mut meanwhile: Vec<Op> = ops
        .iter()
        .filter(about)
        .filter(|op| op.start < failed.end)
        .copied()
        .collect();
    meanwhile.sort_unstable_by_key(|op| op.end.min(failed.end));
    let shown = meanwhile.split_off(meanwhile.len().saturating_sub(16));
    let mut calls: Vec<usize> = shown.iter().map(|op| op.call).collect();
    calls.retain(|&call| call != failed.call);
    calls.dedup();
    calls.push(failed.call);
    calls
}

impl Search<'_> {
    fn begins(&mut self, op: Op) -> usize {
        let free = self.open.iter().position(Option::is_none);
        let bit = free.unwrap_or(self.open.len());
        if bit == self.open.len() {
            self.open.push(None);
        }
        if bit >= OPEN_MAX {
            return bit;
        }
        self.open[bit] = Some(op);
        let before = std::mem::take(&mut self.states);
        for mut state in before {
            if let Some(place) = op.act.holds() {
                state.hold(bit, state.names[place]);
            }
            for looked in self.let_look(state) {
                self.states.insert(looked);
            }
        }
        bit
    }

    fn ends(&mut self, bit: usize) {
        let Some(Some(op)) = self.open.get(bit).copied() else {
            return;
        };
        let mask = 1 << bit;
        let movers = self.needed_by(op);
        let mut after = HashSet::new();
        let before = std::mem::take(&mut self.states);
        let mut seen: HashSet<State> = before.clone();
        let mut waiting: Vec<State> = before.into_iter().collect();
        while let Some(mut state) = waiting.pop() {
            if state.done & mask != 0 {
                state.done &= !mask;
                state.held.retain(|(of, _)| usize::from(*of) != bit);
                after.insert(state);
                continue;
            }
            for &mover in movers.iter().filter(|&&m| state.done >> m & 1 == 0) {
                for moved in self.moved(&state, mover) {
                    for next in self.let_look(moved) {
                        if seen.insert(next.clone()) {
                            waiting.push(next);
                        }
                    }
                }
            }
            if seen.len() > STATES_MAX * 4 {
                break;
            }
        }
        self.open[bit] = None;
        self.states = after;
    }

    /// Those that go on and change names, and that can matter for `op`: by its names, or by others that do.
    fn needed_by(&self, op: Op) -> Vec<usize> {
        let mut names = vec![false; self.table.places()];
        op.act.places().into_iter().for_each(|p| names[p] = true);
        let open = || self.open.iter().flatten();
        loop {
            let mut grows = false;
            for other in open() {
                let places = other.act.places();
                let touches = places.iter().any(|&p| names[p]);
                for place in places.into_iter().filter(|_| touches) {
                    grows |= !std::mem::replace(&mut names[place], true);
                }
            }
            if !grows {
                break;
            }
        }
        let matters = |op: &Op| op.act.changes() && op.act.places().iter().any(|&p| names[p]);
        let open = self.open.iter().enumerate();
        open.filter(|(_, op)| op.as_ref().is_some_and(matters))
            .map(|(bit, _)| bit)
            .collect()
    }

    /// The states in which a change has just taken effect: more than one where it is not known what it was.
    fn moved(&self, state: &State, bit: usize) -> Vec<State> {
        let Some(op) = self.open[bit] else {
            return Vec::new();
        };
        let names = &state.names;
        let inode = |place: Place| self.table.inode(names[place]);
        let is_there = |place: Place| names[place] != NOTHING;
        let is_file = |place: Place| is_there(place) && !inode(place).is_dir;
        let changed: Vec<Vec<(Place, Id)>> = match op.act {
            Act::Make(a, id) if !is_there(a) => vec![vec![(a, id)]],
            Act::Open(a, id) if !is_there(a) && !self.table.inode(id).is_claimed => {
                vec![vec![(a, id)]]
            }
            Act::Give(a, id) if !is_there(a) || inode(a).is_dir == self.table.inode(id).is_dir => {
                vec![vec![(a, id)]]
            }
            // Two names of one file: nothing happens.
            Act::Move(a, b) if is_there(a) && names[a] == names[b] => vec![vec![]],
            Act::Move(a, b)
                if is_there(a) && (!is_there(b) || inode(a).is_dir == inode(b).is_dir) =>
            {
                vec![vec![(b, names[a]), (a, NOTHING)]]
            }
            Act::MoveNew(a, b) if is_there(a) && !is_there(b) => {
                vec![vec![(b, names[a]), (a, NOTHING)]]
            }
            Act::Swap(a, b) if is_there(a) && is_there(b) => {
                vec![vec![(a, names[b]), (b, names[a])]]
            }
            Act::Link(_, b) if !is_there(b) => {
                let held = state.held_by(bit);
                let files = held.filter(|&id| id != NOTHING && !self.table.inode(id).is_dir);
                files.map(|id| vec![(b, id)]).collect()
            }
            Act::Unlink(a) if is_file(a) => vec![vec![(a, NOTHING)]],
            Act::Rmdir(a) if is_there(a) && inode(a).is_dir => vec![vec![(a, NOTHING)]],
            _ => Vec::new(),
        };
        let after = |changes: Vec<(Place, Id)>| {
            let mut state = state.clone();
            state.done |= 1 << bit;
            for (place, id) in changes {
                state.names[place] = id;
                for (holder, op) in self.open.iter().enumerate() {
                    if op.is_some_and(|op| op.act.holds() == Some(place)) {
                        state.hold(holder, id);
                    }
                }
            }
            state
        };
        changed.into_iter().map(after).collect()
    }

    /// All that go on and only look have looked, as far as they see what they gave.
    fn let_look(&self, state: State) -> Vec<State> {
        let mut looked = Vec::new();
        let mut waiting = vec![state];
        while let Some(mut state) = waiting.pop() {
            for (bit, op) in self.open.iter().enumerate() {
                let Some(op) = op.filter(|_| state.done >> bit & 1 == 0) else {
                    continue;
                };
                if self.sees(&state, bit, op.act) {
                    state.done |= 1 << bit;
                } else if let Some((unknown, id)) = self.may_be(&state, op.act) {
                    // Or it looks later, at something else.
                    let mut named = state.clone();
                    named.done |= 1 << bit;
                    named.name(unknown, id);
                    waiting.push(named);
                }
            }
            looked.push(state);
        }
        looked
    }

    /// Whether what a call gave is so now.
    fn sees(&self, state: &State, bit: usize, act: Act) -> bool {
        let names = &state.names;
        let inode = |place: Place| self.table.inode(names[place]);
        let is_there = |place: Place| names[place] != NOTHING;
        let is_dir = |place: Place| is_there(place) && inode(place).is_dir;
        let is_file = |place: Place| is_there(place) && !inode(place).is_dir;
        match act {
            Act::See(a, id) | Act::Open(a, id) => names[a] == id,
            Act::List(a, None) => !is_there(a),
            Act::List(a, Some(entry)) => {
                let inode = inode(a);
                let is_same = inode.is_unknown || inode.ino == entry.ino;
                is_there(a) && inode.is_dir == entry.is_dir && is_same
            }
            Act::There(a) => is_there(a),
            Act::IsDir(a) => is_dir(a),
            Act::IsFile(a) => is_file(a),
            Act::Lacks(a, b) => !is_there(a) || !is_there(b),
            Act::Both(a, b) => is_there(a) && is_there(b),
            Act::Kinds(a, b, true) => is_dir(a) && is_file(b),
            Act::Kinds(a, b, false) => is_file(a) && is_dir(b),
            // The kernel counts a file's names itself, one less at each unlink, and may have heard of the unlink before: then it takes a
            // file with one name for one without (fuse_entry_unlinked, fs/fuse/dir.c).
            Act::NoSource(a) => {
                let is_file = |id: Id| id != NOTHING && !self.table.inode(id).is_dir;
                !is_there(a) || state.held_by(bit).any(is_file)
            }
            Act::DirSource(_) => state.held_by(bit).any(|id| self.table.inode(id).is_dir),
            _ => false,
        }
    }

    /// What nobody knows by number yet, and would be what a look has seen.
    fn may_be(&self, state: &State, act: Act) -> Option<(Id, Id)> {
        let (Act::See(place, id) | Act::Open(place, id)) = act else {
            return None;
        };
        let (there, seen) = (self.table.inode(state.names[place]), self.table.inode(id));
        let fits = id != NOTHING && !seen.is_claimed && seen.is_dir == there.is_dir;
        let is_new = !state.names.contains(&id);
        (there.is_unknown && fits && is_new).then_some((state.names[place], id))
    }
}

impl State {
    fn hold(&mut self, bit: usize, id: Id) {
        let held = (bit as u8, id);
        if let Err(at) = self.held.binary_search(&held) {
            self.held.insert(at, held);
        }
    }

    fn held_by(&self, bit: usize) -> impl Iterator<Item = Id> {
        let of_bit = move |held: &&(u8, Id)| usize::from(held.0) == bit;
        self.held.iter().filter(of_bit).map(|held| held.1)
    }

    fn name(&mut self, unknown: Id, id: Id) {
        let held = self.held.iter_mut().map(|held| &mut held.1);
        for known in self.names.iter_mut().chain(held) {
            if *known == unknown {
                *known = id;
            }
        }
        self.held.sort_unstable();
    }
}
