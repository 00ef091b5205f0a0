//! Bytes that change while the daemon looks.

use super::attacker::{Attacker, MALLORY, create_as, write};
use super::{Case, Scene, either, harmless, refused};
use shale_format::limits::LOG_BYTES_MIN;
use shale_format::log::TAIL_AT;
use shale_format::record::flag;
use shale_proto::shared_pages::client_page;
use shale_proto::{Reply, Request};
use std::sync::atomic::{AtomicBool, Ordering};

/// Changes bytes back and forth in one thread while `f` has the log digested in another.
fn while_flipping(
    a: &mut Attacker,
    at: usize,
    (one, other): (&[u8], &[u8]),
    f: impl FnOnce(&Attacker) -> Reply + Send,
) -> Reply {
    let stop = AtomicBool::new(false);
    let a = &*a;
    std::thread::scope(|scope| {
        let flipper = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                a.log.store(at, other);
                std::hint::spin_loop();
                a.log.store(at, one);
            }
        });
        let reply = f(a);
        stop.store(true, Ordering::Relaxed);
        flipper.join().unwrap();
        reply
    })
}

/// The target of a link loses its check. One that was evil at the moment of the check is
/// refused, and that is well.
fn target(scene: &Scene<'_>) -> (Attacker, Reply) {
    let times = if scene.alone { 150 } else { 10 };
    let mut a = scene.attacker();
    for n in 0..times {
        a.take(1);
        let ino = a.number();
        let name = scene.name(&format!("l{n}"));
        let (good, evil) = ([b'g'; 3000], [0; 3000]);
        let ids = (MALLORY, MALLORY);
        let raw = create_as(1, ino, 0o120_777, ids, name.as_bytes(), &good).reserve(24_000);
        let pos = a.append(raw);
        let at = a.byte(pos) + 64 + 40 + name.len();
        let reply = while_flipping(&mut a, at, (&good, &evil), Attacker::digest);
        if matches!(reply, Reply::Refused { .. }) {
            a = scene.attacker();
            continue;
        }
        let target = scene.stage.content(ino).unwrap();
        assert!(!target.contains(&0), "what was checked is what is kept");
    }
    (a, Reply::Done)
}

/// Data of a write is the writer's own, whatever it is.
fn payload(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"");
    let (one, other) = ([1; 8000], [2; 8000]);
    let pos = a.append(write(ino, 0, &one).flags(flag::FENCED));
    let at = a.byte(pos) + 64;
    let reply = while_flipping(&mut a, at, (&one, &other), Attacker::digest);
    let found = scene.stage.content(ino).unwrap();
    assert!(found.len() == 8000 && found.iter().all(|b| [1, 2].contains(b)));
    (a, reply)
}

/// A field of the header ping-pongs.
fn header(scene: &Scene<'_>, field: usize, evil: [u8; 4]) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"");
    let pos = a.append(write(ino, 0, &[1; 500]));
    let at = a.byte(pos) + field;
    let mut good = [0; 4];
    shale_nvm::MappedRegion::load(a.view(), at, &mut good);
    let reply = while_flipping(&mut a, at, (&good, &evil), Attacker::digest);
    let found = scene.stage.content(ino).unwrap_or_default();
    assert!(found.is_empty() || found == [1; 500]);
    (a, reply)
}

/// What was digested is rewritten, with the digested position as it is.
fn rewritten(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"good");
    let end = a.head;
    let before = a.digest();
    assert!(matches!(before, Reply::Digested { .. }));
    a.head = 0;
    while a.head < end {
        a.put(write(ino, 0, b"evil"));
    }
    a.head = end;
    a.append(write(ino, 4, b"more"));
    let reply = a.digest();
    assert_eq!(scene.stage.content(ino).unwrap(), b"goodmore");
    (a, reply)
}

/// The file is cut short, before digest or while it goes on. Nothing may be loaded through
/// the attacker's own mapping after that.
fn cut_short(scene: &Scene<'_>, bytes: u64) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    a.make(1, &scene.name("f"), &[5; 100_000]);
    rustix::fs::ftruncate(&a.log_fd, bytes).unwrap();
    let reply = a.digest();
    a.ask(Request::Status);
    (a, reply)
}

fn cut_while_read(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"");
    for n in 0..100 {
        a.put(write(ino, n * 10_000, &[5; 10_000]));
    }
    a.commit();
    let stop = AtomicBool::new(false);
    let reply = std::thread::scope(|scope| {
        let cutter = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                rustix::fs::ftruncate(&a.log_fd, 4096 + 500_000).unwrap();
                rustix::fs::ftruncate(&a.log_fd, 4096 + LOG_BYTES_MIN).unwrap();
            }
        });
        let reply = a.digest();
        stop.store(true, Ordering::Relaxed);
        cutter.join().unwrap();
        reply
    });
    (a, reply)
}

fn unlinked(scene: &Scene<'_>, instead: fn(&std::path::Path)) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"good");
    std::fs::remove_file(&a.log_path).unwrap();
    instead(&a.log_path);
    let reply = a.digest();
    assert_eq!(scene.stage.content(ino).unwrap(), b"good");
    (a, reply)
}

fn forged_tail(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"good");
    a.log.store_u64(TAIL_AT, u64::MAX - 3);
    let reply = a.digest();
    a.ask(Request::Status);
    assert_eq!(scene.stage.content(ino).unwrap(), b"good");
    (a, reply)
}

fn commit_goes_back(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"good");
    let head = a.head;
    a.digest();
    a.commit_at(0);
    a.digest();
    a.commit_at(head);
    let reply = a.digest();
    assert_eq!(scene.stage.content(ino).unwrap(), b"good");
    (a, reply)
}

/// Every word of the client page is garbage.
fn garbage_page(scene: &Scene<'_>) -> (Attacker, Reply) {
    let a = scene.attacker();
    for at in (client_page::RESERVED..client_page::BYTES).step_by(8) {
        a.page.store_u64(at, u64::MAX);
    }
    let reply = a.digest();
    (a, reply)
}

pub const CASES: &[Case] = &[
    harmless("link target flipped after its check", target),
    harmless("payload flipped after its check", payload),
    either("length flipped", |s| header(s, 4, [0xff; 4])),
    either("payload length flipped", |s| {
        header(s, 12, [0xff, 0xff, 0, 0])
    }),
    either("inode flipped", |s| header(s, 24, [1, 0, 0, 0])),
    either("reserve flipped", |s| header(s, 60, [0; 4])),
    harmless("acknowledged part rewritten", rewritten),
    refused("log cut to nothing", |s| cut_short(s, 0), "no valid record"),
    refused(
        "log cut in a record",
        |s| cut_short(s, 4096 + 50_000),
        "no valid record",
    ),
    either("log cut while it is read", cut_while_read),
    harmless("log unlinked", |s| unlinked(s, |_| ())),
    harmless("log is a directory", |s| {
        unlinked(s, |path| std::fs::create_dir(path).unwrap())
    }),
    harmless("log is a link", |s| {
        unlinked(s, |path| {
            std::os::unix::fs::symlink("/dev/zero", path).unwrap()
        })
    }),
    harmless("tail forged", forged_tail),
    harmless("commit goes back", commit_goes_back),
    either("page of garbage", garbage_page),
];
