//! Inode file, numbers, attributes, log slots.

use super::*;

#[test]
fn numbers_that_are_held_are_granted_to_nobody() {
    let volume = new_volume(64 * MIB);
    let first = volume.grant_inodes(Ino::ROOT);
    volume.return_inodes(&first);
    let held = [first[3], Ino(first[0].0 + 16), Ino(first[0].0 + 17)];
    volume.hold_inodes(&held);
    let mut seen = Vec::new();
    for _ in 0..8 {
        seen.extend(volume.grant_inodes(Ino::ROOT));
    }
    assert!(seen.iter().all(|ino| !held.contains(ino)), "{seen:?}");
    assert!(seen.contains(&first[4]) && seen.contains(&Ino(first[0].0 + 18)));
    // A caller that makes an inode of one all the same takes it.
    let mut txn = volume.begin();
    let inode = Inode {
        ino: held[0].0,
        mode: 0o100_644,
        nlink: 1,
        ..Inode::free()
    };
    txn.put_inode(&inode).unwrap();
    txn.commit().unwrap();
    assert!(volume.view().inode(held[0]).unwrap().is_some());
}
use crate::{VolumeError, Xattrs};
use shale_format::Durability;
use shale_format::log::LogSlot;
use shale_format::superblock::Superblock;

#[test]
fn a_new_volume_has_a_root_and_opens_again() {
    let volume = new_volume(32 * MIB);
    check(&volume.view());
    let root = volume.view().inode(Ino::ROOT).unwrap().unwrap();
    assert!(root.is_dir() && root.nlink == 2 && root.parent == 1);
    assert!(volume.view().inode(Ino::ORPHANS).unwrap().unwrap().is_dir());
    for none in [Ino(0), Ino(3), Ino(16), Ino(1 << 40), Ino(u64::MAX)] {
        assert_eq!(volume.view().inode(none).unwrap(), None);
    }
    reopened(&volume);
    let small = Arc::new(Map::anonymous(16 * MIB).unwrap());
    assert!(matches!(
        Volume::create(small, &options()),
        Err(VolumeError::TierSize { .. })
    ));
}

/// A power cut between both copies, and a program that lost what was to use the feature.
#[test]
fn a_superblock_that_a_power_cut_left_behind_is_brought_up_to_date() {
    let map = Arc::new(Map::anonymous(32 * MIB).unwrap());
    let volume = Volume::create(map.clone(), &options()).unwrap();
    let old = *volume.superblock();
    volume.let_inodes_have_acls().unwrap();
    volume
        .set_policy_and_log(Durability::Ordered, 77 << 20)
        .unwrap();
    drop(volume);
    let now = *View::open(map.clone()).unwrap().0.superblock();
    assert_eq!(
        (now.policy(), now.log_bytes),
        (Durability::Ordered, 77 << 20)
    );
    for behind in old.copies() {
        map.store(BlockAddr::nvm(behind).byte() as usize, &old.encode());
        let volume = Volume::open(map.clone()).unwrap();
        let copies = old.copies().map(|block| {
            map.load_array::<{ Superblock::BYTES }>(BlockAddr::nvm(block).byte() as usize)
        });
        assert_eq!(copies[0], copies[1], "block {behind} was behind");
        assert_eq!(copies[0], volume.superblock().encode());
        assert_ne!(copies[0], old.encode());
    }
}

#[test]
fn either_superblock_will_do() {
    let volume = new_volume(32 * MIB);
    let map = Arc::clone(volume.view().map());
    let last = map.bytes() - 4096;
    let mut copy = [0; 64];
    for at in [0, last] {
        map.load(at, &mut copy);
        map.store(at, &[0; 64]);
        Volume::open(Arc::clone(&map)).unwrap();
        map.store(at, &copy);
    }
    map.store(0, &[0; 64]);
    map.store(last, &[0; 64]);
    assert!(matches!(Volume::open(map), Err(VolumeError::Format(_))));
}

#[test]
fn hundred_thousand_inodes_in_one_transaction() {
    let volume = new_volume(64 * MIB);
    let empty = volume.space();
    let mut granted = Vec::new();
    let mut txn = volume.begin();
    while granted.len() < 100_000 {
        let run = volume.grant_inodes(Ino::ROOT);
        assert_eq!(run.len(), 16);
        granted.extend(run);
    }
    for ino in &granted {
        txn.put_inode(&file(ino.0)).unwrap();
    }
    assert!(
        txn.journal_bytes() < txn.journal_capacity(),
        "new blocks need no journal"
    );
    let done = txn.commit().unwrap();
    assert!(done.freed.is_empty());
    let file_root = volume.view().root().unwrap();
    assert_eq!(file_root.inodes, 2 + 100_000);
    assert_eq!(volume.space().used, empty.used + 100_000 / 16);
    assert_eq!(
        volume.view().inode(granted[77_777]).unwrap().unwrap().ino,
        granted[77_777].0
    );

    for part in granted.chunks(3200) {
        let mut txn = volume.begin();
        for ino in part {
            txn.free_inode(*ino).unwrap();
        }
        assert!(txn.journal_bytes() < txn.journal_capacity());
        let done = txn.commit().unwrap();
        volume.release_up_to(done.txid);
    }
    assert_eq!(volume.space(), empty, "holes again");
    reopened(&volume);
}

#[test]
fn numbers_are_granted_once_and_come_back() {
    let volume = new_volume(32 * MIB);
    let first = volume.grant_inodes(Ino::ROOT);
    let second = volume.grant_inodes(Ino::ROOT);
    assert_eq!((first[0], second[0]), (Ino(16), Ino(32)));
    let mut txn = volume.begin();
    for ino in &first[..4] {
        txn.put_inode(&file(ino.0)).unwrap();
    }
    txn.commit().unwrap();
    volume.return_inodes(&first);
    let third = volume.grant_inodes(Ino::ROOT);
    assert_eq!(third, first[4..], "the rest of a block in use");
    volume.return_inodes(&third);
    let mut txn = volume.begin();
    for ino in &first[..4] {
        txn.free_inode(*ino).unwrap();
    }
    assert!(matches!(
        txn.free_inode(first[9]),
        Err(VolumeError::BadIno(_))
    ));
    txn.commit().unwrap();
    assert_eq!(volume.grant_inodes(Ino::ROOT), first, "a hole again");
    assert_eq!(volume.grant_inodes(Ino(1 << 30))[0], Ino(1 << 30), "near");
    assert_eq!(reopened(&volume).grant_inodes(Ino::ROOT), first);
}

#[test]
fn log_slots_survive() {
    let volume = new_volume(32 * MIB);
    let mut slot = LogSlot::decode(&[0; 64], 0).unwrap();
    slot.state = 1;
    slot.digested = 4711;
    let mut txn = volume.begin();
    txn.set_log_slot(7, &slot).unwrap();
    assert!(txn.set_log_slot(256, &slot).is_err());
    txn.commit().unwrap();
    assert_eq!(volume.view().log_slot(7).unwrap().digested, 4711);
    assert_eq!(volume.log_slots()[7].digested, 4711);
    assert_eq!(reopened(&volume).log_slots(), volume.log_slots());
}

#[test]
fn attributes_are_replaced_and_freed() {
    let volume = new_volume(32 * MIB);
    let empty = volume.space();
    let mut inode = file(20);
    for bytes in [10, 5000, 65536, 0] {
        let mut attrs = Xattrs::new();
        if bytes > 0 {
            attrs.insert(b"user.a".to_vec(), vec![7; bytes]);
            attrs.insert(b"user.b".to_vec(), b"b".to_vec());
        }
        let mut txn = volume.begin();
        txn.set_xattrs(&mut inode, &attrs).unwrap();
        assert_eq!(txn.xattrs(&inode).unwrap(), attrs);
        txn.put_inode(&inode).unwrap();
        let done = txn.commit().unwrap();
        volume.release_up_to(done.txid);
        assert_eq!(volume.view().xattrs(&inode).unwrap(), attrs);
        check(&volume.view());
    }
    assert_eq!(
        volume.space().used,
        empty.used + 2,
        "block and node of the inode file"
    );
    let mut txn = volume.begin();
    let most = Xattrs::from([(b"user.x".to_vec(), vec![0; 200 << 10])]);
    assert!(txn.set_xattrs(&mut inode, &most).is_err());
}

#[test]
fn attributes_fit_where_only_single_blocks_are_free() {
    let volume = new_volume(32 * MIB);
    let all = volume.allocate(volume.space().free, None).unwrap();
    let (first, blocks) = (all[0].addr, all[0].len);
    assert!(all.len() == 1 && blocks > 400);
    for n in (0..400).step_by(2) {
        volume.give_back(Run {
            addr: first.plus(n),
            len: 1,
        });
    }
    let before = volume.space();
    let mut inode = file(20);
    for bytes in [65536, 60_000, 9000, 3000, 5000, 0] {
        let mut attrs = Xattrs::new();
        if bytes > 0 {
            attrs.insert(b"user.a".to_vec(), vec![bytes as u8; bytes]);
        }
        let mut txn = volume.begin();
        txn.set_xattrs(&mut inode, &attrs).unwrap();
        txn.put_inode(&inode).unwrap();
        assert_eq!(txn.xattrs(&inode).unwrap(), attrs);
        let done = txn.commit().unwrap();
        volume.release_up_to(done.txid);
        assert_eq!(inode.xattr_scattered(), bytes > 4096);
        assert_eq!(volume.view().xattrs(&inode).unwrap(), attrs);
        check(&volume.view());
    }
    assert_eq!(
        volume.space().used,
        before.used + 2,
        "block and node of the inode file"
    );
}

#[test]
fn a_transaction_above_the_journal_is_refused_whole() {
    let volume = new_volume(32 * MIB);
    let mut txn = volume.begin();
    let inos: Vec<Ino> = (0..8000).map(|n| Ino(16 + n)).collect();
    for ino in &inos {
        txn.put_inode(&file(ino.0)).unwrap();
    }
    txn.commit().unwrap();
    let before = volume.space();
    let mut txn = volume.begin();
    for ino in &inos {
        txn.put_inode(&Inode {
            nlink: 2,
            ..file(ino.0)
        })
        .unwrap();
    }
    assert!(txn.journal_bytes() > txn.journal_capacity());
    assert!(matches!(txn.commit(), Err(VolumeError::JournalFull { .. })));
    assert_eq!(volume.space(), before);
    assert_eq!(volume.view().inode(Ino(16)).unwrap().unwrap().nlink, 1);
    reopened(&volume);
}
