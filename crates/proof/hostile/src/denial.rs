//! Taking so much of something that nothing is left for others.

use super::attacker::*;
use super::{Case, Scene, either, harmless, refused};
use shale_format::Ino;
use shale_proto::message::PROTO_VERSION;
use shale_proto::shared_pages::{client_page, state};
use shale_proto::{LeaseMode, Reply, Request};

const GROWTH: &str = "were reserved";

/// What nobody reserved is not to be had.
fn without_space(scene: &Scene<'_>, raws: fn(u64) -> Vec<Raw>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"mine");
    let free = scene.stage.daemon.volume().space();
    for raw in raws(ino) {
        a.put(raw);
    }
    a.commit();
    let reply = a.digest();
    let now = scene.stage.daemon.volume().space();
    if scene.alone {
        assert!(free.used + 512 > now.used, "{free:?} {now:?}");
    }
    (a, reply)
}

/// More credit in records than the client was given, or has left.
fn beyond_credit(scene: &Scene<'_>, returned: u64) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"mine");
    a.ask(Request::ReturnCredit { bytes: returned });
    a.append(write(ino, 0, &[1; 100_000]).reserve(8 << 20));
    let reply = a.digest();
    (a, reply)
}

fn all_credit(scene: &Scene<'_>) -> (Attacker, Reply) {
    let a = scene.attacker();
    let reply = a.ask(Request::Reserve {
        wanted: u64::MAX,
        least: u64::MAX,
    });
    assert_eq!(reply, Reply::NoSpace);
    for _ in 0..200 {
        a.ask(Request::Reserve {
            wanted: u64::MAX,
            least: 0,
        });
    }
    a.ask(Request::ReturnCredit { bytes: u64::MAX });
    let reply = a.digest();
    (a, reply)
}

/// A ring full of the smallest records.
fn log_flood(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"mine");
    while a.head + 64 <= a.attached.ring_bytes / 4 {
        a.put(truncate(ino, a.head % 4).reserve(0));
    }
    a.commit();
    let reply = a.digest();
    (a, reply)
}

/// As many extents of one byte as there is space for: the volume fills, and is freed again.
fn extents_until_full(scene: &Scene<'_>) -> (Attacker, Reply) {
    const AT_ONCE: u64 = 500;
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"");
    let mut extents = 0;
    // In pairs a part of it is enough, and leaves space for the others.
    let most = if scene.alone { 1_000_000 } else { 1_000 };
    while extents < most {
        let bytes = AT_ONCE * 8192;
        let (wanted, least) = (bytes, bytes);
        if !matches!(
            a.ask(Request::Reserve { wanted, least }),
            Reply::Credit { .. }
        ) {
            break;
        }
        for n in extents..extents + AT_ONCE {
            a.put(write(ino, n * 8192, b"x").reserve(8192));
        }
        a.commit();
        if !matches!(a.digest(), Reply::Digested { .. }) {
            break;
        }
        extents += AT_ONCE;
    }
    assert!(!scene.alone || extents > 5_000, "{extents}");
    a.append(truncate(ino, 0).reserve(0));
    let reply = a.digest();
    (a, reply)
}

/// Every byte an extent of its own.
fn tiny_extents(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"");
    a.ask(Request::Reserve {
        wanted: 8 << 20,
        least: 8 << 20,
    });
    for n in 0..1000 {
        a.put(write(ino, n * 8192, b"x").reserve(8192));
    }
    a.commit();
    let reply = a.digest();
    let ino = scene.stage.inode(ino).unwrap();
    assert_eq!(ino.blocks, 1000);
    // Its blocks are needed by the next case.
    a.append(truncate(ino.ino, 0));
    a.digest();
    (a, reply)
}

fn leases_on_nothing(scene: &Scene<'_>) -> (Attacker, Reply) {
    let a = scene.attacker();
    for n in 0..3000u64 {
        let reply = a.lease(Ino((1 << 40) + n), LeaseMode::Exclusive);
        assert!(
            matches!(
                reply,
                Reply::Refused {
                    errno: libc::ENOENT,
                    ..
                }
            ),
            "{reply:?}"
        );
    }
    for ino in [0, 2, 15, u64::MAX] {
        let reply = a.lease(Ino(ino), LeaseMode::Exclusive);
        assert!(matches!(reply, Reply::Refused { .. }), "{ino}: {reply:?}");
    }
    let clients = scene.stage.daemon.status_values().clients;
    let mine = clients.iter().find(|c| c.client == a.attached.client);
    assert_eq!(mine.unwrap().leases, 0);
    let reply = a.digest();
    (a, reply)
}

fn numbers_without_end(scene: &Scene<'_>) -> (Attacker, Reply) {
    let a = scene.attacker();
    let mut held = 0;
    for _ in 0..300 {
        let ask = Request::GrantInodes {
            parent: u64::MAX,
            runs: u32::MAX,
        };
        let Reply::Inodes { inos } = a.ask(ask) else {
            panic!("no answer");
        };
        held += inos.len();
    }
    assert!(held <= (128 << 10) + 1024, "{held}");
    let reply = a.digest();
    (a, reply)
}

/// Stopped in a call with a lease that another one wants.
fn stopped(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"mine");
    a.digest();
    a.page.store_u64(client_page::reader_slot(9), 77);
    let b = scene.attacker();
    let begun = std::time::Instant::now();
    b.take(ino);
    assert!(begun.elapsed().as_secs() < 5, "bounded");
    let noted = shale_nvm::MappedRegion::load_u32(&a.daemon_page, 128);
    assert_eq!(noted, state::EVICTED);
    a.append(write(ino, 0, b"late"));
    let reply = a.digest();
    assert_eq!(scene.stage.content(ino).unwrap(), b"mine");
    (a, reply)
}

/// Stopped in a call with leases on the root directory and all that is the attacker's.
fn stopped_with_root(scene: &Scene<'_>) -> (Attacker, Reply) {
    let a = scene.attacker();
    for ino in [1, scene.stage.things.mine] {
        a.take(ino);
    }
    a.page.store_u64(client_page::reader_slot(9), 77);
    let begun = std::time::Instant::now();
    let b = scene.attacker();
    for ino in [1, scene.stage.things.mine] {
        b.take(ino);
    }
    assert!(begun.elapsed().as_secs() < 5, "bounded");
    let reply = a.digest();
    (a, reply)
}

fn messages(scene: &Scene<'_>) -> (Attacker, Reply) {
    let a = scene.attacker();
    for _ in 0..500 {
        assert_eq!(a.ask(Request::Notify), Reply::Done);
        assert_eq!(a.ask(Request::HardenAll), Reply::Done);
        a.ask(Request::Digest { upto: u64::MAX });
        a.ask(Request::Unlease { ino: u64::MAX });
        a.ask(Request::Segments { first: u32::MAX });
    }
    let again = Request::Attach {
        version: PROTO_VERSION,
        log_bytes: u64::MAX,
        durability: 0,
    };
    assert!(matches!(
        a.ask(again),
        Reply::Refused {
            errno: libc::EISCONN,
            ..
        }
    ));
    assert!(matches!(a.ask(Request::Status), Reply::Status(_)));
    let reply = a.digest();
    (a, reply)
}

/// Moves at the bottom of a deep tree: each has its whole way up looked at. Others' digests go on.
fn deep_moves(scene: &Scene<'_>) -> (Attacker, Reply) {
    let (depth, moves, space) = match scene.alone {
        true => (600, 1500, 13 << 20),
        false => (50, 50, 1 << 20),
    };
    let ask = Request::Reserve {
        wanted: space,
        least: space,
    };
    let mut a = scene.attacker();
    if !matches!(a.ask(ask), Reply::Credit { .. }) {
        assert!(!scene.alone, "there is room");
        return messages(scene);
    }
    let mut way = vec![a.mkdir(1, &scene.name("d"))];
    for _ in 1..depth {
        let (dir, ino) = (way[way.len() - 1], a.number());
        a.append(create(dir, ino, 0o040_755, b"d").reserve(9000));
        way.push(ino);
    }
    let (bottom, other) = (way[way.len() - 1], way[way.len() - 2]);
    let ino = a.number();
    a.append(create(bottom, ino, 0o040_755, b"m").reserve(9000));
    let (mut from, mut to) = (bottom, other);
    for _ in 0..moves {
        a.put(rename((from, b"m"), (ino, DIR), (to, b"m"), (0, 0), 0).reserve(4160));
        (from, to) = (to, from);
    }
    a.commit();
    let begun = std::time::Instant::now();
    let reply = a.digest();
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    (a, reply)
}

/// A log takes memory: nobody gets more of it than the volume's logs have.
fn large_log(scene: &Scene<'_>) -> (Attacker, Reply) {
    let channel = shale_proto::InProcess(scene.stage.daemon.attach_as(MALLORY, &[]));
    let ask = |version, log_bytes| Request::Attach {
        version,
        log_bytes,
        durability: 0,
    };
    let call = |request| shale_proto::Channel::call(&channel, request).unwrap().0;
    for request in [ask(0, 0), Request::Notify, Request::Segments { first: 0 }] {
        assert!(matches!(call(request), Reply::Refused { .. }));
    }
    let Reply::Attached(attached) = call(ask(PROTO_VERSION, u64::MAX)) else {
        panic!("not attached");
    };
    assert_eq!(attached.ring_bytes, shale_format::limits::LOG_BYTES_MIN);
    let a = scene.attacker();
    let reply = a.digest();
    (a, reply)
}

/// All slots of the log table; root still gets one.
fn slots(scene: &Scene<'_>) -> (Attacker, Reply) {
    if !scene.alone {
        return messages(scene);
    }
    let mut held = Vec::new();
    loop {
        let channel = scene.stage.daemon.attach_as(MALLORY, &[]);
        let (reply, fds) = channel.handle(Request::Attach {
            version: PROTO_VERSION,
            log_bytes: 0,
            durability: 0,
        });
        match reply {
            Reply::Attached(_) => held.push((channel, fds)),
            Reply::Refused { errno, .. } => {
                assert_eq!(errno, libc::EUSERS);
                break;
            }
            other => panic!("{other:?}"),
        }
        // Their space is not needed to show it.
        rustix::fs::ftruncate(&held.last().unwrap().1[0], 0).unwrap();
    }
    assert!(held.len() > 200);
    let a = scene.stage.same_user();
    let reply = a.digest();
    (a, reply)
}

pub const CASES: &[Case] = &[
    refused(
        "16 TiB allocated",
        |s| without_space(s, |f| vec![fallocate(f, 0, 16 << 40, 1)]),
        GROWTH,
    ),
    refused(
        "data without room",
        |s| {
            without_space(s, |f| {
                (0..40)
                    .map(|n| write(f, n << 18, &[1; 262_144]).reserve(0))
                    .collect()
            })
        },
        GROWTH,
    ),
    refused(
        "too little room",
        |s| without_space(s, |f| vec![write(f, 0, &[1; 1 << 20]).reserve(64)]),
        GROWTH,
    ),
    refused(
        "attributes without room",
        |s| {
            without_space(s, |f| {
                vec![set_xattr(f, b"user.x", &[1; 60_000]).reserve(0)]
            })
        },
        GROWTH,
    ),
    refused(
        "room above what was given",
        |s| beyond_credit(s, 0),
        "has credit for",
    ),
    refused(
        "room returned and used",
        |s| beyond_credit(s, u64::MAX),
        "has credit for",
    ),
    harmless("all room", all_credit),
    harmless("log flood", log_flood),
    harmless("tiny extents", tiny_extents),
    harmless("extents until full", extents_until_full),
    harmless("leases on nothing", leases_on_nothing),
    harmless("numbers without end", numbers_without_end),
    refused("stopped in a call", stopped, "inside a call"),
    refused("stopped with the root", stopped_with_root, "inside a call"),
    harmless("messages without end", messages),
    harmless("deep moves", deep_moves),
    harmless("large log", large_log),
    either("slots", slots),
];
