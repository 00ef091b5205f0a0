//! Random sequences: digested at once, and record by record, they give the same tree,
//! and it is the one that the model has.

use super::model::{MODES, Tree, dump};
use super::world::{FILE, LINK, Rename, World};
use crate::Bounds;
use shale_format::Ino;
use shale_format::limits::NVM_BYTES_MIN;
use shale_format::record::flag;
use shale_oplog::encode;

const SEQUENCES: u64 = 320;
const OPERATIONS: u64 = 36;
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const FILE_BYTES: u64 = 30_000;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
    fn of<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        (!list.is_empty()).then(|| list[self.below(list.len() as u64) as usize])
    }
    fn bytes(&mut self, n: u64) -> Vec<u8> {
        let seed = self.below(251) as u8 + 1;
        (0..n)
            .map(|i| seed.wrapping_add((i / 7) as u8) | 1)
            .collect()
    }
    /// An offset or a length, now and then at a block's edge.
    fn place(&mut self, n: u64) -> u64 {
        let at = self.below(n);
        if self.below(3) == 0 {
            at / 4096 * 4096
        } else {
            at
        }
    }
}

struct Run {
    random: Random,
    tree: Tree,
    /// All at once, and record by record.
    worlds: [World; 2],
    next_ino: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let single = Bounds {
            records_max: 1,
            bytes_max: 1 << 20,
            ..Bounds::default()
        };
        let bytes = NVM_BYTES_MIN as usize;
        Run {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            tree: Tree::new(),
            worlds: [World::new(), World::with(bytes, single)],
            next_ino: 16,
        }
    }

    fn each(&self, f: impl Fn(&World)) {
        self.worlds.iter().for_each(f);
    }

    fn dirs(&self) -> Vec<u64> {
        let live = |(&i, n): (&u64, &super::model::Node)| (n.is_dir() && n.nlink > 0).then_some(i);
        self.tree.0.iter().filter_map(live).collect()
    }
    fn files(&self) -> Vec<u64> {
        let files = self.tree.0.iter().filter(|(_, n)| n.mode == FILE);
        files.map(|(&i, _)| i).collect()
    }
    fn names(&self) -> Vec<(u64, &'static str, u64)> {
        let mut all = Vec::new();
        for dir in self.dirs() {
            for (name, &ino) in &self.tree.0[&dir].names {
                let name = NAMES.into_iter().find(|n| n == name).unwrap();
                all.push((dir, name, ino));
            }
        }
        all
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..=3 => self.create(),
            4..=5 => self.unlink(),
            6..=7 => self.rename(),
            8 => self.link(),
            9..=12 => self.write(),
            13 => self.steal(),
            14 => self.truncate(),
            15..=16 => self.fallocate(),
            17 => self.xattr(),
            18 => self.free(),
            _ => self.chmod(),
        }
    }

    fn place_for_name(&mut self) -> (u64, &'static str) {
        let dirs = self.dirs();
        (
            self.random.of(&dirs).unwrap(),
            self.random.of(&NAMES).unwrap(),
        )
    }

    fn create(&mut self) {
        let (dir, name) = self.place_for_name();
        if self.tree.at(dir).names.contains_key(name) || self.tree.0.len() > 25 {
            return;
        }
        let ino = self.next_ino;
        self.next_ino += 1 + self.random.below(5);
        let mode = self.random.of(&MODES).unwrap();
        let target = "some/target";
        self.each(|w| match mode {
            LINK => w.symlink(dir, ino, name, target),
            _ => w.create(dir, ino, name, mode),
        });
        self.tree.create(dir, ino, name, mode, target);
    }

    fn unlink(&mut self) {
        let Some((dir, name, ino)) = self.random.of(&self.names()) else {
            return;
        };
        let node = self.tree.at(ino).clone();
        if !node.names.is_empty() {
            return;
        }
        let free_now = self.random.below(2) == 0;
        let mut flags = if free_now { flag::FREE_NOW } else { 0 };
        if node.is_dir() {
            flags |= flag::DIRECTORY;
        }
        self.each(|w| {
            let part = encode::unlink(Ino(dir), Ino(ino), node.kind(), 0, name.as_bytes());
            w.push(part.flags(flags));
        });
        self.tree.unlink(dir, name, free_now);
    }

    fn rename(&mut self) {
        let Some((dir, name, ino)) = self.random.of(&self.names()) else {
            return;
        };
        let to = self.place_for_name();
        let node = self.tree.at(ino).clone();
        let there = self.tree.at(to.0).names.get(to.1).copied();
        if there == Some(ino) || (node.is_dir() && self.tree.below(to.0, ino)) {
            return;
        }
        let free_now = self.random.below(2) == 0;
        let mut m = Rename {
            from: (dir, name),
            to,
            ino,
            replaced: 0,
            kinds: (node.kind(), 0),
            exchange: false,
            free_now,
        };
        if let Some(other) = there {
            let gone = self.tree.at(other).clone();
            m.replaced = other;
            m.kinds.1 = gone.kind();
            m.exchange = self.random.below(2) == 0;
            let circle = gone.is_dir() && self.tree.below(dir, other);
            let unfit = gone.is_dir() != node.is_dir() || !gone.names.is_empty();
            if if m.exchange { circle } else { unfit } {
                return;
            }
        }
        self.each(|w| w.rename(m));
        match m.exchange {
            true => self.tree.exchange((dir, name), to),
            false => self.tree.rename((dir, name), to, free_now),
        }
    }

    fn link(&mut self) {
        let (dir, name) = self.place_for_name();
        let files = self.files();
        let Some(ino) = self.random.of(&files) else {
            return;
        };
        if !self.tree.at(dir).names.contains_key(name) {
            self.each(|w| w.link(dir, ino, name));
            self.tree.link(dir, name, ino);
        }
    }

    fn write(&mut self) {
        let files = self.files();
        let Some(ino) = self.random.of(&files) else {
            return;
        };
        let size = self.tree.at(ino).data.len() as u64;
        let offset = match self.random.below(3) {
            0 => size.min(FILE_BYTES),
            _ => self.random.place(FILE_BYTES),
        };
        let bytes = 1 + self.random.place(9000);
        let data = self.random.bytes(bytes);
        self.each(|w| {
            w.write(ino, offset, &data);
        });
        self.tree.write(ino, offset as usize, &data);
    }

    fn steal(&mut self) {
        let files = self.files();
        let Some(ino) = self.random.of(&files) else {
            return;
        };
        let size = self.tree.at(ino).data.len() as u64;
        let offset = self.random.below(6) * 4096;
        let blocks = 1 + self.random.below(5);
        let data = self.random.bytes(blocks * 4096);
        let whole = offset + blocks * 4096;
        let end = if size < whole {
            whole - self.random.below(4096)
        } else {
            whole
        };
        for w in &mut self.worlds {
            w.steal(ino, offset, &data, end);
        }
        let kept = (end.max(size).min(whole) - offset) as usize;
        self.tree.write(ino, offset as usize, &data[..kept]);
    }

    fn truncate(&mut self) {
        let files = self.files();
        let Some(ino) = self.random.of(&files) else {
            return;
        };
        let size = match self.random.below(4) {
            // Nothing is cut off: what was before must not come back.
            0 => self.tree.at(ino).data.len() as u64,
            _ => self.random.place(FILE_BYTES),
        };
        self.each(|w| w.truncate(ino, size));
        self.tree.at(ino).data.resize(size as usize, 0);
    }

    fn fallocate(&mut self) {
        let files = self.files();
        let Some(ino) = self.random.of(&files) else {
            return;
        };
        let (offset, bytes) = (self.random.place(FILE_BYTES), 1 + self.random.place(12_000));
        let size = self.tree.at(ino).data.len();
        let mode = self.random.of(&[0, 1, 3, 3, 16, 17, 8, 32]).unwrap();
        let (mut offset, mut bytes) = (offset, bytes);
        if mode == 8 || mode == 32 {
            offset = offset / 4096 * 4096;
            bytes = (bytes / 4096 + 1) * 4096;
            let fits = if mode == 8 { offset + bytes } else { offset };
            if fits >= size as u64 || size > 60_000 {
                return;
            }
        }
        self.each(|w| w.fallocate(ino, offset, bytes, mode));
        let (start, end) = (offset as usize, (offset + bytes) as usize);
        let data = &mut self.tree.at(ino).data;
        match mode {
            8 => drop(data.drain(start..end)),
            32 => drop(data.splice(start..start, vec![0; bytes as usize])),
            _ => {
                if mode & 1 == 0 {
                    data.resize(size.max(end), 0);
                }
                if mode & 18 != 0 {
                    let end = end.min(data.len());
                    data[start.min(end)..end].fill(0);
                }
            }
        }
    }

    fn xattr(&mut self) {
        let all: Vec<u64> = self.tree.0.keys().copied().collect();
        let ino = self.random.of(&all).unwrap();
        let name = self.random.of(&["user.a", "user.b"]).unwrap();
        let key = name.as_bytes().to_vec();
        if self.tree.at(ino).xattrs.contains_key(&key) && self.random.below(2) == 0 {
            self.each(|w| {
                w.push(encode::remove_xattr(Ino(ino), name.as_bytes()));
            });
            self.tree.at(ino).xattrs.remove(&key);
        } else {
            let bytes = self.random.below(300);
            let value = self.random.bytes(bytes);
            self.each(|w| w.set_xattr(ino, name, &value));
            self.tree.at(ino).xattrs.insert(key, value);
        }
    }

    fn free(&mut self) {
        let orphans = self.tree.0.iter().filter(|(_, n)| n.nlink == 0);
        let orphans: Vec<u64> = orphans.map(|(&i, _)| i).collect();
        if let Some(ino) = self.random.of(&orphans) {
            self.each(|w| {
                w.push(encode::free(Ino(ino)));
            });
            self.tree.0.remove(&ino);
        }
    }

    fn chmod(&mut self) {
        let all: Vec<u64> = self.tree.0.keys().copied().collect();
        let ino = self.random.of(&all).unwrap();
        let mode = self.tree.at(ino).mode & 0o7777;
        self.each(|w| w.set_mode(ino, mode));
    }

    /// Deletes everything. Frees every block that the tree had.
    fn clear(&mut self) {
        let leaf = |run: &Run| {
            let mut names = run.names().into_iter();
            names.find(|n| run.tree.0[&n.2].names.is_empty())
        };
        while let Some((dir, name, ino)) = leaf(self) {
            let node = self.tree.at(ino).clone();
            let directory = if node.is_dir() { flag::DIRECTORY } else { 0 };
            self.each(|w| {
                let part = encode::unlink(Ino(dir), Ino(ino), node.kind(), 0, name.as_bytes());
                w.push(part.flags(flag::FREE_NOW | directory));
            });
            self.tree.unlink(dir, name, true);
        }
        let orphans = self.tree.0.keys().copied().filter(|&i| i != 1);
        for ino in orphans.collect::<Vec<_>>() {
            self.each(|w| {
                w.push(encode::free(Ino(ino)));
            });
            self.tree.0.remove(&ino);
        }
        for name in ["user.a", "user.b"] {
            if self.tree.at(1).xattrs.remove(name.as_bytes()).is_some() {
                self.each(|w| {
                    w.push(encode::remove_xattr(Ino(1), name.as_bytes()));
                });
            }
        }
    }

    fn compare(&mut self, what: &str) {
        for w in &mut self.worlds {
            w.digest();
        }
        let [(once, once_inodes), (single, single_inodes)] = [0, 1].map(|n| dump(&self.worlds[n]));
        let same = once == self.tree && single == self.tree && once_inodes == single_inodes;
        if same {
            return;
        }
        for (ino, node) in &self.tree.0 {
            for (how, tree) in [("at once", &once), ("one by one", &single)] {
                let found = tree.0.get(ino);
                assert_eq!(
                    found.map(|f| &f.names),
                    Some(&node.names),
                    "{what}, {how}: {ino}"
                );
                let data = found.map_or(&[][..], |f| &f.data);
                let differ = data.iter().zip(&node.data).position(|(a, b)| a != b);
                let sizes = (data.len(), node.data.len());
                assert_eq!(
                    (differ, sizes.0),
                    (None, sizes.1),
                    "{what}, {how}: content of {ino}"
                );
                assert_eq!(found, Some(node), "{what}, {how}: {ino}");
            }
        }
        assert_eq!(once_inodes, single_inodes, "{what}");
        assert_eq!(
            once.0.keys().collect::<Vec<_>>(),
            self.tree.0.keys().collect::<Vec<_>>()
        );
        panic!("{what}: trees differ");
    }
}

#[test]
fn at_once_and_one_by_one_give_the_models_tree() {
    const PER_VOLUME: u64 = 20;
    for volume in 0..SEQUENCES / PER_VOLUME {
        let mut run = Run::new(volume + 1);
        let empty = run.worlds.each_ref().map(|w| w.volume().space().used);
        for sequence in 0..PER_VOLUME {
            for _ in 0..OPERATIONS {
                run.step();
            }
            run.compare(&format!("volume {volume}, sequence {sequence}"));
        }
        run.clear();
        run.compare("cleared");
        let used = run.worlds.each_ref().map(|w| w.volume().space().used);
        assert_eq!(used, empty, "volume {volume}: blocks are lost");
    }
}
