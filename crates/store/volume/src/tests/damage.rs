//! Damaged bytes are errors: no panic, no endless walk, nothing wrong believed.

use super::*;
use shale_format::{DirKey, TierId};

/// A file and a directory with small trees.
fn with_trees() -> (Volume, Inode, Inode) {
    let volume = new_volume(32 * MIB);
    let (mut a, mut dir) = (file(20), directory(21));
    let mut txn = volume.begin();
    let run = volume.allocate(400, None).unwrap()[0];
    for n in 0..400 {
        let one = Run {
            addr: run.addr.plus(n),
            len: 1,
        };
        txn.extent_insert(&mut a, TierId::Nvm, extent(n * 2, one))
            .unwrap();
    }
    for n in 0..400u64 {
        let name = format!("name {n}");
        let key = volume.view().key_group(name.as_bytes());
        txn.dir_insert(&mut dir, key, Ino(n), 8, name.as_bytes())
            .unwrap();
    }
    txn.put_inode(&a).unwrap();
    txn.put_inode(&dir).unwrap();
    txn.commit().unwrap();
    (volume, a, dir)
}

fn nodes(view: &View, inode: &Inode) -> Vec<BlockAddr> {
    let mut found = Vec::new();
    let _ = view.nodes(inode, &mut |at, _| {
        found.push(at.addr);
        ControlFlow::Continue(())
    });
    found
}

fn walk(view: &View, inode: &Inode) -> crate::Result<()> {
    if inode.is_dir() {
        return view.entries(inode, DirKey(0), &mut |_| ControlFlow::Continue(()));
    }
    view.extents(inode, FileBlock(0), &mut |_| ControlFlow::Continue(()))
}

/// Looking again and again does not multiply: an inode is looked up with as many reads as one.
#[test]
fn a_damaged_root_block_is_an_error_soon() {
    let (volume, a, _) = with_trees();
    let view = volume.view();
    let at = BlockAddr::nvm(shale_format::superblock::ROOT_BLOCK).byte() as usize + 100;
    let [old] = view.map().load_array::<1>(at);
    view.map().store(at, &[old ^ 1]);
    let before = view.map().counts();
    assert!(view.inode(Ino(a.ino)).is_err());
    let loaded = (view.map().counts() - before).total().bytes_loaded;
    assert!(loaded < 4 << 20, "{loaded} bytes were read");
}

#[test]
fn every_flipped_byte_of_a_node_is_found() {
    let (volume, a, dir) = with_trees();
    let view = volume.view();
    for inode in [&a, &dir] {
        assert!(nodes(&view, inode).len() >= 3);
        for addr in nodes(&view, inode) {
            // Odd steps reach every offset of some word; all bytes of the header.
            for byte in (0..64).chain((64..4096).step_by(13)) {
                let at = addr.byte() as usize + byte;
                let [old] = view.map().load_array::<1>(at);
                view.map().store(at, &[old ^ 0x10]);
                assert!(walk(&view, inode).is_err(), "byte {byte} of {addr:?}");
                view.map().store(at, &[old]);
            }
        }
        walk(&view, inode).unwrap();
    }
}

/// Nodes whose checksum fits but whose contents do not: as a bug would write them.
#[test]
fn wrong_nodes_with_fitting_checksums_do_no_harm() {
    let (volume, a, dir) = with_trees();
    let view = volume.view();
    let mut r = Seeded(3);
    for inode in [&a, &dir] {
        for addr in nodes(&view, inode) {
            let whole = view.map().load_array::<4096>(addr.byte() as usize);
            for _ in 0..300 {
                let mut node = whole;
                for _ in 0..1 + r.below(4) {
                    let at = if r.below(3) == 0 {
                        32 + r.below(8)
                    } else {
                        64 + r.below(4032)
                    };
                    node[at as usize] = r.next() as u8;
                }
                shale_format::tree::seal(&mut node);
                view.map().store(addr.byte() as usize, &node);
                let _ = walk(&view, inode);
                let _ = view.lookup(inode, b"name 7");
                for fb in 0..40 {
                    let _ = view.map_block(inode, FileBlock(fb * 20));
                    let _ = view.leaf_of(inode, FileBlock(fb * 20));
                }
                let mut txn = volume.begin();
                let mut copy = *inode;
                let _ = txn.extent_remove(&mut copy, TierId::Nvm, FileBlock(9)..FileBlock(300));
                let _ = txn.dir_remove(&mut copy, view.key_group(b"name 7"), b"name 7");
                drop(txn);
            }
            view.map().store(addr.byte() as usize, &whole);
        }
        walk(&view, inode).unwrap();
    }
    check(&view);
}

#[test]
fn damaged_roots_of_an_inode_do_no_harm() {
    let (volume, a, dir) = with_trees();
    let view = volume.view();
    let mut r = Seeded(4);
    for inode in [a, dir] {
        for _ in 0..2000 {
            let mut bad = inode;
            let root = &mut bad.root[r.below(3) as usize];
            match r.below(6) {
                0 => root.kind = r.next() as u8,
                1 => root.addr = r.next() >> r.below(64),
                2 => root.len = r.next() as u32,
                3 => root.level = r.next() as u16,
                4 => root.file_block = r.next() >> r.below(64),
                _ => (root.kind, root.len) = (1, r.next() as u32),
            }
            let _ = walk(&view, &bad);
            let _ = view.map_block(&bad, FileBlock(r.below(900)));
            let _ = view.lookup(&bad, b"name 1");
            bad.xattr_addr = r.next();
            bad.xattr_bytes = r.next() as u32 >> r.below(32);
            let _ = view.xattrs(&bad);
        }
    }
}

#[test]
fn damaged_fixed_areas_are_refused_at_open() {
    let (volume, ..) = with_trees();
    let map = Arc::clone(volume.view().map());
    let sb = *volume.superblock();
    for block in [1, sb.bitmap_block] {
        let at = block as usize * 4096 + 70;
        let [old] = map.load_array::<1>(at);
        map.store(at, &[old ^ 1]);
        // The journal still holds the last batch, which would repair it.
        let journal = sb.journal_block as usize * 4096;
        let header = map.load_array::<64>(journal);
        map.store(journal, &[0; 64]);
        assert!(Volume::open(Arc::clone(&map)).is_err(), "block {block}");
        map.store(journal, &header);
        map.store(at, &[old]);
    }
    Volume::open(map).unwrap();
}
