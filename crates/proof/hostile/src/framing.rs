//! Records that are none, or not the next one.

use super::attacker::{Attacker, Raw, create, truncate, write};
use super::{Case, Scene, either, harmless, refused};
use shale_format::record::{Kind, RecordHeader, flag};
use shale_nvm::MappedRegion;
use shale_proto::shared_pages::client_page;
use shale_proto::{Reply, Request};
use zerocopy::IntoBytes;

const NO_RECORD: &str = "no valid record";

/// Changes of a header before it is sealed and after.
type Change = fn(&mut RecordHeader);

fn nothing(_: &mut RecordHeader) {}

/// A good file, then a write to it with a changed header, then another good write: the
/// first counts, nothing from the bad one on does.
fn with(scene: &Scene<'_>, before: Change, after: Change) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"good");
    a.put_as(write(ino, 0, b"evil"), before, after);
    a.append(write(ino, 4, b"late"));
    let reply = a.digest();
    assert_eq!(scene.stage.content(ino).unwrap(), b"good");
    (a, reply)
}

fn raw(scene: &Scene<'_>, change: fn(&mut Raw)) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"good");
    a.take(1);
    let number = a.number();
    let mut bad = create(1, number, 0o100_644, scene.name("x").as_bytes());
    change(&mut bad);
    a.append(bad);
    let reply = a.digest();
    assert_eq!(scene.stage.content(ino).unwrap(), b"good");
    assert!(scene.stage.inode(number).is_none());
    (a, reply)
}

/// Copies what another log has at the same place.
fn of_another_log(scene: &Scene<'_>) -> (Attacker, Reply) {
    let (mut a, mut b) = (scene.attacker(), scene.attacker());
    let ino = a.make(1, &scene.name("f"), b"good");
    let number = b.number();
    while b.head < a.head {
        b.put(truncate(number, 0));
    }
    let pos = b.put(write(ino, 0, b"evil"));
    let mut bytes = vec![0; (b.head - pos) as usize];
    MappedRegion::load(b.view(), b.byte(pos), &mut bytes);
    assert_eq!(pos, a.head);
    a.log.store(a.byte(pos), &bytes);
    a.commit_at(b.head);
    let reply = a.digest();
    (a, reply)
}

/// A chain without its end, and one without end.
fn chain(scene: &Scene<'_>, records: usize) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"good");
    for _ in 0..records {
        a.put(truncate(ino, 1).reserve(0).flags(flag::MORE));
    }
    a.commit();
    let reply = a.digest();
    assert_eq!(scene.stage.content(ino).unwrap(), b"good");
    (a, reply)
}

/// A chain of writes that has its end, of `records` times `bytes` bytes, with space for all of them.
fn whole_chain(scene: &Scene<'_>, (records, bytes): (u64, usize)) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"good");
    let space = records * bytes as u64 + (64 << 10);
    a.ask(Request::Reserve {
        wanted: space,
        least: space,
    });
    for n in 0..records {
        let part = write(ino, n * bytes as u64, &vec![1; bytes]).reserve(bytes as u64 + 8192);
        a.put(part.flags(if n + 1 < records { flag::MORE } else { 0 }));
    }
    a.commit();
    let reply = a.digest();
    (a, reply)
}

fn pads(scene: &Scene<'_>, bytes: u32, flags: u8) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let mut pad = Raw::new(Kind::Pad, 0, 0, &[], &[]).flags(flags);
    pad.header.bytes = bytes;
    a.put(pad);
    a.commit_at(a.head.max(64));
    let reply = a.digest();
    (a, reply)
}

/// The rest of the ring is one pad, and at its beginning lies the old record again.
fn old_after_wrap(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"good");
    let rest = a.attached.ring_bytes - a.head;
    let mut pad = Raw::new(Kind::Pad, 0, 0, &[], &[]);
    pad.header.bytes = rest as u32;
    a.put(pad);
    a.commit();
    assert!(matches!(a.digest(), Reply::Digested { .. }));
    assert_eq!(scene.stage.content(ino).unwrap(), b"good");
    // The first records are still there, valid but for their position.
    a.commit_at(a.attached.ring_bytes + 192);
    let reply = a.digest();
    (a, reply)
}

fn commit_word(scene: &Scene<'_>, by: fn(u64) -> u64) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    a.make(1, &scene.name("f"), b"good");
    a.page.store_u64(client_page::PUBLISHED, by(a.head));
    let reply = a.digest();
    (a, reply)
}

fn log_header(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    a.log.store(0, &[0xff; 4096]);
    let ino = a.make(1, &scene.name("f"), b"good");
    let reply = a.digest();
    assert_eq!(scene.stage.content(ino).unwrap(), b"good");
    (a, reply)
}

pub const CASES: &[Case] = &[
    refused("checksum", |s| with(s, nothing, |h| h.crc ^= 1), NO_RECORD),
    refused(
        "salt unknown",
        |s| with(s, nothing, |h| h.crc = 0),
        NO_RECORD,
    ),
    refused("length 0", |s| with(s, |h| h.bytes = 0, nothing), NO_RECORD),
    refused(
        "length 64",
        |s| with(s, |h| h.bytes = 64, nothing),
        NO_RECORD,
    ),
    refused(
        "length all ones",
        |s| with(s, |h| h.bytes = u32::MAX, nothing),
        NO_RECORD,
    ),
    refused(
        "length 4 GiB - 64",
        |s| with(s, |h| h.bytes = u32::MAX - 63, nothing),
        NO_RECORD,
    ),
    refused(
        "length not a multiple",
        |s| with(s, |h| h.bytes += 8, nothing),
        NO_RECORD,
    ),
    refused(
        "payload past the end",
        |s| with(s, |h| h.payload_bytes = u32::MAX, nothing),
        NO_RECORD,
    ),
    refused(
        "payload above the record",
        |s| with(s, |h| h.payload_bytes = 65, nothing),
        NO_RECORD,
    ),
    refused(
        "body above the record",
        |s| with(s, |h| h.body_bytes = u16::MAX, nothing),
        NO_RECORD,
    ),
    refused(
        "body where there is none",
        |s| {
            with(
                s,
                |h| {
                    h.body_bytes = 2;
                    h.payload_bytes = 2;
                },
                nothing,
            )
        },
        "body",
    ),
    refused(
        "offset and length overflow",
        |s| with(s, |h| h.offset = u64::MAX - 1, nothing),
        "offset",
    ),
    refused(
        "beyond the largest file",
        |s| with(s, |h| h.offset = 16 << 40, nothing),
        "offset",
    ),
    refused(
        "points to itself",
        |s| with(s, |h| h.pos = 0, nothing),
        NO_RECORD,
    ),
    refused(
        "points back",
        |s| with(s, |h| h.pos -= 192, nothing),
        NO_RECORD,
    ),
    refused(
        "sequence gap",
        |s| with(s, |h| h.pos += 64, nothing),
        NO_RECORD,
    ),
    refused(
        "a turn too early",
        |s| with(s, |h| h.pos = h.pos.wrapping_sub(16 << 20), nothing),
        NO_RECORD,
    ),
    refused("kind 0", |s| with(s, |h| h.kind = 0, nothing), NO_RECORD),
    refused("kind 14", |s| with(s, |h| h.kind = 14, nothing), NO_RECORD),
    refused(
        "kind 255",
        |s| with(s, |h| h.kind = 255, nothing),
        NO_RECORD,
    ),
    refused(
        "another kind's body",
        |s| with(s, |h| h.kind = Kind::SetAttr as u8, nothing),
        "body",
    ),
    refused(
        "flags unknown",
        |s| with(s, |h| h.flags = 0xe0, nothing),
        NO_RECORD,
    ),
    refused(
        "names above the payload",
        |s| raw(s, |r| r.body[24..26].copy_from_slice(&500u16.to_le_bytes())),
        "payload",
    ),
    refused(
        "names below the payload",
        |s| raw(s, |r| r.body[24..26].copy_from_slice(&1u16.to_le_bytes())),
        "payload",
    ),
    refused(
        "target lengths that overflow",
        |s| raw(s, |r| r.body[24..28].copy_from_slice(&[0xff; 4])),
        "payload",
    ),
    refused(
        "body too short",
        |s| {
            raw(s, |r| {
                r.body.truncate(8);
                r.header.body_bytes = 8;
            })
        },
        "body",
    ),
    refused("another log's record", of_another_log, NO_RECORD),
    refused("chain without its end", |s| chain(s, 3), NO_RECORD),
    refused("chain without end", |s| chain(s, 5000), NO_RECORD),
    refused(
        "chain above a quarter of the log",
        |s| whole_chain(s, (5, 1 << 20)),
        NO_RECORD,
    ),
    refused(
        "long chain of few bytes",
        |s| whole_chain(s, (4097, 64)),
        NO_RECORD,
    ),
    harmless("chain of a quarter of the log", |s| {
        whole_chain(s, (3, 1 << 20))
    }),
    refused("pad of nothing", |s| pads(s, 0, 0), NO_RECORD),
    refused(
        "pad beyond the ring",
        |s| pads(s, (16 << 20) + 64, 0),
        NO_RECORD,
    ),
    refused("pad in a chain", |s| pads(s, 128, flag::MORE), NO_RECORD),
    harmless("pad of the whole ring", |s| pads(s, 16 << 20, 0)),
    refused("old record after the wrap", old_after_wrap, NO_RECORD),
    harmless("commit not a multiple", |s| commit_word(s, |p| p + 63)),
    refused("commit ahead", |s| commit_word(s, |p| p + 6400), NO_RECORD),
    refused(
        "commit all ones",
        |s| commit_word(s, |_| u64::MAX),
        NO_RECORD,
    ),
    harmless("log header overwritten", log_header),
    either("zeros", |s| with(s, nothing, |h| h.as_mut_bytes().fill(0))),
];
