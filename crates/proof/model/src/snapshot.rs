//! Everything that a tree of names says, to be compared.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};

use rustix::io::Errno;
use shale_libfs::OFlags;

use super::act::{Act, FileAct, Said, Side, Stat};

/// Longest file that is read whole.
const FILE_BYTES_MAX: usize = 16 << 20;
/// A slot that workloads leave alone.
pub const WALK_SLOT: usize = super::act::SLOTS - 1;

/// What one path leads to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Facts {
    /// Attributes.
    pub stat: Stat,
    /// Content of a file, target of a symbolic link.
    pub data: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path of the same file, where this is not the first.
    pub same_as: Option<Vec<u8>>,
}

/// A whole tree by path; the root is the empty path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Snapshot {
    /// What each path leads to.
    pub paths: BTreeMap<Vec<u8>, Facts>,
}

impl Snapshot {
    /// Walks a side's tree. Slot [`WALK_SLOT`] is used for it.
    ///
    /// # Errors
    /// What the side says where a walk of what it lists itself should not fail.
    pub fn of(side: &mut dyn Side) -> Result<Snapshot, Errno> {
        let mut snapshot = Snapshot::default();
        let mut firsts: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut dirs = vec![Vec::new()];
        let Said::Stat(stat) = side.act(&Act::Stat(b".".to_vec(), true))? else {
            return Err(Errno::PROTO);
        };
        let root = Facts {
            stat,
            data: Vec::new(),
            xattrs: BTreeMap::new(),
            same_as: None,
        };
        snapshot.paths.insert(Vec::new(), root);
        while let Some(dir) = dirs.pop() {
            let list: &[u8] = if dir.is_empty() { b"." } else { &dir };
            let Said::Names(names) = side.act(&Act::List(list.to_vec()))? else {
                return Err(Errno::PROTO);
            };
            for (name, kind) in names {
                let path = match dir.is_empty() {
                    true => name,
                    false => [&dir[..], b"/", &name].concat(),
                };
                let mut facts = look(side, &path, kind)?;
                if kind == 4 {
                    dirs.push(path.clone());
                } else if facts.stat.nlink > 1 {
                    let first = firsts.entry(side.identity(&path)?).or_insert(path.clone());
                    facts.same_as = Some(first.clone());
                }
                snapshot.paths.insert(path, facts);
            }
        }
        snapshot.name_firsts();
        Ok(snapshot)
    }

    /// Of the names of one file the first in order is the first, in whatever order they were met.
    pub fn name_firsts(&mut self) {
        let mut least: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for (path, facts) in &self.paths {
            if let Some(group) = &facts.same_as {
                least.entry(group.clone()).or_insert(path.clone());
            }
        }
        for facts in self.paths.values_mut() {
            if let Some(group) = &mut facts.same_as {
                *group = least[group].clone();
            }
        }
    }

    /// A number that equal snapshots share, and hardly others. `of`: only of these paths.
    pub fn digest(&self, of: impl Fn(&[u8]) -> bool) -> u64 {
        let mut hasher = Quick(0);
        for path in self.paths.iter().filter(|(path, _)| of(path)) {
            path.hash(&mut hasher);
        }
        hasher.finish()
    }

    /// What is different in `other`, for people.
    pub fn differences(&self, other: &Snapshot) -> Vec<String> {
        let mut lines = Vec::new();
        let shown = |path: &[u8]| format!("/{}", String::from_utf8_lossy(path));
        for (path, facts) in &self.paths {
            match other.paths.get(path) {
                None => lines.push(format!("{} is missing", shown(path))),
                Some(found) if found != facts => {
                    lines.push(format!("{}: {}", shown(path), Change(facts, found)));
                }
                Some(_) => {}
            }
        }
        let more = other.paths.keys().filter(|p| !self.paths.contains_key(*p));
        lines.extend(more.map(|path| format!("{} is there", shown(path))));
        lines
    }
}

/// Hashes long contents, eight bytes at a time.
struct Quick(u64);

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut state = self.0;
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            let mixed = state.rotate_left(23) ^ u64::from_le_bytes(word) ^ part.len() as u64;
            state = mixed.wrapping_mul(FACTOR);
            state ^= state >> 29;
        }
        self.0 = state;
    }
}

fn look(side: &mut dyn Side, path: &[u8], kind: u8) -> Result<Facts, Errno> {
    let Said::Stat(stat) = side.act(&Act::Stat(path.to_vec(), false))? else {
        return Err(Errno::PROTO);
    };
    let data = match kind {
        8 => {
            side.act(&Act::Open(WALK_SLOT, path.to_vec(), OFlags::RDONLY, 0))?;
            let read = FileAct::Read(0, FILE_BYTES_MAX.min(stat.size as usize + 1));
            let read = side.act(&Act::File(WALK_SLOT, read));
            side.act(&Act::File(WALK_SLOT, FileAct::Close))?;
            read?
        }
        10 => side.act(&Act::Readlink(path.to_vec()))?,
        _ => Said::Done,
    };
    let mut xattrs = BTreeMap::new();
    // Sockets and the like have access control lists.
    if kind != 10 {
        for name in side.xattr_names(path)? {
            if let Said::Bytes(value) = side.act(&Act::GetXattr(path.to_vec(), name.clone()))? {
                xattrs.insert(name, value);
            }
        }
    }
    let data = match data {
        Said::Bytes(data) => data,
        _ => Vec::new(),
    };
    Ok(Facts {
        stat,
        data,
        xattrs,
        same_as: None,
    })
}

/// From what to what.
struct Change<'a>(&'a Facts, &'a Facts);

impl fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change(expected, found) = self;
        if expected.stat != found.stat {
            write!(f, "expected {:?}, found {:?}; ", expected.stat, found.stat)?;
        }
        if expected.data != found.data {
            let differs = |n: usize| expected.data.get(n) != found.data.get(n);
            let longest = expected.data.len().max(found.data.len());
            let wrong = (0..longest).filter(|&n| differs(n)).count();
            let at = (0..longest).find(|&n| differs(n)).unwrap_or(0);
            let byte = |data: &[u8]| data.get(at).copied();
            write!(
                f,
                "{wrong} bytes differ, the first at {at}: expected {:?}, found {:?}; ",
                byte(&expected.data),
                byte(&found.data)
            )?;
        }
        if expected.xattrs != found.xattrs {
            let names = |facts: &Facts| {
                let shown = facts.xattrs.iter();
                let shown = shown.map(|(n, v)| (String::from_utf8_lossy(n).into_owned(), v.len()));
                shown.collect::<Vec<_>>()
            };
            write!(
                f,
                "attributes: expected {:?}, found {:?}; ",
                names(expected),
                names(found)
            )?;
        }
        if expected.same_as != found.same_as {
            let shown = |facts: &Facts| {
                facts
                    .same_as
                    .as_deref()
                    .map(|p| String::from_utf8_lossy(p).into_owned())
            };
            write!(
                f,
                "same file as {:?}, found {:?}",
                shown(expected),
                shown(found)
            )?;
        }
        Ok(())
    }
}
