//! Which workloads there are: all of one and two operations, samples of more.
//!
//! A workload is a function of kind, number and seed, so a shard needs no list, and a run that
//! ends early has seen an even sample: numbers of the small kinds are scattered.

use shale_bench::chance::Chance;
use shale_model::workload::alphabet::{OPEN, alphabet, concerns, tree};
use shale_model::workload::huge::is_huge;
use shale_model::workload::programs::{PROGRAMS, Program};
use shale_model::workload::words::{RANDOM_END, RANDOM_FROM, Step, Workload};
use shale_model::{Act, FileAct, Memory, Side};

/// Clients of the kind with several.
const CLIENTS: u64 = 2;
/// Files that workloads of the kind `near` are about.
const NEAR: [&str; 4] = ["d/f", "d/g", "d/e", "big"];
/// Third operations that each pair is followed by, one at a time.
pub const THIRDS: u64 = 16;
/// A prime, and no divisor of any count: steps through all numbers of a kind.
const STRIDE: u64 = 7_368_787;

/// What kind of workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// One operation; digest nowhere or after; blocks stolen or logged; the ring's end met or
    /// not; old records in the log or not.
    Ones,
    /// Two operations; digest nowhere, between, or after.
    Pairs,
    /// Three operations, digests anywhere: each pair with [`THIRDS`] third ones.
    Triples,
    /// Three to ten operations on one file and its names, sampled: they meet.
    Near,
    /// Tens of operations, sampled.
    Long,
    /// Two clients that take turns, sampled.
    Two,
    /// Two threads of one client at the same time, sampled. What happens is not the same each time.
    Threads,
    /// A volume is made over another one.
    Mkfs,
    /// The first client is a mount that survives kills of its daemon, sampled.
    Requests,
    /// Two to four clients at the same time on one tree, sampled. What happens is not the same
    /// each time.
    Clients,
    /// Operations of real programs, recorded; digests anywhere.
    Programs,
    /// A thousand operations of two to four clients in turns, with power cuts, unmounts and
    /// deaths of clients, after which it goes on.
    Runs,
    /// A run on a volume with lower tiers: large writes, moves out of NVM, cleaning, faults.
    Tiers,
    /// Up to three writes above 1 MiB and what meets them, sampled.
    Huge,
}

impl Kind {
    /// All kinds, the smallest first.
    pub const ALL: [Kind; 14] = [
        Kind::Ones,
        Kind::Pairs,
        Kind::Triples,
        Kind::Near,
        Kind::Long,
        Kind::Two,
        Kind::Threads,
        Kind::Mkfs,
        Kind::Requests,
        Kind::Clients,
        Kind::Programs,
        Kind::Runs,
        Kind::Tiers,
        Kind::Huge,
    ];

    /// Of buffered clients, and how many of each.
    pub const BUFFERED: [(Kind, u64); 7] = [
        (Kind::Ones, 3_000),
        (Kind::Pairs, 6_000),
        (Kind::Triples, 3_000),
        (Kind::Near, 1_500),
        (Kind::Long, 300),
        (Kind::Two, 6_000),
        (Kind::Programs, 20),
    ];

    /// Its name in commands.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ones => "ones",
            Kind::Pairs => "pairs",
            Kind::Triples => "triples",
            Kind::Near => "near",
            Kind::Long => "long",
            Kind::Two => "two",
            Kind::Threads => "threads",
            Kind::Mkfs => "mkfs",
            Kind::Requests => "requests",
            Kind::Clients => "clients",
            Kind::Programs => "programs",
            Kind::Runs => "runs",
            Kind::Tiers => "tiers",
            Kind::Huge => "huge",
        }
    }

    /// How many workloads there are; none: as many as one likes.
    pub fn count(self) -> Option<u64> {
        let items = alphabet().len() as u64;
        match self {
            Kind::Ones => Some(16 * items),
            Kind::Pairs => Some(3 * items * items),
            Kind::Triples => Some(THIRDS * items * items),
            Kind::Mkfs => Some(1),
            _ => None,
        }
    }

    /// Workload number `number`; numbers that follow one another are far from each other.
    pub fn workload(self, number: u64, seed: u64) -> Workload {
        let number = match self.count() {
            Some(count) => (number % count).wrapping_mul(STRIDE).wrapping_add(seed) % count,
            None => number,
        };
        self.in_order(number, seed)
    }

    /// Workload number `number`; those of the small kinds that follow one another begin alike.
    pub fn in_order(self, number: u64, seed: u64) -> Workload {
        let items = alphabet().len() as u64;
        let item = |n| Step::Item {
            client: 0,
            item: (n % items) as usize,
        };
        let mut chance = Chance::new(seed.rotate_left(24) ^ number ^ (self as u64) << 56);
        match self {
            Kind::Ones => {
                let steps = [item(number / 16), Step::Digest];
                Workload {
                    steps: steps[..1 + (number % 2) as usize].to_vec(),
                    log_all: number / 2 % 2 == 1,
                    wraps: number / 4 % 2 == 1,
                    turned: number / 8 % 2 == 1,
                    ..Workload::default()
                }
            }
            Kind::Pairs => {
                let mut steps = vec![item(number / 3 / items), item(number / 3 % items)];
                if !number.is_multiple_of(3) {
                    steps.insert((number % 3) as usize, Step::Digest);
                }
                sometimes(&mut chance, steps)
            }
            Kind::Triples => triple(number, seed),
            Kind::Near => near(&mut chance),
            Kind::Long => {
                let length = 8 + chance.below(40);
                sampled(&mut chance, length, 6, 1)
            }
            Kind::Two => {
                let length = 3 + chance.below(8);
                sampled(&mut chance, length, 6, CLIENTS)
            }
            Kind::Threads => threads(&mut chance, number),
            Kind::Runs => long_run(&mut chance),
            Kind::Tiers => tiers(&mut chance),
            Kind::Huge => huge(&mut chance),
            Kind::Programs => program(&mut chance, number as usize),
            Kind::Mkfs => Workload {
                mkfs: true,
                ..Workload::default()
            },
            Kind::Clients => {
                let clients = 2 + chance.below(5) / 2;
                let length = clients + chance.below(8);
                Workload {
                    at_once: true,
                    turned: false,
                    ..sampled(&mut chance, length, 6, clients)
                }
            }
            Kind::Requests => {
                let length = 1 + chance.below(8);
                let clients = 1 + chance.below(4) / 3;
                Workload {
                    requests: true,
                    turned: false,
                    ..sampled(&mut chance, length, 6, clients)
                }
            }
        }
    }
}

/// All with one pair follow one another and begin alike: what they store until their third
/// operation is the same, and looked at once.
fn triple(number: u64, seed: u64) -> Workload {
    let items = alphabet().len() as u64;
    let (pair, nth) = (number / THIRDS, number % THIRDS);
    let mut chance = Chance::new(seed.rotate_left(24) ^ pair ^ (Kind::Triples as u64) << 56);
    let first = chance.below(items);
    let third = (first + nth * (items / THIRDS)) % items;
    let mut steps = Vec::new();
    let digest = |chance: &mut Chance| chance.below(4) == 0;
    for item in [pair / items % items, pair % items] {
        let item = item as usize;
        steps.push(Step::Item { client: 0, item });
        steps.extend(digest(&mut chance).then_some(Step::Digest));
    }
    let workload = sometimes(&mut chance, Vec::new());
    let item = third as usize;
    steps.push(Step::Item { client: 0, item });
    let mut chance = Chance::new(seed.rotate_left(24) ^ number ^ (Kind::Triples as u64) << 48);
    steps.extend(digest(&mut chance).then_some(Step::Digest));
    workload.with(steps)
}

/// Two threads; every second time at the end of a ring, where they meet nowhere else.
fn threads(chance: &mut Chance, number: u64) -> Workload {
    let length = 4 + chance.below(16);
    Workload {
        threads: true,
        wraps: number.is_multiple_of(2),
        turned: false,
        ..sampled(chance, length, 8, CLIENTS)
    }
}

/// Program number `number`: the first round without digests, then with more or less of them.
fn program(chance: &mut Chance, number: usize) -> Workload {
    let program = Program::numbered(number);
    let digest_every = 4 + chance.below(40);
    let mut steps = Vec::new();
    for item in 0..program.acts().len() {
        steps.push(Step::Item { client: 0, item });
        if number >= PROGRAMS && chance.below(digest_every) == 0 {
            steps.push(Step::Digest);
        }
    }
    Workload {
        program: Some(program),
        ..sometimes(chance, steps)
    }
}

/// Operations of a run.
const RUN_LENGTH: usize = 1_000;
/// In a run, one operation in so many is followed by that.
const DIGEST_ONE_IN: u64 = 40;
const CUT_ONE_IN: u64 = 160;
const STOP_ONE_IN: u64 = 330;
const KILL_ONE_IN: u64 = 330;

/// Operations that are tried until one is not refused.
const TRIES: usize = 6;

/// After a fault the files of a client are closed, and those that it begins with are opened.
pub(crate) fn open_again(model: &mut Memory, step: Step, clients: usize) {
    let who = match step {
        Step::Cut | Step::Stop => 0..clients,
        Step::Kill(client) => client..client + 1,
        _ => return,
    };
    for client in who {
        crate::recording::legs::close_all(model, client);
        if matches!(step, Step::Kill(_)) {
            continue;
        }
        for (slot, (path, flags)) in OPEN.into_iter().enumerate() {
            let _ = model.act(&Act::Open(slot, path.as_bytes().to_vec(), flags, 0));
        }
    }
}

/// Half of the operations are the alphabet's, half are random ones; most of them are not refused.
fn long_run(chance: &mut Chance) -> Workload {
    let items = alphabet().len() as u64;
    let random = (RANDOM_END - RANDOM_FROM) as u64;
    let clients = 2 + chance.below(3);
    let mut model = Memory::new(0o755);
    for act in tree() {
        let _ = model.act(&act);
    }
    let run = Workload {
        run: true,
        ..Workload::default()
    };
    let mut steps = Vec::new();
    open_again(&mut model, Step::Stop, clients as usize);
    for _ in 0..RUN_LENGTH {
        let client = chance.below(clients) as usize;
        model.set_client(client);
        for left in (0..TRIES).rev() {
            let item = match chance.below(2) {
                0 => chance.below(items) as usize,
                _ => RANDOM_FROM + chance.below(random) as usize,
            };
            if model.act(&run.act(item, steps.len())).is_ok() || left == 0 {
                steps.push(Step::Item { client, item });
                break;
            }
        }
        let more = [
            (DIGEST_ONE_IN, Step::Digest),
            (KILL_ONE_IN, Step::Kill(chance.below(clients) as usize)),
            (STOP_ONE_IN, Step::Stop),
            (CUT_ONE_IN, Step::Cut),
        ];
        for (one_in, step) in more {
            if chance.below(one_in) == 0 {
                open_again(&mut model, step, clients as usize);
                steps.push(step);
            }
        }
    }
    Workload {
        run: true,
        turned: false,
        ..sometimes(chance, steps)
    }
}

/// Steps of a run with tiers.
const TIERS_LENGTH: u64 = 24;

/// Operations that are tried for one in the midst of a move.
const TIERS_TRIES: usize = 60;

/// The file that an operation writes.
fn slot_written(act: &Act) -> Option<usize> {
    match act {
        Act::File(slot, FileAct::Write(..)) => Some(*slot),
        _ => None,
    }
}

/// Mostly writes, and every few steps everything moves down, half of the times with another operation
/// in the midst of it.
fn tiers(chance: &mut Chance) -> Workload {
    let clients = 1 + chance.below(4) / 3;
    let mut model = Memory::new(0o755);
    for act in tree() {
        let _ = model.act(&act);
    }
    open_again(&mut model, Step::Stop, clients as usize);
    let run = Workload {
        run: true,
        tiers: true,
        ..Workload::default()
    };
    let (mut steps, mut written) = (Vec::new(), None);
    for _ in 0..TIERS_LENGTH {
        let client = chance.below(clients) as usize;
        let mut item = 0;
        let migrates = chance.below(4) == 0;
        model.set_client(if migrates { 0 } else { client });
        let meanwhile = chance.below(2) == 0;
        for left in (0..TIERS_TRIES).rev() {
            item = RANDOM_FROM + chance.below((RANDOM_END - RANDOM_FROM) as u64) as usize;
            let act = run.act(item, steps.len());
            // What is in the midst of a move had best write what moves.
            let near = !(migrates && meanwhile) || written == slot_written(&act);
            if (near || left < TRIES) && model.clone().act(&act).is_ok() {
                if slot_written(&act).is_some() {
                    written = slot_written(&act);
                }
                break;
            }
        }
        if !migrates || meanwhile {
            let _ = model.act(&run.act(item, steps.len()));
        }
        steps.push(match migrates {
            true => Step::Migrate(meanwhile.then_some(item)),
            false => Step::Item { client, item },
        });
        let more = [(6, Step::Digest), (24, Step::Stop), (10, Step::Cut)];
        for (one_in, step) in more {
            if chance.below(one_in) == 0 {
                open_again(&mut model, step, clients as usize);
                steps.push(step);
            }
        }
    }
    Workload {
        log_all: chance.below(3) == 0,
        wraps: chance.below(3) == 0,
        ..run.with(steps)
    }
}

/// Steps with writes above 1 MiB: more would fill the log so far that it is digested by itself.
const HUGE_STEPS: usize = 3;

/// A few operations of [`workload::huge`](shale_model::workload::huge), the last of them a huge write.
fn huge(chance: &mut Chance) -> Workload {
    let length = 1 + chance.below(HUGE_STEPS as u64) as usize;
    let kind = Workload {
        huge: true,
        ..Workload::default()
    };
    let mut steps = Vec::new();
    for left in (0..length).rev() {
        let item = loop {
            let item = RANDOM_FROM + chance.below((RANDOM_END - RANDOM_FROM) as u64) as usize;
            if left > 0 || is_huge(&kind.act(item, 0)) {
                break item;
            }
        };
        steps.push(Step::Item { client: 0, item });
        if chance.below(4) == 0 {
            steps.push(Step::Digest);
        }
    }
    Workload {
        huge: true,
        ..sometimes(chance, steps)
    }
}

/// Operations on one name.
fn near(chance: &mut Chance) -> Workload {
    let name = NEAR[chance.below(NEAR.len() as u64) as usize];
    let length = 3 + chance.below(8);
    let all = alphabet();
    let near = |item: &usize| concerns(&all[*item], name);
    let items: Vec<usize> = (0..all.len()).filter(near).collect();
    let pick = |chance: &mut Chance| items[chance.below(items.len() as u64) as usize];
    let steps = drawn(chance, length, 3, 1, pick);
    sometimes(chance, steps)
}

/// A third without stealing, a third at the end of the ring, a quarter in logs that have gone
/// around.
fn sometimes(chance: &mut Chance, steps: Vec<Step>) -> Workload {
    Workload {
        steps,
        log_all: chance.below(3) == 0,
        wraps: chance.below(3) == 0,
        turned: chance.below(4) == 0,
        ..Workload::default()
    }
}

/// `length` operations, a digest after one in `digest_every`.
fn sampled(chance: &mut Chance, length: u64, digest_every: u64, clients: u64) -> Workload {
    let items = alphabet().len() as u64;
    let any = |chance: &mut Chance| chance.below(items) as usize;
    let steps = drawn(chance, length, digest_every, clients, any);
    sometimes(chance, steps)
}

fn drawn(
    chance: &mut Chance,
    length: u64,
    digest_every: u64,
    clients: u64,
    pick: impl Fn(&mut Chance) -> usize,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for _ in 0..length {
        steps.push(Step::Item {
            client: chance.below(clients) as usize,
            item: pick(chance),
        });
        if chance.below(digest_every) == 0 {
            steps.push(Step::Digest);
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_small_workload_comes_once() {
        for kind in [Kind::Ones, Kind::Pairs] {
            let count = kind.count().unwrap();
            let all = (0..count).map(|n| kind.workload(n, 5));
            let key = |w: Workload| {
                (kind == Kind::Ones)
                    .then(|| w.to_string())
                    .unwrap_or(format!("{:?}", w.steps))
            };
            let all: HashSet<String> = all.map(key).collect();
            assert_eq!(all.len() as u64, count, "{kind:?}");
        }
        let (count, some) = (Kind::Triples.count().unwrap(), 40 * THIRDS);
        let all = (0..some).map(|n| Kind::Triples.in_order(n, 5));
        let without_digests = |w: Workload| {
            let items = w.steps.into_iter().filter(|&step| step != Step::Digest);
            items.collect::<Vec<_>>()
        };
        let all: HashSet<_> = all.map(without_digests).collect();
        assert_eq!(all.len() as u64, some);
        let last = without_digests(Kind::Triples.in_order(count - 1, 5));
        let item = alphabet().len() - 1;
        assert_eq!(last[..2], [Step::Item { client: 0, item }; 2]);
        assert_eq!(Kind::Long.workload(3, 5), Kind::Long.workload(3, 5));
        assert_ne!(Kind::Long.workload(3, 5), Kind::Long.workload(3, 6));
    }
}
