//! Many threads on the same few names: whatever the order was, the tree that is left
//! must be a tree, and its counts must be right.

use crate::place::{Place, me, tree};
use crate::script::Dice;
use rustix::fs::OFlags;
use shale_libfs::{RENAME_EXCHANGE, Session, Tree};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const THREADS: u64 = 4;

fn name(dice: &mut Dice) -> Vec<u8> {
    let mut path = Vec::new();
    for _ in 0..=dice.below(3) {
        path.extend_from_slice(b"/");
        path.push(b'a' + dice.below(4) as u8);
    }
    path
}

fn step(dice: &mut Dice, tree: &Tree) {
    let (p, q) = (name(dice), name(dice));
    // Most of these fail: what counts is what the others leave.
    let _ = match dice.below(8) {
        0 | 1 => tree.mkdir(&p, 0o755),
        2 => tree
            .open(&p, OFlags::RDWR | OFlags::CREATE, 0o644)
            .and_then(|f| f.write(b"x").map(|_| ())),
        3 => tree.rename(&p, &q, 0),
        4 => tree.rename(&p, &q, RENAME_EXCHANGE),
        5 => tree.link(&p, &q),
        6 => tree.unlink(&p),
        _ => tree.rmdir(&p),
    };
}

/// Walks the whole tree and checks every count.
fn check(session: &Arc<Session>) {
    let tree = tree(session);
    let mut names: HashMap<u64, u32> = HashMap::new();
    let mut links: HashMap<u64, u32> = HashMap::new();
    let mut dirs = vec![(1, b"/".to_vec(), 1)];
    while let Some((ino, path, parent)) = dirs.pop() {
        let mut entries = 0;
        let mut subdirectories = 0;
        assert_eq!(
            session.lookup(&me(), ino, b"..").unwrap().ino,
            parent,
            "parent of {ino}"
        );
        for e in tree.read_dir(&path).unwrap() {
            let e = e.unwrap();
            entries += 1;
            let below = [&path[..], b"/", &e.name[..]].concat();
            let attr = tree.lstat(&below).unwrap();
            assert_eq!(attr.ino, e.ino);
            if e.kind == 4 {
                subdirectories += 1;
                dirs.push((e.ino, below, ino));
            } else {
                *names.entry(e.ino).or_default() += 1;
                links.insert(e.ino, attr.nlink);
            }
        }
        let attr = session.getattr(&me(), ino).unwrap();
        assert_eq!(attr.nlink, 2 + subdirectories, "directory {ino}");
        assert_eq!(attr.size, entries * 32, "directory {ino}");
    }
    assert_eq!(names, links);
}

/// Lets threads loose on the sessions, one after the other, and checks what is left.
fn race(clients: usize, steps: u64) {
    let mut place = Place::new();
    let sessions: Vec<_> = (0..clients).map(|_| place.attach(false)).collect();
    let running = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|n| {
                let tree = tree(&sessions[n as usize % clients]);
                scope.spawn(move || {
                    let mut dice = Dice::new(100 + n);
                    (0..steps).for_each(|_| step(&mut dice, &tree));
                })
            })
            .collect();
        let digester = scope.spawn(|| {
            while running.load(Ordering::Relaxed) {
                sessions[0].digest().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        for w in workers {
            w.join().unwrap();
        }
        running.store(false, Ordering::Relaxed);
        digester.join().unwrap();
    });
    for session in sessions {
        check(&session);
        session.detach().unwrap();
    }
    place.restart(true);
    check(&place.attach(false));
}

#[test]
fn threads_leave_a_tree() {
    race(1, 3_000);
}

#[test]
fn threads_of_two_clients_leave_a_tree() {
    race(2, 400);
}
