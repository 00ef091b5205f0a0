//! What `statfs` says is free can be had: by `fallocate`, by writes of any size, by a caller that asks.

use crate::place::{ME, Place};
use shale_format::Ino;
use shale_libfs::{Errno, Session, WriteFlags};

const BLOCK: u64 = 4096;
/// Tells nobody that it is free, for a new file and its name.
const HIDDEN: u64 = 8;

fn file(session: &Session, name: &str) -> u64 {
    let made = session.create(&ME, Ino::ROOT.0, name.as_bytes(), 0o644, 0);
    made.unwrap_or_else(|e| panic!("{name}: {e}")).ino
}

fn free(session: &Session) -> u64 {
    session.statfs().unwrap().blocks_free
}

/// Writes calls of `bytes` bytes until nothing goes any more; gives the size that came to.
fn fill(session: &Session, ino: u64, bytes: usize) -> u64 {
    let data = vec![7; bytes];
    let mut size = 0;
    loop {
        match session.write(&ME, ino, size, &data, WriteFlags::default()) {
            Ok(n) => size += n as u64,
            Err(e) => {
                assert_eq!(e, Errno::NOSPC);
                return size;
            }
        }
    }
}

fn remove(session: &Session, name: &str) {
    session.unlink(&ME, Ino::ROOT.0, name.as_bytes()).unwrap();
    session.digest().unwrap();
}

#[test]
fn what_is_free_can_be_allocated() {
    let mut place = Place::new(64);
    let session = place.attach(false);
    let all = free(&session);
    for less in [0, 1, 64, 256, 2048] {
        let ino = file(&session, "f");
        let before = session.space().unwrap();
        let done = session.fallocate(&ME, ino, 0, 0, (all - less) * BLOCK);
        assert_eq!(done, Ok(()), "all but {less} blocks: {before:?}");
        assert_eq!(session.getattr(&ME, ino).unwrap().blocks, (all - less) * 8);
        assert!(free(&session) <= less);
        // They hold what is written to them.
        let data = [9; 100_000];
        session
            .write(&ME, ino, 12_345, &data, WriteFlags::default())
            .unwrap();
        remove(&session, "f");
        assert_eq!(free(&session), all);
    }
    // More than there is leaves nothing behind.
    let ino = file(&session, "f");
    let more = (all + HIDDEN + 1) * BLOCK;
    assert_eq!(session.fallocate(&ME, ino, 0, 0, more), Err(Errno::NOSPC));
    let attr = session.getattr(&ME, ino).unwrap();
    assert_eq!((attr.size, attr.blocks), (0, 0));
    drop(session);
    place.stop();
    place.check();
}

/// Blocks that were written for a file which is gone before the digest comes to it.
#[test]
fn what_no_file_needed_is_free_at_once() {
    let mut place = Place::new(64);
    let session = place.attach(false);
    let all = free(&session);
    for n in 0..200 {
        let ino = file(&session, "f");
        session
            .write(&ME, ino, 0, &[9; 1 << 20], WriteFlags::default())
            .unwrap();
        remove(&session, "f");
        assert_eq!(free(&session), all, "time {n}");
    }
    drop(session);
    place.stop();
    place.check();
}

#[test]
fn what_is_free_can_be_written() {
    let mut place = Place::new(64);
    let session = place.attach(false);
    let all = free(&session);
    for bytes in [4096, 100_000, 1 << 20, 5 << 20] {
        let ino = file(&session, "f");
        let size = fill(&session, ino, bytes);
        // But for what the record of the last call reserves besides its blocks.
        let left = all.saturating_sub(size / BLOCK);
        assert!(left <= 8, "calls of {bytes}: {left} of {all} blocks left");
        remove(&session, "f");
        assert_eq!(free(&session), all);
    }
    drop(session);
    place.stop();
    place.check();
}

/// What clients were given ahead of use and do not use is little beside what there is.
#[test]
fn clients_that_do_nothing_keep_little_from_others() {
    let place = Place::new(96);
    let idle: Vec<_> = (0..4).map(|_| place.attach(false)).collect();
    let begun = free(&idle[0]);
    for (n, session) in idle.iter().enumerate() {
        let ino = file(session, &format!("idle{n}"));
        let data = vec![7; 100_000];
        session
            .write(&ME, ino, 0, &data, WriteFlags::default())
            .unwrap();
        session.digest().unwrap();
    }
    let session = place.attach(false);
    let all = free(&session);
    let ino = file(&session, "f");
    let size = fill(&session, ino, 100_000);
    let (had, left) = (size / BLOCK, free(&session));
    assert!(
        had > begun / 100 * 90,
        "{had} of {begun} blocks had, {all} reported, then {left}"
    );
}
