//! What programs did to their files, recorded once (`scripts/crash/trace-sqlite.py`): each line of
//! a trace is an operation, so that power can be cut in the midst of a real transaction.

use std::sync::OnceLock;

use shale_libfs::OFlags;

use crate::{Act, FileAct};

/// Names and traces.
const TRACES: [(&str, &str); 4] = [
    (
        "sqlite-delete",
        include_str!("../../traces/sqlite-delete.trace"),
    ),
    (
        "sqlite-truncate",
        include_str!("../../traces/sqlite-truncate.trace"),
    ),
    (
        "sqlite-persist",
        include_str!("../../traces/sqlite-persist.trace"),
    ),
    ("sqlite-wal", include_str!("../../traces/sqlite-wal.trace")),
];

/// How many there are.
pub const PROGRAMS: usize = TRACES.len();

/// A program's operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Program(usize);

struct Trace {
    acts: Vec<Act>,
    /// For each operation, how many transactions have been answered when it has returned.
    answered: Vec<u64>,
}

fn traces() -> &'static [Trace] {
    static PARSED: OnceLock<Vec<Trace>> = OnceLock::new();
    PARSED.get_or_init(|| TRACES.iter().map(|trace| Trace::parse(trace.1)).collect())
}

impl Program {
    /// Program number `number`, below [`PROGRAMS`].
    pub fn numbered(number: usize) -> Program {
        Program(number % PROGRAMS)
    }

    /// The program of that name.
    pub fn named(name: &str) -> Option<Program> {
        TRACES.iter().position(|trace| trace.0 == name).map(Program)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        TRACES[self.0].0
    }

    /// Its operations.
    pub fn acts(self) -> &'static [Act] {
        &traces()[self.0].acts
    }

    /// Transactions that had been answered when the first `steps` operations had returned.
    pub fn answered(self, steps: usize) -> u64 {
        match steps {
            0 => 0,
            n => traces()[self.0].answered[n - 1],
        }
    }
}

impl Trace {
    /// # Panics
    /// If a line is none: the traces are part of the program.
    fn parse(text: &str) -> Trace {
        let mut trace = Trace {
            acts: Vec::new(),
            answered: Vec::new(),
        };
        let mut answered = 0;
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let path = |n: usize| words[n].as_bytes().to_vec();
            let number = |n: usize| words[n].parse::<u64>().expect("a number");
            let file = |act| Act::File(number(1) as usize, act);
            trace.acts.push(match words[0] {
                "open" => Act::Open(number(1) as usize, path(2), flags(words[3]), 0o644),
                "write" => file(FileAct::WriteBytes(number(2), bytes(words[3]))),
                "truncate" => file(FileAct::Truncate(number(2))),
                "sync" => file(FileAct::Sync),
                "close" => file(FileAct::Close),
                "unlink" => Act::Unlink(path(1)),
                "committed" => {
                    answered = number(1) + 1;
                    Act::Stat(b".".to_vec(), true)
                }
                other => panic!("{other}: no operation of a trace"),
            });
            trace.answered.push(answered);
        }
        trace
    }
}

fn flags(word: &str) -> OFlags {
    let access = match word.starts_with("rw") {
        true => OFlags::RDWR,
        false => OFlags::RDONLY,
    };
    let more = word.split('+').skip(1).map(|letter| match letter {
        "c" => OFlags::CREATE,
        "x" => OFlags::EXCL,
        _ => OFlags::TRUNC,
    });
    more.fold(access, |flags, one| flags | one)
}

fn bytes(word: &str) -> Vec<u8> {
    let byte = |hex: &str| u8::from_str_radix(hex, 16).expect("a byte");
    let mut bytes = Vec::new();
    for part in word.split(',') {
        match part.split_once('*') {
            Some((hex, times)) => {
                let times = times.parse().expect("a number");
                bytes.extend(std::iter::repeat_n(byte(hex), times));
            }
            None => bytes.extend((0..part.len()).step_by(2).map(|at| byte(&part[at..at + 2]))),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, Side};

    #[test]
    fn traces_can_be_done() {
        assert_eq!(
            bytes("0aff,00*9,01"),
            [10, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
        );
        for number in 0..PROGRAMS {
            let program = Program::numbered(number);
            assert_eq!(Program::named(program.name()), Some(program));
            let mut model = Memory::new(0o755);
            for act in program.acts() {
                let done = model.act(act);
                assert!(done.is_ok(), "{}, {act:?}: {done:?}", program.name());
            }
            assert_eq!(program.answered(0), 0);
            assert_eq!(program.answered(program.acts().len()), 9);
        }
    }
}
