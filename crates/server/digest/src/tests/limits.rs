//! Chunks that do not fit, crashes in between, recovery.

use super::world::{DIR, FILE, World};
use crate::{Bounds, ChunkMost, DigestError, Mode, OwnLog, data, survey};
use shale_format::LogPos;
use shale_format::limits::{LOG_BYTES_MIN, NVM_BYTES_MIN};
use shale_oplog::encode;
use shale_volume::{Run, VolumeError};

#[test]
fn a_chunk_above_the_journal_is_cut() {
    let mut w = World::new();
    w.create(1, 100, "d", DIR);
    let capacity = w.volume().journal_capacity();
    let count = 2 * capacity / 272;
    for n in 0..count {
        w.create(100, 1_000 + n * 17, &format!("f{n}"), FILE);
    }
    // Slots in new blocks of the inode file need no journal.
    let made = w.digest_once();
    assert_eq!(made.created.len() as u64, count + 1);
    for n in 0..count {
        w.set_mode(1_000 + n * 17, 0o600);
    }
    let chunks = w.digest();
    assert_eq!(chunks.len(), 3, "two parts of 15/16, and the rest");
    assert_eq!(w.names(100).len() as u64, count);
    let changed = (0..count).filter(|n| w.inode(1_000 + n * 17).unwrap().mode == 0o100_600);
    assert_eq!(changed.count() as u64, count);
}

/// The second slot of a block that is there is changed in place, which the records do
/// not tell: the plan finds out, and the next chunk is made smaller at once.
#[test]
fn what_did_not_fit_is_remembered() {
    let mut w = World::with(64 << 20, Bounds::default());
    w.create(1, 100, "d", DIR);
    let count = 3 * w.volume().journal_capacity() / 272;
    for n in 0..count {
        w.create(100, 1_600 + n * 16, &format!("f{n}"), FILE);
    }
    w.digest();
    for n in 0..count {
        w.create(100, 1_601 + n * 16, &format!("g{n}"), FILE);
    }
    let chunks = w.digest();
    let records: Vec<u64> = chunks.iter().map(|c| c.stats.records).collect();
    assert!(records.len() == 4, "{records:?} of {count}");
    let fill = count / 3 * 7 / 8;
    assert!(
        records[..3].iter().all(|&r| r > fill),
        "{records:?} of {count}"
    );
    assert_eq!(w.names(100).len() as u64, 2 * count);
}

#[test]
fn without_space_nothing_changes() {
    let mut w = World::new();
    w.create(1, 100, "f", FILE);
    w.digest();
    let free = w.volume().space().free;
    let taken = w.volume().allocate(free - 16, None).unwrap();
    w.write(100, 0, &[1; 4 * 4096]);
    w.write(100, 16_384, &[2; 64 * 4096]);
    let before = w.volume().space();
    // Cut down to the first record, that fits.
    let done = w.chunk(Mode::Live).unwrap();
    assert!(!done.at_end && done.stats.records == 1);
    w.at = done.upto;
    let error = w.chunk(Mode::Live).unwrap_err();
    assert!(
        matches!(error, DigestError::Volume(VolumeError::NoSpace { .. })),
        "{error}"
    );
    assert!(
        w.volume().space().taken == before.taken,
        "allocations go back"
    );
    for run in taken {
        w.volume().give_back(run);
    }
    w.digest();
    assert_eq!(w.inode(100).unwrap().size, 68 * 4096);
}

/// A crash after the data was written and before the commit: free blocks have other
/// bytes, nothing else; then the same chunk is digested.
#[test]
fn a_digest_that_was_cut_short_is_done_again() {
    let mut w = World::new();
    w.create(1, 100, "f", FILE);
    w.write(100, 0, &[1; 10_000]);
    w.digest();
    w.write(100, 5000, &[2; 20_000]);
    w.create(1, 101, "g", FILE);
    w.write(101, 0, &[3; 300]);
    let (before, slot) = (w.volume().space(), w.volume().log_slots()[3]);
    let plan = w.plan().unwrap();
    for _ in 0..3 {
        let placed = data::allocate(w.volume(), &plan, &w.rules).unwrap();
        data::write(
            (w.volume(), w.digester.tail_blocks()),
            &w.source(),
            &[],
            &plan,
            &placed,
        )
        .unwrap();
    }
    assert_eq!(
        (w.volume().space(), w.volume().log_slots()[3]),
        (before, slot)
    );
    // The part of a block that the log overwrites may be new: its record is there.
    let content = w.content(100);
    assert_eq!(
        (content.len(), &content[..5000], &content[8192..]),
        (10_000, &[1; 5000][..], &[1; 1808][..])
    );
    assert_eq!(content[5000..8192], [2; 3192]);
    assert!(w.inode(101).is_none());
    w.digest();
    let expected = [&[1; 5000][..], &[2; 20_000]].concat();
    assert_eq!(w.content(100), expected);
    assert_eq!(w.content(101), [3; 300]);
}

#[test]
fn a_chunk_of_a_live_log_is_a_part_of_its_ring() {
    let part = LOG_BYTES_MIN / Bounds::default().ring_parts;
    let w = World::with(NVM_BYTES_MIN as usize, Bounds::default());
    w.create(1, 100, "f", FILE);
    let data = [7; 8192];
    while w.writer.published().pos().0 < 2 * part + part / 2 {
        w.write(100, 0, &data);
    }
    let end = w.writer.published().pos();
    let from = w.at;
    let whole = w
        .digester
        .chunk(&w.source(), from, end, &w.rules, Mode::Recovery);
    assert_eq!(
        whole.unwrap().upto,
        end,
        "nobody writes to one that was left"
    );
    let mut w = World::with(NVM_BYTES_MIN as usize, Bounds::default());
    w.create(1, 100, "f", FILE);
    while w.writer.published().pos().0 < 2 * part + part / 2 {
        w.write(100, 0, &data);
    }
    let ends: Vec<u64> = w.digest().iter().map(|c| c.upto.0).collect();
    assert_eq!(ends.len(), 3);
    let fits = |upto: u64, n: u64| (n * part..n * (part + 10_000)).contains(&upto);
    assert!(fits(ends[0], 1) && fits(ends[1], 2), "{ends:?} of {part}");
    assert_eq!(w.content(100), data);
}

/// Of a write buffer, where a quarter at a time would write what the rest overwrites.
#[test]
fn a_chunk_of_a_write_buffer_may_be_half_of_it() {
    let mut w = World::with(NVM_BYTES_MIN as usize, Bounds::default());
    w.create(1, 100, "f", FILE);
    let data = [7; 8192];
    while w.writer.published().pos().0 < LOG_BYTES_MIN / 2 - 16_384 {
        w.write(100, 0, &data);
    }
    let end = w.writer.published().pos();
    let most = ChunkMost {
        buffer: true,
        ..ChunkMost::default()
    };
    let log = w.source();
    let chunk = w
        .digester
        .chunk_of(most, &log, (w.at, end), &w.rules, Mode::Live)
        .unwrap();
    assert_eq!((chunk.upto, chunk.at_end), (end, true));
    assert_eq!(chunk.stats.blocks_written, 2, "{:?}", chunk.stats);
    w.at = chunk.upto;
    assert_eq!(w.content(100), data);
}

#[test]
fn as_many_records_as_reserved_so_many_bytes() {
    let mut w = World::new();
    w.reserve.set(3);
    w.create(1, 100, "f", FILE);
    for n in 0..9 {
        w.write(100, n, b"x");
    }
    let (log, limit) = (w.source(), w.writer.published().pos());
    let most = ChunkMost {
        reserved: 4 * 3 * 64,
        ..ChunkMost::default()
    };
    let chunk = |from| {
        w.digester
            .chunk_of(most, &log, (from, limit), &w.rules, Mode::Live)
    };
    let first = chunk(w.at).unwrap();
    assert_eq!((first.stats.records, first.at_end), (4, false));
    let second = chunk(first.upto).unwrap();
    assert_eq!((second.stats.records, second.at_end), (4, false));
    w.at = second.upto;
    assert_eq!(w.digest_once().stats.records, 2);
    assert_eq!(w.content(100), *b"xxxxxxxxx");
}

#[test]
fn bounds_never_cut_a_transaction() {
    let bounds = Bounds {
        records_max: 2,
        bytes_max: 1 << 20,
        ..Bounds::default()
    };
    let mut w = World::with(NVM_BYTES_MIN as usize, bounds);
    w.create(1, 100, "f", FILE);
    let ino = shale_format::Ino(100);
    let mut parts = [(); 5].map(|()| encode::write(ino, 0, b"x"));
    w.reserve.set(3);
    w.chain(&mut parts);
    w.write(100, 0, b"y");
    let chunks = w.digest();
    let records: Vec<u64> = chunks.iter().map(|c| c.stats.records).collect();
    assert_eq!(records, [6, 1]);
    let released: Vec<u64> = chunks.iter().map(|c| c.reserve_released).collect();
    assert_eq!(released, [5 * 3 * 64, 3 * 64]);
}

#[test]
fn a_log_of_another_position_is_left_alone() {
    let mut w = World::new();
    w.create(1, 100, "f", FILE);
    w.digest();
    w.write(100, 0, b"1");
    let second = w.write(100, 0, b"2");
    w.at = second;
    let error = w.chunk(Mode::Live).unwrap_err();
    assert!(
        matches!(error, DigestError::Position { slot: 3, .. }),
        "{error}"
    );
    assert_eq!(w.inode(100).unwrap().size, 0);
}

/// A steal whose blocks did not arrive ends the log before it, though later records did.
#[test]
fn recovery_ends_before_a_steal_that_did_not_arrive() {
    let mut w = World::new();
    w.create(1, 100, "f", FILE);
    w.steal(100, 0, &[1; 8192], 8192);
    let lost = w.stolen(100, 8192, &[2; 4096], 12_288);
    let at = w.push(lost);
    w.write(100, 0, b"behind");
    let first = w.rules.blocks[0].addr;
    w.volume().write_at(first.plus(2), 100, b"?").unwrap();
    let view = w.view();
    let found = survey(&w.source(), &view, w.at);
    assert_eq!((found.head, found.records), (at, 2));
    let run = Run {
        addr: first,
        len: 2,
    };
    assert_eq!(found.stolen, [run]);
    assert!(found.named.contains(&shale_format::Ino(100)));
    // The grant is forgotten by a restart; recovery takes the blocks again.
    w.volume().give_back(w.rules.blocks[0]);
    w.volume().take(run).unwrap();
    let own = OwnLog::new(found.stolen, true);
    let (log, all) = (w.source(), LogPos(u64::MAX));
    let done = w
        .digester
        .chunk(&log, w.at, all, &own, Mode::Recovery)
        .unwrap();
    assert_eq!((done.refused, done.at_end, done.upto), (None, true, at));
    assert_eq!(w.content(100), [1; 8192]);
    assert_eq!(w.extents(100), [(0, 2, false)]);
}
