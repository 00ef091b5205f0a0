//! Operations to records and back, and what hostile records do.

mod fixture;

use fixture::{Random, new_writer, scan};
use shale_format::limits::CHECKSUM_BYTES_MAX;
use shale_format::record::{
    CreateBody, Kind, RecordHeader, RenameBody, SetAttrBody, StealBody, flag,
};
use shale_format::{BlockAddr, Ino, LogPos};
use shale_oplog::{Op, OplogError, Part, Recent, Writer, encode};

const RING_BYTES: u64 = 256 << 10;
const DIR: Ino = Ino(1);
const INO: Ino = Ino(77);

fn create_body() -> CreateBody {
    CreateBody {
        mode: 0o100644,
        uid: 5,
        gid: 6,
        generation: 9,
        rdev: 0x801,
        name_bytes: 0,
        target_bytes: 0,
        twin: 2,
        reserved: [0; 11],
    }
}

fn rename_body() -> RenameBody {
    RenameBody {
        new_parent: 33,
        replaced: 34,
        flags: 0,
        old_bytes: 0,
        new_bytes: 0,
        old_twin: 1,
        new_twin: 2,
        kind: 8,
        replaced_kind: 8,
        reserved: [0; 4],
    }
}

fn attr_body() -> SetAttrBody {
    SetAttrBody {
        valid: 63,
        mode: 0o755,
        uid: 1,
        gid: 2,
        time_s: [3, -4, 5],
        time_ns: [6, 7, 999_999_999],
        flags: 0,
    }
}

fn steal_body() -> StealBody {
    StealBody {
        addr: BlockAddr::nvm(500).raw(),
        blocks: 3,
        data_crc: 0xabcd,
        end: 8192 + 3 * 4096 - 100,
    }
}

fn bytes(of: &[u8]) -> Box<[u8]> {
    of.into()
}

/// Appends, scans, decodes.
fn through_the_log(writer: &Writer, mut part: Part<'_>) -> Result<Op, OplogError> {
    let from = writer.published().pos();
    let mut permit = writer.reserve(part.bytes(), |_| panic!("the ring is large enough"));
    let appended = writer.append(&mut permit, &mut part);
    assert_eq!(appended.pos, from);
    let (records, head) = scan(writer.log(), from);
    assert_eq!(records.len(), 1, "{part:?}");
    assert_eq!(head, appended.end);
    assert_eq!(records[0].header, part.header);
    drop(permit);
    writer.set_tail(head);
    Op::decode(&records[0])
}

#[test]
fn creations_come_back_as_they_went() {
    let w = new_writer(RING_BYTES);
    let long = vec![b'n'; 255];
    let target = vec![b't'; 4095];

    for (name, target) in [(&b"a"[..], &b""[..]), (&long, &target)] {
        let body = CreateBody {
            name_bytes: name.len() as u16,
            target_bytes: target.len() as u16,
            ..create_body()
        };
        let op = through_the_log(&w, encode::create(DIR, INO, create_body(), name, target));
        let (name, target) = (bytes(name), bytes(target));
        let expected = Op::Create {
            dir: DIR,
            ino: INO,
            body,
            name,
            target,
        };
        assert_eq!(op.unwrap(), expected);
    }
    let nameless = encode::create(Ino::NONE, INO, create_body(), b"", b"");
    assert!(matches!(
        through_the_log(&w, nameless),
        Ok(Op::Create { dir: Ino::NONE, .. })
    ));
}

#[test]
fn names_come_back_as_they_went() {
    let w = new_writer(RING_BYTES);
    let long = vec![b'n'; 255];
    assert_eq!(
        through_the_log(&w, encode::link(DIR, INO, 8, 3, &long)).unwrap(),
        Op::Link {
            dir: DIR,
            ino: INO,
            kind: 8,
            twin: 3,
            name: bytes(&long),
        }
    );
    let gone = encode::unlink(DIR, INO, 4, 3, b"x").flags(flag::FREE_NOW | flag::DIRECTORY);
    assert_eq!(
        through_the_log(&w, gone).unwrap(),
        Op::Unlink {
            dir: DIR,
            ino: INO,
            kind: 4,
            twin: 3,
            name: bytes(b"x"),
            free_now: true,
            directory: true,
        }
    );
    assert_eq!(
        through_the_log(&w, encode::rename(DIR, INO, rename_body(), &long, b"new")).unwrap(),
        Op::Rename {
            dir: DIR,
            ino: INO,
            body: RenameBody {
                old_bytes: 255,
                new_bytes: 3,
                ..rename_body()
            },
            old: bytes(&long),
            new: bytes(b"new"),
            free_now: false,
            directory: false,
        }
    );
}

#[test]
fn file_operations_come_back_as_they_went() {
    let w = new_writer(RING_BYTES);
    let value = vec![b'v'; 60_000];
    assert_eq!(
        through_the_log(&w, encode::steal(INO, 8192, steal_body())).unwrap(),
        Op::Steal {
            ino: INO,
            offset: 8192,
            addr: BlockAddr::nvm(500),
            blocks: 3,
            end: steal_body().end,
            kill_suid: false,
        }
    );
    assert_eq!(
        through_the_log(&w, encode::truncate(INO, 99).flags(flag::KILL_SUID)).unwrap(),
        Op::Truncate {
            ino: INO,
            size: 99,
            kill_suid: true,
        }
    );
    assert_eq!(
        through_the_log(&w, encode::set_attr(INO, attr_body())).unwrap(),
        Op::SetAttr {
            ino: INO,
            body: attr_body(),
        }
    );
    for value in [&b""[..], &value] {
        assert_eq!(
            through_the_log(&w, encode::set_xattr(INO, b"user.k", value)).unwrap(),
            Op::SetXattr {
                ino: INO,
                name: bytes(b"user.k"),
                value: bytes(value),
            }
        );
    }
    assert_eq!(
        through_the_log(&w, encode::remove_xattr(INO, b"user.k")).unwrap(),
        Op::RemoveXattr {
            ino: INO,
            name: bytes(b"user.k"),
        }
    );
    assert_eq!(
        through_the_log(&w, encode::fallocate(INO, 5, 6, 3)).unwrap(),
        Op::Fallocate {
            ino: INO,
            offset: 5,
            bytes: 6,
            mode: 3,
            kill_suid: false,
        }
    );
    assert_eq!(
        through_the_log(&w, encode::free(INO)).unwrap(),
        Op::Free { ino: INO }
    );
}

#[test]
fn written_data_is_read_from_the_ring_whatever_its_length() {
    let w = new_writer(RING_BYTES);
    let mut random = Random(1);
    let around = CHECKSUM_BYTES_MAX;
    for len in [
        1,
        63,
        64,
        65,
        447,
        448,
        449,
        4095,
        4096,
        4097,
        around,
        around + 1,
        40_001,
    ] {
        let data = random.bytes(len);
        let op = through_the_log(&w, encode::write(INO, 11, &data)).unwrap();
        let Op::Write {
            offset: 11,
            len: found,
            at,
            ..
        } = op
        else {
            panic!("{op:?}");
        };
        assert_eq!(found as usize, len);
        let mut read = vec![0; len];
        w.read(at, 0, &mut read);
        assert_eq!(read, data);
        let mut last = [0];
        w.read(at, len as u64 - 1, &mut last);
        assert_eq!(last[0], data[len - 1]);
    }
}

#[test]
fn impossible_operations_are_named() {
    let w = new_writer(RING_BYTES);
    let field = |part: Part<'_>| match through_the_log(&w, part).unwrap_err() {
        OplogError::Field { field, .. } | OplogError::Name { field, .. } => field,
        OplogError::Body { .. } => "body",
        OplogError::Payload { .. } => "payload",
        other => panic!("{other}"),
    };
    let none = [&[][..], &[]];
    assert_eq!(field(encode::link(DIR, INO, 8, 0, b"a/b")), "name");
    assert_eq!(field(encode::link(DIR, INO, 8, 0, b"..")), "name");
    assert_eq!(field(encode::link(DIR, INO, 8, 0, b"")), "name");
    assert_eq!(field(encode::link(Ino(2), INO, 8, 0, b"a")), "directory");
    assert_eq!(field(encode::link(DIR, Ino(3), 8, 0, b"a")), "ino");
    assert_eq!(
        field(encode::create(DIR, INO, create_body(), b"\0", b"")),
        "name"
    );
    assert_eq!(
        field(encode::create(Ino::NONE, INO, create_body(), b"a", b"")),
        "directory"
    );
    assert_eq!(
        field(encode::write(INO, u64::MAX - 3, b"abcdefgh")),
        "offset"
    );
    assert_eq!(field(encode::write(INO, 0, b"")), "payload_bytes");
    assert_eq!(field(encode::truncate(INO, 1 << 60)), "offset");
    assert_eq!(field(encode::steal(INO, 100, steal_body())), "offset");
    let steal = |change: fn(&mut StealBody)| {
        let mut body = steal_body();
        change(&mut body);
        encode::steal(INO, 8192, body)
    };
    assert_eq!(field(steal(|b| b.blocks = 0)), "blocks");
    assert_eq!(field(steal(|b| b.addr = 9 << 56)), "addr");
    assert_eq!(field(steal(|b| b.end = u64::MAX)), "end");
    assert_eq!(field(encode::remove_xattr(INO, b"")), "attribute name");
    assert_eq!(field(encode::fallocate(INO, 0, 0, 0)), "bytes");
    assert_eq!(field(encode::fallocate(INO, 0, 1, 4)), "mode");
    let flags = RenameBody {
        flags: 1,
        ..rename_body()
    };
    assert_eq!(field(encode::rename(DIR, INO, flags, b"a", b"b")), "flags");
    assert_eq!(field(Part::new(Kind::Free, 77, 0, &[1u8; 3], none)), "body");
    assert_eq!(
        field(Part::new(Kind::Free, 77, 0, &[0u8; 0], [b"x", b""])),
        "payload"
    );
    assert_eq!(
        field(Part::new(Kind::Steal, 77, 0, &[0u8; 8], none)),
        "body"
    );
}

/// Valid checksums around random bodies: decoding says yes or no, nothing else.
#[test]
fn random_records_never_panic() {
    let w = new_writer(RING_BYTES);
    let mut random = Random(0xf00d);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..4000 {
        let kind = Kind::from_number(2 + random.below(12) as u8).unwrap();
        let mut body = [0; 56];
        let body_bytes = [0, 8, 16, 24, 32, 40, 56][random.below(7) as usize];
        for byte in &mut body[..body_bytes] {
            *byte = (random.below(4) * random.below(3)) as u8;
        }
        let payload_bytes = random.below(12) as usize;
        let payload = random.bytes(payload_bytes);
        let ino = random.below(40);
        let offset = random.below(1 << 20) * random.below(2);
        let mut part = Part::new(kind, ino, offset, &body[..body_bytes], [&payload, &[]]);
        part.header.flags = random.below(256) as u8 & flag::KNOWN & !flag::MORE;
        match through_the_log(&w, part) {
            Ok(_) => good += 1,
            Err(_) => bad += 1,
        }
    }
    assert!(good > 10 && bad > 1000, "{good} accepted, {bad} refused");
}

#[test]
fn recent_requests_say_what_they_did() {
    let w = new_writer(RING_BYTES);
    let append = |request: u64, mut part: Part<'_>| {
        part.header.request = request;
        let mut permit = w.reserve(part.bytes(), |_| panic!("space"));
        w.append(&mut permit, &mut part).pos
    };
    let made = append(8, encode::create(DIR, INO, create_body(), b"n", b""));
    append(0, encode::write(INO, 0, b"nobody asked"));
    let wrote = append(9, encode::write(INO, 4096, &[1; 100]));
    let end = 8192 + 3 * 4096 - 100;
    append(9, encode::steal(INO, 8192, steal_body()));
    let recent = Recent::collect(scan(w.log(), LogPos(0)).0);
    assert_eq!(recent.len(), 2);
    let done = recent.get(8).unwrap();
    assert_eq!(
        (done.pos, done.kind, done.ino, done.dir),
        (made, Kind::Create, INO, DIR)
    );
    let done = recent.get(9).unwrap();
    assert_eq!(
        (done.pos, done.kind, done.ino, done.offset),
        (wrote, Kind::Write, INO, 4096)
    );
    assert_eq!(done.bytes, 100 + end - 8192);
    assert_eq!(done.records, 2);
    assert_eq!(recent.get(7), None);
    // Clones forget together.
    let other = recent.clone();
    assert!(!other.is_empty());
    recent.forget();
    assert!(other.is_empty() && other.get(8).is_none());
}

#[test]
fn costs_stay_within_the_budget() {
    let map = fixture::map(RING_BYTES);
    let w = fixture::writer(fixture::log(map.clone(), RING_BYTES), LogPos(0));
    let cost = |len: usize| {
        let data = vec![1; len];
        let mut part = encode::write(INO, 0, &data);
        let mut permit = w.reserve(part.bytes(), |_| panic!("space"));
        let before = map.counts();
        w.append(&mut permit, &mut part);
        let spent = (map.counts() - before).total();
        assert_eq!(spent.bytes_stored, spent.bytes_streamed, "past the cache");
        assert_eq!(spent.lines_flushed, 0);
        (spent.fences, spent.bytes_stored as usize)
    };
    assert_eq!(cost(128), (1, 192));
    assert_eq!(cost(4096), (1, 4096 + RecordHeader::BYTES));
    assert_eq!(cost(CHECKSUM_BYTES_MAX), (1, CHECKSUM_BYTES_MAX + 64));
    assert_eq!(cost(CHECKSUM_BYTES_MAX + 1), (2, CHECKSUM_BYTES_MAX + 128));
}
