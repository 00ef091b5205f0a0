//! Write calls above 1 MiB: one transaction each, also where blocks or space are scarce.

use crate::place::{ME, Place};
use shale_format::Ino;
use shale_libfs::{Errno, Session, SessionOptions, WriteFlags};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const MIB: usize = 1 << 20;
/// A quarter of the log.
const LOGGED_MAX: usize = 4 * MIB;
const LOG_ALL: SessionOptions = SessionOptions {
    durability: None,
    log_bytes: 0,
    kernel_references: false,
    present: false,
    log_all: true,
    hardens_later: false,
    yields: false,
    line_costs: None,
    memory: None,
};
const PLAIN: WriteFlags = WriteFlags {
    kill_suidgid: false,
    append: false,
    sync: false,
};
const APPEND: WriteFlags = WriteFlags {
    append: true,
    ..PLAIN
};

fn file(session: &Session, name: &str) -> u64 {
    let made = session.create(&ME, Ino::ROOT.0, name.as_bytes(), 0o644, 0);
    made.unwrap_or_else(|e| panic!("{name}: {e}")).ino
}

/// Bytes that no shift leaves as they are.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut words = Vec::with_capacity(len + 8);
    while words.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words.extend(state.to_le_bytes());
    }
    words.truncate(len);
    words
}

/// Fences of the log and of NVM that a write takes.
fn fences(session: &Session, write: impl FnOnce()) -> (u64, u64) {
    let before = (session.log_counts(), session.nvm_counts());
    write();
    let log = (session.log_counts() - before.0).total().fences;
    let nvm = (session.nvm_counts() - before.1).total().fences;
    (log, nvm)
}

#[test]
fn a_call_is_one_chain_as_far_as_the_log_goes() {
    let place = Place::new(96);
    for log_all in [false, true] {
        let session = place.attach_with(SessionOptions { log_all, ..LOG_ALL });
        let ino = file(&session, &format!("one {log_all}"));
        let mut expected = Vec::new();
        for (n, (at, len)) in [
            (0, MIB + 1),
            (0, 3 * MIB),
            (100, 2 * MIB),
            (4097, MIB),
            (MIB, LOGGED_MAX - 4096),
        ]
        .into_iter()
        .enumerate()
        {
            let data = bytes(n as u64, len);
            let found = fences(&session, || {
                let done = session.write(&ME, ino, at as u64, &data, PLAIN);
                assert_eq!(done, Ok(len));
            });
            // Data, then the records that tell of it; and perhaps the log's tail.
            let once = if log_all { (2, 0) } else { (1, 1) };
            let as_one = found.1 == once.1 && found.0 <= once.0 + 1;
            assert!(
                as_one,
                "{len} bytes at {at}, all logged {log_all}: {found:?}"
            );
            expected.resize(expected.len().max(at + len), 0);
            expected[at..at + len].copy_from_slice(&data);
            session.digest().unwrap();
        }
        let data = bytes(9, 8 * MIB);
        let found = fences(&session, || {
            assert_eq!(session.write(&ME, ino, 0, &data, PLAIN), Ok(data.len()));
        });
        let in_pieces = found.0 >= 16;
        assert_eq!(in_pieces, log_all, "above a quarter of the log: {found:?}");
        expected.resize(data.len(), 0);
        expected.copy_from_slice(&data);
        let mut read = vec![0; expected.len() + 1];
        assert_eq!(session.read(&ME, ino, 0, &mut read), Ok(expected.len()));
        assert!(read[..expected.len()] == expected);
        session.detach().unwrap();
    }
}

/// Overwrites 8 MiB, more than the log takes as one call, faster than the log is digested. Gives the calls that were
/// more than one transaction, with the fences of each in the log and in NVM.
fn calls_cut_where_the_writer_overtakes_the_digest() -> Vec<(usize, (u64, u64))> {
    let place = Place::new(96);
    let session = place.attach(false);
    let ino = file(&session, "overwritten");
    let data = [bytes(1, 8 * MIB), bytes(2, 8 * MIB)];
    let mut cut = Vec::new();
    for n in 0..60 {
        let found = fences(&session, || {
            let done = session.write(&ME, ino, 0, &data[n % 2], PLAIN);
            assert_eq!(done, Ok(8 * MIB));
        });
        if found.0 > 2 || found.1 != 1 {
            cut.push((n, found));
        }
    }
    let mut read = vec![0; 8 * MIB + 1];
    assert_eq!(session.read(&ME, ino, 0, &mut read), Ok(8 * MIB));
    assert!(read[..8 * MIB] == data[1][..]);
    session.detach().unwrap();
    cut
}

/// Blocks that earlier calls have replaced are free a moment later: a call that is too long for the log waits for them.
#[cfg(not(feature = "mutants"))]
#[test]
fn a_call_stays_one_where_its_writer_overtakes_the_digest() {
    assert_eq!(calls_cut_where_the_writer_overtakes_the_digest(), []);
}

/// Finds that it does not wait.
#[cfg(feature = "mutants")]
#[test]
fn a_call_that_does_not_wait_for_blocks_is_found() {
    shale_sys::mutants::switch_on(Some("call-unwaited"));
    let cut = calls_cut_where_the_writer_overtakes_the_digest();
    shale_sys::mutants::switch_on(None);
    assert!(!cut.is_empty(), "each call found its blocks without");
}

/// The end of the file moves between the look at it and the lock.
#[test]
fn large_appends_stay_together_among_small_ones() {
    const LARGE: usize = 12;
    let place = Place::new(128);
    let session = place.attach(false);
    let ino = file(&session, "appended");
    let over = AtomicBool::new(false);
    let large = |n: usize| bytes(n as u64, MIB + 300_000 + n * 4096 + n % 3 * 1000);
    let small = thread::scope(|scope| {
        let small = scope.spawn(|| {
            let mut many = 0;
            while !over.load(Ordering::Relaxed) {
                let line = [b'\n'; 7];
                assert_eq!(session.write(&ME, ino, 0, &line, APPEND), Ok(7));
                many += 1;
                thread::yield_now();
            }
            many * 7
        });
        for n in 0..LARGE {
            let data = large(n);
            assert_eq!(session.write(&ME, ino, 0, &data, APPEND), Ok(data.len()));
        }
        over.store(true, Ordering::Relaxed);
        small.join().unwrap()
    });
    let all: usize = (0..LARGE).map(|n| large(n).len()).sum();
    let mut read = vec![0; all + small + 1];
    assert_eq!(session.read(&ME, ino, 0, &mut read), Ok(all + small));
    let mut at = 0;
    for n in 0..LARGE {
        let data = large(n);
        at += read[at..]
            .chunks(7)
            .take_while(|c| **c == [b'\n'; 7])
            .count()
            * 7;
        assert!(read[at..at + data.len()] == data, "append {n} at {at}");
        at += data.len();
    }
    session.detach().unwrap();
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % n
    }
}

fn verify(session: &Session, files: &BTreeMap<u64, Vec<u8>>) {
    for (ino, expected) in files {
        let mut read = vec![0; expected.len() + 1];
        assert_eq!(session.read(&ME, *ino, 0, &mut read), Ok(expected.len()));
        assert!(read[..expected.len()] == expected[..], "inode {ino}");
    }
}

/// What was written of a call where there was little space can be digested, by a daemon that runs and
/// by the next one.
#[test]
fn large_calls_fill_a_volume_and_are_digested() {
    for seed in 0..4 {
        let mut dice = Dice(seed);
        let mut place = Place::new(40);
        let mut files = BTreeMap::new();
        let mut short = 0;
        for round in 0..3 {
            let log_all = dice.below(2) == 0;
            let session = place.attach_with(SessionOptions { log_all, ..LOG_ALL });
            verify(&session, &files);
            for n in 0..2 {
                files.insert(file(&session, &format!("{round} {n}")), Vec::new());
            }
            for _ in 0..24 {
                let ino = *files.keys().nth(dice.below(files.len())).unwrap();
                let content: &mut Vec<u8> = files.get_mut(&ino).unwrap();
                let at = dice.below(content.len().min(6 * MIB) + 1);
                let data = bytes(dice.0, MIB / 2 + dice.below(5 * MIB));
                match session.write(&ME, ino, at as u64, &data, PLAIN) {
                    Ok(done) => {
                        short += usize::from(done < data.len());
                        content.resize(content.len().max(at + done), 0);
                        content[at..at + done].copy_from_slice(&data[..done]);
                    }
                    Err(e) => {
                        assert_eq!(e, Errno::NOSPC);
                        short += 1;
                        session.truncate(&ME, ino, (at / 2) as u64, false).unwrap();
                        content.truncate(at / 2);
                    }
                }
                if dice.below(5) == 0 {
                    session.digest().unwrap();
                }
            }
            verify(&session, &files);
            drop(session);
            place.kill();
            place.start();
        }
        assert!(short > 0, "seed {seed}: the volume was never full");
        verify(&place.attach(false), &files);
        place.stop();
        place.check();
    }
}
