//! Files and directories with `S` and `D` (chattr(1)) in the model of a buffered volume: which calls are durable when they return.
//!
//! A change of what has `S`, and of names in a directory with `S` or `D`. New files and directories have `S` from their directory, new directories
//! `D`, too. What is not certain (a file without a name, what is moved) is not promised.

use std::collections::BTreeMap;

use shale_format::inode::flag::{DIR_SYNC, SYNC};
use shale_model::snapshot::Facts;
use shale_model::{Memory, Side, Snapshot};

/// What has flags in the tree that every workload of buffered clients begins with.
pub(crate) const FLAGS: [(&str, u32); 4] = [
    ("d/e", SYNC),
    ("x", DIR_SYNC),
    ("y", SYNC),
    ("y/z", SYNC | DIR_SYNC),
];

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const TYPE: u32 = 0o170_000;

/// A tree, by identity.
#[derive(Debug, Default)]
struct Tree {
    /// By directory and name.
    names: BTreeMap<(u64, Vec<u8>), u64>,
    facts: BTreeMap<u64, Facts>,
}

impl Tree {
    fn of(model: &mut Memory) -> Tree {
        let snapshot = Snapshot::of(model).expect("the model's tree can be walked");
        let mut tree = Tree::default();
        let mut identity = |path: &[u8]| {
            let path = if path.is_empty() { b"." } else { path };
            model.identity(path).expect("the path was just listed")
        };
        for (path, mut facts) in snapshot.paths {
            let id = identity(&path);
            if !path.is_empty() {
                let at = path.iter().rposition(|&b| b == b'/');
                let (dir, name) =
                    at.map_or((&[][..], &path[..]), |at| (&path[..at], &path[at + 1..]));
                tree.names.insert((identity(dir), name.to_vec()), id);
            }
            facts.same_as = None;
            tree.facts.insert(id, facts);
        }
        tree
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Synced {
    flags: BTreeMap<u64, u32>,
    last: Tree,
}

impl Synced {
    /// Of a tree with these flags, by identity.
    pub(crate) fn new(model: &mut Memory, flags: BTreeMap<u64, u32>) -> Synced {
        let last = Tree::of(model);
        Synced { flags, last }
    }

    /// A call was made: whether it changed what has such flags.
    pub(crate) fn has_changed(&mut self, model: &mut Memory) -> bool {
        let now = Tree::of(model);
        let was = std::mem::replace(&mut self.last, now);
        let now = &self.last;
        let has = |flags: &BTreeMap<u64, u32>, id: u64, of: u32| {
            flags.get(&id).is_some_and(|flags| flags & of != 0)
        };
        let differs = |id: &u64, facts: &Facts| was.facts.get(id).is_some_and(|was| was != facts);
        let mut changed = now.facts.iter().filter(|(id, facts)| differs(id, facts));
        let mut synced = changed.any(|(&id, _)| has(&self.flags, id, SYNC));
        for (one, other) in [(&was, now), (now, &was)] {
            let mut gone = one
                .names
                .iter()
                .filter(|(at, id)| other.names.get(*at) != Some(id));
            synced |= gone.any(|((dir, _), _)| has(&self.flags, *dir, SYNC | DIR_SYNC));
        }
        // Nothing is new in what is new by the same call.
        for ((dir, _), id) in &now.names {
            if !was.facts.contains_key(id) {
                let inherits = match now.facts[id].stat.mode & TYPE {
                    DIRECTORY => SYNC | DIR_SYNC,
                    REGULAR => SYNC,
                    _ => 0,
                };
                let flags = self.flags.get(dir).copied().unwrap_or(0) & inherits;
                self.flags.insert(*id, flags);
            }
        }
        synced
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_libfs::OFlags;
    use shale_model::{Act, FileAct, Fill};

    #[test]
    fn changes_of_what_has_the_flags_are_durable() {
        let mut model = Memory::new(0o755);
        let path = |text: &str| text.as_bytes().to_vec();
        let mkdir = |name: &str| Act::Mkdir(path(name), 0o755);
        for name in ["s", "d", "n"] {
            model.act(&mkdir(name)).unwrap();
        }
        let flags = [("s", SYNC), ("d", DIR_SYNC)];
        let flags = flags.map(|(name, flag)| (model.identity(name.as_bytes()).unwrap(), flag));
        let mut synced = Synced::new(&mut model, flags.into());
        let mut is_durable = |act: &Act| {
            model.act(act).unwrap();
            synced.has_changed(&mut model)
        };
        let create = |slot, name| Act::Open(slot, path(name), OFlags::CREATE | OFlags::RDWR, 0o644);
        let write = |slot| Act::File(slot, FileAct::Write(0, Fill { seed: 1, len: 9 }));
        for (act, durable) in [
            (create(0, "s/f"), true),
            (write(0), true),
            (create(1, "d/f"), true),
            (write(1), false),
            (create(2, "n/f"), false),
            (write(2), false),
            (Act::Rename(path("n/f"), path("d/g"), 0), true),
            (write(2), false),
            (mkdir("s/sub"), true),
            (mkdir("s/sub/sub"), true),
            (mkdir("d/sub"), true),
            (mkdir("d/sub/sub"), true),
            (Act::Chmod(path("d"), 0o700), false),
            (Act::Chmod(path("s"), 0o700), true),
            (Act::Stat(path("s"), true), false),
            (Act::Rename(path("s/f"), path("n/f"), 0), true),
            (Act::Unlink(path("n/f")), false),
        ] {
            assert_eq!(is_durable(&act), durable, "{act:?}");
        }
    }
}
