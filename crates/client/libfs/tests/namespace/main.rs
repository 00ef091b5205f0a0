//! Names, attributes and handles against the kernel's memory file system: the same
//! random operations on both, with digests, new sessions and new daemons in between.
//!
//! `SHALE_SEED=n` runs another sequence, `SHALE_STEPS=n` a longer one.

mod acls;
mod leases;
mod left;
mod mounted;
mod place;
mod races;
mod reference;
mod requests;
mod rights;
mod script;

use place::{Place, caller, own, tree};
use reference::{Act, Kernel, Ours, SLOTS, Side, everything};
use rustix::fs::OFlags;
use script::Dice;
use shale_libfs::Errno;

/// Directories above the one in which the operations happen, so that no chain of
/// `..` leaves what is the same on both sides.
const LEVELS: usize = 12;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

struct Pair {
    place: Place,
    ours: Ours,
    kernel: Kernel,
    _dir: tempfile::TempDir,
}

impl Pair {
    fn new() -> Self {
        rustix::process::umask(rustix::fs::Mode::from_bits_retain(0o022));
        let place = Place::new();
        let session = place.attach(false);
        let dir =
            tempfile::TempDir::with_prefix_in("shale-reference-", "/dev/shm").expect("a directory");
        let kernel = Kernel {
            root: dir.path().to_owned(),
            who: own(),
            open: Default::default(),
        };
        let ours = Ours {
            tree: tree(&session),
            session,
            open: Default::default(),
        };
        let mut pair = Self {
            place,
            ours,
            kernel,
            _dir: dir,
        };
        for n in 1..=LEVELS {
            let path = vec!["t"; n].join("/").into_bytes();
            pair.both(&Act::Mkdir(path, 0o755), 0);
        }
        pair
    }

    /// Does `act` on both sides; whether it succeeded.
    fn both(&mut self, act: &Act, step: u64) -> bool {
        let (a, mut b) = (self.ours.act(act), self.kernel.act(act));
        // Linux keeps sockets of others in sticky directories from being opened with
        // O_CREAT before it sees that no socket can be opened.
        if matches!(act, Act::Open(..)) && (&a, &b) == (&Err(Errno::NXIO), &Err(Errno::ACCESS)) {
            b = a.clone();
        }
        assert_eq!(a, b, "step {step}: {act:?} (left: this file system)");
        b.is_ok()
    }

    /// Compares all that can be seen.
    fn compare(&mut self, step: u64) {
        let who = self.kernel.who;
        self.become_user(own());
        let (a, b) = (
            everything(&mut self.ours, SLOTS - 1),
            everything(&mut self.kernel, SLOTS - 1),
        );
        for (path, facts) in &b {
            let path_text = String::from_utf8_lossy(path);
            assert_eq!(a.get(path), Some(facts), "step {step}: {path_text}");
        }
        assert_eq!(a.len(), b.len(), "step {step}");
        self.become_user(who);
    }

    /// Goes on as another user. Handles belong to who opened them.
    fn become_user(&mut self, who: (u32, u32)) {
        self.close_all();
        self.kernel.who = who;
        self.ours.tree = self.ours.session.tree(caller(who));
    }

    fn close_all(&mut self) {
        for slot in 0..SLOTS {
            self.both(&Act::Close(slot), 0);
        }
    }

    /// Leaves and comes back; the daemon stays, stops or is killed.
    fn come_back(&mut self, how: u64) {
        self.close_all();
        if how < 2 {
            self.ours.session.detach().expect("detach");
        }
        if how > 0 {
            self.place.restart(how == 1);
        }
        self.ours.session = self.place.attach(false);
        self.ours.tree = self.ours.session.tree(caller(self.kernel.who));
    }

    /// Between two operations: digests, comparisons, new sessions and daemons.
    fn interlude(&mut self, dice: &mut Dice, step: u64) {
        match dice.below(4000) {
            0..20 => self.ours.session.digest().expect("digest"),
            20 => self.compare(step),
            21..24 => {
                self.come_back(dice.below(3));
                self.compare(step);
            }
            _ => {}
        }
    }
}

/// Whether Linux keeps users from linking files of others, which POSIX does not ask for.
fn protected_links() -> bool {
    std::fs::read("/proc/sys/fs/protected_hardlinks").is_ok_and(|v| v != b"0\n")
}

#[test]
fn random_operations_agree_with_the_kernel() {
    let seed = number("SHALE_SEED", 1);
    let steps = number("SHALE_STEPS", 24_000);
    let mut dice = Dice::new(seed);
    let mut pair = Pair::new();
    println!("SHALE_SEED={seed} SHALE_STEPS={steps}");
    let mut succeeded = 0;
    for step in 1..=steps {
        let act = script::act(&mut dice, LEVELS);
        succeeded += u64::from(pair.both(&act, step));
        pair.interlude(&mut dice, step);
    }
    pair.close_all();
    pair.ours.session.digest().expect("digest");
    pair.compare(steps);
    assert!(
        succeeded > steps / 6,
        "{succeeded} of {steps} operations did something"
    );
    let status = pair.ours.session.status().expect("status");
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let paths = &status["paths"];
    let count = |what: &str| paths[what].as_u64().unwrap_or(0);
    assert!(count("known") > count("walked"), "{paths}");
}

#[test]
fn users_may_do_what_the_kernel_lets_them() {
    if own().0 != 0 {
        return;
    }
    let seed = number("SHALE_SEED", 1);
    let steps = number("SHALE_STEPS", 16_000);
    let mut dice = Dice::new(seed + 1000);
    let mut pair = Pair::new();
    let working_place = ["t"; LEVELS].join("/").into_bytes();
    println!("SHALE_SEED={seed} SHALE_STEPS={steps}");
    for step in 1..=steps {
        if dice.below(60) == 0 {
            pair.become_user((0, 0));
            pair.both(&Act::Chmod(working_place.clone(), 0o777), step);
            let (uid, gid) = (dice.below(3) as u32, dice.below(3) as u32);
            pair.become_user(if uid == 0 { (0, 0) } else { (uid, gid) });
        }
        let act = script::act(&mut dice, LEVELS);
        let apart = match act {
            // Needs a capability of its own.
            Act::LinkHandle(..) => true,
            Act::Link(..) => protected_links(),
            _ => false,
        };
        if pair.kernel.who.0 == 0 || !apart {
            pair.both(&act, step);
        }
        pair.interlude(&mut dice, step);
    }
    pair.compare(steps);
}

#[test]
fn two_clients_see_one_tree() {
    let seed = number("SHALE_SEED", 1);
    let steps = number("SHALE_STEPS", 6_000);
    let mut dice = Dice::new(seed + 2000);
    let mut pair = Pair::new();
    let mut other = pair.place.attach(false);
    println!("SHALE_SEED={seed} SHALE_STEPS={steps}");
    for step in 1..=steps {
        if dice.below(20) == 0 {
            pair.close_all();
            std::mem::swap(&mut pair.ours.session, &mut other);
            pair.ours.tree = tree(&pair.ours.session);
        }
        let act = script::act(&mut dice, LEVELS);
        pair.both(&act, step);
    }
    pair.compare(steps);
}

#[test]
fn a_large_directory_is_listed_while_it_changes() {
    const STAY: u32 = 3_000;
    let place = Place::new();
    let session = place.attach(false);
    let tree = tree(&session);
    tree.mkdir(b"/d", 0o755).unwrap();
    let name = |kind: char, n: u32| format!("/d/{kind}{n}").into_bytes();
    for n in 0..STAY {
        tree.symlink(b"x", &name('s', n)).unwrap();
        tree.symlink(b"x", &name('g', n)).unwrap();
    }
    session.digest().unwrap();
    let mut seen = std::collections::HashMap::new();
    let mut cookies = std::collections::HashSet::new();
    for (n, entry) in (0u32..).zip(tree.read_dir(b"/d").unwrap()) {
        let entry = entry.unwrap();
        assert!(cookies.insert(entry.cookie));
        *seen.entry(entry.name).or_insert(0) += 1;
        if n < STAY {
            tree.unlink(&name('g', n)).unwrap();
            tree.symlink(b"x", &name('n', n)).unwrap();
        }
        if n % 1000 == 999 {
            session.digest().unwrap();
        }
    }
    let times = |kind, n| seen.get(&name(kind, n)[3..]).copied().unwrap_or(0);
    for n in 0..STAY {
        assert_eq!(times('s', n), 1, "name {n} was there all the time");
        assert!(times('g', n) <= 1 && times('n', n) <= 1, "name {n} twice");
    }
    assert_eq!(tree.stat(b"/d").unwrap().size, 32 * 2 * u64::from(STAY));
    let rest = tree
        .read_dir(b"/d")
        .unwrap()
        .map(|e| tree.unlink(&[b"/d/", &e.unwrap().name[..]].concat()));
    assert_eq!(rest.filter(|r| r.is_ok()).count() as u32, 2 * STAY);
    tree.rmdir(b"/d").unwrap();
}

#[test]
fn nothing_is_left_of_what_was_removed() {
    let place = Place::new();
    let session = place.attach(false);
    let tree = tree(&session);
    tree.mkdir(b"/d", 0o755).unwrap();
    session.digest().unwrap();
    let before = session.statfs().unwrap();
    for n in 0..300u32 {
        let path = format!("/d/{n}").into_bytes();
        let file = tree
            .open(&path, OFlags::RDWR | OFlags::CREATE, 0o644)
            .unwrap();
        file.write(&[7; 10_000]).unwrap();
        if n % 3 == 0 {
            session.digest().unwrap();
        }
        tree.unlink(&path).unwrap();
        let mut back = [0; 10];
        assert_eq!(file.pread(9_995, &mut back), Ok(5));
        assert_eq!((back[0], file.stat().unwrap().nlink), (7, 0));
    }
    let unnamed = tree
        .open(b"/d", OFlags::RDWR | OFlags::TMPFILE, 0o600)
        .unwrap();
    drop(unnamed);
    tree.rmdir(b"/d").unwrap();
    tree.mkdir(b"/d", 0o755).unwrap();
    session.digest().unwrap();
    place.daemon().quiesce();
    let after = session.statfs().unwrap();
    assert_eq!(
        after.files - after.files_free,
        before.files - before.files_free,
        "inodes in use"
    );
    assert!(
        before.blocks_free - after.blocks_free <= 8,
        "{before:?} {after:?}"
    );
}

/// What digest would refuse is refused at the call: nobody is cut off for a deep tree.
#[test]
fn directories_move_only_so_far_down() {
    const DEPTH: usize = shale_format::limits::DEPTH_MAX as usize;
    let mut place = Place::new();
    let session = place.attach(false);
    let me = place::me();
    let make = |dir, name: &[u8]| {
        session
            .mkdir(&me, dir, name, 0o755)
            .expect("a directory")
            .ino
    };
    let moving = make(1, b"moving");
    let mut way = vec![1];
    for _ in 0..DEPTH + 2 {
        way.push(make(way[way.len() - 1], b"d"));
    }
    let to = |level: usize| session.rename(&me, (1, b"moving"), (way[level], b"m"), 0);
    assert_eq!(to(DEPTH), Err(Errno::NAMETOOLONG));
    assert_eq!(to(DEPTH - 1), Ok(()));
    session.sync_all().expect("it is served");
    session.detach().expect("all of it is in the volume");
    place.restart(true);
    let session = place.attach(false);
    let found = session.getattr(&me, moving).expect("it is there");
    assert_eq!(found.ino, moving);
    session.detach().expect("a clean end");
}
