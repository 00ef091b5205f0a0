//! The log as a ring: wrapping, filling up, many threads, chains, stale and foreign records.

mod fixture;

use fixture::{Random, SALT, header, log, map, new_writer, scan, writer};
use shale_format::limits::LOG_BYTES_MIN;
use shale_format::log::{RING_AT, TAIL_AT};
use shale_format::record::{Kind, RecordHeader, flag};
use shale_format::{Ino, LogPos};
use shale_nvm::Map;
use shale_oplog::{Appended, Log, Op, OplogError, Part, PublishedWord, Scan, Writer, encode};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zerocopy::IntoBytes;

const RING_BYTES: u64 = 16 << 10;

fn append(w: &Writer, ino: u64, data: &[u8]) -> Appended {
    let mut part = encode::write(Ino(ino), 0, data);
    let mut permit = w.reserve(part.bytes(), |_| panic!("no space"));
    w.append(&mut permit, &mut part)
}

#[test]
fn odd_sizes_wrap_and_nothing_straddles() {
    let w = new_writer(RING_BYTES);
    let mut random = Random(3);
    let mut turns = 0;
    for n in 0..2000u64 {
        let len = 1 + random.below(3000) as usize;
        let data = random.bytes(len);
        let from = w.published().pos();
        let appended = append(&w, 16 + n, &data);
        let first = appended.pos.0 / RING_BYTES;
        assert_eq!(first, (appended.end.0 - 1) / RING_BYTES, "straddles");
        turns = turns.max(first);
        let (records, head) = scan(w.log(), from);
        assert_eq!(records.len(), 1, "pads are passed over");
        assert_eq!(records[0].header.ino, 16 + n);
        assert_eq!(head, appended.end);
        let mut read = vec![0; data.len()];
        w.read(records[0].payload_at(), 0, &mut read);
        assert_eq!(read, data);
        w.set_tail(head);
        assert_eq!(w.log().tail(from, head).unwrap(), head);
    }
    assert!(turns > 100, "{turns} turns");
    assert_eq!(w.used(), 0.0);
}

#[test]
fn a_full_ring_refuses_until_the_tail_rises() {
    let w = new_writer(RING_BYTES);
    let mut ends = Vec::new();
    while let Some(mut permit) = w.try_reserve(192) {
        let mut part = encode::write(Ino(20), 0, &[5; 128]);
        ends.push(w.append(&mut permit, &mut part).end);
    }
    assert!(w.used() > 0.9, "{}", w.used());
    assert!(!w.wait_for_space(192, Some(Duration::from_millis(1))));
    assert_eq!(scan(w.log(), LogPos(0)).0.len(), ends.len());

    let mut asked = 0;
    let permit = w.reserve(192, |bytes| {
        assert_eq!(bytes, 192);
        w.set_tail(ends[asked]);
        asked += 1;
    });
    assert!((1..=6).contains(&asked), "{asked}");
    drop(permit);
    w.set_tail(ends[0]);
    assert_eq!(w.tail(), ends[asked - 1], "the tail never falls");
}

#[test]
fn unused_permits_go_back() {
    let w = new_writer(RING_BYTES);
    let most = w.permit_bytes_max();
    let first = w.try_reserve(most).unwrap();
    let second = w.try_reserve(most).unwrap();
    assert!(w.try_reserve(64).is_none());
    drop(first);
    assert!(w.try_reserve(most).is_some());
    drop(second);
    append(&w, 20, b"x");
    assert_eq!(scan(w.log(), LogPos(0)).0.len(), 1);
}

#[test]
#[should_panic(expected = "not covered by the permit")]
fn more_than_the_permit_is_a_mistake() {
    let w = new_writer(RING_BYTES);
    let mut permit = w.try_reserve(64).unwrap();
    w.append(&mut permit, &mut encode::write(Ino(20), 0, b"x"));
}

#[test]
fn records_of_an_earlier_turn_or_another_log_are_not_taken() {
    let file = map(RING_BYTES);
    let w = writer(log(file.clone(), RING_BYTES), LogPos(0));
    let mut last = append(&w, 20, &[1; 100]);
    while last.end.0 < RING_BYTES {
        w.set_tail(last.pos);
        last = append(&w, 20, &[1; 100]);
    }
    // Old records with the same lengths follow the newest one in the ring.
    let (records, head) = scan(w.log(), w.tail());
    assert_eq!(head, last.end);
    assert_eq!(records.last().unwrap().end(), last.end);

    let foreign = Log::with_header(file, header(SALT + 1, RING_BYTES)).unwrap();
    assert!(scan(&foreign, w.tail()).0.is_empty());
}

#[test]
fn a_torn_record_ends_the_log() {
    let file = map(RING_BYTES);
    let w = writer(log(file.clone(), RING_BYTES), LogPos(0));
    let all: Vec<_> = (0..4).map(|n| append(&w, 20 + n, &[9; 300])).collect();
    let third = RING_AT + all[2].pos.0 as usize;
    for (at, what) in [(0, "checksum"), (24, "inode"), (70, "data")] {
        let byte = file.load_array::<1>(third + at);
        file.store(third + at, &[byte[0] ^ 1]);
        let (records, head) = scan(w.log(), LogPos(0));
        assert_eq!((records.len(), head), (2, all[2].pos), "{what}");
        file.store(third + at, &byte);
    }
    assert_eq!(scan(w.log(), LogPos(0)).0.len(), 4);
    // The padding behind the payload is nobody's.
    file.store(third + 64 + 300, &[1]);
    assert_eq!(scan(w.log(), LogPos(0)).0.len(), 4);
}

/// A crash leaves a hole; the log goes on there; what was behind must not come back.
#[test]
fn a_sealed_log_goes_on_without_ghosts() {
    for seal in [false, true] {
        let file = map(RING_BYTES);
        let w = writer(log(file.clone(), RING_BYTES), LogPos(0));
        let before = append(&w, 20, &[1; 100]);
        let hole = append(&w, 21, &[2; 100]);
        append(&w, 22, &[3; 100]);
        file.store(RING_AT + hole.pos.0 as usize, &[0; 64]);
        let (records, head) = scan(w.log(), LogPos(0));
        assert_eq!((records.len(), head), (1, before.end));
        if seal {
            assert_eq!(
                w.log().seal(LogPos(0), head),
                1,
                "one header in the free space"
            );
        }
        let w = writer(w.log().clone(), head);
        append(&w, 23, &[4; 100]);
        let found: Vec<_> = scan(w.log(), LogPos(0))
            .0
            .iter()
            .map(|r| r.header.ino)
            .collect();
        let expected: &[u64] = if seal { &[20, 23] } else { &[20, 23, 22] };
        assert_eq!(found, expected);
    }
}

#[test]
fn chains_are_whole_or_absent() {
    let file = map(64 << 10);
    let w = writer(log(file.clone(), 64 << 10), LogPos(0));
    append(&w, 20, b"before");
    let large = vec![7; 13_000];
    let mut parts = [
        encode::write(Ino(21), 0, b"one"),
        encode::write(Ino(21), 3, &large),
        encode::truncate(Ino(21), 3),
    ];
    let bytes = parts.iter().map(Part::bytes).sum();
    let mut permit = w.reserve(bytes, |_| panic!("space"));
    let chain = w.append_chain(&mut permit, &mut parts);
    assert_eq!(permit.left(), 0);
    let flags: Vec<_> = parts.iter().map(|p| p.header.flags).collect();
    assert_eq!(flags, [flag::MORE, flag::MORE | flag::FENCED, 0]);
    let (records, head) = scan(w.log(), LogPos(0));
    assert_eq!((records.len(), head), (4, chain.end));

    // A limit inside the chain, or a missing last record, takes all of it away.
    let mut limited = Scan::of(w.log(), LogPos(0)).until(LogPos(chain.end.0 - 64));
    assert_eq!(limited.by_ref().count(), 1);
    assert_eq!(limited.head(), chain.pos);
    file.store(RING_AT + parts[2].header.pos as usize, &[0; 64]);
    let (records, head) = scan(w.log(), LogPos(0));
    assert_eq!((records.len(), head), (1, chain.pos));
}

#[test]
fn stolen_blocks_that_did_not_survive_end_the_log() {
    let w = new_writer(RING_BYTES);
    let body = |crc| shale_format::record::StealBody {
        addr: shale_format::BlockAddr::nvm(40).raw(),
        blocks: 1,
        data_crc: crc,
        end: 4096,
    };
    let mut last = LogPos(0);
    for mut part in [
        encode::steal(Ino(20), 0, body(1)),
        encode::steal(Ino(20), 0, body(0)).flags(flag::FENCED),
        encode::steal(Ino(20), 0, body(2)),
    ] {
        let mut permit = w.reserve(part.bytes(), |_| panic!("space"));
        last = w.append(&mut permit, &mut part).pos;
    }
    let mut asked = Vec::new();
    let mut checked = Scan::of(w.log(), LogPos(0)).check_steals(|_, addr, blocks, crc| {
        asked.push((addr.index(), blocks, crc));
        crc != 2
    });
    assert_eq!(checked.by_ref().count(), 2);
    assert_eq!(checked.head(), last);
    drop(checked);
    assert_eq!(asked, [(40, 1, 1), (40, 1, 2)]);
}

#[test]
fn create_open_and_resume_keep_the_tail() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("log");
    let bytes = RING_AT + LOG_BYTES_MIN as usize;
    let file = Arc::new(Map::create_file(&path, bytes).unwrap());
    let log = Log::create(file.clone(), header(1, LOG_BYTES_MIN)).unwrap();
    let w = writer(Arc::new(log), LogPos(0));
    let first = append(&w, 20, b"old");
    let second = append(&w, 21, b"new");
    w.set_tail(first.end);
    drop(w);

    let log = Arc::new(Log::open(fixture::again(&file)).unwrap());
    assert_eq!(log.header().slot, 3);
    let tail = log.tail(LogPos(0), second.end).unwrap();
    assert_eq!(tail, first.end);
    let (records, head) = scan(&log, tail);
    assert_eq!((records.len(), head), (1, second.end));
    let page = Arc::new(Map::anonymous(4096).unwrap());
    let word = PublishedWord {
        map: page.clone(),
        offset: 128,
    };
    let w = Writer::new(log, head, word).unwrap();
    assert_eq!(page.load_u64(128), head.0);
    let third = append(&w, 22, b"third");
    assert_eq!(page.load_u64(128), third.end.0, "the daemon sees it");

    file.store_u64(TAIL_AT, 7);
    let lie = Log::open(file.clone()).unwrap().tail(LogPos(0), head);
    assert!(matches!(lie, Err(OplogError::Tail { found: 7, .. })));
    file.store_u64(8, 0);
    assert!(matches!(Log::open(file), Err(OplogError::Format(_))));
    let short = Log::with_header(map(4096), header(1, LOG_BYTES_MIN));
    assert!(matches!(short, Err(OplogError::Short { .. })));
}

#[test]
fn garbage_never_panics() {
    let mut random = Random(0xbad);
    for round in 0..200 {
        let file = map(RING_BYTES);
        let mut pos = 0;
        while pos < RING_BYTES {
            let mut line = [0; 64];
            line.copy_from_slice(&random.bytes(64));
            if random.below(4) > 0 {
                let mut h = RecordHeader::new(Kind::Write, 20, 0, 0, 0);
                h.kind = random.below(16) as u8;
                h.flags = random.below(32) as u8;
                h.body_bytes = random.below(70) as u16;
                h.payload_bytes = random.below(400) as u32;
                h.bytes = 64 * random.below(9) as u32;
                h.pos = pos;
                if random.below(2) == 0 {
                    h.crc = h.checksum(SALT, &[], &[]);
                }
                line.copy_from_slice(h.as_bytes());
            }
            file.store(RING_AT + pos as usize, &line);
            pos += 64;
        }
        let log = log(file, RING_BYTES);
        for from in (0..RING_BYTES).step_by(64) {
            for record in Scan::of(&log, LogPos(from)) {
                let _ = Op::decode(&record);
            }
        }
        assert_eq!(log.salt(), SALT, "round {round}");
    }
}

/// One call of a thread: when it began and ended by a shared counter, and where it went.
struct Call {
    began: u64,
    ended: u64,
    records: usize,
}

/// Eight threads append through a small ring while the main thread digests it: it must
/// see every record once, whole, chains unbroken, in an order that respects real time.
#[test]
fn threads_and_digest_agree_on_one_order() {
    const THREADS: u64 = 8;
    const CALLS: u64 = 250;
    let w = new_writer(64 << 10);
    let clock = AtomicU64::new(0);
    let running = AtomicU64::new(THREADS);
    let mut calls = HashMap::new();
    let mut order: Vec<(u64, u64)> = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (w, clock, running) = (&w, &clock, &running);
                scope.spawn(move || {
                    let calls = appender(w, clock, thread, CALLS);
                    running.fetch_sub(1, Ordering::SeqCst);
                    calls
                })
            })
            .collect();
        loop {
            let last_look = running.load(Ordering::SeqCst) == 0;
            digest(&w, &mut order);
            if last_look {
                break;
            }
            std::thread::yield_now();
        }
        for thread in threads {
            calls.extend(thread.join().unwrap());
        }
    });
    let records: usize = calls.values().map(|call| call.records).sum();
    assert_eq!(order.len(), records);
    order.dedup();
    assert_eq!(
        order.len(),
        calls.len(),
        "a chain was broken up or a call seen twice"
    );
    let mut latest_began = 0;
    for key in &order {
        let call = &calls[key];
        assert!(
            call.ended > latest_began,
            "{key:?} ended before one ahead of it began"
        );
        latest_began = latest_began.max(call.began);
    }
    assert_eq!(w.tail(), w.reserved());
}

/// Takes every published record, checks its data, and gives its space back.
fn digest(w: &Writer, order: &mut Vec<(u64, u64)>) {
    let target = w.published().pos();
    let mut scan = Scan::of(w.log(), w.tail()).until(target);
    for record in scan.by_ref() {
        let Ok(Op::Write {
            ino,
            offset,
            len,
            at,
            ..
        }) = Op::decode(&record)
        else {
            panic!("{record:?}");
        };
        let mut data = vec![0; len as usize];
        w.read(at, 0, &mut data);
        assert!(data.iter().all(|&b| b == offset as u8 | 1));
        order.push((ino.0, offset));
    }
    assert_eq!(scan.head(), target, "everything published is valid");
    w.set_tail(target);
}

fn appender(w: &Writer, clock: &AtomicU64, thread: u64, count: u64) -> Vec<((u64, u64), Call)> {
    let mut random = Random(thread);
    let mut calls = Vec::new();
    for n in 0..count {
        let data = vec![n as u8 | 1; 1 + random.below(2500) as usize];
        let ino = Ino(100 + thread);
        let began = clock.fetch_add(1, Ordering::SeqCst);
        let records = 1 + random.below(3) as usize;
        let mut parts = vec![encode::write(ino, n, &data); records];
        let bytes = parts.iter().map(Part::bytes).sum();
        let mut waits = 0;
        let mut permit = w.reserve(bytes, |bytes| {
            waits += 1;
            assert!(waits < 1000, "the digest has stopped");
            w.wait_for_space(bytes, Some(Duration::from_millis(5)));
        });
        let appended = w.append_chain(&mut permit, &mut parts);
        assert!(w.published().pos() >= appended.end);
        let ended = clock.fetch_add(1, Ordering::SeqCst);
        calls.push((
            (ino.0, n),
            Call {
                began,
                ended,
                records,
            },
        ));
    }
    calls
}
