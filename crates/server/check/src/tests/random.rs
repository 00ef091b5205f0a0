//! Damage that nobody thought of: seeded, so that a failure can be run again.

use super::assert_clean;
use super::sample::*;
use shale_format::extent::{Extent, ExtentRoot, root_kind};
use shale_format::inode::Inode;
use shale_format::limits::{BLOCK_BYTES, INODE_BYTES};
use shale_format::tree::{self, ChildEntry, NodeHeader, TreeKind};
use shale_format::{BlockAddr, Ino};
use std::panic::{AssertUnwindSafe, catch_unwind};
use zerocopy::IntoBytes;

/// Checks, and says which damage it was if the check panics.
fn survives(s: &Sample, seed: u64) -> crate::Report {
    catch_unwind(AssertUnwindSafe(|| s.check()))
        .unwrap_or_else(|_| panic!("the check panicked: seed {seed}"))
}

#[test]
fn flipped_bytes_never_panic() {
    let s = Sample::journalled();
    let blocks = s.structure();
    for seed in 0..1000 {
        let mut r = Seeded(seed);
        for _ in 0..1 + r.below(4) {
            let block = blocks[r.below(blocks.len() as u64) as usize] as usize;
            // Most of what counts is in the first part of most blocks.
            let part = if r.below(2) == 0 {
                512
            } else {
                BLOCK_BYTES as u64
            };
            let at = block * BLOCK_BYTES + r.below(part) as usize;
            let [old] = s.map.load_array::<1>(at);
            s.store(at, &[old ^ (1 << r.below(8))]);
        }
        survives(&s, seed);
        s.put_back();
    }
    assert_clean(&s.check());
}

/// Damage behind checksums that fit: as a bug, or somebody hostile, would write it.
#[test]
fn wrong_structures_with_fitting_checksums_never_panic() {
    let s = Sample::new();
    let blocks = s.structure();
    let mut caught = 0;
    for seed in 0..1000 {
        let mut r = Seeded(seed);
        for _ in 0..1 + r.below(3) {
            let block = blocks[r.below(blocks.len() as u64) as usize];
            let bytes = s.block(block);
            if bytes[..4] == tree::NODE_MAGIC.to_le_bytes() {
                s.edit_node(block, |node| scribble(&mut r, &mut node[8..]));
            } else {
                let ino = [
                    1, 2, DIR, BIG, FRAGMENTED, DIRECT, ATTRIBUTED, ORPHAN, MANY.start,
                ];
                let ino = ino[r.below(9) as usize];
                s.edit(ino, |inode| {
                    scribble(&mut r, &mut inode.as_mut_bytes()[8..])
                });
            }
        }
        caught += u32::from(!survives(&s, seed).clean());
        s.put_back();
    }
    // Some of the bytes are owners, permissions or times, which nothing can prove wrong.
    assert!(caught > 600, "only {caught} of 1000 were found");
    assert_clean(&s.check());
}

/// One damage: a bit flipped anywhere in the structure, or a number changed in an inode or a
/// node whose checksum is made to fit.
pub(super) fn some_damage(s: &Sample, r: &mut Seeded, blocks: &[u64]) {
    let block = blocks[r.below(blocks.len() as u64) as usize];
    if r.below(2) == 0 {
        let part = if r.below(2) == 0 {
            512
        } else {
            BLOCK_BYTES as u64
        };
        let at = block as usize * BLOCK_BYTES + r.below(part) as usize;
        let [old] = s.map.load_array::<1>(at);
        s.store(at, &[old ^ (1 << r.below(8))]);
        return;
    }
    if s.block(block)[..4] == tree::NODE_MAGIC.to_le_bytes() {
        s.edit_node(block, |node| scribble(r, &mut node[8..]));
        return;
    }
    let inos = [
        1, 2, DIR, BIG, FRAGMENTED, DIRECT, ATTRIBUTED, ORPHAN, MANY.start,
    ];
    let ino = inos[r.below(9) as usize];
    // An earlier damage may have made it unreadable.
    let slot = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| s.slot(ino)));
    if let Ok(at) = slot
        && let Ok(mut inode) = Inode::decode(&s.map.load_array::<INODE_BYTES>(at), Ino(ino))
    {
        scribble(r, &mut inode.as_mut_bytes()[8..]);
        s.store(at, &inode.encode());
    }
}

/// Changes one number of 1, 2, 4 or 8 bytes to one that may be nasty.
fn scribble(r: &mut Seeded, bytes: &mut [u8]) {
    let n = 1 << r.below(4);
    // The beginning has headers and the first items.
    let reach = if r.below(2) == 0 {
        200
    } else {
        bytes.len() as u64
    };
    let at = r.below(reach.min(bytes.len() as u64) / n as u64) as usize * n;
    let value = match r.below(6) {
        0 => 0,
        1 => u64::MAX,
        2 => u64::MAX >> 1,
        3 => r.below(9000),
        4 => r.below(64),
        _ => r.next(),
    };
    bytes[at..at + n].copy_from_slice(&value.to_le_bytes()[..n]);
}

/// Every flip in bytes that a checksum covers is found.
#[test]
fn covered_bytes_are_found() {
    let s = Sample::new();
    let (bitmap, big) = (s.sb().bitmap_block as usize * BLOCK_BYTES, s.inode(BIG));
    let node = s.nodes(&big, 0)[0] as usize * BLOCK_BYTES;
    let areas = [
        (0, 1024),
        (BLOCK_BYTES, 512),
        (BYTES - BLOCK_BYTES, 1024),
        (bitmap, BLOCK_BYTES),
        (node, BLOCK_BYTES),
        (s.slot(DIRECT), INODE_BYTES),
        (s.slot(MANY.start), INODE_BYTES),
        (s.inode(ATTRIBUTED).xattr_addr as usize * BLOCK_BYTES, 5000),
    ];
    let mut r = Seeded(9);
    for _ in 0..300 {
        let (from, bytes) = areas[r.below(areas.len() as u64) as usize];
        let at = from + r.below(bytes as u64) as usize;
        let [old] = s.map.load_array::<1>(at);
        s.store(at, &[old ^ (1 << r.below(8))]);
        assert!(!s.check().clean(), "byte {at}");
        s.put_back();
    }
}

/// Writes an inner node of which every child is the same block.
fn fan(s: &Sample, block: u64, child: u64, level: u16, kind: TreeKind) {
    let mut node = [0; BLOCK_BYTES];
    let header = NodeHeader {
        magic: tree::NODE_MAGIC,
        crc: 0,
        addr: block,
        owner: DIRECT,
        txid: 1,
        kind: kind as u16,
        level,
        count: tree::CHILDREN_MAX as u16,
        heap: 0,
        reserved: [0; 24],
    };
    node[..64].copy_from_slice(header.as_bytes());
    for i in 0..tree::CHILDREN_MAX {
        let c = ChildEntry {
            key: i as u64,
            addr: child,
        };
        node[64 + i * 16..][..16].copy_from_slice(c.as_bytes());
    }
    tree::seal(&mut node);
    s.store(block as usize * BLOCK_BYTES, &node);
}

/// 252 to the twelfth ways lead to the last node.
#[test]
fn a_fan_of_nodes_ends_soon() {
    let s = Sample::new();
    let free = s.free_block();
    for kind in [TreeKind::Extents, TreeKind::Entries] {
        for level in 1..=12u16 {
            fan(
                &s,
                free + u64::from(level),
                free + u64::from(level) - 1,
                level,
                kind,
            );
        }
        s.edit(DIRECT, |i| {
            i.mode = if kind == TreeKind::Entries {
                0o040_755
            } else {
                0o100_644
            };
            i.root[0] = ExtentRoot {
                addr: free + 12,
                kind: root_kind::TREE,
                level: 12,
                ..ExtentRoot::EMPTY
            };
        });
        let report = s.check();
        assert!(report.totals.blocks_twice >= 12 * 251, "{report}");
        s.put_back();
    }
}

/// Every extent of a large tree claims the whole data area.
#[test]
fn everything_used_again_and_again_ends_soon() {
    let s = Sample::new();
    let data = s.sb().data_block..s.sb().second_block();
    for leaf in s.nodes(&s.inode(FRAGMENTED), 0) {
        for i in 0..100 {
            s.edit_item(leaf, i, |e: &mut Extent| {
                e.addr = BlockAddr::nvm(data.start).raw();
                e.len = (data.end - data.start) as u32;
            });
        }
    }
    let report = s.check();
    assert!(
        !report.complete && report.totals.blocks_twice < 10 * 8192,
        "{report}"
    );
}

/// A ring of many directories, below which many others hang.
#[test]
fn long_ways_and_rings() {
    let s = Sample::new();
    let volume = shale_volume::Volume::open(std::sync::Arc::clone(&s.map)).unwrap();
    let first = 1000;
    let dirs = 600;
    let key = |name: &[u8]| volume.view().key_group(name);
    let mut txn = volume.begin();
    for n in 0..dirs {
        let mut dir = Inode {
            ino: first + n,
            mode: 0o040_755,
            nlink: 3,
            parent: first + (n + dirs - 1) % dirs,
            ..Inode::free()
        };
        let child = Ino(first + (n + 1) % dirs);
        txn.dir_insert(&mut dir, key(b"d"), child, 4, b"d").unwrap();
        txn.put_inode(&dir).unwrap();
    }
    txn.commit().unwrap();
    let report = s.check();
    assert_eq!(report.errors, 1, "{report}");
    let what = "directory in a ring that the root does not lead to";
    assert_eq!(report.findings[0].what, what);
    // Cut open and hung below the root it is a way of 600 directories.
    let mut txn = volume.begin();
    let mut root = txn.inode(Ino::ROOT).unwrap().unwrap();
    txn.dir_insert(&mut root, key(b"top"), Ino(first), 4, b"top")
        .unwrap();
    root.nlink += 1;
    txn.put_inode(&root).unwrap();
    let mut top = txn.inode(Ino(first)).unwrap().unwrap();
    top.parent = 1;
    txn.put_inode(&top).unwrap();
    let mut last = txn.inode(Ino(first + dirs - 1)).unwrap().unwrap();
    txn.dir_remove(&mut last, key(b"d"), b"d").unwrap();
    (last.nlink, last.mode) = (2, 0o040_700);
    txn.put_inode(&last).unwrap();
    txn.commit().unwrap();
    assert_clean(&s.check());
    s.edit_entry(first + 598, None, |e| e.kind = 8);
    s.map
        .store(s.sb().journal_block as usize * BLOCK_BYTES, &[0; 64]);
    let report = s.check();
    let line = report.findings[0].to_string();
    assert!(
        line.contains(&format!("/top{}", "/d".repeat(598))),
        "{line}"
    );
}
