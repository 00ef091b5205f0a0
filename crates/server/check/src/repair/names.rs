//! Directories: which entries stay.
//!
//! An entry stays if its name is legal and the only one of its kind, and leads to an inode
//! that is kept. A directory has one name: in the directory that it says is its parent
//! if that one names it, else the first one found. Rings are cut where they are met.

use super::trees::{Pass, entries_of};
use super::{KeptInode, Repair};
use shale_format::checksum::name_hash;
use shale_format::dirent::{check_name, kind_of_mode};
use shale_format::extent::root_kind;
use shale_format::tree::TreeKind;
use shale_format::{DirKey, Ino};
use shale_volume::Dirent;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Entries of a directory while they are sorted out.
#[derive(Default)]
struct Sorted {
    by_key: BTreeMap<u64, Dirent>,
    names: HashSet<Vec<u8>>,
    children: HashSet<u64>,
    altered: bool,
}

impl Repair {
    /// Decides about all entries.
    pub(super) fn read_names(&mut self) {
        let is_dir = |k: &&KeptInode| k.inode.is_dir() && k.inode.ino != Ino::ORPHANS.0;
        let dirs: Vec<u64> = self
            .inodes
            .values()
            .filter(is_dir)
            .map(|k| k.inode.ino)
            .collect();
        for by_parent in [true, false] {
            for &dir in &dirs {
                self.place_directories(dir, by_parent);
            }
        }
        self.cut_rings(&dirs);
        for dir in dirs {
            self.sort_entries(dir);
        }
        self.read_orphans();
    }

    /// The entries of a directory as far as they can be read; whether one of them, or the
    /// order, is not as it should be.
    fn entries_in(&mut self, dir: u64) -> (Vec<Dirent>, bool) {
        let Some(root) = self.kept(Ino(dir)).map(|k| k.inode.root[0]) else {
            return (Vec::new(), false);
        };
        if root.kind != root_kind::TREE {
            return (Vec::new(), false);
        }
        let (mut all, mut odd, mut last) = (Vec::new(), false, None);
        let mut leaf = |block: &_, header: &_, keys: &_| {
            for entry in entries_of(block, header, keys) {
                let Some((entry, in_keys)) = entry else {
                    odd = true;
                    continue;
                };
                odd |= !in_keys || last.replace(entry.key) >= Some(entry.key);
                all.push(entry);
            }
        };
        let (owner, kind) = (Ino(dir), TreeKind::Entries);
        let walked = self.walk(&root, owner, kind, Pass::Again, &mut leaf);
        (all, odd || !walked.is_whole(&root))
    }

    /// The entries of a directory as they will be.
    pub(super) fn entries_now(&mut self, dir: u64) -> Vec<Dirent> {
        match self.kept(Ino(dir)).and_then(|k| k.entries.clone()) {
            Some(entries) => entries,
            None => self.entries_in(dir).0,
        }
    }

    fn place_directories(&mut self, dir: u64, by_parent: bool) {
        for entry in self.entries_in(dir).0 {
            let legal = check_name(&entry.name).is_ok() && entry.ino != Ino::ROOT;
            if let Some(child) = self.inodes.get_mut(&entry.ino.0)
                && legal
                && entry.ino.is_user()
                && child.inode.is_dir()
                && child.place.is_none()
                && (!by_parent || child.inode.parent == dir)
            {
                child.place = Some(dir);
            }
        }
    }

    /// Cuts rings of directories, so that one in each has no name any more.
    fn cut_rings(&mut self, dirs: &[u64]) {
        let mut known: HashSet<u64> = HashSet::from([Ino::ROOT.0]);
        for &dir in dirs {
            let (mut at, mut way) = (dir, HashSet::new());
            while !known.contains(&at) {
                if !way.insert(at) {
                    if let Some(kept) = self.inodes.get_mut(&at) {
                        kept.place = None;
                    }
                    break;
                }
                match self.kept(Ino(at)).and_then(|k| k.place) {
                    Some(place) => at = place,
                    None => break,
                }
            }
            known.extend(way);
        }
    }

    /// Decides about the entries of one directory and counts them.
    fn sort_entries(&mut self, dir: u64) {
        let (entries, odd) = self.entries_in(dir);
        let mut sorted = Sorted {
            altered: odd,
            ..Sorted::default()
        };
        let mut misplaced = Vec::new();
        for mut entry in entries {
            if let Err(why) = self.may_stay(dir, &entry, &sorted) {
                let name = entry.name.escape_ascii().to_string();
                let what = format!("entry for inode {}: {why}", entry.ino.0);
                self.note(Some(dir), Some(name), what, true);
                sorted.altered = true;
                continue;
            }
            let kind = self
                .kept(entry.ino)
                .map_or(0, |k| kind_of_mode(k.inode.mode));
            if entry.kind != kind {
                entry.kind = kind;
                sorted.altered = true;
            }
            sorted.names.insert(entry.name.clone());
            sorted.children.insert(entry.ino.0);
            self.count_entry(dir, &entry);
            let group = self.key_group(&entry.name);
            let fits = entry.key.group_start() == group;
            if fits && !sorted.by_key.contains_key(&entry.key.0) {
                sorted.by_key.insert(entry.key.0, entry);
            } else {
                misplaced.push(entry);
            }
        }
        for entry in misplaced {
            sorted.altered = true;
            self.put_again(dir, entry, &mut sorted.by_key);
        }
        self.resolve_entries(dir, sorted);
    }

    fn resolve_entries(&mut self, dir: u64, sorted: Sorted) {
        let Some(kept) = self.inodes.get_mut(&dir) else {
            return;
        };
        let count = sorted.by_key.len() as u64;
        let recount = kept.inode.size != count;
        let rewritten = sorted.altered && kept.entries.is_none();
        if sorted.altered || kept.entries.is_some() {
            kept.entries = Some(sorted.by_key.into_values().collect());
            kept.changed = true;
        }
        if recount {
            kept.inode.size = count;
            kept.changed = true;
        }
        if rewritten {
            self.note_inode(dir, "entries set right", false);
        } else if recount {
            self.note_inode(dir, "count of entries set right", false);
        }
    }

    /// Why an entry cannot stay.
    fn may_stay(&self, dir: u64, entry: &Dirent, sorted: &Sorted) -> Result<(), &'static str> {
        if check_name(&entry.name).is_err() {
            return Err("no entry may have this name");
        }
        if sorted.names.contains(&entry.name) {
            return Err("there is another one of this name");
        }
        if !entry.ino.is_user() || entry.ino == Ino::ROOT {
            return Err("no name may lead there");
        }
        let Some(child) = self.kept(entry.ino) else {
            return Err("it does not exist");
        };
        let second = child.place != Some(dir) || sorted.children.contains(&entry.ino.0);
        if child.inode.is_dir() && second {
            return Err("the directory has another name, or is in a ring");
        }
        Ok(())
    }

    fn count_entry(&mut self, dir: u64, entry: &Dirent) {
        let is_dir = self.kept(entry.ino).is_some_and(|k| k.inode.is_dir());
        let counted = if is_dir { dir } else { entry.ino.0 };
        if let Some(kept) = self.inodes.get_mut(&counted) {
            kept.count = kept.count.saturating_add(1);
        }
        if let Some(child) = self.inodes.get_mut(&entry.ino.0)
            && !is_dir
        {
            child.place.get_or_insert(dir);
        }
    }

    /// Key group of a name.
    pub(super) fn key_group(&self, name: &[u8]) -> DirKey {
        DirKey::group(name_hash(self.sb.hash_seed, name))
    }

    /// Puts an entry at the first free key of its group.
    pub(super) fn put_again(
        &mut self,
        dir: u64,
        mut entry: Dirent,
        all: &mut BTreeMap<u64, Dirent>,
    ) {
        let group = self.key_group(&entry.name);
        let free = (0..DirKey::COLLISIONS).map(|n| group.with_twin(n as u8));
        match free.into_iter().find(|key| !all.contains_key(&key.0)) {
            Some(key) => {
                entry.key = key;
                all.insert(key.0, entry);
            }
            None => {
                let name = entry.name.escape_ascii().to_string();
                let what = "too many names have its hash".to_owned();
                self.note(Some(dir), Some(name), what, true);
            }
        }
    }

    /// Who is among the orphans. Whether the list stays is decided when all orphans are known.
    fn read_orphans(&mut self) {
        let (entries, odd) = self.entries_in(Ino::ORPHANS.0);
        let mut altered = odd;
        let mut kinds: HashMap<u64, u8> = HashMap::new();
        for entry in entries {
            let legal = entry.key.0 == entry.ino.0 && entry.name.is_empty();
            altered |= !legal;
            kinds.insert(entry.ino.0, entry.kind);
        }
        for (ino, kind) in kinds {
            match self.inodes.get_mut(&ino) {
                Some(kept) => {
                    kept.listed = true;
                    altered |= kind != kind_of_mode(kept.inode.mode);
                }
                None => altered = true,
            }
        }
        if let Some(orphans) = self.inodes.get_mut(&Ino::ORPHANS.0)
            && altered
        {
            orphans.entries = Some(Vec::new());
        }
    }

    /// Inodes that are among the orphans, or were before.
    pub(super) fn listed(&self) -> BTreeSet<u64> {
        let listed = self.inodes.values().filter(|k| k.listed);
        listed.map(|k| k.inode.ino).collect()
    }
}
