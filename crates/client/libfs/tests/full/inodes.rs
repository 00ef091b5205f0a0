//! Small files until NVM is full of their inodes: some go below, and all are found right.

use crate::load::Chance;
use crate::place::{ME, Place};
use shale_format::{Ino, TierId};
use shale_libfs::{Errno, Session, SetAttr, WriteFlags};
use shale_volume::FoundInode;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

const FILES: u32 = 16_000;
/// What nothing can move out of NVM.
const PINNED_MIB: u64 = 26;

fn name(n: u32) -> Vec<u8> {
    format!("file {n}").into_bytes()
}

/// Owners of the files that there are, by number.
fn verify(session: &Session, files: &BTreeMap<u32, u32>) {
    for n in 0..FILES {
        let found = session.lookup(&ME, Ino::ROOT.0, &name(n));
        match files.get(&n) {
            Some(uid) => assert_eq!(found.map(|a| (a.uid, a.size)), Ok((*uid, 0)), "file {n}"),
            None => assert!(found.is_err(), "file {n}"),
        }
    }
}

/// What stays in NVM, and so makes it small.
fn pinned(place: &Place, session: &Session) {
    let big = session
        .create(&ME, Ino::ROOT.0, b"big", 0o644, 0)
        .unwrap()
        .ino;
    for mib in 0..PINNED_MIB {
        let data = vec![7; 1 << 20];
        let flags = WriteFlags::default();
        session.write(&ME, big, mib << 20, &data, flags).unwrap();
    }
    session.digest().unwrap();
    place.daemon().pin(&[big], Some(TierId::Nvm)).unwrap();
}

#[test]
fn creation_goes_on_where_nvm_is_full_of_inodes() {
    let mut place = Place::new(34);
    assert!(place.add_flash(64));
    let session = place.attach(false);
    pinned(&place, &session);
    let mut files = BTreeMap::new();
    for n in 0..FILES {
        let made = session.create(&ME, Ino::ROOT.0, &name(n), 0o644, 0);
        made.unwrap_or_else(|e| panic!("file {n}: {e}"));
        files.insert(n, 0);
    }
    session.digest().unwrap();
    assert!(place.daemon().volume().has_inodes_below());
    verify(&session, &files);
    let own = |ino, uid| {
        let set = SetAttr {
            uid: Some(uid),
            ..SetAttr::default()
        };
        session.setattr(&ME, ino, &set).expect("an owner");
    };
    for n in (0..FILES).step_by(100) {
        let ino = session.lookup(&ME, Ino::ROOT.0, &name(n)).unwrap().ino;
        own(ino, n + 1);
        files.insert(n, n + 1);
    }
    for n in (0..FILES).step_by(7) {
        session.unlink(&ME, Ino::ROOT.0, &name(n)).expect("unlink");
        files.remove(&n);
    }
    verify(&session, &files);
    let other = place.attach(false);
    verify(&other, &files);
    other.detach().unwrap();
    assert_eq!(place.daemon().status_values().digest.last_error, None);
    session.detach().unwrap();
    drop((session, other));
    place.stop();
    place.check();
    place.start();
    assert!(place.daemon().volume().has_inodes_below());
    let session = place.attach(false);
    verify(&session, &files);
    for n in files.keys() {
        session.unlink(&ME, Ino::ROOT.0, &name(*n)).expect("unlink");
    }
    session.detach().unwrap();
    drop(session);
    assert!(!place.daemon().volume().has_inodes_below());
    place.stop();
    place.check();
}

const DIRECTORIES: u64 = 60;
const IN_EACH: u64 = 60;
/// Every so many files one has something in it, and is read.
const READ_EACH: usize = 50;

/// Writes a file until nothing fits any more.
fn fill(session: &Session, name: &[u8]) -> u64 {
    let ino = session
        .create(&ME, Ino::ROOT.0, name, 0o644, 0)
        .unwrap()
        .ino;
    let (mut at, mut piece) = (0, 1 << 20);
    while piece >= 4096 {
        let data = vec![3; piece];
        match session.write(&ME, ino, at, &data, WriteFlags::default()) {
            Ok(done) => at += done as u64,
            Err(e) => {
                assert_eq!(e, Errno::NOSPC);
                piece /= 4;
            }
        }
    }
    at
}

/// Nobody waits for space to note that a file was read.
fn read_some(place: &Place, session: &Session, files: &[(u64, Vec<u8>)]) {
    let waits = || {
        place
            .daemon()
            .status_values()
            .migration
            .unwrap()
            .counts
            .space_waits
    };
    let before = waits();
    for (dir, name) in files.iter().step_by(READ_EACH) {
        let ino = session.lookup(&ME, *dir, name).unwrap().ino;
        assert_eq!(session.read(&ME, ino, 0, &mut [0; 9]), Ok(9));
    }
    assert_eq!(waits(), before);
}

/// NVM and flash are full, inodes lie below: names can go all the same, in any order.
#[test]
fn what_lies_below_can_be_removed_from_a_full_volume() {
    let mut place = Place::new(34);
    assert!(place.add_flash(64));
    let session = place.attach(false);
    pinned(&place, &session);
    let mut files = Vec::new();
    for d in 0..DIRECTORIES {
        let name = format!("dir {d}").into_bytes();
        let dir = session.mkdir(&ME, Ino::ROOT.0, &name, 0o755).unwrap().ino;
        for n in 0..IN_EACH {
            let name = format!("file {n}").into_bytes();
            let ino = session.create(&ME, dir, &name, 0o644, 0).unwrap().ino;
            if files.len() % READ_EACH == 0 {
                let flags = WriteFlags::default();
                session.write(&ME, ino, 0, b"something", flags).unwrap();
            }
            files.push((dir, name));
        }
    }
    session.digest().unwrap();
    place.daemon().migrate(None).unwrap();
    place.daemon().demote_inodes().unwrap();
    let mut written = fill(&session, b"fill");
    session.digest().unwrap();
    written += fill(&session, b"more");
    let mut more = 0..;
    let full = more.find(|n| {
        let made = session.create(&ME, Ino::ROOT.0, &name(*n), 0o644, 0);
        made.is_err_and(|e| e == Errno::NOSPC)
    });
    session.digest().unwrap();
    let status = place.daemon().status_values();
    let flash = &status.tiers[0];
    println!(
        "{written} bytes and {full:?} more files fit; of inodes below {}, writable {}",
        flash.inode_bytes, flash.writable_bytes
    );
    assert!(flash.inode_bytes >= 100 * 4096, "{status:?}");
    read_some(&place, &session, &files);
    let mut chance = Chance::new(5);
    let all = files.len();
    while !files.is_empty() {
        let (dir, name) = files.swap_remove(chance.below(files.len() as u64) as usize);
        let done = session.unlink(&ME, dir, &name);
        done.unwrap_or_else(|e| panic!("{e} after {} of {all}", all - files.len()));
    }
    for d in 0..DIRECTORIES {
        let name = format!("dir {d}").into_bytes();
        session.rmdir(&ME, Ino::ROOT.0, &name).expect("rmdir");
    }
    session.digest().unwrap();
    assert_eq!(place.daemon().status_values().digest.last_error, None);
    for name in [&b"fill"[..], b"more"] {
        session.unlink(&ME, Ino::ROOT.0, name).expect("unlink");
    }
    session.detach().unwrap();
    drop(session);
    place.stop();
    place.check();
}

/// An inode that every new client reads comes back to NVM, with its block; the others stay.
#[test]
fn inodes_that_are_read_again_and_again_return() {
    let place = Place::new(34);
    assert!(place.add_flash(64));
    let session = place.attach(false);
    let made = (0..640).map(|n| session.create(&ME, Ino::ROOT.0, &name(n), 0o644, 0));
    let inos: Vec<u64> = made.map(|made| made.unwrap().ino).collect();
    session.digest().unwrap();
    let demoted = place.daemon().demote_inodes().unwrap();
    assert!(demoted >= 39, "{demoted} blocks");
    let below = |ino: u64| {
        let found = place.daemon().volume().view().find_inode(Ino(ino));
        matches!(found.unwrap(), FoundInode::Below { .. })
    };
    let (read, rest) = (inos[320], [inos[100], inos[500]]);
    assert!(below(read) && rest.iter().all(|ino| below(*ino)));
    let begun = Instant::now();
    while below(read) {
        let reader = place.attach(false);
        reader.lookup(&ME, Ino::ROOT.0, &name(320)).unwrap();
        reader.detach().unwrap();
        thread::sleep(Duration::from_millis(500));
        assert!(begun.elapsed() < Duration::from_secs(60), "it stays below");
    }
    assert!(rest.iter().all(|ino| below(*ino)));
    session.detach().unwrap();
}
