//! Records that make no sense, or that the client may not make: what is before them
//! counts, they and what is behind do not.

use super::world::{DIR, FILE, Rename, World, create};
use crate::Mode;
use shale_format::limits::FILE_BYTES_MAX;
use shale_format::record::{StealBody, flag};
use shale_format::{BlockAddr, Ino};
use shale_oplog::{Part, encode};

/// A tree: d/ (100) with f (101), e/ (102) below d, g (103) in the root.
fn world() -> World {
    let mut w = World::new();
    w.create(1, 100, "d", DIR);
    w.create(100, 101, "f", FILE);
    w.create(100, 102, "e", DIR);
    w.create(1, 103, "g", FILE);
    w.write(103, 0, &[1; 10_000]);
    w.digest();
    w
}

fn refused(w: &mut World, part: Part<'_>, why: &str) {
    w.write(103, 0, b"before");
    let bad = w.push(part);
    w.write(103, 0, b"behind");
    let mut done = w.chunk(Mode::Live).unwrap();
    if done.refused.is_none() {
        // The record begins a chunk.
        w.at = done.upto;
        done = w.chunk(Mode::Live).unwrap();
    }
    w.rules.used(&done);
    let refused = done.refused.expect(why);
    assert_eq!((done.upto, refused.pos), (bad, bad), "{why}");
    assert!(refused.why.contains(why), "'{}', not '{why}'", refused.why);
    assert!(!done.at_end);
    assert!(w.content(103).starts_with(b"before"));
    assert_eq!(w.volume().log_slots()[3].digested, bad.0);
    // Asked again, it says the same and changes nothing.
    w.at = done.upto;
    let again = w.chunk(Mode::Live).unwrap();
    assert_eq!((again.upto, again.txid), (bad, None));
    assert_eq!(again.refused.map(|r| r.pos), Some(bad));
}

#[test]
fn the_tree_is_kept_whole() {
    let rename = Rename::dir;
    let cases: Vec<(Part<'static>, &str)> = vec![
        (create(1, 103, "x", FILE), "in use"),
        (create(1, 200, "g", FILE), "exists already"),
        (create(103, 200, "x", FILE), "not a directory"),
        (create(999, 200, "x", FILE), "does not exist"),
        (create(1, 200, "x", 0o170_644), "no inode has this mode"),
        (create(1, 200, "x", 0o120_777), "link target"),
        (
            encode::link(Ino(1), Ino(100), 4, 0, b"x"),
            "hard link to a directory",
        ),
        (
            encode::link(Ino(1), Ino(103), 10, 0, b"x"),
            "type is another",
        ),
        (encode::link(Ino(1), Ino(104), 8, 0, b"x"), "does not exist"),
        (
            encode::unlink(Ino(1), Ino(101), 8, 0, b"g"),
            "another inode",
        ),
        (
            encode::unlink(Ino(1), Ino(103), 8, 0, b"gg"),
            "no such entry",
        ),
        (
            encode::unlink(Ino(1), Ino(103), 8, 0, b"g").flags(flag::DIRECTORY),
            "type is another",
        ),
        (
            encode::unlink(Ino(1), Ino(100), 4, 0, b"d").flags(flag::DIRECTORY),
            "not empty",
        ),
        (rename((1, "d"), 100, (102, "x")).part(), "below itself"),
        (rename((1, "d"), 100, (100, "x")).part(), "below itself"),
        (
            rename((1, "d"), 100, (1, "x")).over(103, 8).part(),
            "no such entry",
        ),
        (rename((1, "d"), 100, (1, "g")).part(), "exists already"),
        (
            rename((1, "d"), 100, (1, "g")).over(103, 8).part(),
            "cannot replace",
        ),
        (
            Rename::file((1, "g"), 103, (1, "d")).over(100, 4).part(),
            "cannot replace",
        ),
        (
            Rename::file((1, "g"), 103, (1, "g")).over(103, 8).part(),
            "one inode",
        ),
    ];
    for (part, why) in cases {
        refused(&mut world(), part, why);
    }
}

#[test]
fn content_is_only_what_a_file_can_have() {
    let cases: Vec<(Part<'static>, &str)> = vec![
        (encode::free(Ino(103)), "still has a name"),
        (encode::write(Ino(100), 0, b"x"), "not a regular file"),
        (encode::write(Ino(2), 0, b"x"), "ino"),
        (encode::truncate(Ino(103), FILE_BYTES_MAX + 1), "offset"),
        (
            encode::remove_xattr(Ino(103), b"user.none"),
            "no such attribute",
        ),
        (encode::fallocate(Ino(103), 0, 4096, 2), "does not exist"),
        (encode::fallocate(Ino(103), 1, 4096, 8), "parts of blocks"),
        (encode::fallocate(Ino(103), 4096, 8192, 8), "up to the end"),
        (
            encode::fallocate(Ino(103), 12_288, 4096, 32),
            "behind the end",
        ),
    ];
    for (part, why) in cases {
        refused(&mut world(), part, why);
    }
}

#[test]
fn two_moves_that_would_make_a_circle() {
    let mut w = world();
    w.create(1, 110, "h", DIR);
    w.digest();
    w.rename(Rename::dir((1, "h"), 110, (102, "h")));
    let at = w.push(Rename::dir((1, "d"), 100, (110, "d")).part());
    let done = w.chunk(Mode::Live).unwrap();
    assert_eq!(done.refused.unwrap().pos, at);
    assert_eq!(w.inode(110).unwrap().parent, 102);
}

#[test]
fn only_what_was_granted_and_only_once() {
    let steal = |addr: BlockAddr, blocks| {
        let body = StealBody {
            addr: addr.raw(),
            blocks,
            data_crc: 0,
            end: u64::from(blocks) * 4096,
        };
        encode::steal(Ino(103), 0, body).flags(flag::FENCED)
    };
    refused(&mut world(), steal(BlockAddr::nvm(1), 1), "not granted");
    refused(
        &mut world(),
        steal(BlockAddr::nvm(u64::MAX >> 9), 1),
        "no such blocks",
    );
    let mut w = world();
    let addr = w.grant(8);
    w.push(steal(addr, 4));
    refused(&mut w, steal(addr.plus(3), 2), "used twice");
    let mut w = world();
    w.rules.ungranted = Some(Ino(200));
    refused(&mut w, create(1, 200, "x", FILE), "not granted");
    let mut w = world();
    w.rules.forbidden = Some(Ino(101));
    refused(&mut w, encode::truncate(Ino(101), 0), "forbidden");
    let gone = encode::unlink(Ino(100), Ino(101), 8, 0, b"f");
    let mut w = world();
    w.rules.forbidden = Some(Ino(101));
    refused(&mut w, gone, "forbidden");
}

#[test]
fn a_transaction_counts_as_a_whole_or_not_at_all() {
    let w = world();
    let first = encode::write(Ino(103), 0, b"half");
    let at = w.chain(&mut [first, encode::write(Ino(999), 0, b"x")]);
    let done = w.chunk(Mode::Live).unwrap();
    let refused = done.refused.unwrap();
    assert_eq!((done.upto, done.txid), (at, None));
    assert!(refused.pos > at);
    assert!(w.content(103).starts_with(&[1; 10]));
}

#[test]
fn a_live_log_may_not_end_early() {
    let w = world();
    let at = w.write(103, 0, b"fine");
    w.write(103, 0, b"damaged");
    let second = w.writer.published().pos().0 - 128;
    w.writer
        .log()
        .view()
        .store(4096 + second as usize + 70, b"!");
    let done = w.chunk(Mode::Live).unwrap();
    assert_eq!(done.upto.0, second);
    assert_eq!(done.refused.unwrap().kind, None);
    assert!(done.upto > at && w.content(103).starts_with(b"fine"));
    // After a crash that is simply where the log ends.
    let w = world();
    w.write(103, 0, b"fine");
    w.write(103, 0, b"damaged");
    let second = w.writer.published().pos().0 - 128;
    w.writer
        .log()
        .view()
        .store(4096 + second as usize + 70, b"!");
    let done = w.chunk(Mode::Recovery).unwrap();
    assert_eq!(
        (done.refused, done.at_end, done.upto.0),
        (None, true, second)
    );
}
