//! Directories.

use super::*;
use crate::VolumeError;
use shale_format::DirKey;

const FILE_KIND: u8 = 8;

fn name(n: u64) -> Vec<u8> {
    format!("{:0width$}", n, width = 3 + (n % 40) as usize).into_bytes()
}

#[test]
fn fifty_thousand_names_come_and_go() {
    const NAMES: u64 = 50_000;
    let volume = new_volume(64 * MIB);
    let view = volume.view();
    let empty = volume.space();
    let mut dir = view.inode(Ino::ROOT).unwrap().unwrap();
    for part in 0..5 {
        let mut txn = volume.begin();
        for n in (part..NAMES).step_by(5) {
            let key = view.key_group(&name(n));
            let twin = txn.collisions(&dir, key).unwrap().len() as u8;
            txn.dir_insert(
                &mut dir,
                key.with_twin(twin),
                Ino(100 + n),
                FILE_KIND,
                &name(n),
            )
            .unwrap();
        }
        txn.put_inode(&dir).unwrap();
        let done = txn.commit().unwrap();
        volume.release_up_to(done.txid);
    }
    check(&view);
    assert_eq!(view.inode(Ino::ROOT).unwrap().unwrap().size, NAMES);
    for n in (0..NAMES).step_by(97) {
        assert_eq!(
            view.lookup(&dir, &name(n)).unwrap().unwrap().ino,
            Ino(100 + n)
        );
        assert_eq!(view.lookup(&dir, &name(n + NAMES)).unwrap(), None);
    }
    let mut inos = Vec::new();
    let mut from = DirKey(0);
    view.entries(&dir, from, &mut |e| {
        assert!(e.key > from, "in key order");
        from = e.key;
        inos.push(e.ino.0);
        ControlFlow::Continue(())
    })
    .unwrap();
    inos.sort_unstable();
    assert!(inos.into_iter().eq(100..100 + NAMES));

    for part in 0..5 {
        let mut txn = volume.begin();
        for n in (part..NAMES).step_by(5) {
            let key = txn.lookup(&dir, &name(n)).unwrap().unwrap().key;
            txn.dir_remove(&mut dir, key, &name(n)).unwrap();
        }
        txn.put_inode(&dir).unwrap();
        let done = txn.commit().unwrap();
        volume.release_up_to(done.txid);
        if part == 3 {
            check(&view);
            assert_eq!(view.lookup(&dir, &name(4)).unwrap().unwrap().ino, Ino(104));
        }
    }
    assert_eq!(volume.space(), empty);
    reopened(&volume);
}

#[test]
fn collisions_exists_no_entry_replace() {
    let volume = new_volume(32 * MIB);
    let view = volume.view();
    let mut dir = directory(50);
    let mut txn = volume.begin();
    let group = view.key_group(b"a");
    txn.dir_insert(&mut dir, group, Ino(60), FILE_KIND, b"a")
        .unwrap();
    let taken = txn.dir_insert(&mut dir, group, Ino(61), FILE_KIND, b"b");
    assert!(matches!(taken, Err(VolumeError::Exists { .. })));
    for twin in 1..64 {
        txn.dir_insert(
            &mut dir,
            group.with_twin(twin),
            Ino(60 + u64::from(twin)),
            FILE_KIND,
            &[b'x'; 255],
        )
        .unwrap();
    }
    let other = txn.dir_remove(&mut dir, group, b"b");
    assert!(matches!(other, Err(VolumeError::NoEntry { .. })));
    txn.put_inode(&dir).unwrap();
    txn.commit().unwrap();
    assert_eq!(view.collisions(&dir, group).unwrap().len(), 64);
    assert_eq!(view.lookup(&dir, b"a").unwrap().unwrap().ino, Ino(60));
    let mut txn = volume.begin();
    txn.dir_remove(&mut dir, group.with_twin(9), &[b'x'; 255])
        .unwrap();
    let old = txn.dir_replace(&mut dir, group, Ino(99), 4).unwrap();
    assert_eq!((old.ino, old.kind), (Ino(60), FILE_KIND));
    txn.put_inode(&dir).unwrap();
    txn.commit().unwrap();
    let colliding = view.collisions(&dir, group).unwrap();
    assert!(
        colliding
            .iter()
            .map(|e| e.key.twin())
            .eq((0..64).filter(|&twin| twin != 9))
    );
    assert_eq!(view.lookup(&dir, b"a").unwrap().unwrap().ino, Ino(99));
    check(&view);

    let mut txn = volume.begin();
    txn.dir_clear(&mut dir).unwrap();
    txn.free_inode(Ino(50)).unwrap();
    txn.commit().unwrap();
    check(&view);
}

#[test]
fn orphans_have_no_names() {
    let volume = new_volume(32 * MIB);
    let mut orphans = volume.view().inode(Ino::ORPHANS).unwrap().unwrap();
    let mut txn = volume.begin();
    for n in 20..400 {
        txn.dir_insert(&mut orphans, DirKey(n), Ino(n), FILE_KIND, b"")
            .unwrap();
    }
    txn.put_inode(&orphans).unwrap();
    txn.commit().unwrap();
    let mut txn = volume.begin();
    for n in 20..400 {
        assert_eq!(
            txn.dir_get(&orphans, DirKey(n)).unwrap().unwrap().ino,
            Ino(n)
        );
        txn.dir_remove(&mut orphans, DirKey(n), b"").unwrap();
    }
    txn.put_inode(&orphans).unwrap();
    txn.commit().unwrap();
    assert_eq!(reopened(&volume).space().used, 1);
}
