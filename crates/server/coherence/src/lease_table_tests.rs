//! Tests of the table of leases.

use super::lease_table::*;
use LeaseMode::{Exclusive, Shared};
use shale_proto::{LeaseMode, LeaseRequestMode};
use shale_sys::SystemClock;
use std::sync::Arc;
use std::time::Duration;

fn leases() -> LeaseTable {
    LeaseTable::new(Arc::new(SystemClock::new()), usize::MAX)
}

fn wish(client: u32, ino: u64, mode: LeaseMode) -> LeaseRequest {
    let request_mode = LeaseRequestMode::Revoke;
    LeaseRequest {
        client,
        ino,
        mode,
        request_mode,
    }
}

fn granted(fresh: bool, mode: LeaseMode) -> Decision {
    Decision::Granted(Grant {
        generation: 7,
        fresh,
        mode,
        others: false,
    })
}

fn shared_with_others(fresh: bool) -> Decision {
    Decision::Granted(Grant {
        generation: 7,
        fresh,
        mode: Shared,
        others: true,
    })
}

#[test]
fn readers_share_a_writer_does_not() {
    let leases = leases();
    let ask = |client, mode| leases.ask(&wish(client, 20, mode), || 7);
    assert_eq!(ask(1, Shared), granted(true, Shared));
    assert_eq!(ask(2, Shared), shared_with_others(true));
    assert_eq!(
        ask(1, Shared),
        shared_with_others(false),
        "held all the time"
    );
    let one = Holder {
        client: 1,
        mode: Shared,
    };
    assert_eq!(ask(2, Exclusive), Decision::TakeFrom(vec![one]));
    let taken = leases.taken(&wish(2, 20, Exclusive), &[one], || 7);
    let upgraded = taken.unwrap();
    assert!(!upgraded.fresh, "an upgrade loses nothing");
    assert_eq!(leases.mode(1, 20), None);
    assert_eq!(ask(2, Shared), granted(false, Exclusive), "it has more");
    leases.release_all(2);
    assert_eq!(
        ask(1, Exclusive),
        granted(true, Exclusive),
        "it had lost it"
    );
    assert!(leases.give_new(2, &[32, 33]).is_empty());
    assert_eq!(leases.mode(2, 33), Some(Exclusive));
    assert_eq!((leases.counts()[&1], leases.counts()[&2]), (1, 2));
    assert_eq!(leases.moves(9), (1, vec![]), "its entry has gone meanwhile");
}

#[test]
fn a_reader_leaves_the_writer_a_shared_lease() {
    let leases = leases();
    leases.ask(&wish(1, 5, Exclusive), || 7);
    let reader = wish(2, 5, Shared);
    let Decision::TakeFrom(from) = leases.ask(&reader, || 7) else {
        panic!("a writer is in the way");
    };
    leases.taken(&reader, &from, || 7);
    assert_eq!(leases.mode(1, 5), Some(Shared));
    let again = leases.ask(&wish(1, 5, Shared), || 7);
    assert_eq!(
        again,
        shared_with_others(false),
        "what it wrote it still knows"
    );
    assert_eq!(leases.moves(9), (1, vec![(5, 1)]));
    let gentle = LeaseRequest {
        request_mode: LeaseRequestMode::Try,
        ..wish(1, 5, Exclusive)
    };
    assert_eq!(leases.ask(&gentle, || 7), Decision::Refused);
    assert_eq!(leases.mode(2, 5), Some(Shared));
}

#[test]
fn who_holds_on_is_left_alone_for_a_moment() {
    let leases = leases();
    let hold = LeaseRequest {
        request_mode: LeaseRequestMode::RevokeAndHold,
        ..wish(1, 5, Exclusive)
    };
    leases.ask(&hold, || 7);
    let begun = std::time::Instant::now();
    let taking = leases.ask(&wish(2, 5, Shared), || 7);
    assert!(matches!(taking, Decision::TakeFrom(_)));
    assert!(begun.elapsed() >= Duration::from_nanos(HOLD_NS));
}

#[test]
fn a_kernel_from_before_is_taken_for_a_reader() {
    let leases = leases();
    leases.assume_reader(1);
    let kernel = Holder {
        client: 1,
        mode: Shared,
    };
    let writer = wish(2, 5, Exclusive);
    assert_eq!(leases.ask(&writer, || 7), Decision::TakeFrom(vec![kernel]));
    leases.taken(&writer, &[kernel], || 7);
    assert_eq!(leases.mode(1, 5), None);
    // What the writer did is not in memory of who was only taken for a reader before.
    leases.release(2, 5);
    for fresh in [true, false] {
        let asked = leases.ask(&wish(1, 5, Shared), || 7);
        assert_eq!(asked, granted(fresh, Shared));
    }
    leases.release_all(1);
    assert_eq!(
        leases.ask(&wish(2, 6, Exclusive), || 7),
        granted(true, Exclusive)
    );
}

#[test]
fn nobody_overtakes_while_a_lease_is_being_taken() {
    let leases = Arc::new(leases());
    leases.ask(&wish(1, 5, Shared), || 0);
    let writer = wish(2, 5, Exclusive);
    let Decision::TakeFrom(from) = leases.ask(&writer, || 0) else {
        panic!("a reader is in the way");
    };
    let other = leases.clone();
    let late = std::thread::spawn(move || other.ask(&wish(3, 5, Shared), || 0));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!late.is_finished());
    leases.taken(&writer, &from, || 0);
    let two = Holder {
        client: 2,
        mode: Exclusive,
    };
    assert_eq!(late.join().unwrap(), Decision::TakeFrom(vec![two]));
    leases.give_up(&writer, &[two]);
    let fresh = leases.ask(&wish(1, 5, Shared), || 0);
    assert!(matches!(
        fresh,
        Decision::Granted(Grant { fresh: true, .. })
    ));
}

/// Who asks for a number that it knows from an inode that is no more: it may be granted for a
/// new one at any time, which is its maker's then.
#[test]
fn a_number_that_is_granted_again_while_it_is_taken_is_its_makers() {
    let leases = leases();
    leases.ask(&wish(1, 5, Exclusive), || 7);
    let late = wish(2, 5, Exclusive);
    let from = match leases.ask(&late, || 7) {
        Decision::TakeFrom(from) => from,
        other => panic!("{other:?}"),
    };
    assert!(leases.give_new(1, &[5]).is_empty(), "its own");
    assert_eq!(leases.taken(&late, &from, || 7), None);
    assert_eq!(leases.mode(1, 5), Some(Exclusive));
    assert_eq!(leases.mode(2, 5), None);
    assert!(matches!(leases.ask(&late, || 7), Decision::TakeFrom(_)));
    assert!(leases.taken(&late, &from, || 7).is_some(), "of the new one");
    assert_eq!(leases.give_new(1, &[5]), [(2, 5)], "it is to be notified");

    assert!(matches!(leases.ask(&late, || 7), Decision::TakeFrom(_)));
    leases.give_new(1, &[5]);
    leases.give_up(&late, &from);
    assert_eq!(leases.mode(1, 5), Some(Exclusive));
}

fn yielding(client: u32, ino: u64, mode: LeaseMode) -> LeaseRequest {
    LeaseRequest {
        request_mode: LeaseRequestMode::RevokeOrDefer,
        ..wish(client, ino, mode)
    }
}

#[test]
fn what_ping_pongs_is_mediated_for_those_who_can_go_there() {
    let leases = leases();
    leases.ask(&wish(1, 5, Exclusive), || 7);
    let writer = yielding(2, 5, Exclusive);
    for _ in 0..16 {
        let taking = leases.ask(&writer, || 7);
        assert!(matches!(taking, Decision::TakeFrom(_)), "{taking:?}");
        leases.give_up(&writer, &[]);
    }
    let taking = leases.ask(&writer, || 7);
    assert!(
        matches!(taking, Decision::TakeFrom(_)),
        "from its own calls"
    );
    leases.give_up(&writer, &[]);
    (0..16).for_each(|_| leases.bounces(5));
    let left = |decision| match decision {
        Decision::Mediated(mediated) => mediated.ns,
        other => panic!("{other:?}"),
    };
    let first = left(leases.ask(&writer, || 7));
    let second = left(leases.ask(&yielding(3, 5, Shared), || 7));
    assert!(first <= 500_000_000 && second < first, "the same moment");
    // Its holder goes on, and so does a client that cannot go through the mount, and every other inode.
    assert_eq!(
        leases.ask(&yielding(1, 5, Exclusive), || 7),
        granted(false, Exclusive)
    );
    let taking = leases.ask(&wish(3, 5, Exclusive), || 7);
    assert!(matches!(taking, Decision::TakeFrom(_)));
    assert_eq!(
        leases.ask(&yielding(2, 6, Exclusive), || 7),
        granted(true, Exclusive)
    );
}

#[test]
fn who_has_a_lease_leaves_the_file_to_the_kernel_to_grow() {
    let leases = leases();
    let writer = yielding(2, 5, Exclusive);
    assert_eq!(leases.ask(&writer, || 7), granted(true, Exclusive));
    let grows = LeaseRequest {
        request_mode: LeaseRequestMode::GrowOrDefer,
        ..writer
    };
    let left = leases.left_to_grow(&grows).unwrap();
    assert!(left.alone && left.ns > 400_000_000);
    let other = leases.ask(&yielding(3, 5, Exclusive), || 7);
    let Decision::Mediated(other) = other else {
        panic!("{other:?}");
    };
    assert!(!other.alone && other.ns <= left.ns, "the same moment");
    assert_eq!(leases.mode(2, 5), Some(Exclusive), "until the kernel asks");
}

#[test]
fn what_the_kernel_is_doing_ends_before_clients_have_a_file_again() {
    let leases = leases();
    leases.ask(&wish(1, 5, Exclusive), || 7);
    let begun = std::time::Instant::now();
    let mediated = Duration::from_millis(30);
    leases.leave(5, mediated.as_nanos() as u64);
    let writer = yielding(2, 5, Exclusive);
    let mediated_for = |wish: LeaseRequest| match leases.ask(&wish, || 7) {
        Decision::Mediated(mediated) => mediated,
        other => panic!("the kernel has it: {other:?}"),
    };
    assert!(mediated_for(writer).alone);
    assert!(mediated_for(yielding(3, 5, Shared)).ns > 0);
    let left = mediated_for(writer);
    assert!(left.alone, "a reader is no writer");
    assert!(!mediated_for(yielding(3, 5, Exclusive)).alone);
    assert!(!mediated_for(writer).alone);
    leases.release_all(3);
    assert!(mediated_for(writer).alone, "the other one has gone");
    std::thread::sleep(Duration::from_nanos(left.ns));
    let taking = leases.ask(&writer, || 7);
    assert!(matches!(taking, Decision::TakeFrom(_)));
    assert!(begun.elapsed() >= mediated + Duration::from_millis(20));
}

#[test]
fn an_entry_goes_with_its_inode_unless_the_number_is_in_use_again() {
    let leases = leases();
    leases.ask(&wish(1, 5, Exclusive), || 7);
    leases.ask(&wish(1, 6, Exclusive), || 7);
    leases.forget([5, 6, 7].into_iter(), |ino| ino != 6);
    assert_eq!((leases.mode(1, 5), leases.known()), (None, 1));
    assert_eq!(leases.mode(1, 6), Some(Exclusive), "granted again");
    // One that is being taken stays until that has ended.
    let late = wish(2, 6, Exclusive);
    assert!(matches!(leases.ask(&late, || 7), Decision::TakeFrom(_)));
    leases.forget([6].into_iter(), |_| true);
    assert_eq!(leases.known(), 1);
    let again = leases.ask(&wish(1, 5, Exclusive), || 8);
    assert!(matches!(
        again,
        Decision::Granted(Grant {
            fresh: true,
            generation: 8,
            ..
        })
    ));
}

#[test]
fn those_asked_for_least_recently_go_first() {
    let leases = LeaseTable::new(Arc::new(SystemClock::new()), 32);
    (0..32).for_each(|ino| drop(leases.ask(&wish(1, ino, Exclusive), || 7)));
    assert!(leases.leaving().is_empty(), "not too many");
    assert!(leases.give_new(1, &[32, 33]).is_empty());
    // The first look finds that all were used, and goes round.
    leases.leaving();
    (0..4).for_each(|ino| drop(leases.ask(&wish(1, ino, Exclusive), || 7)));
    let leaving = leases.leaving();
    let inos: Vec<u64> = leaving.iter().map(|l| l.ino).collect();
    assert_eq!(inos, [4, 5, 6, 7], "two too many, and a sixteenth more");
    assert_eq!(leases.known(), 34, "they are what they were");
    assert_eq!(leases.mode(1, 5), Some(Exclusive));
    // A client that asks keeps it; a client that is granted the number has it.
    let kept = leases.ask(&wish(1, 5, Exclusive), || 7);
    assert_eq!(kept, granted(false, Exclusive));
    leases.give_new(2, &[6]);
    leases.left(leaving.iter());
    let modes = [4, 5, 7].map(|ino| leases.mode(1, ino));
    assert_eq!(modes, [None, Some(Exclusive), None]);
    assert_eq!(leases.mode(2, 6), Some(Exclusive));
    assert_eq!(leases.known(), 32);
}

#[test]
fn what_is_wanted_by_several_or_changed_by_a_log_that_is_left_stays() {
    let leases = LeaseTable::new(Arc::new(SystemClock::new()), 0);
    leases.give_new(shale_clients::clients::LEFT_LOGS, &[5]);
    leases.ask(&wish(1, 6, Exclusive), || 7);
    leases.leave(6, 1_000_000_000);
    leases.ask(&wish(1, 7, Exclusive), || 7);
    assert!(matches!(
        leases.ask(&wish(2, 7, Exclusive), || 7),
        Decision::TakeFrom(_)
    ));
    leases.leaving();
    assert!(leases.leaving().is_empty());
}

/// Entries that come and go leave no places behind.
#[test]
fn the_order_of_use_does_not_grow() {
    let leases = leases();
    for n in 0..200_000_u64 {
        let ino = 100 + n % 50;
        leases.give_new(1, &[ino]);
        leases.forget([ino].into_iter(), |_| true);
    }
    assert_eq!(leases.known(), 0);
    assert!(leases.places() <= 2048, "{}", leases.places());
}
