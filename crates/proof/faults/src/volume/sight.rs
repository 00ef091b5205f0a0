//! What a damaged volume shows: each path as before, or an error.

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;

use crate::volume::stage::{Checked, Wrong};
use shale_libfs::OFlags;
use shale_model::snapshot::Facts;
use shale_model::{Act, FileAct, Said, Side, Snapshot, Stat};

/// A slot for looking.
const SLOT: usize = shale_model::snapshot::WALK_SLOT;
/// Names of what is made while looking begin with this.
pub const NEW: &[u8] = b"fault-";
/// Where repair puts what has lost its name.
const FOUND: &[u8] = b"lost+found";
const KIND: u32 = 0o170_000;
const DIR: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// What was found by asking for every path that there was.
#[derive(Debug, Default)]
pub struct Sight {
    /// Paths of which something could not be read: EIO.
    pub failed: BTreeSet<Vec<u8>>,
    /// Paths that are not there any more.
    pub gone: BTreeSet<Vec<u8>>,
    /// Answers that are wrong: neither as before nor EIO.
    pub wrong: Vec<Wrong>,
    /// After a repair.
    mended: bool,
}

impl Sight {
    /// Asks `side` for everything that `before` has.
    pub fn of(side: &mut dyn Side, before: &Snapshot) -> Sight {
        Sight::mended(side, before, &[], false)
    }

    /// Asks `side` for everything that `before` has but the paths in `given_up`, which may be
    /// there or not. `mended`: after a repair, numbers of links may be others.
    pub fn mended(
        side: &mut dyn Side,
        before: &Snapshot,
        given_up: &[Vec<u8>],
        mended: bool,
    ) -> Sight {
        let mut sight = Sight {
            mended,
            ..Sight::default()
        };
        let mut names: BTreeMap<&[u8], BTreeSet<Vec<u8>>> = BTreeMap::new();
        let kept = |path: &&Vec<u8>| !path.is_empty() && !given_up.contains(path);
        for path in before.paths.keys().filter(kept) {
            let (dir, name) = match path.iter().rposition(|&b| b == b'/') {
                Some(at) => (&path[..at], &path[at + 1..]),
                None => (&path[..0], &path[..]),
            };
            names.entry(dir).or_default().insert(name.to_vec());
        }
        for (path, facts) in &before.paths {
            if given_up.contains(path) {
                continue;
            }
            sight.look(side, path, facts);
            if facts.stat.mode & KIND == DIR {
                let expected = names.remove(&path[..]).unwrap_or_default();
                sight.list(side, path, &expected, given_up);
            }
        }
        sight
    }

    fn said<T>(&mut self, path: &[u8], what: &str, said: Result<T, Errno>) -> Option<T> {
        match said {
            Ok(said) => return Some(said),
            Err(Errno::IO) => {
                self.failed.insert(path.to_vec());
            }
            Err(Errno::NOENT) => {
                self.gone.insert(path.to_vec());
            }
            Err(e) => {
                let path = String::from_utf8_lossy(path);
                self.wrong.push(format!("/{path}: {what}: {e}"));
            }
        }
        None
    }

    fn is_stat(&self, said: &Said, before: Stat) -> bool {
        match said {
            Said::Stat(found) if self.mended => {
                let nlink = before.nlink;
                Stat { nlink, ..*found } == before
            }
            other => *other == Said::Stat(before),
        }
    }

    fn look(&mut self, side: &mut dyn Side, path: &[u8], before: &Facts) {
        let name: &[u8] = if path.is_empty() { b"." } else { path };
        let stat = side.act(&Act::Stat(name.to_vec(), false));
        let differs = |what: &str| format!("/{}: {what} differs", String::from_utf8_lossy(path));
        if let Some(said) = self.said(path, "stat", stat)
            && !self.is_stat(&said, before.stat)
        {
            self.wrong.push(format!("{}: {said:?}", differs("stat")));
        }
        let data = match before.stat.mode & KIND {
            FILE => content(side, path, before),
            LINK => side.act(&Act::Readlink(path.to_vec())).map(Some),
            _ => Ok(None),
        };
        if let Some(Some(Said::Bytes(data))) = self.said(path, "read", data)
            && data != before.data
        {
            self.wrong.push(differs("content"));
        }
        for (name, value) in &before.xattrs {
            let said = side.act(&Act::GetXattr(path.to_vec(), name.clone()));
            if let Some(Said::Bytes(found)) = self.said(path, "attribute", said)
                && found != *value
            {
                self.wrong.push(differs("attribute"));
            }
        }
    }

    fn list(
        &mut self,
        side: &mut dyn Side,
        path: &[u8],
        expected: &BTreeSet<Vec<u8>>,
        given_up: &[Vec<u8>],
    ) {
        let name: &[u8] = if path.is_empty() { b"." } else { path };
        let said = side.act(&Act::List(name.to_vec()));
        let Some(Said::Names(found)) = self.said(path, "list", said) else {
            return;
        };
        let found: BTreeSet<Vec<u8>> = found.into_iter().map(|n| n.0).collect();
        let whole = |name: &[u8]| match path.is_empty() {
            true => name.to_vec(),
            false => [path, b"/", name].concat(),
        };
        let new = |name: &&Vec<u8>| {
            let ours = [NEW, FOUND].iter().any(|m| name.starts_with(m));
            !ours && !given_up.contains(&whole(name))
        };
        let lost = expected.difference(&found).next();
        let extra = found.difference(expected).find(new);
        for (name, how) in [(lost, "not listed"), (extra, "listed and new")] {
            if let Some(name) = name {
                let name = String::from_utf8_lossy(name);
                let path = String::from_utf8_lossy(path);
                self.wrong.push(format!("/{path}: '{name}' is {how}"));
            }
        }
    }

    /// What is not there any more counts as failed.
    pub fn forgive_gone(&mut self) {
        self.failed.append(&mut self.gone);
    }

    /// Nothing is wrong, and what failed is among `allowed`.
    ///
    /// # Errors
    /// What is wrong.
    pub fn within(&self, allowed: &[Vec<u8>]) -> Checked<()> {
        if let Some(wrong) = self.wrong.first() {
            return Err(format!("{wrong} ({} wrong answers)", self.wrong.len()));
        }
        if let Some(path) = self.gone.first() {
            return Err(format!("/{} is gone", String::from_utf8_lossy(path)));
        }
        match self.failed.iter().find(|path| !allowed.contains(path)) {
            None => Ok(()),
            Some(path) => Err(format!(
                "/{}: EIO, but it is not what was damaged",
                String::from_utf8_lossy(path)
            )),
        }
    }
}

fn content(side: &mut dyn Side, path: &[u8], before: &Facts) -> Result<Option<Said>, Errno> {
    // Of a file that is too large to be kept whole, as much as was kept.
    let known = before.data.len();
    let bytes = known + usize::from(before.stat.size == known as u64);
    side.act(&Act::Open(SLOT, path.to_vec(), OFlags::RDONLY, 0))?;
    let read = side.act(&Act::File(SLOT, FileAct::Read(0, bytes)));
    side.act(&Act::File(SLOT, FileAct::Close))?;
    read.map(Some)
}

/// Makes a file, writes it and reads it again: the volume is of use.
///
/// # Errors
/// What does not work.
pub fn use_it(side: &mut dyn Side, path: &[u8]) -> Checked<()> {
    let fill = shale_model::Fill {
        seed: 77,
        len: 6_000,
    };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    for act in [
        Act::Open(SLOT, path.to_vec(), flags, 0o600),
        Act::File(SLOT, FileAct::WriteNext(fill)),
        Act::File(SLOT, FileAct::Sync),
    ] {
        side.act(&act).map_err(|e| format!("{act:?}: {e}"))?;
    }
    let read = side.act(&Act::File(SLOT, FileAct::Read(0, 9_000)));
    // A file that is not open is closed.
    let _ = side.act(&Act::File(SLOT, FileAct::Close));
    match read == Ok(Said::Bytes(fill.bytes())) {
        true => Ok(()),
        false => Err(format!(
            "what was just written reads differently: {}",
            shale_model::compare::shown(&read)
        )),
    }
}

/// Removes a file.
///
/// # Errors
/// It cannot be removed.
pub fn unlink(side: &mut dyn Side, path: &[u8]) -> Checked<()> {
    side.act(&Act::Unlink(path.to_vec()))
        .map(|_| ())
        .map_err(|e| format!("unlink of {}: {e}", String::from_utf8_lossy(path)))
}
