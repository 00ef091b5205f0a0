//! The allocator.

use super::*;
use crate::VolumeError;
use shale_format::TierId;
use std::collections::BTreeSet;

fn blocks(runs: &[Run]) -> u64 {
    runs.iter().map(|r| r.len).sum()
}

#[test]
fn never_the_same_block_twice_and_all_come_back() {
    let volume = new_volume(160 * MIB);
    let start = volume.space();
    assert_eq!(start.free + start.used, start.total);
    let mut r = Seeded(1);
    let mut held: Vec<Run> = Vec::new();
    let mut seen = BTreeSet::new();
    for _ in 0..3000 {
        if r.below(3) < 2 {
            let most = 1 << r.below(11);
            let wanted = 1 + r.below(most);
            let hint = held.last().map(|run| run.addr.plus(run.len));
            match volume.allocate(wanted, hint.filter(|_| r.below(2) == 0)) {
                Ok(runs) => {
                    assert_eq!(blocks(&runs), wanted);
                    for run in runs {
                        let first = run.addr.index();
                        assert!((first..first + run.len).all(|b| seen.insert(b)));
                        held.push(run);
                    }
                }
                Err(VolumeError::NoSpace { wanted: w, free }) => assert!(w == wanted && free < w),
                Err(e) => panic!("{e}"),
            }
        } else if !held.is_empty() {
            let run = held.swap_remove(r.below(held.len() as u64) as usize);
            let first = run.addr.index();
            (first..first + run.len).for_each(|b| assert!(seen.remove(&b)));
            volume.give_back(run);
        }
        let space = volume.space();
        assert_eq!(space.taken, seen.len() as u64);
        assert_eq!(space.free + space.taken, start.free);
    }
    let rest = volume.allocate(volume.space().free, None).unwrap();
    assert_eq!(volume.space().free, 0);
    assert!(volume.allocate(1, None).is_err());
    rest.into_iter()
        .chain(held)
        .for_each(|run| volume.give_back(run));
    assert_eq!(volume.space(), start);
}

#[test]
fn an_empty_volume_gives_one_run_and_follows_the_hint() {
    let volume = new_volume(64 * MIB);
    let a = volume.allocate(1000, None).unwrap();
    assert_eq!(a.len(), 1);
    let b = volume.allocate(10, Some(a[0].addr.plus(1000))).unwrap();
    assert_eq!(
        b,
        [Run {
            addr: a[0].addr.plus(1000),
            len: 10
        }]
    );
}

#[test]
fn grants_prefer_whole_segments_and_keep_the_reserve() {
    let volume = new_volume(256 * MIB);
    let space = volume.space();
    volume.allocate(10, None).unwrap();
    let runs = volume.grant(16384).unwrap();
    assert_eq!(runs.len(), 1);
    assert!(runs[0].len == 16384 && runs[0].addr.index().is_multiple_of(16384));
    let rest = volume.grant(u64::MAX).unwrap();
    assert!(blocks(&rest) > 0);
    assert_eq!(volume.space().free, space.reserved_fixed);
    assert!(matches!(volume.grant(1), Err(VolumeError::NoSpace { .. })));
}

#[test]
fn exact_blocks_are_taken_once() {
    let volume = new_volume(32 * MIB);
    let run = Run {
        addr: BlockAddr::nvm(4000),
        len: 100,
    };
    volume.take(run).unwrap();
    assert!(
        volume
            .take(Run {
                addr: BlockAddr::nvm(4099),
                len: 2
            })
            .is_err()
    );
    assert!(
        volume
            .take(Run {
                addr: BlockAddr::nvm(0),
                len: 1
            })
            .is_err()
    );
    assert!(
        volume
            .take(Run {
                addr: BlockAddr::nvm(8191),
                len: 1
            })
            .is_err(),
        "superblock"
    );
    let all = volume.allocate(volume.space().free, None).unwrap();
    let overlaps = |r: &Run| r.addr < run.addr.plus(100) && run.addr < r.addr.plus(r.len);
    assert!(!all.iter().any(overlaps));
}

#[test]
fn a_run_over_the_end_of_a_segment_is_taken_whole() {
    let volume = new_volume(160 * MIB);
    let over = Run::nvm(shale_allocation::SEGMENT_BLOCKS - 3, 8);
    volume.take(over).unwrap();
    assert!(
        volume
            .take(Run::nvm(shale_allocation::SEGMENT_BLOCKS + 4, 1))
            .is_err()
    );
    assert!(
        volume
            .take(Run::nvm(shale_allocation::SEGMENT_BLOCKS - 4, 2))
            .is_err()
    );
    volume.give_back(over);
    let later = Run::nvm(shale_allocation::SEGMENT_BLOCKS + 1, 1);
    volume.take(later).unwrap();
    let before = volume.space();
    assert!(volume.take(over).is_err(), "one of them is in use");
    assert_eq!(volume.space(), before);
}

#[test]
fn no_space_for_nodes_fails_the_transaction_only() {
    let volume = new_volume(32 * MIB);
    let before = volume.space();
    let all = volume.allocate(before.free - 1, None).unwrap();
    let mut txn = volume.begin();
    let mut dir = volume.view().inode(Ino::ROOT).unwrap().unwrap();
    let mut result = Ok(());
    for n in 0..200 {
        let key = shale_format::DirKey(1000 + n);
        result = txn.dir_insert(&mut dir, key, Ino(100), 8, &[b'n'; 50]);
        if result.is_err() {
            break;
        }
    }
    assert!(matches!(result, Err(VolumeError::NoSpace { .. })));
    assert!(matches!(txn.commit(), Err(VolumeError::Failed(_))));
    all.into_iter().for_each(|run| volume.give_back(run));
    assert_eq!(volume.space(), before);
    check(&volume.view());
}

#[test]
fn what_is_mapped_waits_until_the_last_mapping_has_gone() {
    let volume = new_volume(64 * MIB);
    let start = volume.space();
    let run = volume.allocate(100, None).unwrap()[0];
    let mut txn = volume.begin();
    let mut inode = file(20);
    txn.extent_insert(&mut inode, TierId::Nvm, extent(0, run))
        .unwrap();
    txn.put_inode(&inode).unwrap();
    txn.commit().unwrap();
    let part = |first, len| Run {
        addr: run.addr.plus(first),
        len,
    };
    let first = volume.hold(&[part(0, 50)]).unwrap();
    let second = volume.hold(&[part(10, 10), part(90, 5)]).unwrap();
    assert_eq!(volume.held_blocks(), 65);
    let mut txn = volume.begin();
    let mut inode = txn.inode(Ino(20)).unwrap().unwrap();
    txn.extent_remove(&mut inode, TierId::Nvm, FileBlock(0)..FileBlock(u64::MAX))
        .unwrap();
    txn.put_inode(&inode).unwrap();
    let txid = txn.commit().unwrap().txid;
    volume.release_up_to(txid);
    assert_eq!((volume.space().waiting, volume.space().pending), (55, 0));
    // Nobody gets what waits.
    let rest = volume.allocate(volume.space().free, None).unwrap();
    let meets = |r: &Run| {
        r.addr.index() < run.addr.index() + 50 && r.addr.index() + r.len > run.addr.index()
    };
    assert!(!rest.iter().any(meets));
    rest.into_iter().for_each(|run| volume.give_back(run));
    assert_eq!(volume.drop_hold(first), 40, "ten are mapped twice");
    assert_eq!(volume.drop_hold(first), 0);
    assert_eq!(volume.drop_hold(second), 15);
    let space = volume.space();
    assert_eq!((space.waiting, volume.held_blocks()), (0, 0));
    assert_eq!(space.free + space.used, start.total);
}

#[test]
fn what_was_mapped_before_this_start_waits_and_what_the_volume_needs_goes_first() {
    let volume = new_volume(64 * MIB);
    let start = volume.space();
    let run = volume.allocate(20, None).unwrap()[0];
    volume.give_back(run);
    let outside = Run {
        addr: BlockAddr::nvm(0),
        len: 1,
    };
    assert!(volume.hold(&[run, outside]).is_err(), "no block for data");
    assert_eq!(volume.space(), start);
    let hold = volume.hold(&[run]).unwrap();
    assert_eq!(volume.space().waiting, 20);
    let named_by_a_log = Run { len: 5, ..run };
    volume.take(named_by_a_log).unwrap();
    assert_eq!((volume.space().waiting, volume.space().taken), (15, 5));
    assert_eq!(volume.drop_hold(hold), 15);
    volume.give_back(named_by_a_log);
    assert_eq!(volume.space(), start);
}
