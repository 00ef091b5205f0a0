//! About 200 concrete operations on a small tree, and sequences of them.
//!
//! The tree: `d` with the files `f` (5,000 bytes), `g` = `h` (12,288 bytes, two names), `e`
//! (empty); `big` (40,960 bytes with a hole); `s` → `d/f`, `t` → `d`; `x` (an empty
//! directory), `y/z/w`; the socket `k`; extended attributes on `d` and `d/f`. Every client
//! begins with `d/f` open twice, and `big` (appending), `d/g` and `d/e` once each.

use std::sync::LazyLock;

use shale_libfs::{OFlags, RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT};

use crate::{Act, FileAct, Fill, acl};

/// Slots that are open when a workload begins: path, flags.
pub const OPEN: [(&str, OFlags); 5] = [
    ("d/f", OFlags::RDWR),
    ("d/f", OFlags::RDWR),
    ("big", OFlags::RDWR.union(OFlags::APPEND)),
    ("d/g", OFlags::RDWR),
    ("d/e", OFlags::RDWR),
];

const F: usize = 0;
const F_AGAIN: usize = 1;
const BIG: usize = 2;
const G: usize = 3;
const E: usize = 4;

fn path(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn fill(seed: u8, len: usize) -> Fill {
    Fill { seed, len }
}

/// Where the second thread of a workload has a tree of its own.
pub const TWIN: &[u8] = b"twin";

/// `act` with `root` in front of all its paths, which may be empty.
pub fn within(root: &[u8], mut act: Act) -> Act {
    if root.is_empty() {
        return act;
    }
    let move_path = |path: &mut Vec<u8>| *path = [root, b"/", path].concat();
    match &mut act {
        Act::Symlink(_, path)
        | Act::Mkdir(path, _)
        | Act::Socket(path, _)
        | Act::Unlink(path)
        | Act::Rmdir(path)
        | Act::Stat(path, _)
        | Act::Readlink(path)
        | Act::List(path)
        | Act::Chmod(path, _)
        | Act::Chown(path, ..)
        | Act::Truncate(path, _)
        | Act::SetXattr(path, ..)
        | Act::GetXattr(path, _)
        | Act::RemoveXattr(path, _)
        | Act::Open(_, path, ..)
        | Act::File(_, FileAct::Link(path)) => move_path(path),
        Act::Link(old, new) | Act::Rename(old, new, _) => {
            move_path(old);
            move_path(new);
        }
        Act::File(..) => {}
    }
    act
}

/// The tree once more, in [`TWIN`].
pub fn twin_tree() -> Vec<Act> {
    let mut acts = vec![Act::Mkdir(TWIN.to_vec(), 0o755)];
    acts.extend(tree().into_iter().map(|act| within(TWIN, act)));
    acts
}

/// Blocks of `frag` that hold data, each an extent of its own: more than a leaf holds.
const EXTENTS: u64 = 180;
/// Names in `m`, more than a leaf holds.
const NAMES: usize = 60;

fn long_name(n: usize) -> String {
    format!("m/{n:03}-{}", "long".repeat(20))
}

/// More on top of [`tree`], with trees of two levels: `frag`, a file of 180 extents, and `m`, a
/// directory of 60 long names.
pub fn large_tree() -> Vec<Act> {
    let make = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
    let mut acts = vec![
        Act::Mkdir(path("m"), 0o755),
        Act::Open(E, path("frag"), make, 0o644),
    ];
    acts.extend((0..EXTENTS).map(|n| {
        let write = FileAct::Write(n * 8192 + 100, fill(n as u8, 300));
        Act::File(E, write)
    }));
    acts.push(Act::File(E, FileAct::Close));
    acts.extend((0..NAMES).map(|n| Act::Symlink(path("d/f"), path(&long_name(n)))));
    acts
}

/// The operations that make the tree on an empty volume.
pub fn tree() -> Vec<Act> {
    let make = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
    let file = |name: &str, seed, len| {
        [
            Act::Open(E, path(name), make, 0o644),
            Act::File(E, FileAct::Write(0, fill(seed, len))),
        ]
    };
    let mut acts = vec![
        Act::Mkdir(path("d"), 0o755),
        Act::Mkdir(path("x"), 0o755),
        Act::Mkdir(path("y"), 0o755),
        Act::Mkdir(path("y/z"), 0o755),
    ];
    acts.extend(file("d/f", 1, 5_000));
    acts.extend(file("d/g", 2, 12_288));
    acts.extend(file("d/e", 3, 0));
    acts.extend(file("big", 4, 40_960));
    acts.push(Act::File(E, FileAct::Allocate(3, 8_192, 8_192)));
    acts.extend(file("y/z/w", 5, 100));
    acts.extend([
        Act::File(E, FileAct::Close),
        Act::Link(path("d/g"), path("d/h")),
        Act::Symlink(path("d/f"), path("s")),
        Act::Symlink(path("d"), path("t")),
        Act::Socket(path("k"), 0o644),
        Act::SetXattr(path("d/f"), path("user.a"), fill(6, 20), 0),
        Act::SetXattr(path("d"), path("user.d"), fill(7, 9), 0),
    ]);
    acts
}

/// The operations.
pub fn alphabet() -> Vec<Act> {
    let mut acts = Vec::with_capacity(200);
    writes(&mut acts);
    ranges(&mut acts);
    makes(&mut acts);
    removes(&mut acts);
    renames(&mut acts);
    attributes(&mut acts);
    opens(&mut acts);
    large(&mut acts);
    whiteouts(&mut acts);
    lists(&mut acts);
    acts
}

/// Item `item` of the alphabet as step number `step`: what it writes is not what the same
/// item writes elsewhere.
pub fn act_at(item: usize, step: usize) -> Act {
    static ALPHABET: LazyLock<Vec<Act>> = LazyLock::new(alphabet);
    let mut act = ALPHABET[item].clone();
    let filled = match &mut act {
        Act::SetXattr(_, _, fill, _) => Some(fill),
        Act::File(_, FileAct::Write(_, fill) | FileAct::WriteNext(fill)) => Some(fill),
        _ => None,
    };
    if let Some(fill) = filled {
        fill.seed = (item * 13 + step * 41 + 17) as u8;
    }
    act
}

fn writes(acts: &mut Vec<Act>) {
    let f = [
        (0, 1),
        (0, 8),
        (0, 4096),
        (100, 200),
        (4090, 12),
        (4096, 904),
        (5000, 100),
        (4999, 3),
        (8192, 10),
        (0, 5000),
        (4096, 4096),
        (0, 12_288),
        (20_000, 1),
        (16_384, 8192),
        (1000, 9000),
        (0, 65_536),
        (3, 40_000),
    ];
    let again = [(2, 6), (4000, 200), (0, 4096), (4990, 30)];
    let g = [
        (0, 4096),
        (4096, 4096),
        (8192, 4096),
        (0, 12_288),
        (6000, 4096),
        (12_288, 4096),
        (8, 8),
    ];
    let e = [(0, 16), (0, 4096), (100, 1), (4095, 2)];
    let big = [(0, 1), (0, 100), (0, 4096), (0, 5000), (0, 20_480)];
    for (slot, list) in [
        (F, &f[..]),
        (F_AGAIN, &again),
        (G, &g),
        (E, &e),
        (BIG, &big),
    ] {
        let write = |&(at, len)| Act::File(slot, FileAct::Write(at, fill(0, len)));
        acts.extend(list.iter().map(write));
    }
    for (slot, len) in [(F, 10), (F, 4096), (F_AGAIN, 7), (E, 300)] {
        acts.push(Act::File(slot, FileAct::WriteNext(fill(0, len))));
    }
    acts.push(Act::File(F, FileAct::Sync));
}

fn ranges(acts: &mut Vec<Act>) {
    for size in [0, 1, 4096, 4999, 5001, 8192, 20_000] {
        acts.push(Act::File(F, FileAct::Truncate(size)));
    }
    for (name, size) in [
        ("d/g", 0),
        ("d/g", 4097),
        ("d/h", 1),
        ("big", 0),
        ("big", 12_288),
        ("big", 9000),
    ] {
        acts.push(Act::Truncate(path(name), size));
    }
    let allocates = [
        (F, 0, 0, 4096),
        (F, 0, 5000, 8192),
        (F, 1, 8192, 8192),
        (E, 0, 0, 10_000),
        (F, 3, 0, 4096),
        (F, 3, 100, 50),
        (F, 3, 4000, 2000),
        (BIG, 3, 0, 40_960),
        (G, 3, 4096, 4096),
        (F, 16, 0, 4096),
        (F, 16, 100, 4000),
        (F, 16, 4096, 8192),
        (F, 17, 4096, 8192),
        (BIG, 16, 10_000, 20_000),
        (G, 8, 0, 4096),
        (G, 8, 4096, 4096),
        (BIG, 8, 4096, 8192),
        (G, 32, 0, 4096),
        (F, 32, 4096, 8192),
        (BIG, 32, 8192, 4096),
    ];
    for (slot, mode, at, len) in allocates {
        acts.push(Act::File(slot, FileAct::Allocate(mode, at, len)));
    }
}

fn makes(acts: &mut Vec<Act>) {
    for name in ["n", "d/n", "x/n", "t/n2", "d"] {
        acts.push(Act::Mkdir(path(name), 0o755));
    }
    acts.push(Act::Socket(path("n3"), 0o644));
    acts.push(Act::Symlink(path("d/f"), path("x/s")));
    acts.push(Act::Symlink(vec![b'q'; 300], path("s3")));
    for (old, new) in [("d/f", "x/l"), ("d/g", "d/l"), ("big", "d/f"), ("s", "s4")] {
        acts.push(Act::Link(path(old), path(new)));
    }
}

fn removes(acts: &mut Vec<Act>) {
    for name in [
        "d/f", "d/g", "d/h", "d/e", "s", "big", "k", "y/z/w", "n", "x/l", "d/m",
    ] {
        acts.push(Act::Unlink(path(name)));
    }
    for name in ["x", "y/z", "y", "d", "n"] {
        acts.push(Act::Rmdir(path(name)));
    }
}

fn renames(acts: &mut Vec<Act>) {
    let plain = [
        ("d/f", "d/n"),
        ("d/f", "n"),
        ("d/f", "d/g"),
        ("d/f", "d/e"),
        ("d/g", "d/h"),
        ("d/e", "d/f"),
        ("big", "d/g"),
        ("x", "x2"),
        ("x2", "x"),
        ("x", "y/z"),
        ("y", "x"),
        ("y/z", "x/z2"),
        ("y/z", "z3"),
        ("z3", "y/z"),
        ("d", "y/d"),
        ("y/d", "d"),
        ("big", "x/big"),
        ("x/big", "big"),
        ("s", "s2"),
        ("n", "d/f"),
        ("d/n", "d/f"),
        ("y", "y/z/y"),
    ];
    let kept = [("d/f", "m"), ("d/f", "d/g"), ("m", "d/f")];
    let exchanged = [
        ("d/f", "big"),
        ("d/f", "x"),
        ("y", "x"),
        ("d/f", "d/g"),
        ("y/z", "x"),
        ("s", "d/e"),
    ];
    let lists = [
        (&plain[..], 0),
        (&kept, RENAME_NOREPLACE),
        (&exchanged, RENAME_EXCHANGE),
    ];
    for (list, flags) in lists {
        let rename = |&(old, new)| Act::Rename(path(old), path(new), flags);
        acts.extend(list.iter().map(rename));
    }
}

fn attributes(acts: &mut Vec<Act>) {
    for (name, mode) in [
        ("d/f", 0o600),
        ("d/f", 0o4755),
        ("d", 0o700),
        ("x", 0o2775),
        ("s", 0o640),
    ] {
        acts.push(Act::Chmod(path(name), mode));
    }
    let owners = [
        ("d/f", Some(7), None, true),
        ("d", None, Some(8), true),
        ("s", Some(9), Some(9), false),
        ("x", Some(1), Some(2), true),
    ];
    for (name, uid, gid, follow) in owners {
        acts.push(Act::Chown(path(name), uid, gid, follow));
    }
    let sets = [
        ("d/f", "user.a", 30, 0),
        ("d/f", "user.b", 5, 0),
        ("d/f", "user.big", 3000, 0),
        ("d/f", "user.huge", 9000, 0),
        ("d/f", "user.a", 4, 1),
        ("d/f", "user.a", 4, 2),
        ("x", "user.x", 1, 0),
        ("d/e", "user.e", 0, 0),
        ("big", "user.a", 100, 1),
    ];
    for (name, attr, len, flags) in sets {
        acts.push(Act::SetXattr(path(name), path(attr), fill(0, len), flags));
    }
    for (name, attr) in [("d/f", "user.a"), ("d", "user.d"), ("d/f", "user.big")] {
        acts.push(Act::RemoveXattr(path(name), path(attr)));
    }
}

fn opens(acts: &mut Vec<Act>) {
    let create = OFlags::RDWR | OFlags::CREATE;
    let list = [
        ("n", create),
        ("d/n", create | OFlags::EXCL),
        ("x/n", create),
        ("d/f", create | OFlags::TRUNC),
        ("big", OFlags::WRONLY | OFlags::TRUNC),
        ("d", OFlags::RDWR | OFlags::TMPFILE),
        ("x", OFlags::RDWR | OFlags::TMPFILE | OFlags::EXCL),
        ("d/e", OFlags::RDWR | OFlags::APPEND),
        ("d/g", OFlags::RDWR),
        ("y/z/w", OFlags::RDWR),
        ("d/f", OFlags::RDONLY),
    ];
    for (name, flags) in list {
        acts.push(Act::Open(E, path(name), flags, 0o644));
    }
    for name in ["d/m", "x/m"] {
        acts.push(Act::File(E, FileAct::Link(path(name))));
    }
    for slot in [F, F_AGAIN, BIG, G, E] {
        acts.push(Act::File(slot, FileAct::Close));
    }
}

/// What needs the large tree to do something.
fn large(acts: &mut Vec<Act>) {
    let (old, new) = (|n| path(&long_name(n)), |n| path(&long_name(NAMES + n)));
    let half = EXTENTS / 2 * 8192;
    acts.extend([
        Act::Open(E, path("frag"), OFlags::RDWR, 0),
        Act::Truncate(path("frag"), half + 200),
        Act::Truncate(path("frag"), 0),
        Act::Unlink(path("frag")),
        Act::Rename(path("d/f"), path("frag"), 0),
        Act::File(E, FileAct::Allocate(3, 8192, half)),
        Act::File(E, FileAct::Allocate(8, half, 8192)),
        Act::File(E, FileAct::Write(half + 4096, fill(0, 4096))),
        Act::Link(path("d/f"), new(0)),
        Act::Unlink(old(7)),
        Act::Rename(old(9), new(1), 0),
        Act::Rename(old(11), old(50), 0),
        Act::Rename(path("d/f"), old(20), RENAME_EXCHANGE),
        Act::Rename(path("m"), path("x"), 0),
    ]);
}

/// Renames that leave a whiteout under the old name: in one directory, over a file, to another directory
/// where nothing may be, of a directory.
fn whiteouts(acts: &mut Vec<Act>) {
    for (old, new, flags) in [
        ("d/f", "d/w", RENAME_WHITEOUT),
        ("d/g", "d/f", RENAME_WHITEOUT),
        ("big", "x/v", RENAME_WHITEOUT | RENAME_NOREPLACE),
        ("y", "x/y", RENAME_WHITEOUT),
    ] {
        acts.push(Act::Rename(path(old), path(new), flags));
    }
}

/// Access control lists, with which modes change and what is made in a directory.
fn lists(acts: &mut Vec<Act>) {
    let (access, default) = (acl::ACCESS.to_vec(), acl::DEFAULT.to_vec());
    for (name, list) in [
        ("d/f", &access),
        ("d", &access),
        ("x", &default),
        ("d", &default),
    ] {
        acts.push(Act::SetXattr(path(name), list.clone(), fill(0, 0), 0));
    }
    acts.push(Act::RemoveXattr(path("d/f"), access));
    acts.push(Act::RemoveXattr(path("x"), default));
}

/// Whether an operation is about the file `name`, by name or by one of the slots of [`OPEN`].
pub fn concerns(act: &Act, name: &str) -> bool {
    match act {
        Act::File(slot, _) => OPEN.get(*slot).is_some_and(|open| open.0 == name),
        _ => paths_of(act).contains(&name.as_bytes()),
    }
}

/// The paths that an operation walks.
pub fn paths_of(act: &Act) -> Vec<&[u8]> {
    match act {
        Act::Symlink(_, path)
        | Act::Mkdir(path, _)
        | Act::Socket(path, _)
        | Act::Unlink(path)
        | Act::Rmdir(path)
        | Act::Stat(path, _)
        | Act::Readlink(path)
        | Act::List(path)
        | Act::Chmod(path, _)
        | Act::Chown(path, ..)
        | Act::Truncate(path, _)
        | Act::SetXattr(path, ..)
        | Act::GetXattr(path, _)
        | Act::RemoveXattr(path, _)
        | Act::Open(_, path, ..)
        | Act::File(_, FileAct::Link(path)) => vec![path],
        Act::Link(old, new) | Act::Rename(old, new, _) => vec![old, new],
        Act::File(..) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, Side, Snapshot};

    #[test]
    fn the_tree_can_be_made_and_most_items_do_something() {
        let mut model = Memory::new(0o755);
        for act in tree() {
            model.act(&act).unwrap();
        }
        for (slot, (name, flags)) in OPEN.into_iter().enumerate() {
            model.act(&Act::Open(slot, path(name), flags, 0)).unwrap();
        }
        let items = alphabet().len();
        assert!((170..=200).contains(&items), "{items} items");
        let done = (0..items)
            .filter(|&item| model.clone().act(&act_at(item, 0)).is_ok())
            .count();
        assert!(done > items * 4 / 5, "{done} of {items}");
        assert_eq!(Snapshot::of(&mut model).unwrap().paths.len(), 14);
    }
}
