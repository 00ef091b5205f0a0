//! What digest, death, restart and misuse do.

use crate::served::*;
use shale_daemon::{Daemon, WriteBackTimes};
use shale_format::limits::{BLOCK_BYTES, LOG_BYTES_MIN};
use shale_format::log::{LEFT_FILE, file_name};
use shale_format::record::StealBody;
use shale_format::{BlockAddr, Durability, Ino};
use shale_oplog::encode;
use shale_proto::open_name::TokenOwner;
use shale_proto::shared_pages::{daemon_page, state};
use shale_proto::{LeaseMode, Reply, Request};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

#[test]
fn what_is_appended_is_in_the_volume_after_digest() {
    let place = Place::new(64);
    let daemon = place.start();
    let mut hand = Hand::in_process(&daemon);
    let data: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    hand.make_file("a", &data);
    let end = hand.writer.published().pos().0;
    assert_eq!(hand.digest(), Reply::Digested { pos: end });
    let view = daemon.volume().view();
    assert_eq!(content(&view, "a"), data);
    assert_eq!(hand.daemon_page.load_u64(daemon_page::DIGESTED), end);
    assert!(hand.daemon_page.load_u64(daemon_page::EPOCH) > 0);
    eventually("log space can be used again", || {
        hand.daemon_page.load_u64(daemon_page::RECLAIM) == end
    });
    assert_eq!(hand.ask(Request::Detach), Reply::Done);
    assert!(place.logs().is_empty(), "{:?}", place.logs());
    daemon.shutdown().unwrap();

    let daemon = place.start();
    assert_eq!(daemon.recovery().logs, 0, "a clean stop leaves no logs");
    assert_eq!(content(&daemon.volume().view(), "a"), data);
    daemon.shutdown().unwrap();
}

#[test]
fn what_a_buffered_client_logged_is_written_back_once_it_is_old() {
    let place = Place::new(64);
    let mut config = place.config();
    config.volume.buffer_dir = Some(place.nvm().with_file_name("buffer"));
    let age = Duration::from_millis(400);
    config.write_back = WriteBackTimes {
        every: Duration::from_millis(20),
        age,
        ..config.write_back
    };
    let daemon = start(config);
    let mut hand = Hand::with_policy(&daemon, Durability::Buffered);
    assert!(hand.attached.buffered);
    for name in ["first", "second"] {
        let begun = Instant::now();
        hand.make_file(name, b"nobody asks for a digest");
        let end = hand.writer.published().pos().0;
        eventually("it is written back", || {
            hand.daemon_page.load_u64(daemon_page::DIGESTED) == end
        });
        let took = begun.elapsed();
        assert!(took >= age, "after {took:?}: by something else");
        assert!(took < age * 10, "after {took:?}");
        let view = daemon.volume().view();
        assert_eq!(content(&view, name), b"nobody asks for a digest");
    }
    assert_eq!(hand.ask(Request::Detach), Reply::Done);
    daemon.shutdown().unwrap();
}

/// By what the volume file says of it, which may change: no program gets more than an eighth, and who finds nothing left is strict.
#[test]
fn the_logs_in_memory_of_all_clients_together_have_a_bound() {
    const LEAST: u64 = LOG_BYTES_MIN;
    let place = Place::new(64);
    let mut config = place.config();
    config.volume.buffer_dir = Some(place.nvm().with_file_name("buffer"));
    config.volume.client_log_bytes = Some(3 * LEAST);
    config.volume.buffer_bytes = Some(3 * LEAST);
    let mut file = config.volume.clone();
    let daemon = start(config);
    let policy_of = |hand: &Hand| (hand.attached.durability, hand.attached.buffered);
    let buffered = (Durability::Buffered as u8, true);
    let strict = (Durability::Strict as u8, false);
    let other = |policy| Hand::other_with_policy(&daemon, policy);
    let buffer = || daemon.status_values().buffer.unwrap();
    let (one, two) = (other(Durability::Buffered), other(Durability::Ordered));
    assert_eq!(policy_of(&one), buffered);
    assert_eq!(policy_of(&two), (Durability::Ordered as u8, true));
    assert_eq!(
        [one.attached.ring_bytes, two.attached.ring_bytes],
        [LEAST; 2]
    );
    let three = other(Durability::Buffered);
    assert_eq!(policy_of(&three), buffered);
    for name in ["four", "more"] {
        let mut four = other(Durability::Buffered);
        assert_eq!(policy_of(&four), strict, "it promises more");
        assert_eq!(four.attached.ring_bytes, 3 * LEAST, "its log is in NVM");
        four.make_file(name, b"durable at once");
        assert_eq!(four.ask(Request::Detach), Reply::Done);
    }
    let found = buffer();
    assert_eq!(
        (found.limit_bytes, found.bound_bytes),
        (3 * LEAST, 3 * LEAST)
    );
    assert_eq!((found.clients, found.unbuffered_clients), (3, 2));
    // What one leaves the next one has.
    assert_eq!(one.ask(Request::Detach), Reply::Done);
    let five = other(Durability::Buffered);
    assert_eq!(policy_of(&five), buffered);
    // The mount, which the kernel asks once for good what fsync is to do, keeps its policy.
    let mount = Hand::with_policy(&daemon, Durability::Buffered);
    assert_eq!(policy_of(&mount), buffered);
    file.buffer_bytes = Some(16 * LEAST);
    daemon.use_file(&file);
    let six = other(Durability::Buffered);
    assert_eq!(
        (policy_of(&six), six.attached.ring_bytes),
        (buffered, 2 * LEAST)
    );
    assert_eq!(buffer().bound_bytes, 16 * LEAST);
    for hand in [two, three, five, mount, six] {
        assert_eq!(hand.ask(Request::Detach), Reply::Done);
    }
    daemon.shutdown().unwrap();
}

#[test]
fn what_an_ordered_client_logged_is_written_back_at_once_and_of_no_other() {
    let place = Place::new(64);
    let mut config = place.config();
    config.volume.buffer_dir = Some(place.nvm().with_file_name("buffer"));
    config.write_back.ordered = Duration::from_millis(50);
    let daemon = start(config);
    let mut buffered = Hand::with_policy(&daemon, Durability::Buffered);
    let mut ordered = Hand::with_policy(&daemon, Durability::Ordered);
    assert!(ordered.attached.buffered, "its log is in memory");
    assert_eq!(ordered.attached.durability, Durability::Ordered as u8);
    for name in ["first", "second"] {
        let begun = Instant::now();
        ordered.make_file(name, b"is a second old at most");
        let end = ordered.writer.published().pos().0;
        eventually("it is written back", || {
            ordered.daemon_page.load_u64(daemon_page::DIGESTED) == end
        });
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(5), "after {took:?}");
    }
    buffered.make_file("buffered", b"may be half a minute old");
    std::thread::sleep(Duration::from_millis(500));
    let digested = buffered.daemon_page.load_u64(daemon_page::DIGESTED);
    assert!(digested < buffered.writer.published().pos().0);
    assert_eq!(ordered.ask(Request::Detach), Reply::Done);
    assert_eq!(buffered.ask(Request::Detach), Reply::Done);
    daemon.shutdown().unwrap();
}

#[test]
fn the_end_of_a_connection_digests_the_log() {
    let place = Place::new(64);
    let daemon = place.start();
    daemon.listen(&place.socket()).unwrap();
    let mut hand = Hand::over(&place.socket());
    assert!(hand.attached.may_steal, "client and daemon are one user");
    hand.make_file("from a process that dies", b"last words");
    let used = daemon.status_values().clients;
    assert_eq!((used.len(), used[0].kind), (1, "direct"));
    assert!(used[0].leases > 0);
    drop(hand);
    eventually("the client is gone", || {
        daemon.status_values().clients.is_empty()
    });
    let view = daemon.volume().view();
    assert_eq!(content(&view, "from a process that dies"), b"last words");
    let status = daemon.status_values();
    for row in &status.device {
        assert!(row.bytes_stored > 0, "a row that says nothing: {row:?}");
    }
    assert!(status.written_by_others.log_bytes > 0);
    eventually("its log is of no slot", || {
        !place.logs().contains(&file_name(used[0].slot))
    });
    assert_eq!(daemon.volume().space().taken, 0, "nothing stays granted");
    daemon.shutdown().unwrap();
    assert!(place.logs().is_empty());
}

#[test]
fn the_log_that_a_client_has_left_is_the_next_ones() {
    let place = Place::new(64);
    let daemon = place.start();
    daemon.listen(&place.socket()).unwrap();
    let inode = |name: &str| {
        let found = std::fs::metadata(place.nvm().join(name));
        found.map_or(0, |m| std::os::unix::fs::MetadataExt::ino(&m))
    };
    let mut logs = BTreeSet::new();
    for round in 0..20 {
        let mut hand = Hand::over(&place.socket());
        logs.insert(inode(&file_name(hand.attached.slot)));
        // What the one before has logged is none of this one's: its log is empty, and then has this file in it.
        let name = format!("file {round}");
        hand.make_file(&name, name.as_bytes());
        let leaves = daemon.status_values().clients[0].client;
        drop(hand);
        eventually("it has gone", || {
            daemon
                .status_values()
                .clients
                .iter()
                .all(|c| c.client != leaves)
        });
        eventually("its log is kept, or one is ready", || {
            daemon.status_values().pooled_log_bytes > 0
        });
        assert_eq!(content(&daemon.volume().view(), &name), name.as_bytes());
    }
    assert!(logs.len() < 10, "{} files for 20 logs", logs.len());
    // A daemon that is killed leaves it, and the next one removes it.
    eventually("one is there under its name", || {
        drop(Hand::over(&place.socket()));
        place.logs() == [LEFT_FILE]
    });
    let copy = std::fs::read(place.nvm().join(LEFT_FILE)).unwrap();
    daemon.shutdown().unwrap();
    assert!(place.logs().is_empty());
    std::fs::write(place.nvm().join(LEFT_FILE), copy).unwrap();
    let daemon = place.start();
    assert!(place.logs().is_empty());
    daemon.shutdown().unwrap();
}

#[test]
fn a_killed_daemon_loses_nothing() {
    let place = Place::new(64);
    let daemon = place.start();
    daemon.listen(&place.socket()).unwrap();
    let mut one = Hand::in_process(&daemon);
    let mut two = Hand::over(&place.socket());
    let big = vec![7u8; 3 << 20];
    one.make_file("one", &big);
    one.digest();
    let ino = one.make_file("more", b"x");
    one.append_for(unlink("one", Ino(ino.0 - 1)), 0, 42);
    two.make_file("two", b"second");
    daemon.abandon();
    drop((one, two));
    assert_eq!(place.logs().len(), 2);

    let daemon = place.start();
    let report = daemon.recovery().clone();
    assert_eq!((report.logs, report.problems.len()), (2, 0), "{report:?}");
    assert_eq!(
        report.requests, 0,
        "a fresh mount has no requests to answer"
    );
    let view = daemon.volume().view();
    assert_eq!(names(&view), ["more", "two"]);
    assert_eq!(content(&view, "two"), b"second");
    assert!(place.logs().is_empty());
    let space = daemon.volume().space();
    assert_eq!((space.taken, space.pending), (0, 0), "{space:?}");
    daemon.shutdown().unwrap();
}

#[test]
fn a_bad_record_ends_its_log_and_no_other() {
    let place = Place::new(64);
    let daemon = place.start();
    daemon.listen(&place.socket()).unwrap();
    let mut honest = Hand::in_process(&daemon);
    let mut hostile = Hand::over(&place.socket());
    hostile.make_file("good", b"before");
    // An inode number that nobody granted.
    hostile.append(encode::create(ROOT, Ino(5_000), create_body(), b"bad", b""));
    hostile.append(encode::write(Ino(5_000), 0, b"never"));
    assert!(matches!(hostile.digest(), Reply::Refused { errno: 5, .. }));
    assert_eq!(hostile.state(), state::EVICTED);
    assert!(matches!(
        hostile.ask(Request::Notify),
        Reply::Refused { .. }
    ));
    honest.make_file("honest", b"goes on");
    honest.digest();
    let view = daemon.volume().view();
    assert_eq!(names(&view), ["good", "honest"]);
    let status = daemon.status_values();
    assert_eq!(status.digest.refused, 1);
    assert!(
        status.detached_clients[0].why.contains("not granted"),
        "{:?}",
        status.detached_clients
    );
    assert_eq!(honest.ask(Request::Detach), Reply::Done);
    daemon.shutdown().unwrap();
}

#[test]
fn records_without_a_lease_or_a_grant_are_refused() {
    let place = Place::new(64);
    let daemon = place.start();
    daemon.listen(&place.socket()).unwrap();
    let mut owner = Hand::in_process(&daemon);
    let ino = owner.make_file("file", b"owner's");
    owner.digest();
    let thief = Hand::over(&place.socket());
    thief.append(encode::write(ino, 0, b"thief's"));
    let Reply::Refused { why, .. } = thief.digest() else {
        panic!("written without a lease");
    };
    assert!(why.contains("lease"), "{why}");
    drop(thief);
    let thief = Hand::over(&place.socket());
    thief.lease(ino);
    let body = StealBody {
        addr: BlockAddr::nvm(daemon.volume().superblock().data_block).raw(),
        blocks: 1,
        data_crc: 0,
        end: 4096,
    };
    thief.append(encode::steal(ino, 0, body));
    assert!(matches!(thief.digest(), Reply::Refused { .. }));
    assert_eq!(content(&daemon.volume().view(), "file"), b"owner's");
    assert_eq!(owner.ask(Request::Detach), Reply::Done);
    daemon.shutdown().unwrap();
}

#[test]
fn a_torn_log_is_recovered_to_its_last_whole_record() {
    let place = Place::new(64);
    let daemon = place.start();
    let mut hand = Hand::in_process(&daemon);
    hand.make_file("whole", b"kept");
    let torn_at = hand.writer.published().pos().0;
    hand.make_file("torn", b"not kept");
    let view = hand.writer.log().view().clone();
    view.store_u64(4096 + torn_at as usize + 64, 0x0bad);
    daemon.abandon();
    drop(hand);
    let daemon = place.start();
    assert_eq!(names(&daemon.volume().view()), ["whole"]);
    assert!(daemon.recovery().problems.is_empty());
    daemon.shutdown().unwrap();
}

#[test]
fn a_missing_log_is_reported_and_the_rest_goes_on() {
    let place = Place::new(64);
    let daemon = place.start();
    let mut one = Hand::in_process(&daemon);
    let mut two = Hand::in_process(&daemon);
    one.make_file("one", b"1");
    two.make_file("two", b"2");
    // Asking for the lease on the root has had the log of the first digested.
    let lost = shale_format::log::file_name(two.attached.slot);
    daemon.abandon();
    drop((one, two));
    std::fs::remove_file(place.nvm().join(&lost)).unwrap();
    let daemon = place.start();
    let problems = &daemon.recovery().problems;
    assert!(
        problems.len() == 1 && problems[0].contains(&lost),
        "{problems:?}"
    );
    assert_eq!(names(&daemon.volume().view()), ["one"]);
    daemon.shutdown().unwrap();
}

#[test]
fn freed_blocks_wait_for_a_grace_period() {
    let place = Place::new(64);
    let daemon = place.start();
    let mut hand = Hand::in_process(&daemon);
    let ino = hand.make_file("big", &vec![1; 4 << 20]);
    hand.digest();
    daemon.quiesce();
    let before = daemon.volume().space();
    hand.set_reader_slot(9, 77);
    hand.append(unlink("big", ino));
    let end = hand.writer.published().pos().0;
    assert_eq!(
        hand.digest(),
        Reply::Digested { pos: end },
        "digest waits for nobody"
    );
    std::thread::sleep(Duration::from_millis(50));
    let held = daemon.volume().space();
    assert!(held.pending >= 1024 && held.free <= before.free, "{held:?}");
    assert!(hand.daemon_page.load_u64(daemon_page::RECLAIM) < end);
    hand.set_reader_slot(9, 78);
    eventually("the blocks are free", || {
        daemon.volume().space().pending == 0
    });
    assert!(daemon.volume().space().free >= before.free + 1024);
    assert_eq!(hand.ask(Request::Detach), Reply::Done);
    daemon.shutdown().unwrap();
}

#[test]
fn a_client_that_never_leaves_a_call_is_cut_off() {
    let place = Place::new(64);
    let mut config = place.config();
    config.client_stall_timeout = Duration::from_millis(100);
    let daemon = start(config);
    daemon.listen(&place.socket()).unwrap();
    let mut stuck = Hand::over(&place.socket());
    let ino = stuck.make_file("file", b"counts");
    stuck.set_reader_slot(0, 1);
    let other = Hand::in_process(&daemon);
    let (_, fresh) = other.lease(ino);
    assert!(fresh);
    assert_eq!(stuck.state(), state::EVICTED);
    assert_eq!(content(&daemon.volume().view(), "file"), b"counts");
    stuck.append(encode::write(ino, 0, b"too late"));
    assert!(matches!(stuck.digest(), Reply::Refused { .. }));
    drop(stuck);
    eventually("it is gone", || daemon.status_values().clients.len() == 1);
    assert_eq!(content(&daemon.volume().view(), "file"), b"counts");
    assert_eq!(other.ask(Request::Detach), Reply::Done);
    daemon.shutdown().unwrap();
}

#[test]
fn a_token_is_good_while_its_client_is_served() {
    let place = Place::new(64);
    let mut config = place.config();
    config.client_stall_timeout = Duration::from_millis(100);
    let daemon = start(config);
    daemon.listen(&place.socket()).unwrap();
    let mut hand = Hand::over(&place.socket());
    let ino = hand.make_file("file", b"not digested yet").0;
    let token = hand.attached.open_token;
    let owner = TokenOwner {
        uid: rustix::process::geteuid().as_raw(),
        pid: std::process::id().cast_signed(),
    };
    assert_eq!(daemon.open_token_owner(token, ino), Some(owner));
    hand.digest();
    assert_eq!(daemon.open_token_owner(token, ino), Some(owner));
    for wrong in [0, !token, token ^ 1, token ^ 1 << 127] {
        assert_eq!(daemon.open_token_owner(wrong, ino), None);
    }
    let known = daemon.status_values().leases.known;
    for nothing in [0, 3, ino + 1_000_000, 1 << 40, u64::MAX] {
        assert_eq!(daemon.open_token_owner(token, nothing), None, "{nothing}");
    }
    assert_eq!(daemon.status_values().leases.known, known);

    let other = Hand::over(&place.socket());
    assert_ne!(other.attached.open_token, token);
    assert_eq!(other.ask(Request::Detach), Reply::Done);
    assert_eq!(
        daemon.open_token_owner(other.attached.open_token, ino),
        None
    );
    assert_eq!(daemon.open_token_owner(token, ino), Some(owner));
    hand.set_reader_slot(0, 1);
    let last = Hand::in_process(&daemon);
    last.lease(Ino(ino));
    assert_eq!(hand.state(), state::EVICTED);
    assert_eq!(daemon.open_token_owner(token, ino), None, "it was cut off");
    drop(hand);
    eventually("it is gone", || daemon.status_values().clients.len() == 1);
    assert_eq!(daemon.open_token_owner(token, ino), None);
    assert_eq!(last.ask(Request::Detach), Reply::Done);
    daemon.shutdown().unwrap();
}

#[test]
fn clients_that_never_leave_their_calls_are_waited_for_together() {
    const LIMIT: Duration = Duration::from_millis(1_000);
    let place = Place::new(64);
    let mut config = place.config();
    config.client_stall_timeout = LIMIT;
    let daemon = start(config);
    daemon.listen(&place.socket()).unwrap();
    let mut other = Hand::in_process(&daemon);
    let ino = other.make_file("file", &vec![1; 4 << 20]);
    other.digest();
    let readers = || {
        [(); 4].map(|()| {
            let reader = Hand::over(&place.socket());
            reader.lease_as(ino, LeaseMode::Shared);
            reader.set_reader_slot(0, 1);
            reader
        })
    };
    let cut_off = |stuck: &[Hand]| stuck.iter().all(|hand| hand.state() == state::EVICTED);
    let (stuck, begun) = (readers(), Instant::now());
    other.lease(ino);
    let took = begun.elapsed();
    assert!(took >= LIMIT && took < 2 * LIMIT, "the lease took {took:?}");
    assert!(cut_off(&stuck));
    drop(stuck);

    // The same where what they might see is given out again.
    other.lease(ROOT);
    let (stuck, begun) = (readers(), Instant::now());
    other.lease_as(ino, LeaseMode::Shared);
    other.make_file("another", b"");
    other.digest();
    eventually("all are cut off", || cut_off(&stuck));
    let took = begun.elapsed();
    assert!(took >= LIMIT && took < 2 * LIMIT, "the pass took {took:?}");
    drop(stuck);
    eventually("they are gone", || {
        daemon.status_values().clients.len() == 1
    });
    assert_eq!(other.ask(Request::Detach), Reply::Done);
    daemon.shutdown().unwrap();
}

#[test]
fn a_lease_moves_with_everything_written_under_it() {
    let place = Place::new(64);
    let daemon = place.start();
    daemon.listen(&place.socket()).unwrap();
    let mut one = Hand::over(&place.socket());
    let two = Hand::over(&place.socket());
    let ino = one.make_file("file", b"first");
    let word = daemon_page::bucket(ino.0);
    let before = one.daemon_page.load_u32(word);
    let (_, fresh) = one.lease(ino);
    assert!(!fresh, "a number's grantee holds what it makes of it");
    let (_, fresh) = two.lease(ino);
    assert!(fresh);
    assert_ne!(
        one.daemon_page.load_u32(word),
        before,
        "the loser can see it"
    );
    assert_eq!(content(&daemon.volume().view(), "file"), b"first");
    two.append(encode::write(ino, 0, b"other"));
    let (generation, fresh) = one.lease(ino);
    assert!(fresh && generation == one.daemon_page.load_u32(word));
    assert_eq!(content(&daemon.volume().view(), "file"), b"other");
    assert!(!one.lease(ino).1, "held all the time");
    drop((one, two));
    daemon.shutdown().unwrap();
}

#[test]
fn stolen_blocks_are_linked_in_place() {
    let place = Place::new(128);
    let daemon = place.start();
    let mut hand = Hand::in_process(&daemon);
    let ino = hand.make_file("stolen", b"");
    let Reply::Blocks { runs, segments } = hand.ask(Request::GrantBlocks { blocks: 512 }) else {
        panic!("no blocks");
    };
    assert!(!runs.is_empty() && !segments.is_empty());
    let addr = BlockAddr::from_raw(runs[0].addr);
    let data = vec![0x5a; 2 * BLOCK_BYTES];
    daemon.map().copy_nt(addr.byte() as usize, &data);
    let body = StealBody {
        addr: addr.raw(),
        blocks: 2,
        data_crc: shale_format::checksum::crc32c(&data),
        end: data.len() as u64,
    };
    hand.append(encode::steal(ino, 0, body));
    hand.digest();
    let view = daemon.volume().view();
    assert_eq!(content(&view, "stolen"), data);
    let inode = view.inode(ino).unwrap().unwrap();
    let mapped = view.map_block(&inode, shale_format::FileBlock(0)).unwrap();
    assert_eq!(mapped, shale_volume::Mapping::Data { addr, len: 2 });
    let again = hand.ask(Request::ReturnBlocks { runs: runs.clone() });
    assert!(
        matches!(again, Reply::Refused { .. }),
        "two of them are the file's now"
    );
    assert_eq!(hand.ask(Request::Detach), Reply::Done);
    assert_eq!(daemon.volume().space().taken, 0);
    daemon.shutdown().unwrap();
}

#[test]
fn one_daemon_serves_a_volume_and_only_its_own() {
    let place = Place::new(64);
    let daemon = place.start();
    let clock = std::sync::Arc::new(shale_sys::SystemClock::new());
    let second = Daemon::start(place.config(), clock.clone()).err().unwrap();
    assert!(second.to_string().contains("in use"), "{second}");
    daemon.shutdown().unwrap();
    let mut config = place.config();
    config.volume.uuid = "0".repeat(32);
    let other = Daemon::start(config, clock).err().unwrap();
    assert!(other.to_string().contains("expected 0000"), "{other}");
}

#[test]
fn a_log_that_cannot_be_digested_is_kept() {
    let place = Place::new(64);
    let daemon = place.start();
    let mut hand = Hand::in_process(&daemon);
    for n in 0..40 {
        hand.make_file(&format!("file {n}"), b"");
    }
    hand.digest();
    daemon.quiesce();
    let root = daemon.volume().view().inode(ROOT).unwrap().unwrap();
    let at = BlockAddr::from_raw(root.root[0].addr).byte() as usize + 80;
    let whole = daemon.map().load_u64(at);
    daemon.map().store_u64(at, !whole);
    hand.make_file("acknowledged", b"kept");
    let Reply::Refused { errno: 5, why } = hand.digest() else {
        panic!("digested through a damaged directory");
    };
    assert!(why.contains("kept"), "{why}");
    assert_eq!(hand.state(), state::RUNNING, "it is not the client's fault");
    assert!(matches!(hand.ask(Request::Detach), Reply::Refused { .. }));
    assert_eq!(place.logs().len(), 1);
    assert!(
        daemon.status_values().detached_clients[0]
            .why
            .contains("kept")
    );
    let other = Hand::in_process(&daemon);
    let root_lease = Request::Lease {
        ino: ROOT.0,
        mode: shale_proto::LeaseMode::Exclusive,
        request_mode: shale_proto::LeaseRequestMode::Revoke,
    };
    let refused = other.ask(root_lease);
    let why = "what the kept log changes must not change before it is digested";
    assert!(matches!(refused, Reply::Refused { errno: 5, .. }), "{why}");
    let report = daemon.shutdown().unwrap_err().to_string();
    assert!(report.contains("log-000"), "{report}");
    drop((hand, other));

    let daemon = place.start();
    assert_eq!(daemon.recovery().problems.len(), 1);
    assert_eq!(place.logs().len(), 1, "still kept");
    daemon.map().store_u64(at, whole);
    daemon.shutdown().unwrap();

    let daemon = place.start();
    assert_eq!(daemon.recovery().problems.len(), 0);
    assert_eq!(content(&daemon.volume().view(), "acknowledged"), b"kept");
    assert!(place.logs().is_empty());
    daemon.shutdown().unwrap();
}

#[test]
fn many_clients_come_and_go() {
    let place = Place::new(256);
    let daemon = place.start();
    daemon.listen(&place.socket()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let place = &place;
            scope.spawn(move || {
                for round in 0..4 {
                    let mut hand = Hand::over(&place.socket());
                    let name = format!("{thread}-{round}");
                    hand.make_file(&name, name.as_bytes());
                    if round % 2 == 0 {
                        hand.digest();
                    }
                }
            });
        }
    });
    eventually("all have gone", || daemon.status_values().client_count == 0);
    let view = daemon.volume().view();
    let names = names(&view);
    assert_eq!(
        names.len(),
        16,
        "{names:?} {:?}",
        daemon.status_values().detached_clients
    );
    for name in names {
        assert_eq!(content(&view, &name), name.as_bytes());
    }
    daemon.shutdown().unwrap();
}

#[test]
fn a_forged_commit_word_ends_the_client_only() {
    let place = Place::new(64);
    let daemon = place.start();
    daemon.listen(&place.socket()).unwrap();
    let mut hostile = Hand::over(&place.socket());
    hostile.make_file("good", b"before");
    let forged = u64::MAX - 63;
    let word = shale_proto::shared_pages::client_page::PUBLISHED;
    hostile.page.store_u64(word, forged);
    let upto = forged;
    let Reply::Refused { why, .. } = hostile.ask(Request::Digest { upto }) else {
        panic!("digested what is not there");
    };
    assert!(why.contains("no valid record"), "{why}");
    assert_eq!(hostile.state(), state::EVICTED);
    assert_eq!(names(&daemon.volume().view()), ["good"]);
    let mut other = Hand::over(&place.socket());
    other.make_file("other", b"honest");
    drop(hostile);
    drop(other);
    eventually("both are gone", || daemon.status_values().client_count == 0);
    assert_eq!(names(&daemon.volume().view()), ["good", "other"]);
    daemon.shutdown().unwrap();
}

#[test]
fn a_scrub_tells_damage_by_path_while_the_volume_is_used() {
    let place = Place::new(64);
    let daemon = place.start();
    let mut hand = Hand::in_process(&daemon);
    let ino = hand.make_file("damaged", b"x");
    for n in 0..40 {
        hand.make_file(&format!("file {n}"), b"y");
    }
    hand.digest();
    let go = |_| std::ops::ControlFlow::Continue(());
    let report = daemon.scrub(&mut { go });
    assert!(report.complete && report.errors == 0, "{report:?}");
    assert!(report.inodes >= 43 && report.bitmap_blocks == 1 && report.nodes >= 1);
    let stop = daemon.scrub(&mut |_| std::ops::ControlFlow::Break(()));
    assert!(!stop.complete);
    let view = daemon.volume().view();
    let file = view.root().unwrap().inode_file;
    let (fb, byte) = shale_format::inode::slot_of(ino);
    let shale_volume::Mapping::Data { addr, .. } = view.map_block(&file, fb).unwrap() else {
        panic!("no slot");
    };
    let at = addr.byte() as usize + byte + 40;
    let [old] = daemon.map().load_array::<1>(at);
    daemon.map().store(at, &[old ^ 4]);
    let report = daemon.scrub(&mut { go });
    assert_eq!(report.errors, 1, "{report:?}");
    assert_eq!(
        report.damage[0].object,
        format!("/damaged (inode {})", ino.0)
    );
    assert!(report.damage[0].what.contains("inode"), "{report:?}");
    daemon.map().store(at, &[old]);
    assert_eq!(hand.ask(Request::Detach), Reply::Done);
    daemon.shutdown().unwrap();
}
