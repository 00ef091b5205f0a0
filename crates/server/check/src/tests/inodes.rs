//! Damaged inodes, extents, trees and attributes.

use super::sample::*;
use super::{Damage, damage, each_is_found};
use shale_format::acl::{Acl, AclKind, Who};
use shale_format::extent::Extent;
use shale_format::inode::flag;
use shale_format::tree::ChildEntry;
use shale_format::version;
use shale_format::{BlockAddr, TierId};

fn leaf(s: &Sample, ino: u64, n: usize) -> u64 {
    s.nodes(&s.inode(ino), 0)[n]
}

fn top(s: &Sample, ino: u64) -> u64 {
    s.nodes(&s.inode(ino), 1)[0]
}

const FIELDS: &[Damage] = &[
    damage(
        |s| s.store(s.slot(DIRECT) + 9, &[0xff]),
        "inode: checksum",
        "/dir/sub/deep/direct",
    ),
    damage(
        |s| {
            let other = s.inode(SPARSE).encode();
            s.store(s.slot(DIRECT), &other);
        },
        "inode: place",
        "/dir/sub/deep/direct",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.mode = 0o170_644),
        "type of an inode",
        "/deep/direct",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.mode |= 1 << 20),
        "type of an inode",
        "/deep/direct",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.time_ns[2] = 1_000_000_000),
        "nanoseconds of a time",
        "direct",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.txid = 99),
        "inode of a batch that never was",
        "99",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.flags = flag::ALL + 1),
        "unknown flags of an inode",
        "direct",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.flags = flag::SYNC),
        "inode with flags in a volume that has none",
        "direct",
    ),
    damage(
        |s| s.edit(SPARSE, |i| i.size = u64::MAX),
        "size of an inode",
        "/deep/sparse",
    ),
    damage(
        |s| s.edit(LINK, |i| i.size = 0),
        "size of an inode",
        "/deep/link",
    ),
    damage(
        |s| s.edit(LINK, |i| i.size = 5000),
        "size of an inode",
        "/deep/link",
    ),
    damage(
        |s| s.edit(PIPE, |i| i.size = 1),
        "size of an inode",
        "/deep/pipe",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.nlink = 70_000),
        "more names than an inode can have",
        "direct",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.parent = DIR),
        "parent of what is no directory",
        "direct",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.blocks += 1),
        "count of blocks",
        "expected 10, found 11",
    ),
    damage(
        |s| s.store(s.slot(11), &s.inode(DIRECT).encode()),
        "inode: place",
        "inode 11",
    ),
    damage(
        |s| {
            let mut inode = s.inode(DIRECT);
            inode.ino = 5;
            s.store(s.slot(5), &inode.encode());
        },
        "inode with a number that no inode may have",
        "inode 5",
    ),
    damage(
        |s| s.edit(PIPE, |i| (i.mode, i.uid) = (0, 77)),
        "free slot that is not zeros",
        "pipe",
    ),
];

#[test]
fn fields() {
    each_is_found(FIELDS);
}

const EXTENTS: &[Damage] = &[
    damage(
        |s| s.edit(DIRECT, |i| i.root[0].kind = 9),
        "kind of an extent root",
        "direct",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.root[0].len = 0),
        "extent of no length",
        "direct",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.root[0].file_block = u64::MAX),
        "extent of no length",
        "direct",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.root[0].flags = 6),
        "extent with unknown flags",
        "direct",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.root[0].file_block = 1 << 40),
        "extent beyond the largest file",
        "direct",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.root[1] = i.root[0]),
        "extent in the tree of another tier",
        "Ssd",
    ),
    damage(
        |s| {
            s.edit(DIRECT, |i| {
                i.root[0].addr = BlockAddr::new(TierId::Ssd, 5).raw()
            })
        },
        "extent outside the data area",
        "blocks of Ssd",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.root[0].addr = BlockAddr::nvm(8188).raw()),
        "extent outside the data area",
        "found 10 from Nvm:8188",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.root[0].addr = BlockAddr::nvm(2).raw()),
        "extent outside the data area",
        "found 10 from Nvm:2",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.root[0].addr = 0xff << 56 | 4000),
        "extent outside the data area",
        "direct",
    ),
    damage(
        |s| s.edit_item(leaf(s, FRAGMENTED, 0), 5, |e: &mut Extent| e.len = 3),
        "extents overlap or are out of order",
        "/deep/fragmented",
    ),
    damage(
        |s| s.edit_item(leaf(s, FRAGMENTED, 0), 5, |e: &mut Extent| e.file_block = 3),
        "extents overlap or are out of order",
        "found 3",
    ),
    damage(
        |s| {
            s.edit_item(leaf(s, FRAGMENTED, 0), 4, |e: &mut Extent| {
                e.flags = 1 << 30
            })
        },
        "extent with unknown flags",
        "fragmented",
    ),
    damage(
        |s| {
            s.edit_item(leaf(s, FRAGMENTED, 1), 0, |e: &mut Extent| {
                e.file_block -= 1
            })
        },
        "extent outside the keys of its node",
        "fragmented",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.size = 4096 * 9),
        "data behind the end of the file",
        "file block 9",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.size = 4096 * 9 + 77),
        "data behind the end of the file",
        "byte 36941",
    ),
    damage(
        |s| s.edit(FRAGMENTED, |i| i.size -= 96),
        "data behind the end of the file",
        "zeros from byte",
    ),
    damage(
        |s| s.edit(LINK, |i| i.root[0].flags = 1),
        "symbolic link without its target",
        "link",
    ),
    damage(
        |s| {
            let root = s.inode(DIRECT).root[0];
            s.edit(PIPE, |i| i.root[0] = root);
        },
        "blocks of an inode that has no content",
        "/deep/pipe",
    ),
];

#[test]
fn extents() {
    each_is_found(EXTENTS);
}

const TREES: &[Damage] = &[
    damage(
        |s| s.store(leaf(s, FRAGMENTED, 1) as usize * 4096 + 99, &[1]),
        "tree node: checksum",
        "/deep/fragmented",
    ),
    damage(
        |s| s.edit_header(leaf(s, FRAGMENTED, 1), |h| h.magic = 1),
        "tree node: magic number",
        "/deep/fragmented",
    ),
    damage(
        |s| s.edit_header(leaf(s, FRAGMENTED, 1), |h| h.addr += 1),
        "tree node: place",
        "/deep/fragmented",
    ),
    damage(
        |s| s.edit_header(leaf(s, FRAGMENTED, 1), |h| h.owner = DIRECT),
        "tree node belongs to another inode",
        "expected 40, found 41",
    ),
    damage(
        |s| s.edit_header(leaf(s, FRAGMENTED, 1), |h| h.kind = 2),
        "tree node of the wrong kind",
        "expected 1, found 2",
    ),
    damage(
        |s| s.edit_header(leaf(s, FRAGMENTED, 1), |h| h.level = 3),
        "tree node of the wrong level",
        "expected 0, found 3",
    ),
    damage(
        |s| s.edit_header(leaf(s, FRAGMENTED, 1), |h| h.count = 0),
        "number of entries in a tree node",
        "fragmented",
    ),
    damage(
        |s| s.edit_header(leaf(s, FRAGMENTED, 1), |h| h.count = 60_000),
        "tree node: count",
        "60000",
    ),
    damage(
        |s| s.edit_header(leaf(s, FRAGMENTED, 1), |h| h.txid = 77),
        "tree node of a batch that never was",
        "77",
    ),
    damage(
        |s| {
            s.edit_item(top(s, FRAGMENTED), 1, |c: &mut ChildEntry| {
                c.key = u64::MAX - 1
            })
        },
        "keys of an inner node out of order",
        "fragmented",
    ),
    damage(
        |s| s.edit_item(top(s, FRAGMENTED), 1, |c: &mut ChildEntry| c.addr = 1),
        "tree node outside the data area",
        "1 from Nvm:1",
    ),
    damage(
        |s| s.edit_item(top(s, FRAGMENTED), 1, |c: &mut ChildEntry| c.addr = 1 << 56),
        "tree node outside the data area",
        "1 from Ssd:0",
    ),
    damage(
        |s| s.edit(FRAGMENTED, |i| i.root[0].file_block = 9),
        "count of tree nodes",
        "found 9",
    ),
    damage(
        |s| s.edit(FRAGMENTED, |i| i.root[0].level = 500),
        "tree too deep",
        "500",
    ),
    damage(
        |s| {
            let own = top(s, FRAGMENTED);
            s.edit_item(own, 1, |c: &mut ChildEntry| c.addr = own);
        },
        "blocks used twice",
        "as tree node; the first owner: tree node of /dir/sub/deep/fragmented (inode 40)",
    ),
    damage(
        |s| {
            let foreign = leaf(s, SECOND_FRAGMENTED, 0);
            s.edit_item(top(s, FRAGMENTED), 0, |c: &mut ChildEntry| c.addr = foreign);
        },
        "tree node belongs to another inode",
        "expected 40, found 47",
    ),
    damage(
        |s| {
            let root = s.inode(BIG).root[0];
            s.edit(FRAGMENTED, |i| i.root[0] = root);
        },
        "tree node belongs to another inode",
        "expected 40, found 23",
    ),
];

#[test]
fn trees() {
    each_is_found(TREES);
}

const ATTRIBUTES: &[Damage] = &[
    damage(
        |s| s.store(s.inode(ATTRIBUTED).xattr_addr as usize * 4096 + 4500, &[9]),
        "extended attributes: checksum",
        "/dir/sub/deep/attributed",
    ),
    damage(
        |s| s.edit(ATTRIBUTED, |i| i.xattr_bytes = 1 << 30),
        "bytes of extended attributes",
        "attributed",
    ),
    damage(
        |s| s.edit(ATTRIBUTED, |i| i.xattr_bytes += 8),
        "bytes of extended attributes",
        "attributed",
    ),
    damage(
        |s| s.edit(ATTRIBUTED, |i| i.xattr_bytes = 0),
        "extended attributes with a place and no bytes, or bytes and no place",
        "attributed",
    ),
    damage(
        |s| s.edit(ATTRIBUTED, |i| i.xattr_addr = 3),
        "extended attributes outside the data area",
        "2 from Nvm:3",
    ),
    damage(
        |s| s.edit(ATTRIBUTED, |i| i.xattr_addr -= 1),
        "extended attributes: magic number",
        "attributed",
    ),
    damage(
        |s| {
            let (addr, bytes) = (
                s.inode(ATTRIBUTED).xattr_addr,
                s.inode(ATTRIBUTED).xattr_bytes,
            );
            s.edit(DIRECT, |i| (i.xattr_addr, i.xattr_bytes) = (addr, bytes));
        },
        "extended attributes: owner",
        "direct",
    ),
];

const LISTS: &[Damage] = &[
    damage(
        |s| s.edit(LISTED, |i| i.mode ^= 0o020),
        "mode beside an access control list",
        "expected 664, found 644",
    ),
    damage(
        |s| {
            s.edit_xattrs(LISTED, |x| {
                let mut bytes = list(6).encode();
                bytes[0] = 3;
                x.insert(AclKind::Access.name().to_vec(), bytes);
            });
        },
        "access control list",
        "version 3 of an access control list",
    ),
    damage(
        |s| {
            s.edit_xattrs(LISTED, |x| {
                let bytes = list(6).encode();
                x.insert(AclKind::Access.name().to_vec(), bytes[..36].to_vec());
            });
        },
        "access control list",
        "not in order or not complete",
    ),
    damage(
        |s| {
            s.edit_xattrs(LISTED, |x| {
                x.insert(AclKind::Default.name().to_vec(), list(6).encode());
            });
        },
        "access control list",
        "a list of an inode with mode 100664",
    ),
    damage(
        |s| {
            s.edit_xattrs(LISTED, |x| {
                let mut entries = list(6).entries().to_vec();
                entries.retain(|e| !matches!(e.who, Who::User(_) | Who::Mask));
                let bytes = Acl::new(entries).encode();
                x.insert(AclKind::Access.name().to_vec(), bytes);
            });
        },
        "access control list",
        "no more than a mode",
    ),
    damage(
        |s| {
            for block in s.sb().copies() {
                s.edit_super(block, |sb| sb.incompatible &= !version::POSIX_ACLS);
            }
        },
        "access control list",
        "a list in a volume that has none",
    ),
];

#[test]
fn access_control_lists() {
    each_is_found(LISTS);
}

#[test]
fn attributes() {
    each_is_found(ATTRIBUTES);
}

const INODE_FILE: &[Damage] = &[
    damage(
        |s| s.edit_root(|r| r.inode_file.ino = 3),
        "number of the inode file",
        "inode file",
    ),
    damage(
        |s| s.edit_root(|r| r.inode_file.mode = 0),
        "type of an inode",
        "inode file",
    ),
    damage(
        |s| s.edit_root(|r| r.inode_file.blocks += 1),
        "count of blocks",
        "inode file",
    ),
    damage(
        |s| s.edit_root(|r| r.inode_file.size = 4096),
        "extents of the inode file that cannot hold slots",
        "inode file",
    ),
    damage(
        |s| s.edit_root(|r| r.inode_file.root[0].level = 200),
        "tree too deep",
        "inode file",
    ),
    damage(
        |s| {
            let block = s.slot(MANY.start) / 4096 * 4096;
            s.store(block, &[0; 4096]);
        },
        "block of the inode file without an inode",
        "96",
    ),
];

#[test]
fn inode_file() {
    each_is_found(INODE_FILE);
}
