//! The overlay against the plainest model: what each single byte is.

mod fixture;

use fixture::Random;
use shale_format::{BlockAddr, LogPos};
use shale_oplog::{Overlay, Source};
use std::convert::Infallible;
use std::ops::Range;

/// Changes begin below this.
const BYTES: u64 = 300;
/// No change reaches this, even when ranges are inserted before it, but for truncation.
const WINDOW: u64 = BYTES + 80 * 60;

/// Source of one byte, and the record that it came from.
type Model = Vec<Option<(Source, LogPos)>>;

fn plus(source: Source, bytes: u64) -> Source {
    match source {
        Source::Log { at } => Source::Log {
            at: LogPos(at.0 + bytes),
        },
        Source::Block { addr, skip } => Source::Block {
            addr,
            skip: skip + bytes,
        },
        Source::Zero => Source::Zero,
    }
}

fn put(model: &mut Model, range: Range<u64>, source: Source, record: LogPos) {
    for at in range.clone() {
        if let Some(byte) = model.get_mut(at as usize) {
            *byte = Some((plus(source, at - range.start), record));
        }
    }
}

/// Every window that the walk may be asked for gives the model's bytes, in order, once.
fn compare(overlay: &Overlay, model: &Model, range: Range<u64>, seed: u64) {
    let mut at = range.start;
    let done = overlay.segments(range.clone(), |piece, source| {
        assert_eq!(piece.start, at, "seed {seed}");
        assert!(piece.end > piece.start && piece.end <= range.end);
        for byte in piece.clone() {
            let found = source.map(|source| plus(source, byte - piece.start));
            let expected = model[byte as usize].map(|(source, _)| source);
            assert_eq!(found, expected, "byte {byte}, seed {seed}");
        }
        at = piece.end;
        Ok::<_, Infallible>(())
    });
    assert_eq!(done, Ok(()));
    assert_eq!(at, range.end, "seed {seed}");
    if !range.is_empty() {
        in_one(overlay, model, range, seed);
    }
}

/// What is said to be in one place is there, in one run; what is in one piece is reported.
fn in_one(overlay: &Overlay, model: &Model, range: Range<u64>, seed: u64) {
    let whole = model[range.start as usize].map(|(source, _)| source);
    let expected = |byte| whole.map(|source| plus(source, byte - range.start));
    let place = |byte: u64| model[byte as usize].map(|(source, _)| source);
    let in_volume = range.clone().all(|byte| place(byte).is_none());
    match overlay.in_one(range.clone()) {
        Some(found) => {
            assert_eq!(found, whole, "seed {seed}");
            for byte in range.clone() {
                assert_eq!(place(byte), expected(byte), "byte {byte}, seed {seed}");
            }
        }
        None => assert!(!in_volume, "{range:?}, seed {seed}"),
    }
}

#[test]
fn random_changes_agree_with_the_model() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let mut overlay = Overlay::new();
        let mut model: Model = vec![None; WINDOW as usize];
        for step in 1..80u64 {
            let record = LogPos(step * 1000);
            let start = random.below(BYTES);
            let range = start..(start + 1 + random.below(60)).min(BYTES);
            match random.below(10) {
                0 => {
                    overlay.truncate(start, record);
                    put(&mut model, start..WINDOW, Source::Zero, record);
                }
                1 => {
                    overlay.zero(range.clone(), record);
                    put(&mut model, range, Source::Zero, record);
                }
                2 => {
                    let digested = LogPos(1000 * random.below(step + 1));
                    overlay.purge_below(digested);
                    for byte in &mut model {
                        *byte = byte.filter(|&(_, record)| record >= digested);
                    }
                }
                3 => {
                    let bytes = range.end - range.start;
                    overlay.shift(range.end, -(bytes as i64));
                    model.drain(range.start as usize..range.end as usize);
                    // A truncated file is zeros without end; else nothing is known there.
                    let behind = model.last().copied().flatten();
                    let behind = behind.filter(|&(source, _)| source == Source::Zero);
                    model.resize(WINDOW as usize, behind);
                }
                4 => {
                    let bytes = range.end - range.start;
                    overlay.shift(start, bytes as i64);
                    let at = start as usize;
                    model.splice(at..at, std::iter::repeat_n(None, bytes as usize));
                    model.truncate(WINDOW as usize);
                }
                kind => {
                    let source = if kind < 8 {
                        Source::Log {
                            at: LogPos(record.0 + 64),
                        }
                    } else {
                        Source::Block {
                            addr: BlockAddr::nvm(step),
                            skip: 7,
                        }
                    };
                    overlay.insert(range.clone(), source, record);
                    put(&mut model, range, source, record);
                }
            }
            compare(&overlay, &model, 0..WINDOW, seed);
            let from = random.below(BYTES);
            compare(
                &overlay,
                &model,
                from..from + random.below(BYTES - from),
                seed,
            );
        }
    }
}

#[test]
fn what_is_newest_outlives_its_pieces() {
    let mut overlay = Overlay::new();
    assert!(overlay.is_empty());
    let at = LogPos(64);
    overlay.insert(0..100, Source::Log { at }, LogPos(0));
    overlay.insert(0..100, Source::Log { at }, LogPos(640));
    assert_eq!(
        (overlay.len(), overlay.newest_pos()),
        (1, Some(LogPos(640)))
    );
    // Collapsed away: no piece is left, but the record is not digested.
    overlay.shift(100, -100);
    assert_eq!(overlay.len(), 0);
    assert!(!overlay.is_empty());
    overlay.purge_below(LogPos(640));
    assert_eq!(overlay.newest_pos(), Some(LogPos(640)));
    overlay.purge_below(LogPos(704));
    assert!(overlay.is_empty());
}

#[test]
fn the_walk_ends_at_the_first_error() {
    let mut overlay = Overlay::new();
    overlay.zero(10..20, LogPos(0));
    let mut seen = Vec::new();
    let stopped = overlay.segments(0..30, |range, source| {
        seen.push((range, source));
        if source.is_some() {
            Err("enough")
        } else {
            Ok(())
        }
    });
    assert_eq!(stopped, Err("enough"));
    assert_eq!(seen, [(0..10, None), (10..20, Some(Source::Zero))]);
    let nothing = overlay.segments(5..5, |_, _| Err("empty ranges have no pieces"));
    assert_eq!(nothing, Ok(()));
}

/// Appending to a file that was cut makes no more pieces than appending to any other, and a cut
/// ends with its own record, not with those before it.
#[test]
fn cuts_are_beside_the_pieces() {
    let mut overlay = Overlay::new();
    let log = |at| Source::Log { at: LogPos(at) };
    overlay.insert(0..100, log(64), LogPos(0));
    overlay.truncate(40, LogPos(1_000));
    overlay.insert(40..80, log(2_064), LogPos(2_000));
    overlay.truncate(60, LogPos(3_000));
    assert_eq!(overlay.len(), 2);
    assert!(!overlay.is_cut(39) && overlay.is_cut(40));
    assert_eq!(overlay.last_in(60..100), None);
    overlay.purge_below(LogPos(3_000));
    let mut seen = Vec::new();
    let done = overlay.segments(0..100, |range, source| {
        seen.push((range, source));
        Ok::<_, Infallible>(())
    });
    assert_eq!(done, Ok(()));
    assert_eq!(seen, [(0..60, None), (60..100, Some(Source::Zero))]);
}
