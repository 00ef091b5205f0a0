//! What the daemon keeps of leases: nothing of inodes that are no more, and not everything of those that
//! nobody uses.

use crate::served::*;
use shale_daemon::Daemon;
use shale_format::Ino;
use shale_oplog::encode;
use shale_proto::shared_pages::daemon_page::bucket;
use shale_proto::{LeaseMode, LeaseRequestMode, Reply, Request};
#[cfg(not(feature = "mutants"))]
use std::sync::Arc;

/// Leases on the root directory, and numbers that are granted and not used.
const FEW: usize = 40;

fn known(daemon: &Daemon) -> usize {
    daemon.status_values().leases.known
}

/// Does something to an inode as a LibFS does: inside first, then look whether the lease still stands.
fn under_lease(hand: &Hand, ino: Ino, append: impl Fn()) {
    const READER_SLOT: usize = 5;
    let stands = |generation| hand.daemon_page.load_u32(bucket(ino.0)) == generation;
    for turn in 0.. {
        let (generation, _) = hand.lease(ino);
        hand.set_reader_slot(READER_SLOT, 2 * turn + 1);
        let held = stands(generation);
        if held {
            append();
        }
        hand.set_reader_slot(READER_SLOT, 2 * turn + 2);
        if held {
            return;
        }
    }
}

/// Makes `files` files, of which `live` are there at a time, `each` between two digests, and removes them.
/// Gives the largest number.
fn come_and_go(hand: &mut Hand, files: usize, (live, each): (usize, usize)) -> u64 {
    let mut there: Vec<(String, Ino)> = Vec::new();
    let mut largest = 0;
    for n in 0..files + live {
        if n < files {
            let name = format!("file {n}");
            let ino = hand.make_file(&name, b"short-lived");
            largest = largest.max(ino.0);
            there.push((name, ino));
        }
        if n >= live {
            let (name, ino) = there.remove(0);
            hand.append(unlink(&name, ino));
        }
        if n % each == 0 {
            hand.digest();
        }
    }
    hand.digest();
    largest
}

#[cfg(not(feature = "mutants"))]
fn nothing_is_left(daemon: &Arc<Daemon>, hand: &mut Hand) {
    // Those that are gone before a digest sees them, those that it sees, and both.
    for shape in [(1, 50), (20, 7), (30, 40)] {
        let largest = come_and_go(hand, 2000, shape);
        assert!(names(&daemon.volume().view()).is_empty());
        let left = known(daemon);
        assert!(left <= FEW, "{left} leases for no file, {shape:?}");
        assert!(
            largest < 1000,
            "numbers are used again: {largest}, {shape:?}"
        );
    }
}

/// Finds that leases, accounts and times of use stay when a file goes.
#[cfg(feature = "mutants")]
#[test]
fn what_is_kept_of_files_that_are_no_more_is_found() {
    shale_sys::mutants::switch_on(Some("freed-remembered"));
    let place = Place::new(64);
    let daemon = place.start();
    let mut mount = Hand::in_process(&daemon);
    come_and_go(&mut mount, 2000, (1, 50));
    let left = known(&daemon);
    shale_sys::mutants::switch_on(None);
    assert!(left > FEW, "nothing shows that {left} leases stay");
    daemon.shutdown().unwrap();
}

#[cfg(not(feature = "mutants"))]
#[test]
fn nothing_is_kept_of_files_that_are_no_more() {
    let place = Place::new(64);
    let daemon = place.start();
    let mut mount = Hand::in_process(&daemon);
    nothing_is_left(&daemon, &mut mount);
    daemon.listen(&place.socket()).unwrap();
    let mut direct = Hand::over(&place.socket());
    nothing_is_left(&daemon, &mut direct);
    assert_eq!(daemon.status_values().digest.refused, 0);
    daemon.shutdown().unwrap();
}

/// A number that was one client's and is another's now: a caller that had it before cannot write it.
#[test]
fn a_number_used_again_is_its_new_makers_alone() {
    let place = Place::new(64);
    let daemon = place.start();
    daemon.listen(&place.socket()).unwrap();
    let mut one = Hand::over(&place.socket());
    let first: Vec<Ino> = (0..16)
        .map(|n| one.make_file(&format!("{n}"), b"one"))
        .collect();
    one.digest();
    for (n, ino) in first.iter().enumerate() {
        one.append(unlink(&format!("{n}"), *ino));
    }
    one.digest();
    let mut two = Hand::over(&place.socket());
    let again = (0..200).map(|n| two.make_file(&format!("two {n}"), b"two"));
    let again: Vec<Ino> = again.filter(|ino| first.contains(ino)).collect();
    assert!(!again.is_empty(), "the numbers are free again");
    // It has not asked for what it once held.
    two.digest();
    one.append(encode::write(again[0], 0, b"stale"));
    one.digest();
    let clients = daemon.status_values().clients;
    let states: Vec<&str> = clients.iter().map(|c| c.state.as_str()).collect();
    assert!(states[0].contains("no lease"), "{states:?}");
    assert_eq!(states[1], "served");
    assert_eq!(content(&daemon.volume().view(), "two 0"), b"two");
    daemon.shutdown().unwrap();
}

/// Leases that nobody uses go when there are many, least recently used first; who held one finds out.
#[test]
fn leases_that_nobody_uses_go_when_there_are_many() {
    const MOST: usize = 100;
    let place = Place::new(64);
    let daemon = start(shale_daemon::DaemonConfig {
        leases_max: MOST,
        ..place.config()
    });
    daemon.listen(&place.socket()).unwrap();
    let mut hand = Hand::over(&place.socket());
    let first = hand.make_file("first", b"");
    let held = hand.lease(first);
    let mut make = |n| {
        let ino = hand.make_file(&format!("{n}"), b"");
        under_lease(&hand, ino, || {
            hand.append(encode::write(ino, 0, b"live"));
        });
        ino
    };
    let inos: Vec<Ino> = (0..1000).map(&mut make).collect();
    // Their records are not digested yet: nothing may go before they are.
    eventually("the surplus has gone", || known(&daemon) <= MOST + FEW);
    let status = daemon.status_values();
    assert_eq!(status.digest.refused, 0, "{:?}", status.digest.last_error);
    let word = hand.daemon_page.load_u32(bucket(first.0));
    assert_ne!(word, held.0, "its holder is notified");
    assert!(hand.lease(first).1, "what it knows may be old");
    assert!(!hand.lease(first).1);
    // What was made last is held still.
    let last = *inos.last().unwrap();
    let gentle = Request::Lease {
        ino: last.0,
        mode: LeaseMode::Shared,
        request_mode: LeaseRequestMode::Try,
    };
    match hand.ask(gentle) {
        Reply::Leased { fresh, .. } => assert!(!fresh, "it was used last"),
        other => panic!("{other:?}"),
    }
    // Another client gets each of them, with what was written, and the first one's stale words do not count.
    let mut two = Hand::over(&place.socket());
    for (n, &ino) in inos.iter().enumerate().step_by(100) {
        assert!(two.lease(ino).1);
        assert_eq!(content(&daemon.volume().view(), &format!("{n}")), b"live");
    }
    two.make_file("of two", b"2");
    two.digest();
    hand.append(encode::write(inos[100], 0, b"stale"));
    hand.digest();
    let clients = daemon.status_values().clients;
    assert!(
        clients[0].state.contains("no lease"),
        "{}",
        clients[0].state
    );
    assert_eq!(content(&daemon.volume().view(), "100"), b"live");
    daemon.shutdown().unwrap();
}

/// What has been granted to be made, and is not, nobody asks for: its lease stays.
#[test]
fn granted_numbers_keep_their_leases() {
    let place = Place::new(64);
    let daemon = start(shale_daemon::DaemonConfig {
        leases_max: 0,
        ..place.config()
    });
    daemon.listen(&place.socket()).unwrap();
    let mut hand = Hand::over(&place.socket());
    let first = hand.make_file("first", b"");
    let second = hand.number();
    eventually("the first one's lease has gone", || {
        known(&daemon) <= 16 && content_or_none(&daemon, "first")
    });
    std::thread::sleep(std::time::Duration::from_millis(600));
    under_lease(&hand, ROOT, || {
        hand.append(encode::create(ROOT, second, create_body(), b"second", b""));
    });
    hand.digest();
    let status = daemon.status_values();
    assert_eq!(status.digest.refused, 0, "{:?}", status.digest.last_error);
    assert_eq!(names(&daemon.volume().view()), ["first", "second"]);
    assert_ne!(first, second);
    daemon.shutdown().unwrap();
}

fn content_or_none(daemon: &Daemon, name: &str) -> bool {
    names(&daemon.volume().view()).iter().any(|n| n == name)
}
