//! Calls of several transactions, which the alphabet has none of, and a few workloads.

use std::sync::Arc;

use shale_libfs::{OFlags, Session};

use super::*;
use crate::explore::explorer::{Depth, Known};
use crate::images::Caches;
use crate::recording::mount::Ask;
use crate::volume::base::More;

fn shm() -> &'static std::path::Path {
    "/dev/shm".as_ref()
}

#[test]
fn requests_of_a_few_workloads() {
    let base = Base::make(shm(), More::Nothing).unwrap();
    let known = Arc::new(Known::default());
    let mut explorer = Explorer::new(shm(), base, Depth::default(), known.clone()).unwrap();
    // O_EXCL, an append, RENAME_EXCHANGE, XATTR_CREATE; unlink, rmdir; another client's.
    // Of the last a stolen block is given out again, and gets the same bytes.
    for (words, seed) in [
        ("R 163 32 134 155", 3),
        ("R 89 D 100", 3),
        ("W R 80 b89 D 32", 3),
        ("R 171 19 19", 112),
    ] {
        let workload = words.parse().unwrap();
        let found = explorer.explore(&workload, seed, &|| false).unwrap();
        assert!(found.is_ok(), "{:#?}", found.unwrap_err());
    }
    assert!(
        known
            .counts
            .states
            .load(std::sync::atomic::Ordering::Relaxed)
            > 200
    );
}

const REQUEST: u64 = 4_000;
const BYTES: usize = 2_400_000;

fn content(session: &Session, ino: u64) -> Vec<u8> {
    let mut into = vec![0; BYTES + 10];
    let n = session.read(&Caller::default(), ino, 0, &mut into).unwrap();
    into.truncate(n);
    into
}

/// Kills the daemon at some points of a long call and has it done again. Gives how many of the kills left
/// a part of it.
fn done_once(ask: impl Fn(u64, u64) -> Ask) -> usize {
    let base = Base::make(shm(), More::Nothing).unwrap();
    let mut place = Place::new(shm(), &base).unwrap();
    let daemon = once_free(|| Daemon::start(config(&place, false, 0), clock())).unwrap();
    let session = attach_mount(&daemon, &place, false, false).unwrap();
    let c = &Caller::default();
    let make = |name: &[u8]| session.create(c, 1, name, 0o644, OFlags::EXCL.bits());
    let (from, to) = (make(b"from").unwrap().ino, make(b"to").unwrap().ino);
    let data = Chance::new(5).bytes(BYTES);
    let flags = shale_libfs::WriteFlags::default();
    session.write(c, from, 0, &data, flags).unwrap();
    let begun = place.recording.event_count();
    let ask = ask(from, to);
    let answer = ask.send(&session, REQUEST);
    assert_eq!(answer, Ok(Noted::Bytes(BYTES as u64)));
    let events = place.recording.take_events();
    daemon.abandon();
    drop((session, daemon));
    place.touch_all(&events);
    place.reset(&base).unwrap();

    let mut cutter = Cutter::new(&events, &base.segment, Image::default(), Caches::Volatile);
    let (mut chance, mut partly) = (Chance::new(9), 0);
    let every = (events.len() - begun) as u64 / 12 + 1;
    while cutter.step() {
        if cutter.at() < begun || cutter.at() < events.len() && chance.below(every) > 0 {
            continue;
        }
        let (_, image) = images_of(&cutter, 0, &mut chance).remove(0);
        for (key, value) in image.units() {
            place.touch(key.medium(), key.offset());
            place.map(key.medium()).store(key.offset(), &value);
        }
        place.link_logs(1).unwrap();
        let daemon = once_free(|| Daemon::start(config(&place, false, 1), clock())).unwrap();
        let session = attach_mount(&daemon, &place, false, true).unwrap();
        let before = content(&session, to).len();
        partly += usize::from(before > 0 && before < BYTES);
        assert_eq!(ask.send(&session, REQUEST), answer, "at {}", cutter.at());
        let found = content(&session, to);
        assert!(found == data, "at {}: {before} bytes before", cutter.at());
        daemon.abandon();
        drop((session, daemon));
        place.reset(&base).unwrap();
    }
    partly
}

#[test]
fn a_long_write_is_done_once() {
    let data = Chance::new(5).bytes(BYTES);
    let partly = done_once(|_, to| Ask::Write(to, 0, data.clone(), true));
    assert_eq!(partly, 0, "a write is one transaction");
}

#[test]
fn a_long_copy_is_done_once() {
    let partly = done_once(|from, to| Ask::Copy((from, 0), (to, 0), BYTES as u64));
    assert!(
        partly > 1,
        "{partly} of the kills were between two transactions"
    );
}
