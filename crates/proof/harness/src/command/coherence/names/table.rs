//! What the calls of a log are for [`search`](super::search): names as places, what they denote as numbers.

use std::collections::HashMap;

use super::super::log::Call;
use super::dirs::{NAMES, dir_of};

/// A name, by its place among those that are judged together.
pub type Place = usize;
/// What a name denotes; [`NOTHING`]: it does not exist.
pub type Id = u32;
pub const NOTHING: Id = 0;

/// A file or directory that somebody has seen or made.
#[derive(Clone, Copy, Debug)]
pub struct Inode {
    pub is_dir: bool,
    pub ino: u64,
    /// A call says that it has made it: nobody else has.
    pub is_claimed: bool,
    /// Not seen by the call that made it: stands for an inode that a look will name.
    pub is_unknown: bool,
}

/// What a listing says of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub is_dir: bool,
    pub ino: u64,
}

/// What a call did or saw, in one moment between its beginning and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A name that was not there denotes this now.
    Make(Place, Id),
    /// `O_CREAT`: it was there, or denotes this now.
    Open(Place, Id),
    /// A rename from a private name, over what was there.
    Give(Place, Id),
    Move(Place, Place),
    /// With `RENAME_NOREPLACE`.
    MoveNew(Place, Place),
    Swap(Place, Place),
    /// A second name for what the first one denoted at any time since the call began.
    Link(Place, Place),
    Unlink(Place),
    Rmdir(Place),
    See(Place, Id),
    /// In a listing.
    List(Place, Option<Entry>),
    There(Place),
    IsDir(Place),
    IsFile(Place),
    /// One of these is not there.
    Lacks(Place, Place),
    /// The first is there, the second too.
    Both(Place, Place),
    /// A file, and what is in its way is a directory; or the other way round.
    Kinds(Place, Place, bool),
    /// What a link was to be made to was not there, or is a file without names, as far as the kernel knows.
    NoSource(Place),
    /// It was a directory.
    DirSource(Place),
}

impl Act {
    /// The names that it depends on or changes.
    pub fn places(self) -> [Place; 2] {
        match self {
            Self::Make(a, _) | Self::Open(a, _) | Self::Give(a, _) | Self::See(a, _) => [a, a],
            Self::Unlink(a) | Self::Rmdir(a) | Self::List(a, _) => [a, a],
            Self::There(a) | Self::IsDir(a) | Self::IsFile(a) => [a, a],
            Self::NoSource(a) | Self::DirSource(a) => [a, a],
            Self::Move(a, b) | Self::MoveNew(a, b) | Self::Swap(a, b) | Self::Link(a, b) => [a, b],
            Self::Lacks(a, b) | Self::Both(a, b) | Self::Kinds(a, b, _) => [a, b],
        }
    }

    /// Whether it can change what a name denotes.
    pub fn changes(self) -> bool {
        self.is_plain_change() || matches!(self, Self::Open(..))
    }

    fn is_plain_change(self) -> bool {
        matches!(
            self,
            Self::Make(..)
                | Self::Give(..)
                | Self::Move(..)
                | Self::MoveNew(..)
                | Self::Swap(..)
                | Self::Link(..)
                | Self::Unlink(..)
                | Self::Rmdir(..)
        )
    }

    /// Whether it asks what its first name denoted at any time since the call began.
    pub fn holds(self) -> Option<Place> {
        match self {
            Self::Link(a, _) | Self::NoSource(a) | Self::DirSource(a) => Some(a),
            _ => None,
        }
    }
}

/// One act of a call; a listing has one for each name.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub start: u64,
    pub end: u64,
    pub call: usize,
    pub act: Act,
}

/// Names and inodes of the calls that are judged together.
#[derive(Default)]
pub struct Table {
    dirs: Vec<String>,
    inodes: Vec<Inode>,
    ids: HashMap<(u64, u64), Id>,
}

impl Table {
    pub fn new() -> Self {
        let nothing = Inode {
            is_dir: false,
            ino: 0,
            is_claimed: true,
            is_unknown: false,
        };
        Self {
            inodes: vec![nothing],
            ..Self::default()
        }
    }

    pub fn inode(&self, id: Id) -> Inode {
        self.inodes[id as usize]
    }

    /// So many names there are.
    pub fn places(&self) -> usize {
        self.dirs.len() * NAMES.len()
    }

    pub fn name(&self, place: Place) -> String {
        format!(
            "{}/{}",
            self.dirs[place / NAMES.len()],
            NAMES[place % NAMES.len()]
        )
    }

    fn first_of(&mut self, dir: &str) -> Place {
        let at = self.dirs.iter().position(|d| d == dir);
        let at = at.unwrap_or_else(|| {
            self.dirs.push(dir.to_owned());
            self.dirs.len() - 1
        });
        at * NAMES.len()
    }

    fn place(&mut self, path: &str) -> Option<Place> {
        let name = path.split_once('/')?.1;
        let at = NAMES.iter().position(|n| *n == name)?;
        Some(self.first_of(dir_of(path)) + at)
    }

    fn id(&mut self, is_dir: bool, text: &str, is_claimed: bool) -> Option<Id> {
        let (ino, born) = text.split_once('.')?;
        let key = (ino.parse().ok()?, born.parse().ok()?);
        let next = self.inodes.len() as Id;
        let id = *self.ids.entry(key).or_insert(next);
        if id == next {
            self.inodes.push(Inode {
                is_dir,
                ino: key.0,
                is_claimed,
                is_unknown: false,
            });
        }
        let inode = &mut self.inodes[id as usize];
        inode.is_claimed |= is_claimed;
        (inode.is_dir == is_dir).then_some(id)
    }

    fn unknown(&mut self, is_dir: bool) -> Id {
        self.inodes.push(Inode {
            is_dir,
            ino: 0,
            is_claimed: true,
            is_unknown: true,
        });
        self.inodes.len() as Id - 1
    }

    /// What a call did. `Err`: something that no call may give.
    pub fn acts(&mut self, at: usize, call: &Call) -> Result<Vec<Op>, &'static str> {
        let op = |act| Op {
            start: call.start,
            end: call.end,
            call: at,
            act,
        };
        let verb = call.text(0);
        if verb == "@L" {
            let acts = self.listed(call)?;
            return Ok(acts.into_iter().map(op).collect());
        }
        let Some(place) = self.place(call.text(1)) else {
            // About a descriptor, or a private name: not judged here.
            return Ok(Vec::new());
        };
        let other = self.place(call.text(2)).unwrap_or(place);
        let failed = call.result().starts_with('e');
        // A directory that is removed while a process has it open without the kernel is no descriptor of the kernel's any more.
        if (verb, call.result(), call.client) == ("@Q", "e9", true) {
            return Ok(vec![op(Act::IsDir(place))]);
        }
        let act = match (failed, call.returned()) {
            (true, _) => Some(failure(verb, call.result(), place, other).ok_or(CANNOT_BE)?),
            (false, true) => Some(self.success(call, place, other).ok_or(CANNOT_BE)?),
            (false, false) => self.perhaps(call, place, other),
        };
        Ok(act.map(op).into_iter().collect())
    }

    fn success(&mut self, call: &Call, a: Place, b: Place) -> Option<Act> {
        let given = call.result();
        Some(match call.text(0) {
            "@C" => Act::Make(a, self.id(false, given, true)?),
            "@B" => Act::Open(a, self.id(false, given, false)?),
            "@M" => Act::Make(a, self.unknown(true)),
            "@K" => Act::Make(a, self.id(false, call.text(2), true)?),
            "@N" => Act::Give(a, self.id(false, call.text(2), true)?),
            "@F" => Act::Give(a, self.id(true, call.text(2), true)?),
            "@R" => Act::Make(a, self.id(false, call.text(2), true)?),
            "@V" => Act::Move(a, b),
            "@W" => Act::MoveNew(a, b),
            "@E" => Act::Swap(a, b),
            "@H" => Act::Link(a, b),
            "@U" => Act::Unlink(a),
            "@D" => Act::Rmdir(a),
            "@P" | "@O" | "@Q" | "@Z" => {
                let id = call.gave.get(1)?;
                Act::See(a, self.id(given == "dir", id, false)?)
            }
            _ => return None,
        })
    }

    /// What a call that never returned may have done.
    fn perhaps(&mut self, call: &Call, a: Place, b: Place) -> Option<Act> {
        match call.text(0) {
            "@C" | "@B" => Some(Act::Make(a, self.unknown(false))),
            "@P" | "@O" | "@Q" | "@Z" => None,
            _ => self.success(call, a, b),
        }
    }

    fn listed(&mut self, call: &Call) -> Result<Vec<Act>, &'static str> {
        let first = self.first_of(call.text(1));
        if !call.returned() {
            return Ok(Vec::new());
        }
        if call.result() != "ok" {
            return Err(CANNOT_BE);
        }
        let mut seen = [None; NAMES.len()];
        for word in &call.gave[1..] {
            let mut parts = word.split(':');
            let (name, kind, ino) = (parts.next(), parts.next(), parts.next());
            let place = NAMES.iter().position(|n| Some(*n) == name);
            let ino = ino.and_then(|i| i.parse().ok());
            let (Some(place), Some(ino)) = (place, ino) else {
                return Err("a name that nobody made is listed");
            };
            let is_dir = kind == Some("dir");
            if seen[place].replace(Entry { is_dir, ino }).is_some() {
                return Err("listed twice");
            }
        }
        let act = |(at, entry)| Act::List(first + at, entry);
        Ok(seen.into_iter().enumerate().map(act).collect())
    }
}

const CANNOT_BE: &str = "a result that cannot be";

/// What an error says of the names of a call.
fn failure(verb: &str, errno: &str, a: Place, b: Place) -> Option<Act> {
    Some(match (verb, errno) {
        ("@C" | "@M" | "@K" | "@R", "e17") => Act::There(a),
        ("@B" | "@N" | "@U", "e21") => Act::IsDir(a),
        ("@F" | "@D", "e20") => Act::IsFile(a),
        ("@P" | "@O" | "@Q" | "@Z" | "@U" | "@D", "e2") => Act::See(a, NOTHING),
        ("@V" | "@W", "e2") => Act::See(a, NOTHING),
        ("@V", "e21") => Act::Kinds(a, b, false),
        ("@V", "e20") => Act::Kinds(a, b, true),
        ("@W", "e17") => Act::Both(a, b),
        ("@E", "e2") => Act::Lacks(a, b),
        ("@H", "e17") => Act::There(b),
        ("@H", "e2") => Act::NoSource(a),
        ("@H", "e1") => Act::DirSource(a),
        _ => return None,
    })
}
