//! What a power cut leaves of a log, at every store, flush and fence of a workload.
//!
//! After each cut: the scan from the durable tail gives a prefix of the workload, with
//! every record whose call had returned; chains are whole; data is what was written.
//! A failure names the event and the choice that rerun it.

mod fixture;

use fixture::{Random, SALT, header, image, log, scan, writer};
use shale_format::checksum::crc32c;
use shale_format::limits::BLOCK_BYTES;
use shale_format::log::RING_AT;
use shale_format::record::{Kind, StealBody};
use shale_format::{BlockAddr, Ino, LogPos};
use shale_nvm::{Map, MapOptions, MappedRegion};
use shale_oplog::{FreeBlocks, HardenedCopy, Log, Op, Part, Record, Scan, encode};
use shale_record::{Choice, MediaRules, Recording};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SEEDS: u64 = 6;

/// One call of the workload.
struct Call {
    pos: LogPos,
    end: LogPos,
    /// Events that had happened when it returned.
    returned_at: usize,
    data: Vec<Vec<u8>>,
}

/// Runs `count` calls, keeping at most `keep` of them in the log.
fn workload(
    ring_bytes: u64,
    count: u64,
    keep: usize,
    mut len: impl FnMut(&mut Random) -> usize,
) -> (Arc<Recording>, Vec<Call>) {
    let recording = Recording::new();
    let medium = recording.medium("log");
    let bytes = RING_AT + ring_bytes as usize;
    let map = MapOptions::new().recorder(medium).anonymous(bytes).unwrap();
    let w = writer(log(Arc::new(map), ring_bytes), LogPos(0));
    let mut random = Random(ring_bytes);
    let mut calls: Vec<Call> = Vec::new();
    for n in 0..count {
        let records = if random.below(4) == 0 { 3 } else { 1 };
        let data: Vec<_> = (0..records)
            .map(|_| {
                let len = len(&mut random);
                random.bytes(len)
            })
            .collect();
        let mut parts: Vec<_> = data
            .iter()
            .map(|data| encode::write(Ino(100 + n), 0, data))
            .collect();
        let bytes = parts.iter().map(Part::bytes).sum();
        let mut permit = w.reserve(bytes, |_| panic!("keeps too much"));
        let appended = w.append_chain(&mut permit, &mut parts);
        drop(permit);
        calls.push(Call {
            pos: appended.pos,
            end: appended.end,
            returned_at: recording.event_count(),
            data,
        });
        if calls.len() > keep {
            w.set_tail(calls[calls.len() - keep].pos);
        }
    }
    (recording, calls)
}

/// Checks one image against the calls; returns how many calls it holds.
fn check(image: Arc<Map>, ring_bytes: u64, calls: &[Call], event: usize, what: &str) -> usize {
    let log = Log::with_header(image, header(SALT, ring_bytes)).unwrap();
    let tail = LogPos(log.tail_word());
    let (records, head) = scan(&log, tail);
    let mut records = records.into_iter();
    let mut found = 0;
    for call in calls.iter().filter(|call| call.pos >= tail) {
        if call.end > head {
            assert!(
                call.returned_at > event,
                "event {event}, {what}: the call at {:?} had returned and is lost",
                call.pos
            );
            continue;
        }
        found += 1;
        for data in &call.data {
            let record = records.next().expect("a record for each part");
            let Ok(Op::Write { len, at, .. }) = Op::decode(&record) else {
                panic!("event {event}, {what}: {record:?}");
            };
            let mut read = vec![0; len as usize];
            log.read(at, 0, &mut read);
            assert!(read == *data, "event {event}, {what}: data at {at:?}");
        }
    }
    assert!(records.next().is_none(), "event {event}, {what}: a ghost");
    found
}

fn every_cut(ring_bytes: u64, recording: &Recording, calls: &[Call]) {
    let script = recording.script();
    let rules = MediaRules::default();
    let mut replay = script.replay();
    let mut lost = 0;
    loop {
        let event = replay.at();
        let cut = replay.cut(&rules);
        let seeds = (0..SEEDS).map(|n| Choice::Seed(event as u64 * SEEDS + n));
        let most = check(
            image(&cut.image(0, &Choice::All)),
            ring_bytes,
            calls,
            event,
            "all",
        );
        for choice in std::iter::once(Choice::None).chain(seeds) {
            let what = format!("{choice:?}");
            let image = image(&cut.image(0, &choice));
            let found = check(image, ring_bytes, calls, event, &what);
            lost += usize::from(found < most);
        }
        if replay.step().is_none() {
            break;
        }
    }
    assert!(lost > 20, "the cuts took away something in {lost} images");
}

#[test]
fn small_records_and_chains_under_every_cut() {
    const RING: u64 = 8 << 10;
    let (recording, calls) = workload(RING, 60, 4, |random| 1 + random.below(400) as usize);
    assert!(calls.last().unwrap().end.0 > 3 * RING, "several turns");
    every_cut(RING, &recording, &calls);
}

#[test]
fn large_records_with_two_fences_under_every_cut() {
    const RING: u64 = 256 << 10;
    let (recording, calls) = workload(RING, 10, 2, |random| {
        [100, 13_000, 14_001][random.below(3) as usize]
    });
    every_cut(RING, &recording, &calls);
}

#[test]
fn every_prefix_of_the_bytes_holds_a_prefix_of_the_records() {
    const RING: u64 = 8 << 10;
    let map = fixture::map(RING);
    let w = writer(log(map.clone(), RING), LogPos(0));
    let mut random = Random(9);
    let mut ends = Vec::new();
    for len in [1, 200, 64, 63, 5] {
        let data = random.bytes(len);
        let mut part = encode::write(Ino(30), 0, &data);
        let mut permit = w.reserve(part.bytes(), |_| panic!("space"));
        let at = w.append(&mut permit, &mut part).pos;
        ends.push(RING_AT + at.0 as usize + 64 + len);
    }
    let mut whole = vec![0; map.bytes()];
    map.load(0, &mut whole);
    for prefix in RING_AT..ends[4] + 64 {
        let mut cut = whole.clone();
        cut[prefix..].fill(0);
        let found = scan(&log(image(&cut), RING), LogPos(0)).0.len();
        let expected = ends.iter().filter(|&&end| end <= prefix).count();
        assert_eq!(found, expected, "{prefix} bytes");
    }
}

/// A stolen block and its record share one fence: with the check of its data the
/// record counts only when the block survived as well.
#[test]
fn a_stolen_block_is_covered_by_its_record() {
    const RING: u64 = 8 << 10;
    let recording = Recording::new();
    let (on_log, on_volume) = (recording.medium("log"), recording.medium("volume"));
    let map = MapOptions::new().recorder(on_log);
    let map = Arc::new(map.anonymous(RING_AT + RING as usize).unwrap());
    let volume = MapOptions::new().recorder(on_volume);
    let volume = volume.anonymous(4 * BLOCK_BYTES).unwrap();
    let w = writer(log(map.clone(), RING), LogPos(0));
    let data = Random(4).bytes(BLOCK_BYTES);
    let body = StealBody {
        addr: BlockAddr::nvm(2).raw(),
        blocks: 1,
        data_crc: crc32c(&data),
        end: BLOCK_BYTES as u64,
    };
    let mut part = encode::steal(Ino(30), 0, body);
    let mut permit = w.reserve(part.bytes(), |_| panic!("space"));
    volume.copy_nt(2 * BLOCK_BYTES, &data);
    w.append(&mut permit, &mut part);
    let fences = volume.counts().total().fences + map.counts().total().fences;
    assert_eq!(fences, 1, "one fence for both");

    let script = recording.script();
    let mut replay = script.replay();
    let (mut kept, mut lost) = (0, 0);
    loop {
        let cut = replay.cut(&MediaRules::default());
        for seed in 0..40 {
            let (on_log, on_volume) = match seed {
                0 => (Choice::All, Choice::All),
                1 => (Choice::All, Choice::None),
                seed => (Choice::All, Choice::Seed(seed)),
            };
            let log = log(image(&cut.image(0, &on_log)), RING);
            let blocks = cut.image(1, &on_volume);
            let mut scan = Scan::of(&log, LogPos(0)).check_steals(|_, addr, count, crc| {
                let at = addr.byte() as usize;
                crc32c(&blocks[at..at + count as usize * BLOCK_BYTES]) == crc
            });
            match scan.next() {
                Some(record) => {
                    assert_eq!(record.kind(), Kind::Steal);
                    assert!(blocks[2 * BLOCK_BYTES..3 * BLOCK_BYTES] == data[..]);
                    kept += 1;
                }
                None => lost += 1,
            }
        }
        if replay.step().is_none() {
            break;
        }
    }
    assert!(kept >= 40 && lost >= 40, "{kept} kept, {lost} lost");
}

/// Free blocks of a volume, one after the other; not always.
struct Blocks {
    volume: Map,
    next: AtomicU64,
}

impl FreeBlocks for Blocks {
    fn take(&self, blocks: u64) -> Option<BlockAddr> {
        let first = self.next.fetch_add(blocks, Ordering::Relaxed);
        let there = (first + blocks) * BLOCK_BYTES as u64 <= self.volume.bytes() as u64;
        (there && !first.is_multiple_of(3)).then_some(BlockAddr::nvm(first))
    }

    fn region(&self) -> &MappedRegion {
        &self.volume
    }
}

/// Calls on a log in memory, some of which are waited for, and digests of some of them: the log in NVM, and from which event on the log is
/// digested up to where.
fn buffered_workload(
    ring_bytes: u64,
    count: u64,
    keep: usize,
    mut len: impl FnMut(&mut Random) -> usize,
) -> (Arc<Recording>, Vec<Call>, Vec<(usize, LogPos)>) {
    let recording = Recording::new();
    let medium = recording.medium("log");
    let bytes = RING_AT + ring_bytes as usize;
    let nvm = MapOptions::new().recorder(medium).anonymous(bytes).unwrap();
    let volume = MapOptions::new().recorder(recording.medium("volume"));
    let blocks = Blocks {
        volume: volume.anonymous(300 * BLOCK_BYTES).unwrap(),
        next: AtomicU64::new(0),
    };
    let memory = log(fixture::map(ring_bytes), ring_bytes);
    let w = writer(memory, LogPos(0));
    let nvm = Log::with_header(Arc::new(nvm), header(SALT, ring_bytes)).unwrap();
    let copy = HardenedCopy::new(&w, nvm).expect("a log like it");
    let mut random = Random(ring_bytes + 1);
    let (mut calls, mut digests): (Vec<Call>, _) = (Vec::new(), vec![(0, LogPos(0))]);
    let mut named_blocks = 0;
    for n in 0..count {
        let len = len(&mut random);
        let data = random.bytes(len);
        let offset = [0, 4096, 1000][random.below(3) as usize];
        let mut part = encode::write(Ino(100 + n), offset, &data);
        let mut permit = w.reserve(part.bytes(), |_| panic!("keeps too much"));
        let appended = w.append(&mut permit, &mut part);
        drop(permit);
        calls.push(Call {
            pos: appended.pos,
            end: appended.end,
            returned_at: usize::MAX,
            data: vec![data],
        });
        let digested = digests.last().unwrap().1;
        if random.below(3) == 0 {
            let (hardened, named) = copy.harden(|| digested, w.published(), Some(&blocks));
            assert_eq!(hardened.pos(), w.published().pos());
            named_blocks += named.iter().map(|named| named.blocks).sum::<u64>();
            let waited = calls.iter_mut().filter(|c| c.returned_at == usize::MAX);
            waited.for_each(|c| c.returned_at = recording.event_count());
        }
        if calls.len() > keep && random.below(2) == 0 {
            // Also what was never copied.
            let upto = calls[calls.len() - 1 - random.below(2) as usize].pos;
            if upto > digested {
                digests.push((recording.event_count(), upto));
                let _not_copying = copy.pause();
                w.set_tail(upto);
            }
        }
    }
    assert_eq!(named_blocks > 10, ring_bytes > 100 << 10, "{named_blocks}");
    (recording, calls, digests)
}

/// The data of the records from `pos` to `end`, with what they name of the volume.
fn data_of(
    log: &Log,
    records: &mut std::iter::Peekable<impl Iterator<Item = Record>>,
    (end, volume): (LogPos, &[u8]),
) -> Vec<u8> {
    let mut data = Vec::new();
    while let Some(record) = records.next_if(|record| record.pos() < end) {
        assert!(record.end() <= end, "records end where they did in memory");
        match Op::decode(&record).expect("a record that was written") {
            Op::Write { len, at, .. } => {
                let from = data.len();
                data.resize(from + len as usize, 0);
                log.read(at, 0, &mut data[from..]);
            }
            Op::Steal { addr, blocks, .. } => {
                let from = addr.byte() as usize;
                data.extend(&volume[from..from + blocks as usize * BLOCK_BYTES]);
            }
            other => panic!("{other:?}"),
        }
    }
    data
}

#[test]
fn what_was_copied_to_nvm_is_a_prefix_under_every_cut() {
    for (ring, count, sizes) in [
        (8 << 10, 80, [1, 300, 400]),
        (256 << 10, 60, [100, 13_000, 18_001]),
    ] {
        let (recording, calls, digests) =
            buffered_workload(ring, count, 3, |random| sizes[random.below(3) as usize]);
        assert!(calls.last().unwrap().end.0 > ring, "more than a turn");
        let script = recording.script();
        let rules = MediaRules::default();
        let mut replay = script.replay();
        let (mut kept, mut lost) = (0, 0);
        loop {
            let event = replay.at();
            let cut = replay.cut(&rules);
            // Two positions that the volume may have at this event: a digest is durable some time before it is announced.
            let known = digests.iter().rposition(|&(at, _)| at <= event).unwrap();
            let ahead = (known + 1).min(digests.len() - 1);
            for &(_, digested) in &digests[known..=ahead] {
                let seeds = (0..SEEDS).map(|n| Choice::Seed(event as u64 * SEEDS + n));
                for choice in [Choice::None, Choice::All].into_iter().chain(seeds) {
                    let what = format!("event {event}, {choice:?} from {digested:?}");
                    let log = log(image(&cut.image(0, &choice)), ring);
                    let volume = cut.image(1, &choice);
                    let (records, head) = scan(&log, digested);
                    let mut records = records.into_iter().peekable();
                    for call in calls.iter().filter(|call| call.pos >= digested) {
                        if call.end > head {
                            assert!(call.returned_at > event, "{what}: lost");
                            lost += 1;
                            continue;
                        }
                        kept += 1;
                        let data = data_of(&log, &mut records, (call.end, &volume));
                        assert!(data == call.data[0], "{what}: data");
                    }
                    assert!(records.next().is_none(), "{what}: a ghost");
                }
            }
            if replay.step().is_none() {
                break;
            }
        }
        assert!(kept > 300 && lost > 300, "{kept} kept, {lost} lost");
    }
}
