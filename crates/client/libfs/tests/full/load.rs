//! A seeded load that keeps a model of what calls returned.

use crate::place::ME;
use shale_format::Ino;
use shale_libfs::{Errno, RENAME_EXCHANGE, Session, WriteFlags};
use std::collections::BTreeMap;
use std::sync::Arc;

const BLOCK: u64 = 4096;
const DIRECTORIES: u64 = 4;

/// Numbers that depend on the seed alone.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    fn bytes(&mut self, n: u64) -> Vec<u8> {
        let first = self.below(251) as u8;
        (0..n)
            .map(|i| first.wrapping_add((i % 247) as u8))
            .collect()
    }
}

/// A file as it has to be.
#[derive(Clone, Default, PartialEq, Eq)]
struct Model {
    data: Vec<u8>,
    attribute: Option<Vec<u8>>,
}

/// Directory and name.
type Name = (u64, Vec<u8>);

/// One client at work.
pub struct Load {
    session: Arc<Session>,
    pub chance: Chance,
    directories: Vec<u64>,
    names: BTreeMap<Name, u64>,
    files: BTreeMap<u64, Model>,
    /// Without a name and in use.
    orphans: Vec<u64>,
    next_name: u64,
    /// Longest name that is made.
    name_bytes: u64,
    /// Calls that got ENOSPC.
    pub refused: u64,
}

/// What a call came to: done, or no space.
fn done<T>(result: Result<T, Errno>, refused: &mut u64) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Errno::NOSPC) => {
            *refused += 1;
            None
        }
        Err(e) => panic!("{e}"),
    }
}

impl Load {
    /// Begins on an empty volume.
    pub fn new(session: Arc<Session>, seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let name_bytes = [6, 40, 255][chance.below(3) as usize];
        let directories = (0..DIRECTORIES).map(|n| {
            let name = format!("d{n}");
            let made = session.mkdir(&ME, Ino::ROOT.0, name.as_bytes(), 0o755);
            made.expect("a directory").ino
        });
        Self {
            directories: directories.collect(),
            session,
            chance,
            names: BTreeMap::new(),
            files: BTreeMap::new(),
            orphans: Vec::new(),
            next_name: 0,
            name_bytes,
            refused: 0,
        }
    }

    /// Goes on with another session, after the daemon has come again.
    pub fn go_on(&mut self, session: Arc<Session>) {
        self.session = session;
        for ino in self.orphans.drain(..) {
            self.files.remove(&ino);
        }
    }

    pub fn digest(&self) {
        self.session.digest().expect("digest");
    }

    fn fresh_name(&mut self) -> Name {
        let dir = self.directories[self.chance.below(DIRECTORIES) as usize];
        self.next_name += 1;
        let mut name = format!("{}-", self.next_name).into_bytes();
        let length = 6 + self.chance.below(self.name_bytes - 5);
        name.resize(length.max(name.len() as u64) as usize, b'n');
        (dir, name)
    }

    fn any_name(&mut self) -> Option<Name> {
        let n = self.chance.below(self.names.len().max(1) as u64);
        self.names.keys().nth(n as usize).cloned()
    }

    fn any_file(&mut self) -> Option<u64> {
        match self.chance.below(8) {
            0 if !self.orphans.is_empty() => {
                let n = self.chance.below(self.orphans.len() as u64);
                Some(self.orphans[n as usize])
            }
            _ => self.any_name().map(|name| self.names[&name]),
        }
    }

    /// Makes a file of `bytes`; `false`: there was no space for all of it.
    pub fn make(&mut self, bytes: u64) -> bool {
        let name = self.fresh_name();
        let made = self.session.create(&ME, name.0, &name.1, 0o644, 0);
        let Some(attr) = done(made, &mut self.refused) else {
            return false;
        };
        self.names.insert(name, attr.ino);
        self.files.insert(attr.ino, Model::default());
        self.write(attr.ino, 0, bytes)
    }

    fn write(&mut self, ino: u64, offset: u64, bytes: u64) -> bool {
        let data = self.chance.bytes(bytes);
        let flags = WriteFlags::default();
        let written = self.session.write(&ME, ino, offset, &data, flags);
        let Some(n) = done(written, &mut self.refused) else {
            return false;
        };
        let model = &mut self.files.get_mut(&ino).expect("a known file").data;
        let end = offset as usize + n;
        if n > 0 && model.len() < end {
            model.resize(end, 0);
        }
        model[offset as usize..end].copy_from_slice(&data[..n]);
        n == data.len()
    }

    /// Removes a name; the inode may stay in use. Gives about the bytes that makes free at
    /// most.
    pub fn unlink(&mut self) -> u64 {
        let Some(name) = self.any_name() else {
            return u64::MAX;
        };
        let ino = self.names[&name];
        let bytes = self.files[&ino].data.len() as u64;
        self.session.unlink(&ME, name.0, &name.1).expect("unlink");
        self.names.remove(&name);
        self.lost_name(ino);
        bytes.next_multiple_of(BLOCK) + 300
    }

    fn lost_name(&mut self, ino: u64) {
        if self.names.values().any(|&other| other == ino) {
            return;
        }
        if self.chance.below(3) == 0 {
            self.orphans.push(ino);
        } else {
            self.files.remove(&ino);
            self.session.forget(ino).expect("forget");
        }
    }

    /// The last user of a file without a name goes.
    pub fn forget(&mut self) {
        if !self.orphans.is_empty() {
            let n = self.chance.below(self.orphans.len() as u64) as usize;
            let ino = self.orphans.swap_remove(n);
            self.files.remove(&ino);
            self.session.forget(ino).expect("forget");
        }
    }

    /// The last users of all files without a name go.
    pub fn forget_all(&mut self) {
        while !self.orphans.is_empty() {
            self.forget();
        }
    }

    /// Number of names.
    pub fn names(&self) -> usize {
        self.names.len()
    }

    /// Removes up to `most` names of files that stay in use.
    pub fn unlink_all_in_use(&mut self, most: usize) {
        let names: Vec<Name> = self.names.keys().take(most).cloned().collect();
        for name in names {
            let ino = self.names[&name];
            let gone = self.session.unlink(&ME, name.0, &name.1);
            gone.expect("unlink needs no room");
            self.names.remove(&name);
            self.orphans.push(ino);
        }
    }

    /// Writes a byte in the first block of each file while `on` says so. Gives how often.
    pub fn overwrite_each_once(&mut self, on: impl Fn(&Load) -> bool) -> u64 {
        let inos: Vec<u64> = self.names.values().copied().collect();
        let mut written = 0;
        for ino in inos {
            written += u64::from(on(self) && self.write(ino, 10, 1));
        }
        written
    }

    fn rename(&mut self) {
        let Some(from) = self.any_name() else { return };
        let ino = self.names[&from];
        let onto = self.chance.below(2) == 0;
        let to = match self.any_name() {
            Some(to) if onto => to,
            _ => self.fresh_name(),
        };
        let gone = self.names.get(&to).copied();
        if gone == Some(ino) {
            return;
        }
        let swap = gone.is_some() && self.chance.below(3) == 0;
        let flags = if swap { RENAME_EXCHANGE } else { 0 };
        let (a, b) = ((from.0, &from.1[..]), (to.0, &to.1[..]));
        let moved = self.session.rename(&ME, a, b, flags);
        if done(moved, &mut self.refused).is_none() {
            return;
        }
        self.names.remove(&from);
        self.names.insert(to, ino);
        match gone {
            Some(other) if swap => drop(self.names.insert(from, other)),
            Some(other) => self.lost_name(other),
            None => {}
        }
    }

    fn link(&mut self) {
        let Some(name) = self.any_name() else { return };
        let (ino, new) = (self.names[&name], self.fresh_name());
        let linked = self.session.link(&ME, ino, new.0, &new.1);
        if done(linked, &mut self.refused).is_some() {
            self.names.insert(new, ino);
        }
    }

    fn truncate(&mut self, ino: u64) {
        let old = self.files[&ino].data.len() as u64;
        let size = self.chance.below(old + old / 4 + 1);
        let cut = self.session.truncate(&ME, ino, size, false);
        if done(cut, &mut self.refused).is_some() {
            let model = self.files.get_mut(&ino).expect("a known file");
            model.data.resize(size as usize, 0);
        }
    }

    /// Punches, zeroes, allocates, collapses or inserts.
    fn change_range(&mut self, ino: u64) {
        let size = self.files[&ino].data.len() as u64;
        let which = self.chance.below(6);
        let (mut at, mut bytes) = (
            self.chance.below(size + 1),
            1 + self.chance.below(size / 2 + 9000),
        );
        let shifts = which >= 4;
        if shifts {
            (at, bytes) = (at / BLOCK * BLOCK, (1 + self.chance.below(3)) * BLOCK);
            if at + bytes >= size {
                return;
            }
        }
        let mode = [2 | 1, 16, 16 | 1, 0, 8, 32][which as usize];
        let changed = self.session.fallocate(&ME, ino, mode, at, bytes);
        if done(changed, &mut self.refused).is_none() {
            return;
        }
        let model = &mut self.files.get_mut(&ino).expect("a known file").data;
        let (from, to) = (at as usize, (at + bytes) as usize);
        if matches!(mode, 0 | 16) && model.len() < to {
            model.resize(to, 0);
        }
        let end = to.min(model.len());
        match mode {
            0 => {}
            8 => drop(model.drain(from..to)),
            32 => drop(model.splice(from..from, std::iter::repeat_n(0, to - from))),
            _ if from < end => model[from..end].fill(0),
            _ => {}
        }
    }

    fn set_attribute(&mut self, ino: u64) {
        let bytes = [10, 3000, 5000, 40_000][self.chance.below(4) as usize];
        let model = self.files.get_mut(&ino).expect("a known file");
        if model.attribute.is_some() && self.chance.below(4) == 0 {
            let gone = self.session.removexattr(&ME, ino, b"user.a");
            gone.expect("removing needs no room");
            model.attribute = None;
            return;
        }
        let value = self.chance.bytes(bytes);
        let set = self.session.setxattr(&ME, ino, b"user.a", &value, 0);
        if done(set, &mut self.refused).is_some() {
            model.attribute = Some(value);
        }
    }

    /// One change of any kind.
    pub fn step(&mut self) {
        let kind = self.chance.below(100);
        if (44..60).contains(&kind) || self.names.is_empty() {
            match kind {
                44..47 => self.rename(),
                47..50 => self.link(),
                50..56 => drop(self.unlink()),
                56..58 => self.forget(),
                _ => {
                    let bytes = self.chance.below(20_000);
                    self.make(bytes);
                }
            }
            return;
        }
        let Some(ino) = self.any_file() else { return };
        let size = self.files[&ino].data.len() as u64;
        let at = self.chance.below(size + 1);
        match kind {
            // Within the file: what breaks one extent in three.
            0..36 => {
                let bytes = (1 + self.chance.below(300)).min((size - at).max(1));
                self.write(ino, at, bytes);
            }
            36..40 => {
                let bytes = 1 + self.chance.below(60_000);
                self.write(ino, at, bytes);
            }
            40..44 => {
                let bytes = (1 + self.chance.below(60)) * BLOCK;
                self.write(ino, at / BLOCK * BLOCK, bytes);
            }
            60..70 => self.truncate(ino),
            70..80 => self.change_range(ino),
            80..86 => self.set_attribute(ino),
            // As long as it is small and in one place it has no tree.
            _ => {
                self.write(ino, 10.min(size), 1);
            }
        }
    }

    /// Everything that a call has returned from is there, and nothing else.
    pub fn verify(&self) {
        for &dir in &self.directories {
            let mut found = Vec::new();
            let each = &mut |entry: shale_libfs::DirEntry| {
                if entry.name != b"." && entry.name != b".." {
                    found.push((entry.name.to_vec(), entry.ino));
                }
                true
            };
            self.session
                .readdir(&ME, dir, 0, false, each)
                .expect("readdir");
            found.sort();
            let expected = self.names.iter().filter(|(name, _)| name.0 == dir);
            let expected: Vec<_> = expected.map(|(name, &ino)| (name.1.clone(), ino)).collect();
            assert!(found == expected, "names of directory {dir}");
        }
        for (&ino, model) in &self.files {
            let mut data = vec![0; model.data.len() + 1];
            let n = self.session.read(&ME, ino, 0, &mut data).expect("read");
            data.truncate(n);
            assert!(data == model.data, "content of inode {ino}");
            let attribute = self.session.getxattr(&ME, ino, b"user.a").ok();
            assert!(attribute == model.attribute, "attribute of inode {ino}");
        }
    }
}
