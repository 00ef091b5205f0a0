//! Logs of hostile clients that a daemon which was killed has left.

use super::attacker::*;
use super::served::{Hand, Place, content, names, start};
use shale_daemon::Daemon;
use shale_format::Ino;
use shale_format::limits::LOG_BYTES_MIN;
use shale_format::log::RING_AT;
use shale_format::record::attr;
use shale_oplog::encode;
use shale_proto::Reply;
use std::sync::Arc;

/// Each looks at everything by itself, and panics where something is wrong.
pub(super) const CASES: &[(&str, fn())] = &[
    ("POSIX at recovery", posix_is_asked_again_at_recovery),
    (
        "room of a left log",
        what_a_left_log_lies_about_is_not_taken_from_others,
    ),
    (
        "left log cut, gone, something else",
        a_log_that_is_cut_gone_or_something_else_stops_no_start,
    ),
    (
        "log that a client has left",
        a_log_that_its_last_client_can_still_write_is_nobody_elses,
    ),
    (
        "left log cut during recovery",
        a_log_that_is_cut_during_recovery_stops_no_start,
    ),
];

/// A volume of Mallory's with a file of root and one of hers, and a daemon that digests
/// nothing by itself.
pub(super) fn place() -> (Place, Arc<Daemon>, u64) {
    let place = Place::with_owner(64, LOG_BYTES_MIN, MALLORY);
    let daemon = start(place.config());
    let mut root = Hand::in_process(&daemon);
    let ino = root.make_file("root's", b"root's");
    root.lease(ino);
    let body = shale_format::record::SetAttrBody {
        valid: attr::MODE,
        mode: 0o400,
        ..zerocopy::FromZeros::new_zeroed()
    };
    root.append(encode::set_attr(ino, body));
    assert!(matches!(root.digest(), Reply::Digested { .. }));
    assert_eq!(root.ask(shale_proto::Request::Detach), Reply::Done);
    (place, daemon, ino.0)
}

/// Appends a good file and then `evil`, kills the daemon and gives the next one.
fn recovered(
    evil: impl FnOnce(&mut Attacker, u64),
    meanwhile: impl FnOnce(&Attacker),
) -> (Place, Arc<Daemon>) {
    let (place, daemon, ino) = place();
    let mut a = Attacker::new(&daemon, &place, MALLORY);
    a.make(1, "good", b"mine");
    evil(&mut a, ino);
    a.commit();
    daemon.abandon();
    drop(daemon);
    meanwhile(&a);
    let daemon = place.start();
    let view = daemon.volume().view();
    assert_eq!(content(&view, "root's"), b"root's");
    let inode = view.inode(Ino(ino)).unwrap().unwrap();
    assert_eq!((inode.uid, inode.mode), (0, 0o100_400));
    (place, daemon)
}

pub(super) fn is_whole(place: &Place, daemon: &Arc<Daemon>) {
    daemon.shutdown().unwrap();
    let check = shale_check::check_volume_dir;
    let report = check(&place.nvm(), &Default::default(), &mut |_| ()).unwrap();
    assert!(report.clean(), "{report}");
}

/// A client leaves and keeps its log mapped: what it stores there is in nobody's log. Who comes next and is another user reads
/// nothing of it.
fn a_log_that_its_last_client_can_still_write_is_nobody_elses() {
    let (place, daemon, _) = place();
    let secret = [0xa5; 64];
    let mut mine = Attacker::new(&daemon, &place, MALLORY);
    mine.make(1, "mine", &secret.repeat(100));
    mine.commit();
    assert_eq!(mine.ask(shale_proto::Request::Detach), Reply::Done);
    let mut next = Attacker::new(&daemon, &place, MALLORY);
    next.make(1, "next", b"good");
    next.commit();
    mine.log.store(RING_AT, &[0; 1 << 16]);
    assert!(matches!(next.digest(), Reply::Digested { .. }));
    assert_eq!(content(&daemon.volume().view(), "next"), b"good");
    // Nobody has this one any more.
    assert_eq!(next.ask(shale_proto::Request::Detach), Reply::Done);
    drop((mine, next));
    let root = Attacker::new(&daemon, &place, 0);
    let mut there = vec![0; 1 << 16];
    shale_nvm::MappedRegion::load(root.view(), RING_AT, &mut there);
    assert!(there.iter().all(|&byte| byte == 0), "another user's log");
    drop(root);
    is_whole(&place, &daemon);
}

/// What POSIX forbids at a call it forbids at recovery: a killed daemon opens no way.
fn posix_is_asked_again_at_recovery() {
    let evil: [fn(&mut Attacker, u64); 6] = [
        |a, ino| {
            a.put(write(ino, 0, b"evil"));
        },
        |a, ino| {
            a.put(truncate(ino, 0));
        },
        |a, ino| {
            a.put(set_attr(ino, |b| {
                b.valid = attr::UID;
                b.uid = MALLORY;
            }));
        },
        |a, ino| {
            a.put(set_attr(ino, |b| {
                b.valid = attr::MODE;
                b.mode = 0o666;
            }));
        },
        |a, _| {
            let number = a.number();
            a.put(create_as(1, number, 0o104_755, (0, 0), b"evil", b""));
        },
        |a, _| {
            a.put(write(1 << 40, 0, b"evil"));
        },
    ];
    for evil in evil {
        let (place, daemon) = recovered(evil, |_| ());
        let report = daemon.recovery();
        assert_eq!((report.logs, report.logs_refused), (1, 1), "{report:?}");
        assert!(report.problems[0].contains("log record at"), "{report:?}");
        let view = daemon.volume().view();
        assert_eq!(names(&view), ["good", "root's"]);
        assert_eq!(content(&view, "good"), b"mine");
        is_whole(&place, &daemon);
    }
}

/// Data without space at recovery: others come first, and what is too much waits.
fn what_a_left_log_lies_about_is_not_taken_from_others() {
    let (place, daemon) = recovered(
        |a, _| {
            let ino = a.make(1, "large", b"");
            for n in 0..50 {
                a.put(write(ino, n << 18, &[1; 262_144]).reserve(0));
            }
        },
        |_| (),
    );
    assert_eq!(daemon.recovery().logs, 1);
    is_whole(&place, &daemon);
}

fn a_log_that_is_cut_gone_or_something_else_stops_no_start() {
    let meanwhile: [fn(&Attacker); 7] = [
        |a| {
            std::fs::remove_file(&a.log_path).unwrap();
            std::fs::create_dir(&a.log_path).unwrap();
            std::fs::write(a.log_path.join("x"), b"not empty").unwrap();
        },
        |a| rustix::fs::ftruncate(&a.log_fd, 0).unwrap(),
        |a| rustix::fs::ftruncate(&a.log_fd, 4096 + 100).unwrap(),
        |a| std::fs::remove_file(&a.log_path).unwrap(),
        |a| {
            std::fs::remove_file(&a.log_path).unwrap();
            std::os::unix::fs::symlink("/dev/zero", &a.log_path).unwrap();
        },
        |a| {
            std::fs::remove_file(&a.log_path).unwrap();
            rustix::fs::mknodat(
                rustix::fs::CWD,
                &a.log_path,
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::RWXU,
                0,
            )
            .unwrap();
        },
        |a| a.log.store(0, &[0xff; 8192]),
    ];
    for meanwhile in meanwhile {
        let (place, daemon) = recovered(|_, _| (), meanwhile);
        let report = daemon.recovery();
        assert_eq!((report.logs, report.logs_left), (1, 0), "{report:?}");
        is_whole(&place, &daemon);
    }
}

/// The writer of a log may still be there, and cut it while it is recovered.
fn a_log_that_is_cut_during_recovery_stops_no_start() {
    for _ in 0..10 {
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (flag, mut cutter) = (stop.clone(), None);
        let (place, daemon) = recovered(
            |a, _| {
                let ino = a.make(1, "large", b"");
                for n in 0..100 {
                    a.put(write(ino, n << 14, &[1; 16_384]));
                }
            },
            |a| {
                let fd = a.log_fd.try_clone().unwrap();
                cutter = Some(std::thread::spawn(move || {
                    while !flag.load(std::sync::atomic::Ordering::Relaxed) {
                        let _ = rustix::fs::ftruncate(&fd, 500_000);
                        let _ = rustix::fs::ftruncate(&fd, 4096 + LOG_BYTES_MIN);
                    }
                }));
            },
        );
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        cutter.unwrap().join().unwrap();
        is_whole(&place, &daemon);
    }
}
