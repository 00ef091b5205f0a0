//! Targets of symbolic links go below NVM when no data can.

use crate::place::{ME, Place};
use shale_format::{FileBlock, Ino, TierId};
use shale_libfs::{Errno, Session, WriteFlags};
use shale_volume::Mapping;
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

const LINKS: usize = 600;

fn name(n: usize) -> Vec<u8> {
    format!("link {n}").into_bytes()
}

fn target(n: usize) -> Vec<u8> {
    format!("{}/{n}", "far away/".repeat(n % 40)).into_bytes()
}

/// In how many of the links the target lies in each tier.
fn tiers(place: &Place, inos: &[u64]) -> [usize; 3] {
    let view = place.daemon().volume().view();
    let mut found = [0; 3];
    for &ino in inos {
        let inode = view.inode(Ino(ino)).unwrap().unwrap();
        match view.map_block(&inode, FileBlock(0)).unwrap() {
            Mapping::Data { addr, .. } => found[addr.tier().unwrap() as usize] += 1,
            other => panic!("{other:?}"),
        }
    }
    found
}

fn all_right(session: &Session, inos: &[u64]) {
    for (n, &ino) in inos.iter().enumerate() {
        assert!(session.readlink(&ME, ino).unwrap() == target(n), "link {n}");
    }
}

#[test]
fn targets_go_last_and_are_read_where_they_lie() {
    let mut place = Place::new(40);
    assert!(place.add_flash(24));
    let session = place.attach(false);
    let root = Ino::ROOT.0;
    let make = |n| {
        session
            .symlink(&ME, root, &name(n), &target(n))
            .unwrap()
            .ino
    };
    let inos: Vec<u64> = (0..LINKS).map(make).collect();
    let file = session.create(&ME, root, b"file", 0o644, 0).unwrap().ino;
    let data = vec![7; 4 << 20];
    session
        .write(&ME, file, 0, &data, WriteFlags::default())
        .unwrap();
    session.symlink(&ME, root, b"way", b"file").unwrap();
    session.digest().unwrap();
    // As much as the file has: it goes, though it was written last.
    place.daemon().migrate(Some(4 << 20)).unwrap();
    assert_eq!(tiers(&place, &inos), [LINKS, 0, 0]);
    place.daemon().migrate(None).unwrap();
    assert_eq!(tiers(&place, &inos), [0, LINKS, 0]);
    let other = place.attach(false);
    all_right(&other, &inos);
    let through = other.tree(ME).stat(b"/way").unwrap();
    assert_eq!((through.ino, through.size), (file, 4 << 20));
    other.detach().unwrap();
    // They are looked at by scrub, and go like others.
    let scrubbed = place.daemon().scrub(&mut |_| ControlFlow::Continue(()));
    assert_eq!(
        (scrubbed.errors, scrubbed.data_blocks),
        (0, 1024 + LINKS as u64 + 1)
    );
    for n in 0..LINKS / 2 {
        session.unlink(&ME, root, &name(n)).unwrap();
    }
    session.digest().unwrap();
    let held = place.daemon().status_values().tiers[0].live_bytes;
    assert_eq!(held, (4 << 20) + (LINKS as u64 / 2 + 1) * 4096);
    drop((other, session));
    place.kill();
    place.start();
    let session = place.attach(false);
    let rest: Vec<u64> = inos[LINKS / 2..].to_vec();
    assert_eq!(tiers(&place, &rest)[TierId::Ssd as usize], LINKS / 2);
    for (n, &ino) in (LINKS / 2..).zip(&rest) {
        assert!(session.readlink(&ME, ino).unwrap() == target(n), "link {n}");
    }
    session.detach().unwrap();
    drop(session);
    place.stop();
    place.check();
}

#[test]
fn a_target_that_is_read_often_returns() {
    let mut place = Place::new(40);
    assert!(place.add_flash(24));
    let session = place.attach(false);
    let make = |n| {
        let made = session.symlink(&ME, Ino::ROOT.0, &name(n), &target(n));
        made.unwrap().ino
    };
    let inos: Vec<u64> = (0..2).map(make).collect();
    session.digest().unwrap();
    place.daemon().migrate(None).unwrap();
    assert_eq!(tiers(&place, &inos), [0, 2, 0]);
    // Once in every other look of the daemon's, at most.
    let begun = Instant::now();
    while tiers(&place, &inos[..1])[0] == 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it does not return"
        );
        assert!(session.readlink(&ME, inos[0]).unwrap() == target(0));
        thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(tiers(&place, &inos), [1, 1, 0], "the other one stays");
    assert!(session.readlink(&ME, inos[0]).unwrap() == target(0));
    session.detach().unwrap();
    drop(session);
    place.stop();
    place.check();
}

#[test]
fn a_target_with_a_wrong_bit_is_an_error_and_not_another_path() {
    let mut place = Place::new(40);
    let session = place.attach(false);
    let root = Ino::ROOT.0;
    let ino = session.symlink(&ME, root, b"way", b"file-1").unwrap().ino;
    session.create(&ME, root, b"file-1", 0o644, 0).unwrap();
    session.create(&ME, root, b"file-0", 0o644, 0).unwrap();
    session.digest().unwrap();
    let view = place.daemon().volume().view();
    let inode = view.inode(Ino(ino)).unwrap().unwrap();
    assert_eq!(view.link_target(&inode).unwrap(), b"file-1");
    let Ok(Mapping::Data { addr, .. }) = view.map_block(&inode, FileBlock(0)) else {
        panic!("no target");
    };
    let last = addr.byte() as usize + 5;
    view.map().store(last, b"0");
    for session in [&session, &place.attach(false)] {
        assert_eq!(session.readlink(&ME, ino).unwrap_err(), Errno::IO);
        assert_eq!(session.tree(ME).stat(b"/way").unwrap_err(), Errno::IO);
        assert_eq!(session.tree(ME).readlink(b"/way").unwrap_err(), Errno::IO);
        session.tree(ME).lstat(b"/way").unwrap();
    }
    let scrubbed = place.daemon().scrub(&mut |_| ControlFlow::Continue(()));
    assert_eq!(scrubbed.errors, 1, "{scrubbed:?}");
    assert!(
        scrubbed.damage[0].object.starts_with("/way"),
        "{scrubbed:?}"
    );
    view.map().store(last, b"1");
    assert_eq!(session.readlink(&ME, ino).unwrap(), b"file-1");
    session.detach().unwrap();
    drop((session, view));
    place.stop();
    place.check();
}

#[test]
fn a_target_of_a_version_without_checksums_is_read() {
    let mut place = Place::new(40);
    let session = place.attach(false);
    let ino = session.symlink(&ME, Ino::ROOT.0, b"way", b"there").unwrap();
    session.detach().unwrap();
    drop(session);
    let volume = place.daemon().volume().clone();
    let mut txn = volume.begin();
    let inode = txn.inode(Ino(ino.ino)).unwrap().unwrap();
    assert_ne!(inode.target_checksum, 0);
    let old = shale_volume::Inode {
        target_checksum: 0,
        ..inode
    };
    txn.put_inode(&old).unwrap();
    txn.commit().unwrap();
    drop(volume);
    let session = place.attach(false);
    assert_eq!(session.readlink(&ME, ino.ino).unwrap(), b"there");
    session.detach().unwrap();
    drop(session);
    place.stop();
    place.check();
}
