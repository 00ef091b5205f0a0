//! Paths of the inodes that findings are about: up from directory to directory, with
//! one search for the name in each.
//!
//! Bounded: a directory is searched once for all names wanted in it, at most
//! [`NODES_MAX`] nodes are read in all, and a way of more than [`STEPS_MAX`]
//! directories, or a path longer than any call takes, is cut off.

use super::Checker;
use super::entries::name_in;
use crate::inode_table::Slot;
use crate::tree::{Leaf, entry};
use shale_format::dirent::DirentEntry;
use shale_format::extent::root_kind;
use shale_format::inode::{Inode, slot_of};
use shale_format::limits::{
    BLOCK_BYTES, INODE_BYTES, INODES_PER_BLOCK, PATH_BYTES_MAX, TREE_LEVELS_MAX,
};
use shale_format::tree::{self, ChildEntry, TreeKind};
use shale_format::{BlockAddr, Ino};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes read for names: 256 MiB.
const NODES_MAX: u64 = 1 << 16;
/// Directories on one way.
const STEPS_MAX: usize = 4096;
/// Inodes whose names are wanted at once.
const WANTED_MAX: usize = 1 << 16;

/// Name of each inode in the directory where it was found first.
type Names = BTreeMap<u64, Vec<u8>>;

impl Checker<'_> {
    /// Paths of these inodes, as far as ways lead to them.
    pub(super) fn paths(&self, inos: &[u64]) -> BTreeMap<u64, String> {
        let mut wanted: BTreeMap<Slot, BTreeSet<u64>> = BTreeMap::new();
        let mut total = 0;
        for &ino in inos {
            for (ino, dir) in self.way(ino) {
                let new = wanted.entry(dir).or_default().insert(ino);
                total += usize::from(new);
                if !new || total > WANTED_MAX {
                    break;
                }
            }
        }
        let mut names = Names::new();
        let mut nodes_left = NODES_MAX;
        for (dir, inos) in &wanted {
            self.names_in(self.slots.ino(*dir), inos, &mut nodes_left, &mut names);
        }
        let path = |&ino: &u64| Some((ino, self.path(ino, &names)?));
        inos.iter().filter_map(path).collect()
    }

    /// The way up: each inode with the directory that names it.
    fn way(&self, ino: u64) -> impl Iterator<Item = (u64, Slot)> {
        let mut at = self.slots.find(Ino(ino));
        let step = move || {
            let slot = at?;
            at = self.slots.place_of(slot);
            Some((self.slots.ino(slot).0, at?))
        };
        std::iter::from_fn(step).take(STEPS_MAX)
    }

    fn path(&self, ino: u64, names: &Names) -> Option<String> {
        if ino == Ino::ROOT.0 {
            return Some("/".to_owned());
        }
        if ino == Ino::ORPHANS.0 {
            return Some("directory of orphans".to_owned());
        }
        let mut parts = Vec::new();
        let (mut top, mut bytes) = (ino, 0);
        for (ino, dir) in self.way(ino) {
            let known = names.get(&ino);
            let part = known.map_or(format!("(inode {ino})"), |n| n.escape_ascii().to_string());
            bytes += part.len();
            parts.push(part);
            top = self.slots.ino(dir).0;
            if bytes > PATH_BYTES_MAX {
                break;
            }
        }
        if parts.is_empty() {
            return None;
        }
        parts.reverse();
        let path = parts.join("/");
        Some(match top {
            1 => format!("/{path} (inode {ino})"),
            _ => format!("(inode {top})/{path} (inode {ino})"),
        })
    }

    /// Looks in a directory for the names of some inodes.
    fn names_in(&self, dir: Ino, inos: &BTreeSet<u64>, nodes_left: &mut u64, names: &mut Names) {
        let Some(inode) = self
            .inode(dir)
            .filter(|i| i.root[0].kind == root_kind::TREE)
        else {
            return;
        };
        let root = &inode.root[0];
        let mut open = vec![(BlockAddr::from_raw(root.addr), root.level)];
        let mut block = [0; BLOCK_BYTES];
        let mut left = inos.len();
        while let Some((addr, level)) = open.pop() {
            if *nodes_left == 0 || left == 0 {
                return;
            }
            *nodes_left -= 1;
            if !self.media.load(addr.raw(), &mut block) {
                continue;
            }
            let header = match tree::check(&block, addr, dir, TreeKind::Entries) {
                Ok(header) if header.level == level && level <= TREE_LEVELS_MAX => header,
                _ => continue,
            };
            let count = usize::from(header.count);
            if level > 0 {
                let children = (0..count).filter_map(|i| entry::<ChildEntry>(&block, i));
                open.extend(children.map(|c| (BlockAddr::from_raw(c.addr), level - 1)));
                continue;
            }
            let leaf = Leaf {
                block: &block,
                header,
                at: addr.raw(),
                keys: 0..u64::MAX,
            };
            for e in (0..count).filter_map(|i| entry::<DirentEntry>(&block, i)) {
                if let Some(name) = name_in(&leaf, &e).filter(|_| inos.contains(&e.ino))
                    && names.insert(e.ino, name.to_vec()).is_none()
                {
                    left -= 1;
                }
            }
        }
    }

    /// An inode that can be read.
    pub(super) fn inode(&self, ino: Ino) -> Option<Inode> {
        let slot = self.slots.find(ino)?;
        let (_, at) = self.slots.block(u64::from(slot.0) / INODES_PER_BLOCK)?;
        let mut block = [0; BLOCK_BYTES];
        if !self.media.load(at, &mut block) {
            return None;
        }
        let byte = slot_of(ino).1;
        Inode::decode(&block[byte..byte + INODE_BYTES], ino).ok()
    }
}
