//! Inodes that no name leads to, and the numbers of names of all others.

use super::{KeptInode, Repair};
use shale_format::dirent::kind_of_mode;
use shale_format::inode::flag;
use shale_format::limits::INODES_PER_BLOCK;
use shale_format::{DirKey, Ino};
use shale_volume::Dirent;
use std::collections::{BTreeMap, BTreeSet};

const LOST_FOUND: &str = "lost+found";

/// What becomes of an inode without a name.
#[derive(PartialEq, Eq)]
enum Fate {
    Named,
    Orphan,
    Lost,
}

fn fate(kept: &KeptInode) -> Fate {
    let inode = &kept.inode;
    let ino = Ino(inode.ino);
    if ino == Ino::ROOT || ino == Ino::ORPHANS || kept.place.is_some() {
        return Fate::Named;
    }
    let orphan = inode.nlink == 0 || inode.flags & flag::ORPHAN != 0 || kept.listed;
    match orphan && !(inode.is_dir() && inode.size > 0) {
        true => Fate::Orphan,
        false => Fate::Lost,
    }
}

impl Repair {
    /// Gives what is lost a name, then sets counts of names, parents and flags right.
    pub(super) fn name_the_lost(&mut self) {
        let mut lost: Vec<u64> = Vec::new();
        let mut orphans: BTreeSet<u64> = BTreeSet::new();
        for kept in self.inodes.values() {
            match fate(kept) {
                Fate::Named => {}
                Fate::Orphan => drop(orphans.insert(kept.inode.ino)),
                Fate::Lost => lost.push(kept.inode.ino),
            }
        }
        if !lost.is_empty() {
            self.put_into_lost_found(&lost);
        }
        self.resolve_orphans(&orphans);
        let all: Vec<u64> = self.inodes.keys().copied().collect();
        for ino in all {
            self.resolve_links(ino, orphans.contains(&ino));
        }
    }

    fn put_into_lost_found(&mut self, lost: &[u64]) {
        let dir = self.lost_found();
        let before = self.entries_now(dir);
        let taken: BTreeSet<Vec<u8>> = before.iter().map(|e| e.name.clone()).collect();
        let mut all: BTreeMap<u64, Dirent> = before.into_iter().map(|e| (e.key.0, e)).collect();
        for &ino in lost {
            let free = (0..).map(|n| match n {
                0 => format!("#{ino}").into_bytes(),
                n => format!("#{ino}.{n}").into_bytes(),
            });
            let Some(name) = free.into_iter().find(|name| !taken.contains(name)) else {
                continue;
            };
            let Some(kept) = self.inodes.get_mut(&ino) else {
                continue;
            };
            kept.place = Some(dir);
            let is_dir = kept.inode.is_dir();
            if !is_dir {
                kept.count = 1;
            }
            let entry = Dirent {
                key: DirKey(0),
                ino: Ino(ino),
                kind: kind_of_mode(kept.inode.mode),
                name,
            };
            self.put_again(dir, entry, &mut all);
            if let Some(parent) = self.inodes.get_mut(&dir).filter(|_| is_dir) {
                parent.count += 1;
            }
            self.note_inode(ino, "no name led to it: named in /lost+found", false);
        }
        self.set_entries(dir, all);
    }

    fn set_entries(&mut self, dir: u64, all: BTreeMap<u64, Dirent>) {
        if let Some(kept) = self.inodes.get_mut(&dir) {
            kept.inode.size = all.len() as u64;
            kept.entries = Some(all.into_values().collect());
            kept.changed = true;
        }
    }

    /// The directory `/lost+found`, made if there is none.
    fn lost_found(&mut self) -> u64 {
        let before = self.entries_now(Ino::ROOT.0);
        let is_dir = |e: &&Dirent| self.kept(e.ino).is_some_and(|k| k.inode.is_dir());
        let mut names = (0..).map(|n| match n {
            0 => LOST_FOUND.to_owned(),
            n => format!("{LOST_FOUND}.{n}"),
        });
        let named = |name: &str| before.iter().find(|e| e.name == name.as_bytes());
        // The first name that leads to a directory, or to nothing.
        let usable = |name: &String| named(name).is_none_or(|e| is_dir(&e));
        let name = names.find(usable).unwrap_or_default();
        if let Some(found) = named(&name) {
            return found.ino.0;
        }
        let ino = self.free_number();
        self.slots_changed = true;
        self.slots.insert(ino / INODES_PER_BLOCK, 0);
        self.make_directory(Ino(ino), 0o700);
        let mut all: BTreeMap<u64, Dirent> = before.into_iter().map(|e| (e.key.0, e)).collect();
        let entry = Dirent {
            key: DirKey(0),
            ino: Ino(ino),
            kind: 4,
            name: name.into_bytes(),
        };
        self.put_again(Ino::ROOT.0, entry, &mut all);
        self.set_entries(Ino::ROOT.0, all);
        for (ino, place) in [(ino, Some(Ino::ROOT.0)), (Ino::ROOT.0, None)] {
            if let Some(kept) = self.inodes.get_mut(&ino) {
                kept.place = place;
                kept.count += u32::from(place.is_none());
            }
        }
        ino
    }

    /// A number that no inode has, in a block of the inode file that is there if possible.
    fn free_number(&self) -> u64 {
        let blocks = self.slots.keys().copied().filter(|&fb| fb > 0);
        let numbers = blocks.flat_map(|fb| fb * INODES_PER_BLOCK..(fb + 1) * INODES_PER_BLOCK);
        let free = |ino: &u64| !self.inodes.contains_key(ino);
        let in_new = || (1..).find(|fb| !self.slots.contains_key(fb));
        let found = numbers.into_iter().find(free);
        found.unwrap_or_else(|| in_new().unwrap_or(1) * INODES_PER_BLOCK)
    }

    /// The directory of orphans holds exactly the orphans.
    fn resolve_orphans(&mut self, orphans: &BTreeSet<u64>) {
        let same = self.listed() == *orphans;
        let whole = self
            .kept(Ino::ORPHANS)
            .is_some_and(|k| k.entries.is_none() && k.inode.size == orphans.len() as u64);
        if same && whole {
            return;
        }
        let entry = |&ino: &u64| {
            let kind = self
                .kept(Ino(ino))
                .map_or(0, |k| kind_of_mode(k.inode.mode));
            let entry = Dirent {
                key: DirKey(ino),
                ino: Ino(ino),
                kind,
                name: Vec::new(),
            };
            (ino, entry)
        };
        let all: BTreeMap<u64, Dirent> = orphans.iter().map(entry).collect();
        self.set_entries(Ino::ORPHANS.0, all);
        self.note_inode(Ino::ORPHANS.0, "list of orphans set right", false);
    }

    fn resolve_links(&mut self, ino: u64, orphan: bool) {
        let Some(kept) = self.inodes.get_mut(&ino) else {
            return;
        };
        let inode = &mut kept.inode;
        let nlink = match (orphan, inode.is_dir()) {
            (true, _) => 0,
            (false, true) => kept.count.saturating_add(2),
            (false, false) => kept.count,
        };
        let parent = match (inode.is_dir(), Ino(ino)) {
            (false, _) => 0,
            (true, Ino::ROOT) => Ino::ROOT.0,
            (true, _) => kept.place.unwrap_or(inode.parent),
        };
        let flags = inode.flags & flag::PIN | if orphan { flag::ORPHAN } else { 0 };
        let now = (inode.nlink, inode.parent, inode.flags);
        if now == (nlink, parent, flags) {
            return;
        }
        (inode.nlink, inode.parent, inode.flags) = (nlink, parent, flags);
        kept.changed = true;
        let what = match orphan {
            true => "put among the orphans: the next mount frees it",
            false if now.0 != nlink => "link count set right",
            false => "parent set right",
        };
        self.note_inode(ino, what, orphan);
    }
}
