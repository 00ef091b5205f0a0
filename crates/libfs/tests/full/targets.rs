//! Targets of symbolic links go below NVM when no data can.

use crate::place::{ME, Place};
use shale_format::{FileBlock, Ino, TierId};
use shale_libfs::{Session, WriteFlags};
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
