//! Leaves below NVM, of directories and (`extents`) of files.

mod extents;

use super::{Tiered, tiered};
use crate::tests::{check, directory};
use crate::{BlockSource, Result, View, VolumeError, WriteStream};
use parking_lot::Mutex;
use shale_format::extent::root_kind;
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, DirKey, Ino, TierId, tree};
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

const DIR: u64 = 40;

fn name(n: u64) -> Vec<u8> {
    format!("a name that is long enough to fill leaves {n}").into_bytes()
}

impl Tiered {
    fn names(&self, numbers: impl IntoIterator<Item = u64>, there: bool) {
        let view = self.volume.view();
        let mut txn = self.volume.begin();
        let fresh = directory(DIR);
        let mut dir = txn.inode(Ino(DIR)).unwrap().unwrap_or(fresh);
        for n in numbers {
            let group = view.key_group(&name(n));
            let collisions = txn.collisions(&dir, group).unwrap();
            match there {
                true => {
                    let key = group.with_twin(collisions.len() as u8);
                    txn.dir_insert(&mut dir, key, Ino(100 + n), 8, &name(n))
                        .unwrap();
                }
                false => {
                    let found = collisions.iter().find(|e| e.name == name(n)).unwrap();
                    txn.dir_remove(&mut dir, found.key, &name(n)).unwrap();
                }
            }
        }
        txn.put_inode(&dir).unwrap();
        txn.commit().unwrap();
    }

    fn dir(&self) -> crate::Inode {
        self.volume.view().inode(Ino(DIR)).unwrap().unwrap()
    }

    /// Moves the leaves of the directory of which `chosen` tells by their place in it.
    fn move_leaves(&self, to: TierId, chosen: impl FnMut(usize) -> bool) -> usize {
        self.move_leaves_of(DIR, to, chosen)
    }

    /// The same of any inode.
    fn move_leaves_of(&self, ino: u64, to: TierId, mut chosen: impl FnMut(usize) -> bool) -> usize {
        let view = self.volume.view();
        let inode = view.inode(Ino(ino)).unwrap().unwrap();
        let leaves = view.leaves(&inode).unwrap();
        let mut moves = HashMap::new();
        for (n, &from) in leaves.iter().enumerate() {
            if !chosen(n) || from.tier() == Some(to) {
                continue;
            }
            let mut bytes = view.leaf(Ino(ino), from).unwrap();
            let at = match to {
                TierId::Nvm => self.volume.allocate(1, None).unwrap()[0].addr,
                tier => {
                    let run = self
                        .volume
                        .allocate_lower(tier, WriteStream::Cold, 1, false);
                    run.unwrap().addr
                }
            };
            tree::readdress(&mut bytes, at);
            let run = crate::Run { addr: at, len: 1 };
            match to {
                TierId::Nvm => self.volume.write_at(at, 0, &bytes[..]).unwrap(),
                _ => self.volume.write_lower(run, &bytes[..]).unwrap(),
            }
            moves.insert(from, at);
        }
        self.volume.flush_lower(TierId::Ssd).unwrap();
        self.volume.let_directories_demote().unwrap();
        self.volume.let_extents_demote().unwrap();
        let mut txn = self.volume.begin();
        let moved = txn.move_leaves(Ino(ino), &moves).unwrap();
        txn.commit().unwrap();
        moved.len()
    }

    #[track_caller]
    fn has(&self, numbers: &BTreeSet<u64>) {
        let view = self.volume.view();
        let dir = self.dir();
        let mut found = BTreeSet::new();
        view.entries(&dir, DirKey(0), &mut |e| {
            found.insert(e.ino.0 - 100);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(found, *numbers);
        for n in 0..3000 {
            let found = view.lookup(&dir, &name(n)).unwrap();
            assert_eq!(found.is_some(), numbers.contains(&n), "name {n}");
        }
        check(&view);
    }

    fn below(&self) -> u64 {
        self.volume.leaves_below(TierId::Ssd)
    }

    /// Damages a block of flash.
    fn spoil(&self, addr: BlockAddr) {
        let first = self.volume.lower_device_infos(TierId::Ssd)[0].place.first;
        let at = shale_format::limits::LABEL_AREA_BYTES;
        let at = at + (addr.index() - first) * BLOCK_BYTES as u64;
        self.ssd.spoil(at + 100, &[0x55; 8]);
    }
}

#[test]
fn leaves_go_down_and_those_that_change_return() {
    let t = tiered();
    let mut names: BTreeSet<u64> = (0..2000).collect();
    t.names(0..2000, true);
    let leaves = t.volume.view().leaves(&t.dir()).unwrap().len() as u64;
    assert!(leaves > 30 && t.dir().root[0].level > 0);
    let used = t.volume.space().used;
    assert_eq!(
        t.move_leaves(TierId::Ssd, |n| n % 3 != 0) as u64,
        leaves - leaves.div_ceil(3)
    );
    assert_eq!(t.below(), leaves - leaves.div_ceil(3));
    t.has(&names);
    assert_eq!(
        t.move_leaves(TierId::Ssd, |_| true) as u64,
        leaves.div_ceil(3)
    );
    assert_eq!(t.below(), leaves);
    assert_eq!(t.volume.lower_space(TierId::Ssd).unwrap().live, leaves);
    assert_eq!(used - t.volume.space().used, leaves);
    let t = t.reopen();
    assert_eq!(t.below(), leaves);
    t.has(&names);
    t.names([2000], true);
    names.insert(2000);
    assert_eq!(
        (t.below(), u64::from(t.dir().root[0].len)),
        (leaves - 1, leaves - 1)
    );
    t.has(&names);
    t.names((0..2000).step_by(2), false);
    names.retain(|n| n % 2 == 1 || *n == 2000);
    t.has(&names);
    assert!(t.below() < leaves);
    t.move_leaves(TierId::Ssd, |_| true);
    t.move_leaves(TierId::Nvm, |n| n % 2 == 0);
    t.has(&names);
    t.move_leaves(TierId::Nvm, |_| true);
    assert_eq!((t.below(), t.dir().root[0].len), (0, 0));
    t.move_leaves(TierId::Ssd, |_| true);
    t.names(names.iter().copied().collect::<Vec<_>>(), false);
    names.clear();
    t.has(&names);
    assert_eq!((t.below(), t.dir().root[0].kind), (0, root_kind::EMPTY));
    assert_eq!(t.volume.lower_space(TierId::Ssd).unwrap().live, 0);
}

#[test]
fn a_directory_of_one_leaf_goes_down_and_is_removed() {
    let t = tiered();
    t.names(0..3, true);
    assert_eq!(t.move_leaves(TierId::Ssd, |_| true), 1);
    assert_eq!((t.dir().root[0].level, t.below()), (0, 1));
    t.has(&(0..3).collect());
    let mut txn = t.volume.begin();
    let mut dir = txn.inode(Ino(DIR)).unwrap().unwrap();
    txn.dir_clear(&mut dir).unwrap();
    txn.free_inode(Ino(DIR)).unwrap();
    txn.commit().unwrap();
    check(&t.volume.view());
    assert_eq!(
        (t.below(), t.volume.lower_space(TierId::Ssd).unwrap().live),
        (0, 0)
    );
}

#[test]
fn a_leaf_that_changed_meanwhile_stays_where_it_is() {
    let t = tiered();
    t.names(0..3, true);
    let view = t.volume.view();
    let from = view.leaves(&t.dir()).unwrap()[0];
    let mut bytes = view.leaf(Ino(DIR), from).unwrap();
    let run = t
        .volume
        .allocate_lower(TierId::Ssd, WriteStream::Cold, 1, false);
    let run = run.unwrap();
    tree::readdress(&mut bytes, run.addr);
    t.volume.write_lower(run, &bytes[..]).unwrap();
    t.names(3..4, true);
    let mut txn = t.volume.begin();
    let moves = HashMap::from([(from, run.addr)]);
    assert_eq!(txn.move_leaves(Ino(DIR), &moves).unwrap(), []);
    assert_eq!(txn.move_leaves(Ino(DIR + 1), &moves).unwrap(), []);
    txn.commit().unwrap();
    t.has(&(0..4).collect());
}

type Block = Arc<[u8; BLOCK_BYTES]>;

/// Blocks that were asked for.
#[derive(Default)]
struct PinnedBlocks(Mutex<HashMap<(BlockAddr, u32), Block>>);

impl PinnedBlocks {
    /// Gets what a reader lacks.
    fn get(&self, t: &Tiered, lacking: VolumeError) {
        let VolumeError::Lacking {
            addr, generation, ..
        } = lacking
        else {
            panic!("{lacking}");
        };
        let mut block = [0; BLOCK_BYTES];
        t.volume.view().read_at(addr, 0, &mut block).unwrap();
        self.0.lock().insert((addr, generation), Arc::new(block));
    }
}

impl BlockSource for PinnedBlocks {
    fn block(&self, addr: BlockAddr, generation: u32) -> Option<Result<Block>> {
        self.0.lock().get(&(addr, generation)).cloned().map(Ok)
    }
}

#[test]
fn a_reader_without_devices_says_what_it_lacks() {
    let t = tiered();
    t.names(0..2000, true);
    let leaves = t.move_leaves(TierId::Ssd, |_| true);
    let held = Arc::new(PinnedBlocks::default());
    let (blind, _) = View::open(Arc::clone(t.volume.view().map())).unwrap();
    assert!(blind.lookup(&t.dir(), &name(7)).is_err());
    let blind = blind.with_block_source(held.clone());
    let mut asked = 0;
    for n in 0..2000 {
        let found = loop {
            match blind.lookup(&t.dir(), &name(n)) {
                Err(lacking @ VolumeError::Lacking { blocks, .. }) => {
                    assert!(blocks >= 1 && blocks <= leaves as u64);
                    asked += 1;
                    held.get(&t, lacking);
                }
                other => break other.unwrap(),
            }
        };
        assert_eq!(found.unwrap().ino, Ino(100 + n));
    }
    assert_eq!(asked, leaves);
    let mut entries = 0;
    blind
        .entries(&t.dir(), DirKey(0), &mut |_| {
            entries += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(entries, 2000);
}

#[test]
fn a_damaged_leaf_below_is_an_error_for_its_names_only() {
    let t = tiered();
    t.names(0..2000, true);
    t.move_leaves(TierId::Ssd, |_| true);
    let addr = t.volume.view().leaves(&t.dir()).unwrap()[3];
    t.spoil(addr);
    let view = t.volume.view();
    let failed = (0..2000)
        .filter(|n| match view.lookup(&t.dir(), &name(*n)) {
            Ok(found) => {
                assert_eq!(found.unwrap().ino, Ino(100 + n));
                false
            }
            Err(e) => {
                assert!(matches!(e, VolumeError::BadBlock { .. }), "{e}");
                true
            }
        })
        .count();
    assert!((20..100).contains(&failed), "{failed}");
    let mut txn = t.volume.begin();
    let mut dir = t.dir();
    assert!(
        txn.dir_clear(&mut dir).is_ok(),
        "leaves are not read for that"
    );
}
