//! What is under way, or was, when a fault comes: three workloads, each a stream of operations
//! that the model understands too.

use std::collections::VecDeque;

use shale_libfs::OFlags;

use shale_bench::chance::Chance;
use shale_model::random::{Abilities, Acts};
use shale_model::{Act, FileAct, Fill};

/// A workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// Random operations on a few names.
    Random,
    /// Many small files that are made, appended to, moved and removed, like mail.
    Mail,
    /// Files that grow by records and are turned over, and one with pages that are written in
    /// place, like a database with its log.
    Records,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 3] = [Load::Random, Load::Mail, Load::Records];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Load::Random => "random",
            Load::Mail => "mail",
            Load::Records => "records",
        }
    }

    /// The operations of `seed`; there is no end.
    pub fn acts(self, seed: u64) -> Box<dyn Iterator<Item = Act> + Send> {
        match self {
            Load::Random => {
                let mut acts = Acts::new(seed, Abilities { ranges: true });
                Box::new(std::iter::from_fn(move || Some(acts.next_act())))
            }
            Load::Mail => Box::new(Stream::new(seed, mail)),
            Load::Records => Box::new(Stream::new(seed, records)),
        }
    }

    /// The same without fsync.
    pub fn unsynced_acts(self, seed: u64) -> Box<dyn Iterator<Item = Act> + Send> {
        let is_sync = |act: &Act| matches!(act, Act::File(_, FileAct::Sync));
        Box::new(self.acts(seed).filter(move |act| !is_sync(act)))
    }
}

/// Operations that come in groups.
struct Stream {
    chance: Chance,
    next: VecDeque<Act>,
    /// Number of the group.
    group: u64,
    make: fn(&mut Chance, u64) -> Vec<Act>,
}

impl Stream {
    fn new(seed: u64, make: fn(&mut Chance, u64) -> Vec<Act>) -> Self {
        Stream {
            chance: Chance::new(seed),
            next: VecDeque::new(),
            group: 0,
            make,
        }
    }
}

impl Iterator for Stream {
    type Item = Act;

    fn next(&mut self) -> Option<Act> {
        while self.next.is_empty() {
            self.next.extend((self.make)(&mut self.chance, self.group));
            self.group += 1;
        }
        self.next.pop_front()
    }
}

fn path(text: String) -> Vec<u8> {
    text.into_bytes()
}

fn fill(chance: &mut Chance, most: u64) -> Fill {
    Fill {
        seed: chance.below(256) as u8,
        len: 1 + chance.below(most) as usize,
    }
}

const BOXES: u64 = 5;
/// Mails that names are taken from.
const MAILS: u64 = 160;

fn mail(chance: &mut Chance, group: u64) -> Vec<Act> {
    if group == 0 {
        let made = |n: u64| {
            let (name, next) = (format!("box{n}"), (n + 1) % BOXES);
            let link = Act::Symlink(path(format!("../box{next}")), path(format!("{name}/next")));
            [Act::Mkdir(path(name), 0o755), link]
        };
        return (0..BOXES).flat_map(made).collect();
    }
    let name = |chance: &mut Chance| {
        let (n, mail) = (chance.below(BOXES), chance.below(MAILS));
        path(format!("box{n}/{mail}.a-mail-with-a-name-of-some-length"))
    };
    let one = name(chance);
    let append = OFlags::WRONLY | OFlags::APPEND;
    let file = |act| Act::File(0, act);
    match chance.below(10) {
        0..5 => vec![
            Act::Open(0, one, append | OFlags::CREATE, 0o600),
            file(FileAct::WriteNext(fill(chance, 3_000))),
            file(FileAct::WriteNext(fill(chance, 9_000))),
            file(FileAct::Sync),
            file(FileAct::Close),
        ],
        5 => vec![
            Act::Open(0, one.clone(), append, 0),
            file(FileAct::WriteNext(fill(chance, 5_000))),
            file(FileAct::Close),
            Act::SetXattr(one, b"user.flags".to_vec(), fill(chance, 300), 0),
        ],
        6 => vec![Act::Rename(one, name(chance), 0)],
        7 => vec![Act::Link(one, name(chance))],
        _ => vec![Act::Unlink(one)],
    }
}

const PAGE: u64 = 4096;
/// Pages of the file that is written in place.
const PAGES: u64 = 300;

fn records(chance: &mut Chance, group: u64) -> Vec<Act> {
    let create = OFlags::RDWR | OFlags::CREATE;
    if group == 0 {
        return vec![
            Act::Mkdir(b"db".to_vec(), 0o700),
            Act::Symlink(b"db/log".to_vec(), b"current".to_vec()),
            Act::Open(1, b"db/pages".to_vec(), create, 0o644),
            Act::Open(0, b"db/log".to_vec(), create | OFlags::APPEND, 0o644),
        ];
    }
    if group.is_multiple_of(60) {
        let older = |n: u64| path(format!("db/log.{n}"));
        return vec![
            Act::File(0, FileAct::Close),
            Act::Rename(older(1), older(2), 0),
            Act::Rename(older(0), older(1), 0),
            Act::Rename(b"db/log".to_vec(), older(0), 0),
            Act::Open(0, b"db/log".to_vec(), create | OFlags::APPEND, 0o644),
            Act::SetXattr(
                b"db/pages".to_vec(),
                b"user.turn".to_vec(),
                fill(chance, 700),
                0,
            ),
            Act::SetXattr(older(0), b"user.sum".to_vec(), fill(chance, 6_000), 0),
        ];
    }
    match chance.below(8) {
        0..4 => vec![
            Act::File(0, FileAct::WriteNext(fill(chance, 6_000))),
            Act::File(0, FileAct::Sync),
        ],
        4..7 => {
            let at = chance.below(PAGES) * PAGE;
            let page = Fill {
                seed: chance.below(256) as u8,
                len: PAGE as usize,
            };
            vec![Act::File(1, FileAct::Write(at, page))]
        }
        _ => {
            const PUNCH_HOLE_KEEP_SIZE: u32 = 3;
            let (at, len) = (chance.below(PAGES) * PAGE, (1 + chance.below(4)) * PAGE);
            let hole = FileAct::Allocate(PUNCH_HOLE_KEEP_SIZE, at, len);
            vec![Act::File(1, hole), Act::File(1, FileAct::Sync)]
        }
    }
}
