//! Damaged directories and links.

use super::sample::*;
use super::{Damage, damage, each_is_found};
use shale_format::dirent::DirentEntry;
use zerocopy::{FromBytes, IntoBytes};

const MANY_FIRST: &str = "a name of some length, number 100-0";

/// Overwrites the name of an entry in place with one of the same length.
fn rename(s: &Sample, dir: u64, old: &str, new: &[u8]) {
    let (leaf, (_, e, _)) = s.entry(dir, Some(old));
    assert_eq!(old.len(), new.len());
    s.edit_node(leaf, |node| {
        node[e.name_at as usize..][..new.len()].copy_from_slice(new);
    });
}

const ENTRIES: &[Damage] = &[
    damage(
        |s| s.edit_entry(BIG, Some(MANY_FIRST), |e| e.ino = 5000),
        "entry for an inode that does not exist",
        "/big (inode 23)",
    ),
    damage(
        |s| s.edit_entry(BIG, Some(MANY_FIRST), |e| e.ino = 17),
        "entry for an inode that does not exist",
        "number 100-0' names inode 17",
    ),
    damage(
        |s| s.edit_entry(BIG, Some(MANY_FIRST), |e| e.ino = 0),
        "entry for an inode that does not exist",
        "names inode 0",
    ),
    damage(
        |s| s.edit_entry(BIG, Some(MANY_FIRST), |e| e.ino = 1),
        "entry for an inode that no name may lead to",
        "names inode 1",
    ),
    damage(
        |s| s.edit_entry(BIG, Some(MANY_FIRST), |e| e.ino = 2),
        "entry for an inode that no name may lead to",
        "names inode 2",
    ),
    damage(
        |s| s.edit_entry(DEEP, Some("pipe"), |e| e.kind = 8),
        "type in an entry is not the inode's",
        "'pipe' names inode 44",
    ),
    damage(
        |s| s.edit_entry(BIG, Some(MANY_FIRST), |e| e.key ^= 1 << 40),
        "key of an entry does not fit its name",
        "number 100-0",
    ),
    damage(
        |s| rename(s, DEEP, "pipe", b"pi/e"),
        "name that no entry may have",
        "'pi/e'",
    ),
    damage(
        |s| rename(s, DEEP, "pipe", b"pi\0e"),
        "name that no entry may have",
        "pi\\x00e",
    ),
    damage(
        |s| rename(s, DEEP, "pipe", b"pope"),
        "key of an entry does not fit its name",
        "'pope'",
    ),
    damage(
        |s| s.edit_entry(DEEP, Some("pipe"), |e| e.name_bytes = 0),
        "name that no entry may have",
        "empty",
    ),
    damage(
        |s| s.edit_entry(DEEP, Some("pipe"), |e| e.name_bytes = 4000),
        "name of an entry outside the names of its node",
        "entry for inode 44",
    ),
    damage(
        |s| s.edit_entry(DEEP, Some("pipe"), |e| e.name_at = 70),
        "name of an entry outside the names of its node",
        "4 bytes at 70",
    ),
    damage(
        |s| swap_first_two(s, DEEP),
        "keys of entries out of order",
        "/dir/sub/deep",
    ),
    damage(
        |s| twin_of_first(s, DEEP),
        "two entries of one name",
        "/dir/sub/deep",
    ),
    damage(
        |s| {
            let leaf = s.nodes(&s.inode(BIG), 0)[0];
            let last = s.header(leaf).count as usize - 1;
            s.edit_item(leaf, last, |e: &mut DirentEntry| e.key = u64::MAX >> 1);
        },
        "entry outside the keys of its node",
        "/big",
    ),
    damage(
        |s| s.edit(BIG, |i| i.size += 1),
        "count of entries",
        "expected 420, found 421",
    ),
    damage(
        |s| s.edit(BIG, |i| i.blocks = 1),
        "blocks of a directory",
        "/big",
    ),
    damage(
        |s| s.edit(EMPTY, |i| i.root[0].kind = 1),
        "kind of a directory's root",
        "/dir/empty",
    ),
    damage(
        |s| s.edit(EMPTY, |i| i.root[1].kind = 1),
        "directory in a tier below",
        "/dir/empty",
    ),
    damage(
        |s| {
            let root = s.inode(FRAGMENTED).root[0];
            s.edit(EMPTY, |i| i.root[0] = root);
        },
        "blocks used twice",
        "/dir/empty",
    ),
];

#[test]
fn entries() {
    each_is_found(ENTRIES);
}

/// Exchanges the first two entries of a directory's first leaf.
fn swap_first_two(s: &Sample, dir: u64) {
    let leaf = s.nodes(&s.inode(dir), 0)[0];
    s.edit_node(leaf, |node| {
        let (a, b) = node[64..112].split_at_mut(24);
        a.swap_with_slice(b);
    });
}

/// Makes the second entry a twin of the first one, with the same name.
fn twin_of_first(s: &Sample, dir: u64) {
    let leaf = s.nodes(&s.inode(dir), 0)[0];
    s.edit_node(leaf, |node| {
        let mut e = DirentEntry::read_from_bytes(&node[64..88]).unwrap();
        e.key += 1;
        node[88..112].copy_from_slice(e.as_bytes());
    });
}

const LINKS: &[Damage] = &[
    damage(
        |s| s.edit(SEVERAL, |i| i.nlink = 2),
        "link count is not the number of names",
        "expected 3, found 2",
    ),
    damage(
        |s| s.edit(SEVERAL, |i| i.nlink = 4),
        "link count is not the number of names",
        "expected 3, found 4",
    ),
    damage(
        |s| s.edit(BIG, |i| i.nlink = 3),
        "link count of a directory is not 2 and its subdirectories",
        "/big (inode 23): ",
    ),
    damage(
        |s| s.edit(1, |i| i.nlink = 2),
        "link count of a directory is not 2 and its subdirectories",
        "error: /: ",
    ),
    damage(
        |s| s.edit(DEEP, |i| i.parent = DIR),
        "parent of a directory",
        "expected 21, found 20",
    ),
    damage(
        |s| s.edit(DEEP, |i| i.parent = 0),
        "parent of a directory",
        "/dir/sub/deep",
    ),
    damage(
        |s| s.edit(1, |i| i.parent = DIR),
        "parent of a directory",
        "expected 1, found 20",
    ),
    damage(
        |s| s.edit_entry(DIR, Some("two"), |e| (e.ino, e.kind) = (DEEP, 4)),
        "directory with two names",
        "so does one in inode 2",
    ),
    damage(
        |s| s.edit_entry(DIR, Some("empty"), |e| (e.ino, e.kind) = (SEVERAL, 8)),
        "directory that no name leads to",
        "inode 24",
    ),
    damage(
        // Deep contains what contains it, and no name leads to the ring.
        |s| {
            s.edit_entry(DIR, Some("sub"), |e| (e.ino, e.kind) = (SEVERAL, 8));
            s.edit_entry(DEEP, Some("pipe"), |e| (e.ino, e.kind) = (SUB, 4));
            s.edit(SUB, |i| i.parent = DEEP);
        },
        "directory in a ring that the root does not lead to",
        "(inode 2",
    ),
    damage(
        |s| s.edit_entry(DEEP, Some("direct"), |e| e.ino = SEVERAL),
        "inode that no name leads to",
        "inode 41: ",
    ),
    damage(
        |s| s.store(s.slot(EMPTY), &[0; 256]),
        "entry for an inode that does not exist",
        "'empty'",
    ),
    damage(
        |s| s.edit(1, |i| i.mode = 0o100_755),
        "directory that no name leads to",
        "inode 20",
    ),
    damage(
        |s| s.edit(1, |i| i.mode = 0o100_755),
        "type of an inode",
        "error: /: ",
    ),
];

#[test]
fn links() {
    each_is_found(LINKS);
}

const ORPHANS: &[Damage] = &[
    damage(
        |s| s.edit(ORPHAN, |i| i.flags = 0),
        "orphan flag does not fit the link count",
        "inode 50: ",
    ),
    damage(
        |s| s.edit(DIRECT, |i| i.flags = 1),
        "orphan flag does not fit the link count",
        "/deep/direct",
    ),
    damage(
        |s| s.edit(DIRECT, |i| (i.flags, i.nlink) = (1, 0)),
        "inode without a name that is not among the orphans",
        "/deep/direct",
    ),
    damage(
        |s| s.edit(ORPHAN, |i| (i.flags, i.nlink) = (0, 1)),
        "inode among the orphans that has names",
        "inode 50: ",
    ),
    damage(
        |s| s.edit(ORPHAN_DIR, |i| i.size = 3),
        "orphan directory with entries",
        "inode 51: ",
    ),
    damage(
        |s| s.edit_entry(2, None, |e| e.key -= 1),
        "entry of the directory of orphans",
        "orphans",
    ),
    damage(
        |s| s.edit_entry(2, None, |e| e.ino = 5000),
        "orphan that does not exist",
        "inode 5000",
    ),
    damage(
        |s| s.edit_entry(2, None, |e| e.kind = 4),
        "type in an entry is not the inode's",
        "directory of orphans",
    ),
    damage(
        |s| s.store(s.slot(2), &[0; 256]),
        "missing",
        "directory of orphans",
    ),
    damage(
        |s| s.store(s.slot(1), &[0; 256]),
        "missing",
        "root directory",
    ),
];

#[test]
fn orphans() {
    each_is_found(ORPHANS);
}
