//! Whole logs that a generator made and then spoiled: some bytes, or some field behind a
//! checksum that fits. Seeded, so that a failure can be run again.
//!
//! A seed that fails is run alone with `SHALE_FUZZ=seed..seed+1`.

use super::attacker::*;
use super::stage::Stage;
use shale_bench::chance::Chance;
use shale_format::record::{RecordHeader, flag};
use shale_nvm::MappedRegion;
use shale_proto::{LeaseMode, LeaseRequestMode, Reply, Request};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Seeds that share a stage.
const EACH: u64 = 50;
/// No log of a few records takes longer.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Seeded numbers, nasty ones among them.
struct Seeded(Chance);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// A number that may be nasty.
    fn nasty(&mut self) -> u64 {
        match self.below(9) {
            0 => 0,
            1 => u64::MAX,
            2 => u64::MAX >> 1,
            3 => 1 << 63,
            4 => self.below(70_000),
            5 => self.below(64),
            6 => self.below(1 << 20) * 4096,
            7 => 1 << self.below(64),
            _ => self.next(),
        }
    }
}

/// Inodes that records name.
struct Names {
    files: Vec<u64>,
    dirs: Vec<u64>,
    /// Granted and not made.
    fresh: Vec<u64>,
    count: u64,
    tag: String,
}

impl Names {
    fn any(&self, r: &mut Seeded, stage: &Stage) -> u64 {
        let t = &stage.things;
        match r.below(10) {
            0..=3 => r.of(&self.files),
            4..=6 => r.of(&self.dirs),
            7 => r.of(&[t.secret, t.suid, t.closed, t.inside, t.sticky, t.stuck]),
            8 => r.of(&self.fresh),
            _ => r.nasty(),
        }
    }

    fn name(&mut self, r: &mut Seeded) -> String {
        self.count += u64::from(r.below(3) > 0);
        format!("m-{}-{}", self.tag, self.count)
    }
}

/// One record that mostly makes sense.
fn record(r: &mut Seeded, names: &mut Names, stage: &Stage) -> Raw {
    let (file, dir) = (r.of(&names.files), r.of(&names.dirs));
    let offset = r.below(40) * 1000;
    match r.below(14) {
        0 | 1 => {
            let ino = names.fresh.pop().unwrap_or(file);
            let mode = r.of(&[0o100_644, 0o040_755, 0o120_777, 0o010_600, 0o100_644]);
            let target: &[u8] = if mode == 0o120_777 { b"to" } else { b"" };
            let name = names.name(r);
            match mode {
                0o100_644 => names.files.push(ino),
                0o040_755 => names.dirs.push(ino),
                _ => {}
            }
            create_as(dir, ino, mode, (MALLORY, MALLORY), name.as_bytes(), target)
        }
        2..=4 => write(
            file,
            offset,
            &vec![r.next() as u8; r.below(9000) as usize + 1],
        ),
        5 => truncate(file, offset),
        6 => {
            let mode = r.of(&[0, 1, 3, 8, 16, 17, 32]);
            fallocate(file, r.below(20) * 4096, (1 + r.below(9)) * 4096, mode).reserve(60_000)
        }
        7 => link(dir, file, FILE, names.name(r).as_bytes()),
        8 => {
            let name = names.name(r);
            let free = if r.below(2) == 0 { flag::FREE_NOW } else { 0 };
            unlink(dir, file, FILE, name.as_bytes()).flags(free)
        }
        9 => {
            let (old, new) = (names.name(r), names.name(r));
            let to = r.of(&names.dirs);
            let (ino, kind) = if r.below(2) == 0 {
                (file, FILE)
            } else {
                (dir, DIR)
            };
            rename(
                (dir, old.as_bytes()),
                (ino, kind),
                (to, new.as_bytes()),
                (0, 0),
                0,
            )
        }
        10 => set_attr(names.any(r, stage), |b| {
            b.valid = r.below(64) as u32;
            b.mode = r.next() as u32 & 0o7777;
            (b.uid, b.gid) = (r.of(&[0, MALLORY]), r.of(&[0, MALLORY]));
        }),
        11 => set_xattr(file, b"user.x", &vec![1; r.below(6000) as usize]),
        12 => free(file),
        _ => steal(file, r.below(20) * 4096, r.nasty(), r.below(8) as u32, 1),
    }
}

/// Changes one field of a record, before it is sealed.
fn spoil(raw: &mut Raw, r: &mut Seeded, names: &Names, stage: &Stage) {
    let any = names.any(r, stage);
    let h = &mut raw.header;
    match r.below(11) {
        0 => h.ino = any,
        1 => h.offset = if r.below(2) == 0 { any } else { r.nasty() },
        2 => h.kind = r.below(16) as u8,
        3 => h.flags = r.below(32) as u8,
        4 => h.reserve = r.nasty() as u32,
        5 => h.body_bytes = r.nasty() as u16,
        6 => h.payload_bytes = r.nasty() as u32,
        7 => h.bytes = (r.nasty() as u32) & !63,
        8 => {
            let bytes = h.as_mut_bytes();
            let at = r.below(bytes.len() as u64) as usize;
            bytes[at] = r.next() as u8;
        }
        _ if !raw.body.is_empty() => {
            let n = 1 << r.below(4).min(raw.body.len().ilog2().into());
            let at = r.below((raw.body.len() / n) as u64) as usize * n;
            raw.body[at..at + n].copy_from_slice(&r.nasty().to_le_bytes()[..n]);
        }
        _ if !raw.payload.is_empty() => {
            let at = r.below(raw.payload.len() as u64) as usize;
            raw.payload[at] = r.of(&[0, b'/', b'.', 0xff]);
        }
        _ => h.time_ns = r.nasty() as i64,
    }
}

/// Files and directories of its own, and leases on all that there is.
fn prepare(a: &mut Attacker, stage: &Stage, tag: String) -> Names {
    let mut names = Names {
        files: Vec::new(),
        dirs: vec![1],
        fresh: Vec::new(),
        count: 0,
        tag,
    };
    for n in 0..3 {
        names
            .files
            .push(a.make(1, &format!("m-{}-f{n}", names.tag), &[7; 5000]));
    }
    for n in 0..2 {
        names
            .dirs
            .push(a.mkdir(1, &format!("m-{}-d{n}", names.tag)));
    }
    let t = &stage.things;
    for ino in [t.secret, t.suid, t.closed, t.inside, t.sticky, t.stuck] {
        a.ask(Request::Lease {
            ino,
            mode: LeaseMode::Exclusive,
            request_mode: LeaseRequestMode::Revoke,
        });
    }
    names.fresh = (0..12).map(|_| a.number()).collect();
    a.ask(Request::Reserve {
        wanted: 2 << 20,
        least: 0,
    });
    names
}

/// One log.
fn log(stage: &Stage, seed: u64) {
    let mut r = Seeded(Chance::new(seed));
    let mut a = stage.attacker();
    let mut names = prepare(&mut a, stage, format!("z{seed}"));
    let records = 1 + r.below(30);
    // Most of them as they should be, so that the others are reached.
    let rare = 2 + r.below(20);
    for _ in 0..records {
        let mut raw = record(&mut r, &mut names, stage);
        if r.below(rare) == 0 {
            spoil(&mut raw, &mut r, &names, stage);
        }
        if r.below(12) == 0 {
            raw.header.flags |= flag::MORE;
        }
        // The ring's place for it is as long as its bytes, whatever its header says.
        let len = RecordHeader::BYTES + raw.body.len() + raw.payload.len();
        let said = raw.header.bytes;
        let pos = a.head;
        a.put_as(raw, |_| (), |_| ());
        if said as usize != len.next_multiple_of(64) {
            a.head = pos + len.next_multiple_of(64) as u64;
        }
    }
    // Bytes behind any checksum.
    for _ in 0..r.below(3) {
        let at = a.byte(r.below(a.head));
        let mut byte = [0];
        MappedRegion::load(a.view(), at, &mut byte);
        a.log.store(at, &[byte[0] ^ 1 << r.below(8)]);
    }
    a.commit();
    let begun = Instant::now();
    let reply = a.digest();
    assert!(begun.elapsed() < TIME_MAX, "{:?}", begun.elapsed());
    if let Reply::Refused { why, .. } = &reply {
        assert!(why.contains("log") || why.contains("space"), "{why}");
    }
}

/// Messages with any numbers in them.
fn messages(stage: &Stage, seed: u64) {
    let mut r = Seeded(Chance::new(!seed));
    let a = stage.attacker();
    for _ in 0..20 {
        let n = r.nasty();
        a.ask(match r.below(11) {
            0 => Request::Segments { first: n as u32 },
            1 => Request::GrantInodes {
                parent: n,
                runs: r.nasty() as u32,
            },
            2 => Request::GrantBlocks { blocks: n as u32 },
            3 => Request::ReturnBlocks {
                runs: vec![shale_proto::message::BlockRun {
                    addr: n,
                    blocks: r.nasty() as u32,
                }],
            },
            4 => Request::Reserve {
                wanted: n,
                least: r.nasty().min(1 << 40),
            },
            5 => Request::ReturnCredit { bytes: n },
            6 => Request::Digest { upto: n },
            7 => Request::Lease {
                ino: n,
                mode: r.of(&[LeaseMode::Shared, LeaseMode::Exclusive]),
                request_mode: r.of(&[
                    LeaseRequestMode::Try,
                    LeaseRequestMode::Revoke,
                    LeaseRequestMode::RevokeAndHold,
                    LeaseRequestMode::RevokeOrDefer,
                ]),
            },
            8 => Request::Unlease { ino: n },
            9 => Request::Map {
                ino: n,
                first: r.nasty(),
                blocks: r.nasty(),
            },
            _ => Request::Space,
        });
    }
}

fn seeds(range: std::ops::Range<u64>) {
    let mut next = range.start;
    while next < range.end {
        let stage = Stage::new();
        for seed in next..range.end.min(next + EACH) {
            log(&stage, seed);
            messages(&stage, seed);
            stage.protected(&format!("seed {seed}"));
        }
        stage.end_protected(&format!("seeds from {next} on"));
        next += EACH;
    }
}

#[test]
fn spoiled_logs_and_messages_harm_nobody() {
    seeds(0..150);
}

#[test]
#[ignore = "as long as it is told: SHALE_FUZZ=1000..9000 cargo test -p shale-hostile --lib -- --ignored spoiled"]
fn spoiled_logs_and_messages_at_length() {
    let range = std::env::var("SHALE_FUZZ").unwrap_or_else(|_| "1000..2000".to_owned());
    let (from, to) = range.split_once("..").unwrap();
    seeds(from.parse().unwrap()..to.parse().unwrap());
}
