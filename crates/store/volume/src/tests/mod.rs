//! Tests through the public interface, with a checker that compares everything the
//! volume refers to with its bitmap.

mod crash;
mod damage;
mod dirs;
mod extents;
mod inodes;
mod readers;
mod spaces;
mod tiers;

use crate::{Extent, Inode, MkfsOptions, Run, View, Volume};
use shale_format::extent::root_kind;
use shale_format::{BlockAddr, FileBlock, Ino};
use shale_nvm::Map;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

const MIB: usize = 1 << 20;

fn options() -> MkfsOptions {
    MkfsOptions {
        uuid: [7; 16],
        hash_seed: [11, 13],
        created_ns: 1_000_000_007,
        ..MkfsOptions::default()
    }
}

fn new_volume(bytes: usize) -> Volume {
    let map = Arc::new(Map::anonymous(bytes).unwrap());
    Volume::create(map, &options()).unwrap()
}

/// A regular file that is not stored yet.
fn file(ino: u64) -> Inode {
    let mut inode = Inode::free();
    inode.ino = ino;
    inode.mode = 0o100_644;
    inode.nlink = 1;
    inode
}

/// A directory that is not stored yet.
fn directory(ino: u64) -> Inode {
    Inode {
        mode: 0o040_755,
        nlink: 2,
        ..file(ino)
    }
}

fn extent(fb: u64, run: Run) -> Extent {
    Extent {
        file_block: fb,
        addr: run.addr.raw(),
        len: run.len as u32,
        flags: 0,
    }
}

/// The same sequence of numbers everywhere.
struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Adds blocks to what is referred to; none may be referred to twice.
fn refer(seen: &mut BTreeMap<u64, u64>, addr: BlockAddr, len: u64, by: Ino) {
    for block in addr.index()..addr.index() + len {
        let other = seen.insert(block, by.0);
        assert_eq!(other, None, "block {block} of {by:?} belongs to two");
    }
}

fn refer_inode(view: &View, inode: &Inode, seen: &mut BTreeMap<u64, u64>) {
    let ino = Ino(inode.ino);
    let (mut nodes, mut below) = (0, 0);
    let flow = view.nodes(inode, &mut |at, found| {
        found.unwrap();
        nodes += 1;
        match at.addr.tier() {
            Some(shale_format::TierId::Nvm) => refer(seen, at.addr, 1, ino),
            _ => below += 1,
        }
        ControlFlow::Continue(())
    });
    assert!(flow.is_continue());
    let trees = inode.root.iter().filter(|r| r.kind == root_kind::TREE);
    let counted: u64 = trees.clone().map(|r| r.file_block).sum();
    assert_eq!(counted, nodes, "nodes counted in the roots");
    let counted: u32 = trees.map(|r| r.len).sum();
    assert_eq!(counted, below, "leaves below");
    for run in view.xattr_runs(inode).unwrap() {
        refer(seen, run.addr, run.len, ino);
        view.xattrs(inode).unwrap();
    }
    if inode.is_dir() {
        let mut entries = 0;
        let all = &mut |_| {
            entries += 1;
            ControlFlow::Continue(())
        };
        view.entries(inode, shale_format::DirKey(0), all).unwrap();
        assert_eq!(entries, inode.size, "entries of {ino:?}");
        return;
    }
    let mut blocks = 0;
    view.extents(inode, FileBlock(0), &mut |e| {
        blocks += u64::from(e.len);
        let addr = BlockAddr::from_raw(e.addr);
        // What lies below has bitmaps of its own.
        if addr.tier() == Some(shale_format::TierId::Nvm) {
            refer(seen, addr, e.len.into(), ino);
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(blocks, inode.blocks, "blocks of {ino:?}");
}

/// Checks that the bitmap and the counts say exactly what the trees refer to.
fn check(view: &View) {
    let sb = *view.superblock();
    let root = view.root().unwrap();
    let mut seen = BTreeMap::new();
    refer_inode(view, &root.inode_file, &mut seen);
    let (mut inodes, mut below) = (0, [0; 2]);
    view.inodes(&mut |_, inode| {
        let inode = inode.unwrap();
        inodes += 1;
        below[usize::from(inode.is_dir())] += crate::leaves_below(&inode);
        refer_inode(view, &inode, &mut seen);
        ControlFlow::Continue(())
    })
    .unwrap();
    let counted = [root.extent_leaves_below, root.leaves_below];
    assert_eq!(below, counted.map(|n| n.iter().sum()), "leaves below");
    assert_eq!(inodes, root.inodes, "inodes");
    assert_eq!(seen.len() as u64, root.used_blocks[0], "used blocks");
    let data = sb.data();
    let used = view.used_runs().unwrap();
    let blocks = used
        .iter()
        .flat_map(|r| r.addr.index()..r.addr.index() + r.len);
    let used: Vec<u64> = blocks.filter(|b| data.contains(b)).collect();
    assert!(used.into_iter().eq(seen.into_keys()), "bitmap");
}

/// Opens the volume once more, as after a restart, and checks it.
fn reopened(volume: &Volume) -> Volume {
    let again = Volume::open(Arc::clone(volume.view().map())).unwrap();
    check(&again.view());
    let space = again.space();
    assert_eq!((space.taken, space.pending), (0, 0));
    assert_eq!(space.free + space.used, space.total);
    assert_eq!(again.txid(), volume.txid());
    again
}
