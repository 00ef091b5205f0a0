//! Power cuts of volumes without NVM: the memory tier is gone, the device holds what was flushed and, of what came after that, any
//! sectors.
//!
//! Random operations are done by one client or by several in turns, on the model too. Every write and flush of the device is recorded.
//! At every step of it the power may fail: the volume is restored from what the device could hold then, by the daemon's own code, and its tree
//! has to be the model's after some operation: at or after the last one that was promised to be durable, and none that had not
//! begun; of several clients whose calls are not durable at return, one that `fsck` finds no mistake in, all of whose logs are accepted. `strict` promises every operation that returned, `buffered` those before an fsync that returned (of the same client), `ordered`
//! none; a sync that returned all operations of all clients before it, under every policy (of several clients the tree is compared as long as
//! no other operation has begun); and nothing survives without what came before it. The restore is cut, too, and done again. `fsck` looks at each result.

#[cfg(test)]
mod beside;
mod failing;
mod full;
mod stage;
#[cfg(test)]
mod syncs;

pub use failing::{FailingCase, explore_failing};
pub use full::{FullCase, FullTally, explore_full};

use std::path::Path;

use shale_bench::Result;
use shale_bench::chance::Chance;
use shale_daemon::Daemon;
use shale_format::{Durability, TierId};
use shale_libfs::{OFlags, Promise};
use shale_model::compare;
use shale_model::random::{Abilities, Acts};
use shale_model::{Act, FileAct, Fill, Memory, Side, Snapshot};
use shale_record::{BlockReplay, BlockRules, Choice};

use crate::workloads::campaign::Switched;
use crate::wrong::Checked;
use stage::{Client, DEVICE_BYTES, Recorded, Stage, restore};

/// Operations for each sync, about; and where nothing else is promised of all clients.
const SYNC_EVERY: u64 = 25;
const SYNC_OF_MANY_EVERY: u64 = 8;
/// Files that a client has open at most.
const SLOTS: usize = 4;
/// A file that fills most of a zone.
const LARGE: &[u8] = b"large";
const LARGE_BYTES: usize = 700_000;
/// What is written whole or not at all.
const SECTORS: [usize; 2] = [512, 4096];

/// What is tried.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Chooses operations, cuts and what survives them; with an even one digests place every whole block on flash, and of four the last two
    /// have clients that harden later, as the mount does.
    pub seed: u64,
    /// What is promised.
    pub policy: Durability,
    /// Clients that take turns.
    pub clients: usize,
    /// Operations.
    pub acts: usize,
    /// Cuts, at most.
    pub cuts: usize,
    /// What is assumed of the device.
    pub rules: BlockRules,
    /// A deliberate mistake that is switched on while operations run and volumes are restored.
    pub mutant: Option<&'static str>,
}

impl Case {
    /// Case `number` of a campaign: policies and clients by turns.
    pub fn numbered(number: u64, cuts: usize, mutant: Option<&'static str>) -> Case {
        use Durability::{Buffered, Ordered, Strict};
        let turn = (number % 6) as usize;
        Case {
            seed: number,
            policy: [Ordered, Strict, Buffered, Buffered, Strict, Buffered][turn],
            clients: [1, 1, 1, 2, 3, 3][turn],
            acts: 160,
            cuts,
            rules: BlockRules::default(),
            mutant,
        }
    }
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Cuts that were recovered.
    pub cuts: u64,
    /// Of these, in a restore.
    pub restores_cut: u64,
    /// Steps of the device.
    pub steps: u64,
    /// Batches that restores digested.
    pub batches: u64,
    /// Checkpoints while operations ran.
    pub checkpoints: u64,
    /// Bytes that digests placed on flash.
    pub placed_bytes: u64,
    /// Bytes of logs that were hardened by that, and not staged.
    pub hardened_in_place: u64,
    /// Staging areas whose device failed ([`explore_failing`]).
    pub given_up: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, more: Tally) {
        self.cuts += more.cuts;
        self.restores_cut += more.restores_cut;
        self.steps += more.steps;
        self.batches += more.batches;
        self.checkpoints += more.checkpoints;
        self.placed_bytes += more.placed_bytes;
        self.hardened_in_place += more.hardened_in_place;
        self.given_up += more.given_up;
    }
}

/// What an operation left, and when.
struct Done {
    /// Steps of the device before it began.
    begun: usize,
    /// Steps of the device when it had returned.
    returned: usize,
    /// What it promised: that it, and every operation before it of this client, is durable.
    promised: bool,
    /// The same of all clients: it was sync.
    of_all: bool,
    tree: Snapshot,
}

impl Done {
    /// Of a new volume.
    fn before_any(model: &mut Memory) -> Checked<Self> {
        Ok(Self {
            begun: 0,
            returned: 0,
            promised: true,
            of_all: true,
            tree: walk(model)?,
        })
    }
}

fn walk(model: &mut Memory) -> Checked<Snapshot> {
    Snapshot::of(model).map_err(|e| format!("the model: {e}"))
}

/// What fills most of a zone.
fn fill(chance: &mut Chance) -> Fill {
    Fill {
        seed: chance.below(256) as u8,
        len: LARGE_BYTES,
    }
}

/// Has the daemon do at random what it does by itself at times that nobody knows.
fn stir(daemon: &Daemon, chance: &mut Chance) -> shale_daemon::Result<()> {
    match chance.below(60) {
        0 | 1 => daemon.quiesce(),
        2 => daemon.checkpoint()?,
        3 | 4 => drop(daemon.migrate(None)?),
        5 | 6 => {
            daemon.quiesce();
            daemon.volume().erase_zones(TierId::Ssd)?;
        }
        _ => {}
    }
    Ok(())
}

/// What a client does next.
fn next_act(acts: &mut Acts, chance: &mut Chance) -> Act {
    let slot = chance.below(SLOTS as u64) as usize;
    match chance.below(24) {
        0 | 1 => Act::File(slot, FileAct::Sync),
        2 | 3 => Act::Open(slot, LARGE.to_vec(), OFlags::CREATE | OFlags::RDWR, 0o644),
        // The first and the last block keep something of what they held.
        4 | 5 => Act::File(slot, FileAct::Write(1 + chance.below(60), fill(chance))),
        _ => acts.next_act(),
    }
}

/// Whether an operation waits until it, and all before it, is durable.
fn promises(policy: Durability, act: &Act) -> bool {
    match policy {
        Durability::Strict => true,
        Durability::Buffered => matches!(act, Act::File(_, FileAct::Sync)),
        Durability::Ordered => false,
    }
}

/// What the mount would say with the answer.
fn promise_of(act: &Act) -> Promise {
    match act {
        Act::File(_, FileAct::Sync) => Promise::Fsync,
        _ => Promise::Change,
    }
}

/// Does the operations of a case on a volume and on the model.
///
/// Counts checkpoints, and what digests placed on flash.
fn perform(case: &Case, stage: &Stage, recorded: &Recorded) -> Checked<(Vec<Done>, Tally)> {
    let daemon = stage.start(recorded)?;
    let mut clients = Vec::new();
    for _ in 0..case.clients {
        clients.push(Client::of(&daemon, case.seed % 4 >= 2)?);
    }
    let mut model = Memory::new(0o755);
    let mut acts = Acts::new(case.seed, Abilities { ranges: true });
    let mut chance = Chance::new(case.seed ^ 0x57a6ed);
    let mut syncs = Chance::new(case.seed ^ 0x5f5);
    let sync_every = match case.clients == 1 || case.policy == Durability::Strict {
        true => SYNC_EVERY,
        false => SYNC_OF_MANY_EVERY,
    };
    let mut done = vec![Done::before_any(&mut model)?];
    for _ in 0..case.acts {
        let client = chance.below(case.clients as u64) as usize;
        model.set_client(client);
        let act = next_act(&mut acts, &mut chance);
        stir(&daemon, &mut chance).map_err(|e| e.to_string())?;
        let begun = recorded.steps();
        let (should, did) = (model.act(&act), clients[client].side.act(&act));
        if did.is_ok() {
            clients[client].keep(promise_of(&act))?;
        }
        let returned = recorded.steps();
        if should != did {
            let (should, did) = (compare::shown(&should), compare::shown(&did));
            return Err(format!("{act:?}: expected {should}, found {did}"));
        }
        done.push(Done {
            begun,
            returned,
            promised: did.is_ok() && promises(case.policy, &act),
            of_all: false,
            tree: walk(&mut model)?,
        });
        if syncs.below(sync_every) == 0 {
            let begun = recorded.steps();
            clients[client].sync_all()?;
            done.push(Done {
                begun,
                returned: recorded.steps(),
                promised: true,
                of_all: true,
                tree: walk(&mut model)?,
            });
        }
    }
    let status = daemon.status_values();
    let tally = Tally {
        checkpoints: status.staged.as_ref().map_or(0, |s| s.checkpoints),
        hardened_in_place: status.staged.as_ref().map_or(0, |s| s.placed_bytes),
        placed_bytes: status
            .migration
            .map_or(0, |m| m.counts.direct_to_tier_bytes),
        ..Tally::default()
    };
    daemon.abandon();
    std::mem::forget(clients);
    Ok((done, tally))
}

/// Whether a tree is one that a cut after `steps` steps of the device may leave.
fn judge(done: &[Done], steps: usize, found: &Snapshot) -> Checked<()> {
    let least = done
        .iter()
        .rposition(|d| d.promised && d.returned <= steps)
        .unwrap_or(0);
    let begun = done.iter().take_while(|d| d.begun <= steps).count();
    let may = &done[least..begun.max(least + 1)];
    match may.iter().any(|d| d.tree == *found) {
        true => Ok(()),
        false => {
            let first = &may[0].tree;
            Err(format!(
                "after {steps} steps of the device the tree is none that operations {least} to {} left; unlike the first of these: {}",
                least + may.len() - 1,
                first.differences(found).join("; ")
            ))
        }
    }
}

/// The sync after which nothing had begun when the device had done `steps` steps, if there is one.
fn last_sync(done: &[Done], steps: usize) -> Option<usize> {
    let last = done.iter().rposition(|d| d.of_all && d.returned <= steps)?;
    let next = done.get(last + 1);
    next.is_none_or(|next| steps <= next.begun).then_some(last)
}

/// The same of the tree of several clients, of which only what sync promised is one moment of all of them.
fn judge_sync(done: &[Done], steps: usize, found: &Snapshot) -> Checked<()> {
    let Some(last) = last_sync(done, steps) else {
        return Ok(());
    };
    match done[last].tree == *found {
        true => Ok(()),
        false => Err(format!(
            "after {steps} steps of the device the tree is not the one that operation {last}, a sync, left: {}",
            done[last].tree.differences(found).join("; ")
        )),
    }
}

/// Tries a case in `dir`.
///
/// # Errors
/// The outer error: it could not run. The inner one: what is wrong, and at which cut.
pub fn explore(case: &Case, dir: &Path) -> Result<Checked<Tally>> {
    let (mut stage, contents) = Stage::new(dir, case.policy, DEVICE_BYTES)?;
    if case.seed.is_multiple_of(2) {
        stage.place_all_below();
    }
    let _switched = Switched::on(case.mutant, false);
    let recorded = Recorded::new(contents.clone());
    let performed = perform(case, &stage, &recorded);
    stage.lose(0);
    let (done, counted) = match performed {
        Ok(done) => done,
        Err(wrong) => return Ok(Err(wrong)),
    };
    let noted = std::mem::take(&mut *recorded.noted.lock());
    let mut tally = Tally {
        steps: noted.len() as u64,
        ..counted
    };
    let mut chance = Chance::new(case.seed ^ 0xc07);
    let mut at: Vec<usize> = (0..=noted.len()).collect();
    chance.shuffle(&mut at);
    if case.clients > 1 {
        // Half of the cuts come when a sync has just returned.
        let syncs = done.iter().filter(|d| d.of_all).map(|d| d.returned);
        let mut syncs: Vec<usize> = syncs.collect();
        chance.shuffle(&mut syncs);
        syncs.truncate(case.cuts / 2);
        at.splice(..0, syncs);
    }
    at.truncate(case.cuts);
    at.sort_unstable();
    let mut replay = BlockReplay::new(&noted, vec![contents], case.rules);
    for steps in at {
        while replay.at() < steps && replay.step() {}
        let cut = cut_at(case, &stage, (&replay, &done), &mut chance, &mut tally);
        if let Err(wrong) = cut {
            return Ok(Err(format!(
                "{case:?}, cut after {steps} of {} steps: {wrong}",
                noted.len()
            )));
        }
    }
    Ok(Ok(tally))
}

/// One cut, and one in its restore.
fn cut_at(
    case: &Case,
    stage: &Stage,
    (replay, done): (&BlockReplay<'_>, &[Done]),
    chance: &mut Chance,
    tally: &mut Tally,
) -> Checked<()> {
    let survivors = |chance: &mut Chance| match chance.below(4) {
        0 => Choice::None,
        1 => Choice::All,
        _ => Choice::Seed(chance.next_u64()),
    };
    let sector = SECTORS[chance.below(SECTORS.len() as u64) as usize];
    let images = replay.images(sector, &survivors(chance));
    let image = { images }.pop().expect("one device");
    let (tree, again, batches) = restore(stage, 1, image.clone())?;
    // What of several clients' operations is there is no moment of all of them, unless each was durable when it returned.
    if case.clients == 1 || case.policy == Durability::Strict {
        judge(done, replay.at(), &tree)?;
    } else {
        judge_sync(done, replay.at(), &tree)?;
    }
    tally.cuts += 1;
    tally.batches += batches;
    // A cut of the restore.
    let mut restore_replay = BlockReplay::new(&again, vec![image], case.rules);
    let upto = chance.below(again.len() as u64 + 1) as usize;
    while restore_replay.at() < upto && restore_replay.step() {}
    let images = restore_replay.images(sector, &survivors(chance));
    let image = { images }.pop().expect("one device");
    let (second, ..) = restore(stage, 2, image).map_err(|e| format!("restored again: {e}"))?;
    tally.restores_cut += 1;
    match second == tree {
        true => Ok(()),
        false => Err(format!(
            "restored again after {upto} of {} steps the tree is another one: {}",
            again.len(),
            tree.differences(&second).join("; ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::sessions::clock;
    use shale_block::Ask;
    use shale_libfs::{Caller, Session, SessionOptions, WriteFlags};
    use shale_proto::{Channel, InProcess, ProtoError, Reply, Request};
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;
    use std::time::Duration;

    fn explored(case: Case) -> Tally {
        let done = explore(&case, Path::new("/dev/shm")).expect("it runs");
        done.unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    fn case(seed: u64, policy: Durability) -> Case {
        Case {
            seed,
            policy,
            clients: 1,
            acts: 80,
            cuts: 4,
            rules: BlockRules::default(),
            mutant: None,
        }
    }

    #[test]
    fn what_was_promised_is_there_after_any_cut() {
        let mut all = Tally::default();
        for (seed, policy) in (1..).zip([
            Durability::Strict,
            Durability::Buffered,
            Durability::Ordered,
        ]) {
            all += explored(case(seed, policy));
        }
        assert!(
            all.cuts >= 12 && all.batches > 0 && all.checkpoints > 0 && all.placed_bytes > 0,
            "{all:?}"
        );
        assert!(all.hardened_in_place > 0, "{all:?}");
    }

    #[test]
    fn clients_that_take_turns_lose_nothing() {
        let all = explored(Case {
            clients: 3,
            ..case(7, Durability::Strict)
        });
        assert!(all.cuts >= 4 && all.batches > 0, "{all:?}");
        let all = explored(Case {
            clients: 2,
            ..case(8, Durability::Buffered)
        });
        assert!(all.cuts >= 4, "{all:?}");
    }

    /// Counts what is asked to be hardened.
    struct Counting(InProcess, AtomicU64);

    impl Channel for Counting {
        fn call(&self, request: Request) -> std::result::Result<(Reply, Vec<OwnedFd>), ProtoError> {
            let hardens = matches!(request, Request::Harden { .. });
            self.1.fetch_add(hardens.into(), Ordering::Relaxed);
            self.0.call(request)
        }
    }

    #[test]
    fn threads_of_a_client_share_commits() {
        const THREADS: u64 = 8;
        const SYNCS: u64 = 25;
        let (stage, contents) =
            Stage::new(Path::new("/dev/shm"), Durability::Buffered, DEVICE_BYTES)
                .expect("it is made");
        let recorded = Recorded::asking(contents, |ask| {
            if matches!(ask, Ask::Write | Ask::Flush) {
                thread::sleep(Duration::from_millis(2));
            }
            Ok(())
        });
        let daemon = stage.start(&recorded).unwrap();
        let asked = Arc::new(Counting(
            InProcess(daemon.attach_in_process(0)),
            AtomicU64::new(0),
        ));
        let options = SessionOptions::default();
        let session = Session::attach(asked.clone(), clock(), Default::default(), options).unwrap();
        let root = Caller::default();
        thread::scope(|scope| {
            for n in 0..THREADS {
                let session = &session;
                scope.spawn(move || {
                    let name = format!("f{n}");
                    let ino = session
                        .create(&root, 1, name.as_bytes(), 0o600, 0)
                        .unwrap()
                        .ino;
                    for at in 0..SYNCS {
                        let flags = WriteFlags::default();
                        session
                            .write(&root, ino, at * 8, &at.to_le_bytes(), flags)
                            .unwrap();
                        session.fsync(&root, ino, true).unwrap();
                    }
                });
            }
        });
        let asked = asked.1.load(Ordering::Relaxed);
        assert!(
            (SYNCS..THREADS * SYNCS / 2).contains(&asked),
            "asked {asked} times"
        );
        drop(session);
        daemon.abandon();
        stage.lose(0);
    }

    #[test]
    fn a_device_that_lies_is_found_out() {
        let lying = Case {
            rules: BlockRules { flush_lies: true },
            ..case(3, Durability::Strict)
        };
        assert!(
            explore(&lying, Path::new("/dev/shm"))
                .expect("it runs")
                .is_err()
        );
    }
}
