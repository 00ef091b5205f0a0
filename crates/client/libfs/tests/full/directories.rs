//! Long names until NVM is full of leaves of directories: those of cold ones go below, and all are found right.

use crate::place::{ME, Place};
use shale_format::{DirKey, Ino, TierId};
use shale_libfs::{Errno, Session, WriteFlags};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

const DIRECTORIES: usize = 60;
const IN_EACH: u32 = 300;
/// What nothing can move out of NVM.
const PINNED_MIB: u64 = 26;

fn name(n: u32) -> Vec<u8> {
    format!("{n:0>200}").into_bytes()
}

/// Names by directory, with the inode of each.
type Names = BTreeMap<u64, BTreeMap<u32, u64>>;

fn make(session: &Session, names: &mut Names, dir: u64, n: u32) {
    let made = session.create(&ME, dir, &name(n), 0o644, 0);
    let made = made.unwrap_or_else(|e| panic!("name {n} of {dir}: {e}"));
    names.get_mut(&dir).unwrap().insert(n, made.ino);
}

fn verify(session: &Session, names: &Names) {
    for (&dir, all) in names {
        let mut listed = BTreeMap::new();
        let list = session.readdir(&ME, dir, 2, false, &mut |e| {
            let n = std::str::from_utf8(e.name).unwrap().parse().unwrap();
            assert_eq!(listed.insert(n, e.ino), None, "{n} of {dir} twice");
            true
        });
        list.unwrap();
        assert_eq!(listed, *all, "directory {dir}");
        for n in (0..=IN_EACH).step_by(13) {
            let found = session.lookup(&ME, dir, &name(n)).map(|a| a.ino);
            assert_eq!(found.ok(), all.get(&n).copied(), "{n} of {dir}");
        }
    }
}

fn pinned(place: &Place, session: &Session, mib: u64) {
    let big = session.create(&ME, Ino::ROOT.0, b"big", 0o644, 0).unwrap();
    session.digest().unwrap();
    place.daemon().pin(&[big.ino], Some(TierId::Nvm)).unwrap();
    for mib in 0..mib {
        let data = vec![7; 1 << 20];
        let flags = WriteFlags::default();
        session
            .write(&ME, big.ino, mib << 20, &data, flags)
            .unwrap();
    }
    session.digest().unwrap();
}

fn filled(session: &Session) -> Names {
    let mut names = Names::new();
    for d in 0..DIRECTORIES {
        let name = format!("dir {d}").into_bytes();
        let dir = session.mkdir(&ME, Ino::ROOT.0, &name, 0o755).unwrap().ino;
        names.insert(dir, BTreeMap::new());
        for n in 0..IN_EACH {
            make(session, &mut names, dir, n);
        }
    }
    session.digest().unwrap();
    names
}

fn below(place: &Place) -> u64 {
    place.daemon().volume().leaves_below(TierId::Ssd)
}

/// Of the directory, leaves below NVM.
fn leaves_below(place: &Place, dir: u64) -> u32 {
    let view = place.daemon().volume().view();
    view.inode(Ino(dir)).unwrap().unwrap().root[0].len
}

#[test]
fn names_go_on_where_nvm_is_full_of_directories() {
    let mut place = Place::new(34);
    assert!(place.add_flash(64));
    let session = place.attach(false);
    pinned(&place, &session, PINNED_MIB);
    let mut names = filled(&session);
    assert!(below(&place) > 300, "{} leaves below", below(&place));
    verify(&session, &names);
    let dirs: Vec<u64> = names.keys().copied().collect();
    for &dir in dirs.iter().step_by(3) {
        make(&session, &mut names, dir, IN_EACH);
        session.digest().unwrap();
        assert_eq!(leaves_below(&place, dir), 0, "what changes is in NVM");
    }
    for (n, &dir) in dirs.iter().enumerate().skip(1).step_by(4) {
        let n = n as u32 * 4;
        session.unlink(&ME, dir, &name(n)).expect("unlink");
        names.get_mut(&dir).unwrap().remove(&n);
    }
    verify(&session, &names);
    let other = place.attach(false);
    verify(&other, &names);
    other.detach().unwrap();
    assert_eq!(place.daemon().status_values().digest.last_error, None);
    session.detach().unwrap();
    drop((session, other));
    place.stop();
    place.check();
    place.start();
    assert!(below(&place) > 0);
    let session = place.attach(false);
    verify(&session, &names);
    for (d, (dir, all)) in names.iter().enumerate() {
        for n in all.keys() {
            session.unlink(&ME, *dir, &name(*n)).expect("unlink");
        }
        let name = format!("dir {d}").into_bytes();
        session.rmdir(&ME, Ino::ROOT.0, &name).expect("rmdir");
    }
    session.detach().unwrap();
    drop(session);
    assert_eq!(below(&place), 0);
    place.stop();
    place.check();
}

/// Nothing is left in NVM that could go but what each call needs again at once: that is full, and is said soon.
#[test]
fn a_volume_full_of_names_says_so_and_lets_them_go() {
    let mut place = Place::new(34);
    assert!(place.add_flash(64));
    let session = place.attach(false);
    pinned(&place, &session, 28);
    let mut names = Names::new();
    for d in 0..DIRECTORIES {
        let name = format!("dir {d}").into_bytes();
        let dir = session.mkdir(&ME, Ino::ROOT.0, &name, 0o755).unwrap().ino;
        names.insert(dir, BTreeMap::new());
    }
    let (mut made, mut longest) = (0, Duration::ZERO);
    let refused = loop {
        let dir = *names.keys().nth(made as usize * 7 % DIRECTORIES).unwrap();
        let begun = Instant::now();
        let one = session.create(&ME, dir, &name(made), 0o644, 0);
        longest = longest.max(begun.elapsed());
        match one {
            Ok(attr) => names.get_mut(&dir).unwrap().insert(made, attr.ino),
            Err(e) => break e,
        };
        made += 1;
    };
    assert_eq!(refused, Errno::NOSPC);
    assert!(made > 2000, "{made}");
    assert!(longest < Duration::from_secs(20), "{longest:?}");
    assert_eq!(place.daemon().status_values().digest.last_error, None);
    for (dir, all) in &mut names {
        for n in std::mem::take(all).keys() {
            session.unlink(&ME, *dir, &name(*n)).expect("unlink");
        }
    }
    let first = *names.keys().next().unwrap();
    make(&session, &mut names, first, 0);
    session.detach().unwrap();
    drop(session);
    place.stop();
    place.check();
}

/// A directory that clients read again and again comes back to NVM; the others stay.
#[test]
fn directories_that_are_read_again_and_again_return() {
    let place = Place::new(34);
    assert!(place.add_flash(64));
    let session = place.attach(false);
    let names = filled(&session);
    let demoted = place.daemon().demote_directories().unwrap();
    assert!(demoted > 500, "{demoted} leaves");
    let dirs: Vec<u64> = names.keys().copied().collect();
    assert!(dirs.iter().all(|dir| leaves_below(&place, *dir) > 0));
    let begun = Instant::now();
    while leaves_below(&place, dirs[7]) > 0 {
        let found = session.lookup(&ME, dirs[7], &name(5)).unwrap();
        assert_eq!(found.ino, names[&dirs[7]][&5]);
        thread::sleep(Duration::from_millis(500));
        assert!(begun.elapsed() < Duration::from_secs(60), "it stays below");
    }
    assert!(leaves_below(&place, dirs[8]) > 0);
    verify(&session, &names);
    session.detach().unwrap();
}

/// The inode numbers that the volume has in a directory, as the daemon reads them.
fn entries(place: &Place, dir: u64) -> usize {
    let view = place.daemon().volume().view();
    let (inode, mut n) = (view.inode(Ino(dir)).unwrap().unwrap(), 0);
    view.entries(&inode, DirKey(0), &mut |_| {
        n += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    n
}

/// A client that has a directory open, or a lease to change it, and goes on while others sink.
#[test]
fn clients_go_on_while_directories_are_demoted() {
    let place = Place::new(34);
    assert!(place.add_flash(64));
    let (one, two) = (place.attach(false), place.attach(false));
    let mut names = filled(&one);
    let dirs: Vec<u64> = names.keys().copied().collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                place.daemon().demote_directories().unwrap();
            }
        });
        for round in 0..400_u32 {
            let session = if round % 2 == 0 { &one } else { &two };
            let dir = dirs[round as usize * 7 % dirs.len()];
            make(session, &mut names, dir, IN_EACH + 1 + round);
            let gone = round % IN_EACH;
            let all = names.get_mut(&dir).unwrap();
            let removed = session.unlink(&ME, dir, &name(gone));
            match all.remove(&gone) {
                Some(_) => removed.unwrap(),
                None => assert_eq!(removed, Err(Errno::NOENT)),
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    place.daemon().demote_directories().unwrap();
    assert!(dirs.iter().all(|dir| leaves_below(&place, *dir) > 0));
    verify(&one, &names);
    verify(&two, &names);
    one.digest().unwrap();
    two.digest().unwrap();
    for (dir, all) in &names {
        assert_eq!(entries(&place, *dir), all.len());
    }
    one.detach().unwrap();
    two.detach().unwrap();
}
