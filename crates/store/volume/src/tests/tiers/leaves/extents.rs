//! Leaves of files' extents below NVM.

use super::*;
use crate::tests::extents::{FILE_BLOCKS, Model, change, compare};
use crate::tests::{Seeded, extent, file};
use crate::{Inode, Mapping, Run};
use shale_format::FileBlock;

const FILE: u64 = 40;

impl Tiered {
    fn file(&self) -> Inode {
        self.volume.view().inode(Ino(FILE)).unwrap().unwrap()
    }

    /// A file with `blocks` extents in NVM, in every second of its blocks, and behind them `lower` on flash. Gives
    /// what is mapped.
    fn fragments(&self, blocks: u64, lower: u64) -> Model {
        let mut txn = self.volume.begin();
        let (mut inode, mut model) = (file(FILE), Model::new());
        let run = self.volume.allocate(blocks, None).unwrap()[0];
        let mut add = |tier, n: u64, addr: BlockAddr| {
            let one = extent(n * 2, Run { addr, len: 1 });
            txn.extent_insert(&mut inode, tier, one).unwrap();
            model.insert(n * 2, (addr.raw(), false));
        };
        (0..blocks).for_each(|n| add(TierId::Nvm, n, run.addr.plus(n)));
        for n in blocks..blocks + lower {
            let cold = WriteStream::Cold;
            let run = self.volume.allocate_lower(TierId::Ssd, cold, 1, false);
            let run = run.unwrap();
            let bytes = [n as u8; BLOCK_BYTES];
            self.volume.write_lower(run, &bytes).unwrap();
            add(TierId::Ssd, n, run.addr);
        }
        txn.put_inode(&inode).unwrap();
        txn.commit().unwrap();
        model
    }

    fn extents_below(&self) -> u64 {
        self.volume.extent_leaves_below(TierId::Ssd)
    }
}

#[test]
fn leaves_of_extents_go_down_in_all_tiers_and_those_that_change_return() {
    let t = tiered();
    let mut model = t.fragments(1200, 180);
    let leaves = t.volume.view().leaves(&t.file()).unwrap().len() as u64;
    assert!((8..16).contains(&leaves), "{leaves}");
    let (used, live) = (
        t.volume.space().used,
        t.volume.lower_space(TierId::Ssd).unwrap().live,
    );
    assert_eq!(t.move_leaves_of(FILE, TierId::Ssd, |_| true) as u64, leaves);
    assert_eq!((t.extents_below(), t.below()), (leaves, 0));
    assert_eq!(used - t.volume.space().used, leaves);
    assert_eq!(
        t.volume.lower_space(TierId::Ssd).unwrap().live - live,
        leaves
    );
    let roots = t.file().root;
    assert_eq!(u64::from(roots[0].len + roots[1].len), leaves);
    assert!(roots[1].len >= 1);
    let t = t.reopen();
    assert_eq!(t.extents_below(), leaves);
    compare(&t.volume.view(), &t.file(), &model);
    let nth = |fb| {
        let view = t.volume.view();
        view.leaf_below(&t.file(), TierId::Nvm, FileBlock(fb))
            .unwrap()
    };
    assert_eq!(nth(0), nth(2));
    assert!(nth(0).is_some() && nth(0) != nth(1000));

    let mut txn = t.volume.begin();
    let mut inode = t.file();
    let range = FileBlock(0)..FileBlock(1);
    txn.extent_remove(&mut inode, TierId::Nvm, range).unwrap();
    txn.put_inode(&inode).unwrap();
    txn.commit().unwrap();
    model.remove(&0);
    assert_eq!(t.extents_below(), leaves - 1, "one has returned");
    assert_eq!(nth(0), None);
    compare(&t.volume.view(), &t.file(), &model);
    check(&t.volume.view());

    let mut txn = t.volume.begin();
    let mut inode = t.file();
    for tier in TierId::ALL {
        let all = FileBlock(0)..FileBlock(u64::MAX);
        txn.extent_remove(&mut inode, tier, all).unwrap();
    }
    txn.free_inode(Ino(FILE)).unwrap();
    txn.commit().unwrap();
    assert_eq!(t.extents_below(), 0);
    assert_eq!(t.volume.lower_space(TierId::Ssd).unwrap().live, 0);
    check(&t.volume.view());
}

#[test]
fn random_changes_with_leaves_below_match_the_model() {
    for seed in 0..2 {
        let mut r = Seeded(seed + 100);
        let t = tiered();
        let mut model = t.fragments(1400, 0);
        let mut inode = t.file();
        let (mut demoted, mut returned) = (0, 0);
        for _ in 0..8 {
            let before = t.extents_below();
            let mut txn = t.volume.begin();
            for _ in 0..1 + r.below(4) {
                change(&t.volume, &mut txn, &mut inode, &mut model, &mut r);
            }
            txn.put_inode(&inode).unwrap();
            let done = txn.commit().unwrap();
            returned += before.saturating_sub(t.extents_below());
            check(&t.volume.view());
            t.volume.release_up_to(done.txid);
            let share = 1 + r.below(3);
            demoted += t.move_leaves_of(FILE, TierId::Ssd, |_| r.below(4) < share);
            t.move_leaves_of(FILE, TierId::Nvm, |_| r.below(6) == 0);
            t.volume.release_up_to(t.volume.txid());
            while t.volume.erase_zones(TierId::Ssd).unwrap() > 0 {}
            inode = t.file();
            compare(&t.volume.view(), &inode, &model);
            check(&t.volume.view());
        }
        assert!(demoted > 12 && returned > 5, "{demoted} {returned}");
    }
}

#[test]
fn a_root_that_is_a_leaf_goes_down_and_becomes_an_extent_again() {
    let t = tiered();
    let mut model = t.fragments(3, 0);
    assert_eq!(t.file().root[0].level, 0);
    assert_eq!(t.move_leaves_of(FILE, TierId::Ssd, |_| true), 1);
    compare(&t.volume.view(), &t.file(), &model);
    let mut txn = t.volume.begin();
    let mut inode = t.file();
    for fb in [0, 2] {
        let range = FileBlock(fb)..FileBlock(fb + 1);
        txn.extent_remove(&mut inode, TierId::Nvm, range).unwrap();
        model.remove(&fb);
    }
    txn.put_inode(&inode).unwrap();
    txn.commit().unwrap();
    assert_eq!(t.file().root[0].kind, root_kind::DIRECT);
    assert_eq!(t.extents_below(), 0);
    compare(&t.volume.view(), &t.file(), &model);
    check(&t.volume.view());
}

#[test]
fn a_reader_without_devices_learns_which_leaves_of_extents_it_lacks() {
    let t = tiered();
    let model = t.fragments(1200, 0);
    let leaves = t.move_leaves_of(FILE, TierId::Ssd, |_| true);
    let held = Arc::new(PinnedBlocks::default());
    let (blind, _) = View::open(Arc::clone(t.volume.view().map())).unwrap();
    let blind = blind.with_block_source(held.clone());
    let mut asked = 0;
    let mut one = |fb| loop {
        match blind.map_block(&t.file(), FileBlock(fb)) {
            Err(lacking) => {
                asked += 1;
                held.get(&t, lacking);
            }
            Ok(found) => break found,
        }
    };
    for fb in 0..FILE_BLOCKS {
        match (one(fb), model.get(&fb)) {
            (Mapping::Data { addr, .. }, Some(&(at, _))) => assert_eq!(addr.raw(), at),
            (Mapping::Hole { .. }, None) => {}
            other => panic!("{fb}: {other:?}"),
        }
    }
    assert_eq!(asked, leaves);
    compare(&blind, &t.file(), &model);
}

#[test]
fn a_damaged_leaf_of_extents_is_an_error_for_its_blocks_only() {
    let t = tiered();
    let model = t.fragments(1200, 0);
    t.move_leaves_of(FILE, TierId::Ssd, |_| true);
    let leaves = t.volume.view().leaves(&t.file()).unwrap();
    t.spoil(leaves[3]);
    let (view, mut failed) = (t.volume.view(), 0);
    for (&fb, &(at, _)) in &model {
        match view.map_block(&t.file(), FileBlock(fb)) {
            Ok(Mapping::Data { addr, .. }) => assert_eq!(addr.raw(), at),
            Err(VolumeError::BadBlock { .. }) => failed += 1,
            other => panic!("{fb}: {other:?}"),
        }
    }
    assert!((80..=170).contains(&failed), "{failed}");
    let mut there = 0;
    view.extents_there(&t.file(), FileBlock(0), &mut |e| {
        assert_eq!(model[&e.file_block].0, e.addr);
        there += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(there + failed, model.len());
    assert!(view.leaf(Ino(FILE), leaves[3]).is_err());
    assert!(view.leaf(Ino(FILE), leaves[4]).is_ok());
    // One beside it shrinks until it would be joined with it, and stays by itself.
    let mut txn = t.volume.begin();
    let mut inode = t.file();
    let readable = |fb: &&u64| view.map_block(&t.file(), FileBlock(**fb)).is_ok();
    let behind: Vec<u64> = model.keys().skip(600).filter(readable).copied().collect();
    for &fb in &behind[..140] {
        let range = FileBlock(fb)..FileBlock(fb + 1);
        txn.extent_remove(&mut inode, TierId::Nvm, range).unwrap();
    }
    txn.put_inode(&inode).unwrap();
    txn.commit().unwrap();
}
