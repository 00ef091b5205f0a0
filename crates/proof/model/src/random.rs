//! Random operations on a few names, so that most of them meet something.

use shale_libfs::{OFlags, RENAME_EXCHANGE, RENAME_NOREPLACE};

use super::act::{Act, FileAct, Fill};
use super::snapshot::WALK_SLOT;
use shale_bench::chance::Chance;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "a-longer-name-that-is-not-short"];
const XATTRS: [&str; 3] = ["user.a", "user.b", "user.longer"];
const ACLS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];
const DEPTH_MAX: u64 = 3;
const FILE_BYTES: u64 = 40_000;
const BLOCK: u64 = 4096;
const MODES: [u32; 5] = [0o755, 0o700, 0o644, 0o600, 0o555];

/// What both sides can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// `fallocate` with `ZERO_RANGE`, `COLLAPSE_RANGE`, `INSERT_RANGE` (tmpfs: no).
    pub ranges: bool,
}

/// A stream of operations.
#[derive(Debug, Clone)]
pub struct Acts {
    chance: Chance,
    abilities: Abilities,
}

impl Acts {
    /// The stream of `seed`.
    pub fn new(seed: u64, abilities: Abilities) -> Self {
        Acts {
            chance: Chance::new(seed),
            abilities,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.chance.below(bound)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    fn path(&mut self) -> Vec<u8> {
        let depth = 1 + self.below(DEPTH_MAX);
        let names: Vec<&str> = (0..depth).map(|_| self.pick(&NAMES)).collect();
        names.join("/").into_bytes()
    }

    fn mode(&mut self) -> u32 {
        self.pick(&MODES)
    }

    /// Small numbers, block edges, anything.
    fn offset(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(200),
            1 => self.below(FILE_BYTES / BLOCK) * BLOCK,
            2 => (1 + self.below(FILE_BYTES / BLOCK)) * BLOCK - self.below(20),
            _ => self.below(FILE_BYTES),
        }
    }

    fn fill(&mut self) -> Fill {
        let len = match self.below(5) {
            0 => self.below(20),
            1 => BLOCK * (1 + self.below(3)),
            2 => BLOCK - 10 + self.below(20),
            _ => self.below(9_000),
        };
        Fill {
            seed: self.below(256) as u8,
            len: len as usize,
        }
    }

    /// The next operation.
    pub fn next_act(&mut self) -> Act {
        match self.below(100) {
            0..8 => Act::Mkdir(self.path(), self.mode()),
            8..10 => Act::Socket(self.path(), self.mode()),
            10..13 => Act::Symlink(self.path(), self.path()),
            13..17 => Act::Link(self.path(), self.path()),
            17..23 => Act::Unlink(self.path()),
            23..26 => Act::Rmdir(self.path()),
            26..33 => {
                let flags = self.pick(&[0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE]);
                Act::Rename(self.path(), self.path(), flags)
            }
            33..36 => Act::Stat(self.path(), self.below(2) == 0),
            36..38 => Act::Readlink(self.path()),
            38..40 => Act::List(self.path()),
            40..43 => self.attributes(),
            43..46 => Act::Truncate(self.path(), self.offset()),
            46..50 => self.xattr(&XATTRS),
            50..52 => self.xattr(&ACLS),
            52..64 => self.open(),
            _ => self.file(),
        }
    }

    fn attributes(&mut self) -> Act {
        if self.below(2) == 0 {
            let special = self.pick(&[0, 0, 0o4000, 0o2000, 0o1000]);
            return Act::Chmod(self.path(), self.mode() | special);
        }
        let owner = |n| (n > 0).then_some(n as u32 * 1000);
        let (uid, gid) = (owner(self.below(3)), owner(self.below(3)));
        Act::Chown(self.path(), uid, gid, self.below(2) == 0)
    }

    fn xattr(&mut self, names: &[&str]) -> Act {
        let (path, name) = (self.path(), self.pick(names).as_bytes().to_vec());
        let fill = Fill {
            seed: self.below(256) as u8,
            len: self.below(700) as usize,
        };
        match self.below(4) {
            0 | 1 => Act::SetXattr(path, name, fill, self.below(3) as u32),
            2 => Act::GetXattr(path, name),
            _ => Act::RemoveXattr(path, name),
        }
    }

    fn open(&mut self) -> Act {
        let slot = self.below(WALK_SLOT as u64) as usize;
        let access = self.pick(&[OFlags::RDWR, OFlags::RDWR, OFlags::WRONLY, OFlags::RDONLY]);
        let more = match self.below(8) {
            0..3 => OFlags::CREATE,
            3 => OFlags::CREATE | OFlags::EXCL,
            4 => OFlags::APPEND | OFlags::CREATE,
            5 if access != OFlags::RDONLY => OFlags::TRUNC | OFlags::CREATE,
            6 if access != OFlags::RDONLY => OFlags::TMPFILE,
            _ => OFlags::empty(),
        };
        Act::Open(slot, self.path(), access | more, self.mode())
    }

    fn file(&mut self) -> Act {
        let slot = self.below(WALK_SLOT as u64) as usize;
        let act = match self.below(20) {
            0..6 => FileAct::Write(self.offset(), self.fill()),
            6..8 => FileAct::WriteNext(self.fill()),
            8..12 => FileAct::Read(self.offset(), self.below(9_000) as usize),
            12 => FileAct::Truncate(self.offset()),
            13..16 => self.allocate(),
            16 => FileAct::Stat,
            17 => FileAct::Link(self.path()),
            18 => FileAct::Sync,
            _ => FileAct::Close,
        };
        Act::File(slot, act)
    }

    fn allocate(&mut self) -> FileAct {
        let modes: &[u32] = match self.abilities.ranges {
            true => &[0, 1, 3, 3, 16, 17, 8, 32],
            false => &[0, 1, 3],
        };
        let mode = self.pick(modes);
        let (at, len) = (self.offset(), 1 + self.offset());
        let blocks = matches!(mode, 8 | 32) && self.below(4) > 0;
        match blocks {
            true => FileAct::Allocate(mode, at / BLOCK * BLOCK, (len / BLOCK).max(1) * BLOCK),
            false => FileAct::Allocate(mode, at, len),
        }
    }
}
