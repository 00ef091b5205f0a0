//! Extents against a model that maps every file block by itself.

use super::*;
use crate::{Mapping, VolumeError};
use shale_format::TierId;
use shale_format::extent::{UNWRITTEN, root_kind};

pub(super) const FILE_BLOCKS: u64 = 3000;
const NVM: TierId = TierId::Nvm;

/// What each file block is mapped to, and whether it is unwritten.
pub(super) type Model = BTreeMap<u64, (u64, bool)>;

pub(super) fn compare(view: &View, inode: &Inode, model: &Model) {
    let mut found = Model::new();
    let mut last: Option<Extent> = None;
    view.extents(inode, FileBlock(0), &mut |e| {
        if let Some(l) = last {
            let adjoin = l.end() == e.start() && l.flags == e.flags;
            assert!(!adjoin || l.addr + u64::from(l.len) != e.addr, "not merged");
        }
        last = Some(e);
        for n in 0..u64::from(e.len) {
            found.insert(e.file_block + n, (e.addr + n, e.is_unwritten()));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(&found, model);
    let mut fb = 0;
    let mut kept = crate::KeptLeaf::default();
    while fb < FILE_BLOCKS {
        let near = view.map_block_near(inode, FileBlock(fb), &mut kept);
        assert_eq!(near.unwrap(), view.map_block(inode, FileBlock(fb)).unwrap());
        let cover = view.leaf_of(inode, FileBlock(fb)).unwrap();
        assert!(cover.range.contains(&FileBlock(fb)));
        let kept = cover
            .extents
            .iter()
            .find(|e| e.start().0 <= fb && fb < e.end().0);
        let (len, addr) = match view.map_block(inode, FileBlock(fb)).unwrap() {
            Mapping::Data { addr, len } => (len, Some((addr.raw(), false))),
            Mapping::Unwritten { addr, len } => (len, Some((addr.raw(), true))),
            Mapping::Hole { len } => (len, None),
        };
        assert_eq!(
            kept.map(|e| (e.addr_of(FileBlock(fb)).raw(), e.is_unwritten())),
            addr
        );
        assert!(len > 0);
        for n in 0..len.min(FILE_BLOCKS - fb) {
            let expected = addr.map(|(a, u)| (a + n, u));
            assert_eq!(model.get(&(fb + n)).copied(), expected, "block {}", fb + n);
        }
        fb += len;
    }
}

/// One random change to file and model.
pub(super) fn change(
    volume: &Volume,
    txn: &mut crate::Txn,
    inode: &mut Inode,
    model: &mut Model,
    r: &mut Seeded,
) {
    let at = r.below(FILE_BLOCKS);
    let most = 1 << r.below(7);
    let len = 1 + r.below(most);
    match r.below(11) {
        0 => many(volume, txn, inode, model, at, r),
        1..=5 => {
            let flags = if r.below(4) == 0 { UNWRITTEN } else { 0 };
            let mut fb = at;
            for run in volume.allocate(len, None).unwrap() {
                let e = Extent {
                    flags,
                    ..extent(fb, run)
                };
                txn.extent_insert(inode, NVM, e).unwrap();
                for n in 0..run.len {
                    model.insert(fb + n, (run.addr.raw() + n, flags != 0));
                }
                fb += run.len;
            }
        }
        6 => {
            // An unwritten block becomes a written one in place.
            let next = model
                .range(at..)
                .find(|(_, v)| v.1)
                .map(|(&fb, v)| (fb, v.0));
            if let Some((fb, addr)) = next {
                let run = Run {
                    addr: BlockAddr::from_raw(addr),
                    len: 1,
                };
                txn.extent_insert(inode, NVM, extent(fb, run)).unwrap();
                model.insert(fb, (addr, false));
            }
        }
        7 | 8 => {
            let range = FileBlock(at)..FileBlock(at + len * 4);
            txn.extent_remove(inode, NVM, range).unwrap();
            model.retain(|&fb, _| fb < at || fb >= at + len * 4);
        }
        _ => shift(txn, inode, model, at, len),
    }
}

/// Short extents in ascending order from `at` on, put in at once: over what is there, between, beside, and the same
/// blocks again.
fn many(
    volume: &Volume,
    txn: &mut crate::Txn,
    inode: &mut Inode,
    model: &mut Model,
    at: u64,
    r: &mut Seeded,
) {
    let (mut fb, mut all, dense) = (at, Vec::new(), r.below(3));
    for _ in 0..r.below(300) {
        fb += r.below([1, 3, 20][dense as usize]);
        if fb >= FILE_BLOCKS {
            break;
        }
        let flags = if r.below(8) == 0 { UNWRITTEN } else { 0 };
        let again = model.get(&fb).filter(|_| r.below(8) == 0);
        let run = match again {
            Some(&(addr, _)) => Run {
                addr: BlockAddr::from_raw(addr),
                len: 1,
            },
            None => volume.allocate(1 + r.below(3), None).unwrap()[0],
        };
        all.push(Extent {
            flags,
            ..extent(fb, run)
        });
        fb += run.len;
    }
    txn.extent_insert_all(inode, NVM, &all).unwrap();
    for e in all {
        for n in 0..u64::from(e.len) {
            model.insert(e.file_block + n, (e.addr + n, e.is_unwritten()));
        }
    }
}

/// Collapses `len` blocks at `at`, then inserts as many.
fn shift(txn: &mut crate::Txn, inode: &mut Inode, model: &mut Model, at: u64, len: u64) {
    let end = FileBlock(at + len);
    txn.extent_remove(inode, NVM, FileBlock(at)..end).unwrap();
    txn.extent_shift(inode, end, -(len as i64)).unwrap();
    let other = at / 2;
    txn.extent_shift(inode, FileBlock(other), len as i64)
        .unwrap();
    let collapsed = std::mem::take(model).into_iter();
    let collapsed = collapsed.filter(|(fb, _)| *fb < at || *fb >= at + len);
    let collapsed = collapsed.map(|(fb, v)| (if fb < at { fb } else { fb - len }, v));
    *model = collapsed
        .map(|(fb, v)| (if fb < other { fb } else { fb + len }, v))
        .collect();
}

#[test]
fn random_changes_match_the_model_and_leak_nothing() {
    for seed in 0..4 {
        let mut r = Seeded(seed);
        let volume = new_volume(48 * MIB);
        let empty = volume.space();
        let mut model = Model::new();
        let mut inode = file(33);
        for round in 0..40 {
            let mut txn = volume.begin();
            for _ in 0..25 {
                change(&volume, &mut txn, &mut inode, &mut model, &mut r);
            }
            txn.put_inode(&inode).unwrap();
            let done = txn.commit().unwrap();
            let stored = volume.view().inode(Ino(33)).unwrap().unwrap();
            assert_eq!(stored.txid, done.txid.0);
            assert_eq!(stored.root, inode.root);
            compare(&volume.view(), &inode, &model);
            volume.release_up_to(done.txid);
            if round % 8 == 0 {
                check(&volume.view());
            }
        }
        assert_eq!(
            inode.root[0].kind,
            root_kind::TREE,
            "the test is to reach trees"
        );
        let again = reopened(&volume);
        compare(&again.view(), &inode, &model);
        assert_eq!(volume.space(), again.space());

        let mut txn = volume.begin();
        txn.extent_remove(&mut inode, NVM, FileBlock(0)..FileBlock(u64::MAX))
            .unwrap();
        txn.free_inode(Ino(33)).unwrap();
        let done = txn.commit().unwrap();
        assert_eq!(inode.blocks, 0);
        volume.release_up_to(done.txid);
        assert_eq!(volume.space(), empty);
        check(&volume.view());
    }
}

#[test]
fn removed_piece_by_piece_the_tree_shrinks_to_nothing() {
    let volume = new_volume(48 * MIB);
    let empty = volume.space();
    let mut inode = file(40);
    let mut txn = volume.begin();
    let run = volume.allocate(2000, None).unwrap()[0];
    for n in 0..2000 {
        let one = Run {
            addr: run.addr.plus(n),
            len: 1,
        };
        txn.extent_insert(&mut inode, NVM, extent(n * 2, one))
            .unwrap();
    }
    assert!(inode.root[0].level == 1 && inode.root[0].file_block < 2000 / 160 + 3);
    txn.put_inode(&inode).unwrap();
    txn.commit().unwrap();
    check(&volume.view());
    let mut r = Seeded(5);
    let mut left: Vec<u64> = (0..2000).collect();
    while !left.is_empty() {
        let mut txn = volume.begin();
        for _ in 0..100 {
            let n = left.swap_remove(r.below(left.len() as u64) as usize);
            txn.extent_remove(&mut inode, NVM, FileBlock(n * 2)..FileBlock(n * 2 + 1))
                .unwrap();
        }
        txn.put_inode(&inode).unwrap();
        let done = txn.commit().unwrap();
        volume.release_up_to(done.txid);
        check(&volume.view());
    }
    assert_eq!(inode.root[0].kind, root_kind::EMPTY);
    assert_eq!(
        volume.space().used,
        empty.used + 2,
        "only block and node of the inode file"
    );
}

#[test]
fn a_dropped_transaction_changes_nothing() {
    let volume = new_volume(32 * MIB);
    let before = volume.space();
    let runs = volume.allocate(10, None).unwrap();
    let mut txn = volume.begin();
    let mut inode = file(20);
    for n in 0..10 {
        let one = Run {
            addr: runs[0].addr.plus(n),
            len: 1,
        };
        txn.extent_insert(&mut inode, NVM, extent(n * 3, one))
            .unwrap();
    }
    txn.put_inode(&inode).unwrap();
    drop(txn);
    runs.into_iter().for_each(|run| volume.give_back(run));
    assert_eq!(volume.space(), before);
    assert_eq!(volume.view().inode(Ino(20)).unwrap(), None);
    reopened(&volume);
}

#[test]
fn blocks_cannot_be_used_or_freed_twice() {
    let volume = new_volume(32 * MIB);
    let run = volume.allocate(4, None).unwrap()[0];
    let mut txn = volume.begin();
    let mut inode = file(20);
    txn.extent_insert(&mut inode, NVM, extent(0, run)).unwrap();
    txn.put_inode(&inode).unwrap();
    txn.commit().unwrap();
    let mut txn = volume.begin();
    let mut other = file(21);
    let twice = txn.extent_insert(&mut other, NVM, extent(0, run));
    assert!(matches!(twice, Err(VolumeError::Damaged { .. })));
    assert!(matches!(txn.commit(), Err(VolumeError::Failed(_))));
    let mut txn = volume.begin();
    assert!(txn.free_blocks(run.addr.plus(500), 1).is_err());
    drop(txn);
    let mut txn = volume.begin();
    txn.extent_remove(&mut inode, NVM, FileBlock(0)..FileBlock(4))
        .unwrap();
    txn.put_inode(&inode).unwrap();
    let done = txn.commit().unwrap();
    assert_eq!(done.freed, [run]);
    let mut txn = volume.begin();
    let pending = txn.extent_insert(&mut other, NVM, extent(0, run));
    assert!(
        matches!(pending, Err(VolumeError::BadRun { .. })),
        "not released yet"
    );
    drop(txn);
    volume.release_up_to(done.txid);
    check(&volume.view());
}

#[test]
fn the_fastest_tier_wins() {
    let volume = new_volume(32 * MIB);
    let view = volume.view();
    let at = |tier, fb, addr, len| shale_format::extent::ExtentRoot {
        addr: BlockAddr::new(tier, addr).raw(),
        file_block: fb,
        len,
        kind: root_kind::DIRECT,
        ..shale_format::extent::ExtentRoot::EMPTY
    };
    let mut inode = file(20);
    inode.root[0] = at(TierId::Nvm, 10, 1000, 10);
    inode.root[1] = at(TierId::Ssd, 0, 500, 40);
    inode.root[2] = at(TierId::Hdd, 30, 700, 30);
    let ssd = |n| BlockAddr::new(TierId::Ssd, n);
    let expected = [
        (
            0,
            Mapping::Data {
                addr: ssd(500),
                len: 10,
            },
        ),
        (
            12,
            Mapping::Data {
                addr: BlockAddr::nvm(1002),
                len: 8,
            },
        ),
        (
            20,
            Mapping::Data {
                addr: ssd(520),
                len: 20,
            },
        ),
        (
            45,
            Mapping::Data {
                addr: BlockAddr::new(TierId::Hdd, 715),
                len: 15,
            },
        ),
        (60, Mapping::Hole { len: u64::MAX - 60 }),
    ];
    let txn = volume.begin();
    for (fb, mapping) in expected {
        assert_eq!(view.map_block(&inode, FileBlock(fb)).unwrap(), mapping);
        assert_eq!(txn.map_block(&inode, FileBlock(fb)).unwrap(), mapping);
    }
    let found: Vec<_> = view.leaf_of(&inode, FileBlock(15)).unwrap().extents;
    let found: Vec<_> = found.iter().map(|e| (e.file_block, e.len)).collect();
    assert_eq!(found, [(0, 10), (10, 10), (20, 20), (40, 20)]);
}

#[test]
fn a_block_in_use_gets_no_second_owner() {
    let volume = new_volume(64 * MIB);
    let run = volume.allocate(1, None).unwrap()[0];
    let extent = |file_block| Extent {
        file_block,
        addr: run.addr.raw(),
        len: 1,
        flags: 0,
    };
    let inode = |ino| Inode {
        ino,
        mode: 0o100_644,
        nlink: 1,
        ..Inode::free()
    };
    let twice = |error| matches!(error, VolumeError::Damaged { .. });
    let (mut a, mut b) = (inode(20), inode(21));
    let mut txn = volume.begin();
    txn.extent_insert(&mut a, NVM, extent(0)).unwrap();
    assert!(twice(
        txn.extent_insert(&mut b, NVM, extent(7)).unwrap_err()
    ));
    assert!(txn.commit().is_err(), "by one transaction");
    let run_again = volume.allocate(1, None).unwrap()[0];
    assert_ne!(run_again, run, "still the caller's");
    let mut txn = volume.begin();
    let mut a = inode(20);
    txn.extent_insert(&mut a, NVM, extent(0)).unwrap();
    txn.put_inode(&a).unwrap();
    txn.commit().unwrap();
    let mut txn = volume.begin();
    assert!(twice(
        txn.extent_insert(&mut b, NVM, extent(7)).unwrap_err()
    ));
    assert!(
        twice(txn.extent_insert(&mut a, NVM, extent(1)).unwrap_err()),
        "of one file"
    );
}

#[test]
fn growth_is_limited_where_it_is_asked_for() {
    let volume = new_volume(64 * MIB);
    let grow = |limit| {
        let run = volume.allocate(3, None).unwrap()[0];
        let mut file = Inode {
            ino: 20,
            mode: 0o100_644,
            nlink: 1,
            ..Inode::free()
        };
        let extent = Extent {
            file_block: 0,
            addr: run.addr.raw(),
            len: 3,
            flags: 0,
        };
        let mut txn = volume.begin();
        txn.limit_growth(limit);
        txn.extent_insert(&mut file, NVM, extent).unwrap();
        txn.put_inode(&file).unwrap();
        let done = txn.commit().map(|_| ());
        if done.is_err() {
            volume.give_back(run);
        }
        done
    };
    let before = volume.space();
    // Three blocks of data, one of the inode file.
    let error = VolumeError::Growth {
        wanted: 4,
        reserved: 3,
    };
    assert_eq!(grow(Some(3)), Err(error));
    assert_eq!(volume.space(), before);
    grow(Some(4)).unwrap();
}
