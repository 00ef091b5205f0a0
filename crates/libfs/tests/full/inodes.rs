//! Small files until NVM is full of their inodes: some go below, and all are found right.

use crate::place::Place;
use shale_format::{Ino, TierId};
use shale_libfs::{Caller, Session, SetAttr, WriteFlags};
use std::collections::BTreeMap;

const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 0,
    umask: 0,
    request: 0,
};
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

#[test]
fn creation_goes_on_where_nvm_is_full_of_inodes() {
    let mut place = Place::new(34);
    assert!(place.add_flash(64));
    let session = place.attach(false);
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
