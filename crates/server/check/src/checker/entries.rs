//! Directories: every entry, and what it says of the inode that it names.

use super::Checker;
use crate::inode::{check_root, kind};
use crate::inode_table::{Slot, Slots, state};
use crate::report::{Findings, Object};
use crate::tree::{self, Leaf, Tree, Walked};
use shale_format::checksum::name_hash;
use shale_format::dirent::{DirentEntry, check_name};
use shale_format::extent::root_kind;
use shale_format::inode::Inode;
use shale_format::limits::BLOCK_BYTES;
use shale_format::tree::{NodeHeader, TreeKind};
use shale_format::{DirKey, Ino};

/// A directory whose entries are walked.
struct Walk<'a> {
    dir: Ino,
    slot: Option<Slot>,
    hash_seed: [u64; 2],
    slots: &'a mut Slots,
    last: Option<u64>,
    /// Names of the entries whose keys differ only in the twin from the last one's.
    group: Vec<u8>,
    /// Where each of them ends.
    group_ends: Vec<usize>,
    entries: u64,
}

/// The name of an entry as text.
fn text(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

/// The name of an entry, if it lies where a leaf has names.
pub(super) fn name_in<'b>(leaf: &Leaf<'b>, e: &DirentEntry) -> Option<&'b [u8]> {
    let (at, bytes) = (usize::from(e.name_at), usize::from(e.name_bytes));
    let entries_end = NodeHeader::BYTES + usize::from(leaf.header.count) * DirentEntry::BYTES;
    if at < entries_end || at < usize::from(leaf.header.heap) || at + bytes > BLOCK_BYTES {
        return None;
    }
    leaf.block.get(at..at + bytes)
}

impl Walk<'_> {
    fn leaf(&mut self, leaf: &Leaf<'_>, findings: &mut Findings) {
        for i in 0..usize::from(leaf.header.count) {
            if let Some(e) = tree::entry::<DirentEntry>(leaf.block, i) {
                self.entries += 1;
                self.entry(leaf, &e, findings);
            }
        }
    }

    fn entry(&mut self, leaf: &Leaf<'_>, e: &DirentEntry, findings: &mut Findings) {
        let (object, at) = (Object::Inode(self.dir.0), Some(leaf.at));
        let Some(name) = name_in(leaf, e) else {
            let what = "name of an entry outside the names of its node";
            let found = format!("{} bytes at {}", e.name_bytes, e.name_at);
            findings.error(
                object,
                at,
                what,
                (format!("entry for inode {}", e.ino), found),
            );
            return;
        };
        let same_group = self.key(leaf, e, name, findings);
        if self.dir == Ino::ORPHANS {
            self.orphan(leaf.at, e, name, findings);
            return;
        }
        if let Err(why) = check_name(name) {
            let found = format!("'{}': {why}", text(name));
            findings.error(object, at, "name that no entry may have", ("", found));
        }
        let group = DirKey::group(name_hash(self.hash_seed, name));
        if DirKey(e.key).group_start() != group {
            let what = "key of an entry does not fit its name";
            let found = format!("{:#x} for '{}'", e.key, text(name));
            findings.error(object, at, what, (format!("{:#x}", group.0), found));
        }
        if !same_group {
            self.group.clear();
            self.group_ends.clear();
        }
        let mut start = 0;
        for &end in &self.group_ends {
            if self.group[start..end] == *name {
                findings.error(object, at, "two entries of one name", ("", text(name)));
            }
            start = end;
        }
        self.group.extend_from_slice(name);
        self.group_ends.push(self.group.len());
        self.target(leaf.at, e, name, findings);
    }

    /// Checks the order of keys; gives whether the entry is a twin of the last one.
    fn key(
        &mut self,
        leaf: &Leaf<'_>,
        e: &DirentEntry,
        name: &[u8],
        findings: &mut Findings,
    ) -> bool {
        let (object, at) = (Object::Inode(self.dir.0), Some(leaf.at));
        let found = || format!("{:#x} '{}'", e.key, text(name));
        let last = self.last.replace(e.key);
        match last {
            Some(last) if last >= e.key => {
                let above = format!("above {last:#x}");
                findings.error(object, at, "keys of entries out of order", (above, found()));
            }
            _ if !leaf.keys.contains(&e.key) => {
                let what = "entry outside the keys of its node";
                let range = format!("{:#x} to {:#x}", leaf.keys.start, leaf.keys.end);
                findings.error(object, at, what, (range, found()));
            }
            _ => (),
        }
        last.is_some_and(|last| {
            // In order, so that a group has no more names than there are collision numbers.
            last < e.key && DirKey(last).group_start() == DirKey(e.key).group_start()
        })
    }

    /// Compares an entry with the inode that it names, and counts it there.
    fn target(&mut self, at: u64, e: &DirentEntry, name: &[u8], findings: &mut Findings) {
        let (object, at) = (Object::Inode(self.dir.0), Some(at));
        let named = || format!("'{}' names inode {}", text(name), e.ino);
        let slot = self.slots.find(Ino(e.ino));
        let Some(slot) = slot.filter(|&s| self.slots.is_used(s)) else {
            let what = "entry for an inode that does not exist";
            findings.error(object, at, what, ("", named()));
            // What is found in the slot, if there is one, can be reported by this name.
            slot.into_iter().for_each(|slot| self.put(slot));
            return;
        };
        if !Ino(e.ino).is_user() || Ino(e.ino) == Ino::ROOT {
            let what = "entry for an inode that no name may lead to";
            findings.error(object, at, what, ("", named()));
            return;
        }
        let known = self.slots.state_of(slot);
        let is = known & state::KIND;
        if known & state::DAMAGED == 0 && is != e.kind {
            let what = "type in an entry is not the inode's";
            let found = format!("{} ({})", e.kind, named());
            findings.error(object, at, what, (is, found));
        }
        let other = self.slots.place_of(slot);
        if let Some(other) = other.filter(|_| is == kind::DIRECTORY) {
            let other = self.slots.ino(other).0;
            let found = format!("{}, and so does one in inode {other}", named());
            findings.error(object, at, "directory with two names", ("", found));
            return;
        }
        self.put(slot);
        let Some(dir) = self.slot else { return };
        let counted = if is == kind::DIRECTORY { dir } else { slot };
        let count = &mut self.slots.count[counted.0 as usize];
        *count = count.saturating_add(1);
    }

    /// Notes that this directory names an inode, if it is the first one.
    fn put(&mut self, slot: Slot) {
        if let (None, Some(dir)) = (self.slots.place_of(slot), self.slot) {
            self.slots.place[slot.0 as usize] = dir.0;
        }
    }

    /// An entry of the directory of orphans: its key is the inode's number.
    fn orphan(&mut self, at: u64, e: &DirentEntry, name: &[u8], findings: &mut Findings) {
        let (object, at) = (Object::Inode(self.dir.0), Some(at));
        if e.key != e.ino || !name.is_empty() {
            let what = "entry of the directory of orphans";
            let found = format!("key {} '{}'", e.key, text(name));
            findings.error(
                object,
                at,
                what,
                (format!("key {} and no name", e.ino), found),
            );
        }
        let named = format!("inode {}", e.ino);
        let Some(slot) = self
            .slots
            .find(Ino(e.ino))
            .filter(|&s| self.slots.is_used(s))
        else {
            findings.error(object, at, "orphan that does not exist", ("", named));
            return;
        };
        let known = self.slots.state_of(slot);
        if known & state::DAMAGED == 0 && known & state::KIND != e.kind {
            let what = "type in an entry is not the inode's";
            let found = format!("{} for {named}", e.kind);
            findings.error(object, at, what, (known & state::KIND, found));
        }
        self.slots.state[slot.0 as usize] |= state::LISTED;
    }
}

impl Checker<'_> {
    /// Checks the entries of a directory.
    pub(super) fn check_dir(&mut self, dir: &Inode) {
        let object = Object::Inode(dir.ino);
        let mut walk = Walk {
            dir: Ino(dir.ino),
            slot: self.slots.find(Ino(dir.ino)),
            hash_seed: self.sb.hash_seed,
            slots: &mut self.slots,
            last: None,
            group: Vec::new(),
            group_ends: Vec::new(),
            entries: 0,
        };
        let root = &dir.root[0];
        let quiet = self.findings.quiet;
        let walked = match root.kind {
            root_kind::EMPTY => Walked::default(),
            root_kind::TREE => {
                let tree = Tree {
                    root,
                    owner: Ino(dir.ino),
                    kind: TreeKind::Entries,
                    txid: self.root.txid,
                    may_lie_below: self.sb.has_directories_below(),
                };
                let (claims, findings) = (&mut self.claims, &mut self.findings);
                tree::walk(
                    &self.media,
                    claims,
                    findings,
                    &tree,
                    &mut |leaf, _, findings| {
                        // What the entries say was counted in the first walk.
                        if !quiet {
                            walk.leaf(leaf, findings);
                        }
                    },
                )
            }
            _ => Walked {
                broken: true,
                ..Walked::default()
            },
        };
        let entries = walk.entries;
        let f = &mut self.findings;
        self.totals.entries += entries;
        self.totals.nodes += walked.nodes;
        if !quiet {
            let counts = self.leaves_below.iter_mut().zip(walked.below);
            counts.for_each(|(count, n)| *count += n);
        }
        self.names_missing |= walked.broken;
        if root.kind > root_kind::TREE || root.kind == root_kind::DIRECT {
            f.error(
                object,
                None,
                "kind of a directory's root",
                ("0 or 2", root.kind),
            );
        } else if root.kind == root_kind::TREE {
            check_root(root, &walked, object, f);
        }
        if !walked.broken {
            f.equal(object, "count of entries", entries, dir.size);
        }
        f.equal(object, "blocks of a directory", 0, dir.blocks);
        if dir.root[1..].iter().any(|r| r.kind != root_kind::EMPTY) {
            f.error(object, None, "directory in a tier below", ("", ""));
        }
    }
}
