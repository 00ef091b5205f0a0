//! Random operations on few names, so that they meet.

use crate::reference::{Act, SLOTS};
use rustix::fs::OFlags;

/// Numbers that follow from a seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

const NAMES: [&[u8]; 8] = [
    b"a",
    b"b",
    b"c",
    b"d",
    b"e",
    b"f",
    b"\xff\xfe",
    b"name with spaces",
];
const FLAGS: [OFlags; 9] = [
    OFlags::CREATE,
    OFlags::EXCL,
    OFlags::TRUNC,
    OFlags::APPEND,
    OFlags::NOFOLLOW,
    OFlags::DIRECTORY,
    OFlags::CREATE,
    OFlags::CREATE,
    OFlags::PATH,
];

fn component(dice: &mut Dice) -> Vec<u8> {
    match dice.below(60) {
        0 => b".".to_vec(),
        1 => b"..".to_vec(),
        2 => vec![b'x'; 255],
        3 => vec![b'y'; 256],
        _ => dice.one_of(&NAMES).to_vec(),
    }
}

/// A path from the working place on, one to four components.
fn relative(dice: &mut Dice) -> Vec<u8> {
    let mut path = component(dice);
    while path.len() < 700 && dice.below(3) == 0 {
        path.push(b'/');
        path.extend(component(dice));
    }
    if dice.below(12) == 0 {
        path.push(b'/');
    }
    path
}

fn path(dice: &mut Dice, levels: usize) -> Vec<u8> {
    if dice.below(400) == 0 {
        return match dice.below(3) {
            0 => Vec::new(),
            1 => vec![b'z'; 4200],
            _ => b"t//./t".to_vec(),
        };
    }
    [&b"t/".repeat(levels)[..], &relative(dice)].concat()
}

fn mode(dice: &mut Dice) -> u32 {
    dice.one_of(&[
        0o644, 0o755, 0o700, 0o4755, 0o2755, 0o6711, 0o2654, 0o777, 0o1777, 0o070,
    ])
}

fn open_flags(dice: &mut Dice) -> OFlags {
    let mut flags = dice.one_of(&[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR]);
    if dice.below(2) == 0 {
        return flags | OFlags::CREATE;
    }
    for _ in 0..dice.below(4) {
        flags |= dice.one_of(&FLAGS);
    }
    if dice.below(12) == 0 {
        flags = OFlags::TMPFILE | flags & (OFlags::ACCMODE | OFlags::EXCL);
    }
    flags
}

/// The next operation.
pub fn act(dice: &mut Dice, levels: usize) -> Act {
    let p = path(dice, levels);
    match dice.below(100) {
        0..14 => Act::Mkdir(p, mode(dice)),
        14..16 => Act::Socket(p, mode(dice)),
        16..21 => Act::Symlink(relative(dice), p),
        21..27 => Act::Link(p, path(dice, levels)),
        27..34 => Act::Unlink(p),
        34..38 => Act::Rmdir(p),
        38..53 => Act::Rename(
            p,
            path(dice, levels),
            dice.one_of(&[0, 0, 0, 1, 2, 2, 3, 8]),
        ),
        53..57 => Act::Stat(p, dice.below(2) == 0),
        57..59 => Act::Readlink(p),
        59..61 => Act::Chmod(p, mode(dice)),
        61..63 => {
            let id = |d: &mut Dice| (d.below(3) > 0).then(|| d.below(3) as u32);
            Act::Chown(p, id(dice), id(dice), dice.below(2) == 0)
        }
        63..64 => Act::Utimens(p, dice.below(1000) as i64 + 1),
        64..65 => Act::Times(p),
        65..67 => Act::Truncate(p, dice.below(20_000)),
        67..70 => Act::List(p),
        70..75 => xattr(dice, p),
        75..85 => Act::Open(
            dice.below(SLOTS as u64) as usize,
            p,
            open_flags(dice),
            mode(dice),
        ),
        _ => handle(dice, p),
    }
}

fn xattr(dice: &mut Dice, p: Vec<u8>) -> Act {
    let name = dice
        .one_of(&[&b"user.a"[..], b"user.b", b"trusted.c", b"strange.d"])
        .to_vec();
    match dice.below(3) {
        0 => Act::GetXattr(p, name),
        1 => Act::RemoveXattr(p, name),
        _ => {
            let value = vec![dice.below(256) as u8; dice.below(300) as usize];
            Act::SetXattr(p, name, value, dice.below(4) as u32)
        }
    }
}

fn handle(dice: &mut Dice, p: Vec<u8>) -> Act {
    let slot = dice.below(SLOTS as u64) as usize;
    match dice.below(10) {
        0..4 => {
            let data = vec![dice.below(256) as u8; dice.below(9_000) as usize];
            Act::Write(slot, dice.below(30_000), data)
        }
        4..7 => Act::Read(slot, dice.below(30_000), dice.below(9_000) as usize),
        7 => Act::Close(slot),
        8 => Act::Fstat(slot),
        _ => Act::LinkHandle(slot, p),
    }
}
