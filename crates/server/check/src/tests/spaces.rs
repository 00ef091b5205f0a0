//! Blocks used twice, leaked, or marked free.

use super::sample::*;
use super::{Damage, damage, each_is_found};
use shale_format::extent::Extent;

const BLOCKS: &[Damage] = &[
    damage(
        |s| {
            let addr = s.data(DIRECT).raw();
            s.edit(LINK, |i| i.root[0].addr = addr);
        },
        "blocks used twice",
        "/dir/sub/deep/link (inode 43), block",
    ),
    damage(
        |s| {
            let addr = s.data(DIRECT).raw();
            s.edit(ORPHAN, |i| i.root[0].addr = addr);
        },
        "blocks used twice",
        "3 blocks as data; the first owner: data of /dir/sub/deep/direct (inode 41)",
    ),
    damage(
        |s| {
            let addr = s.data(DIRECT).raw();
            let leaf = s.nodes(&s.inode(SECOND_FRAGMENTED), 0)[1];
            s.edit_item(leaf, 7, |e: &mut Extent| e.addr = addr);
        },
        "blocks used twice",
        "fragmented too",
    ),
    damage(
        |s| {
            let node = s.nodes(&s.inode(BIG), 0)[0];
            s.edit(DIRECT, |i| (i.root[0].addr, i.root[0].len) = (node, 1));
        },
        "blocks used twice",
        "as data; the first owner: tree node of /big",
    ),
    damage(
        |s| {
            let slots = s.view().root().unwrap().inode_file.root[0];
            s.edit(LINK, |i| i.root[0].addr = slots.addr);
        },
        "blocks used twice",
        "as data; the first owner: ",
    ),
    damage(
        |s| {
            let addr = s.inode(ATTRIBUTED).xattr_addr;
            s.edit(LINK, |i| i.root[0].addr = addr);
        },
        "blocks used twice",
        "extended attributes",
    ),
    damage(
        |s| {
            let free = s.free_block();
            s.edit_bitmap(|w| w[free as usize / 64] |= 1 << (free % 64));
        },
        "leaked: marked used, and nothing refers to them",
        "1 block",
    ),
    damage(
        |s| {
            let used = s.data(LINK).index();
            s.edit_bitmap(|w| w[used as usize / 64] &= !(1 << (used % 64)));
        },
        "in use and marked free: they would be given out again",
        "1 block",
    ),
    damage(
        |s| s.edit(DIRECT, |i| (i.root[0].len, i.blocks) = (8, 8)),
        "leaked: marked used, and nothing refers to them",
        "2 blocks",
    ),
    damage(
        |s| s.edit_bitmap(|w| w[0] &= !3),
        "blocks that are not for data marked free",
        "block 0: ",
    ),
    damage(
        |s| s.edit_bitmap(|w| w[503] = 0),
        "blocks that are not for data marked free",
        "block 32192: ",
    ),
    damage(
        |s| s.store(s.sb().bitmap_block as usize * 4096 + 1000, &[0xa5]),
        "bitmap block: checksum",
        "bitmap",
    ),
    damage(
        |s| s.store(s.sb().bitmap_block as usize * 4096, &[0; 8]),
        "blocks whose use could not be compared",
        "0 to 32255",
    ),
    damage(
        |s| s.edit_root(|r| r.used_blocks[0] += 5),
        "count of used blocks",
        "root block",
    ),
    damage(
        |s| s.edit_root(|r| r.used_blocks[1] = 5),
        "count of used blocks in a tier below",
        "expected 0, found 5",
    ),
    damage(
        |s| s.edit_root(|r| r.inodes -= 1),
        "count of inodes",
        "root block",
    ),
    damage(
        |s| s.edit_root(|r| r.txid = 0),
        "bitmap block of a batch that never was",
        "bitmap",
    ),
];

#[test]
fn blocks() {
    each_is_found(BLOCKS);
}

#[test]
fn totals_tell_what_leaked() {
    let s = Sample::new();
    let before = s.check().totals;
    s.edit(DIRECT, |i| (i.root[0].len, i.blocks) = (4, 4));
    let after = s.check().totals;
    assert_eq!(
        (after.blocks_leaked, after.blocks_used),
        (6, before.blocks_used - 6)
    );
    assert_eq!(after.blocks_free, before.blocks_free);
}
