//! Buffered clients that lie about what they have copied to NVM.

use super::attacker::*;
use super::left::{is_whole, place};
use super::served::{Place, content, names};
use shale_daemon::Daemon;
use shale_proto::Reply;
use shale_proto::shared_pages::client_page;
use std::sync::Arc;

/// Each looks at everything by itself, and panics where something is wrong.
pub(super) const CASES: &[(&str, fn())] = &[
    ("copied position forged", a_position_that_was_not_copied),
    ("copy of something else", a_copy_that_is_no_copy),
    ("copy cut short", a_copy_that_is_cut_short),
    (
        "forged copy after a power cut",
        what_posix_forbids_in_a_copy,
    ),
];

fn buffered() -> (Place, Arc<Daemon>, u64, Attacker) {
    let (place, daemon, ino) = place();
    let a = Attacker::buffered(&daemon, &place, MALLORY);
    assert!(a.attached.buffered && a.nvm_log.is_some());
    (place, daemon, ino, a)
}

fn roots_is_untouched(daemon: &Daemon) {
    let view = daemon.volume().view();
    assert_eq!(content(&view, "root's"), b"root's");
}

/// Whatever position it says, in the middle of a record, behind the end, going back: the daemon reads a log in NVM that is empty and cuts it
/// off, or digests what is in memory, and nobody else notices.
fn a_position_that_was_not_copied() {
    for said in [64, 65, 100, 1 << 20, u64::MAX, u64::MAX - 63] {
        let (place, daemon, _, mut a) = buffered();
        a.page.store_u64(client_page::COPIED, said);
        a.page.store_u64(client_page::COPIED_BYTES, said);
        let ino = a.make(1, "mine", &[7; 5000]);
        a.digest();
        // What it stores into blocks where they are, on a promise that it broke, are blocks of its own file.
        a.append(write(ino, 100, &[8; 200]));
        a.page.store_u64(client_page::COPIED, said / 2);
        a.digest();
        roots_is_untouched(&daemon);
        let status = daemon.status_values();
        assert!(
            status
                .buffer
                .is_none_or(|buffer| buffer.unhardened_bytes < 1 << 20)
        );
        drop(a);
        is_whole(&place, &daemon);
    }
}

/// What is said to be copied is read from NVM, and judged as any log.
fn a_copy_that_is_no_copy() {
    let (place, daemon, _, mut a) = buffered();
    a.make(1, "mine", b"mine");
    let nvm_log = a.nvm_log.as_ref().unwrap();
    nvm_log.store(0, &vec![0xff; nvm_log.bytes()]);
    a.page.store_u64(client_page::COPIED, a.head);
    let Reply::Refused { why, .. } = a.digest() else {
        panic!("garbage was digested");
    };
    assert!(why.contains("no valid record"), "{why}");
    roots_is_untouched(&daemon);
    drop(a);
    is_whole(&place, &daemon);
}

fn a_copy_that_is_cut_short() {
    for bytes in [0, 100, 5000] {
        let (place, daemon, _, mut a) = buffered();
        a.make(1, "mine", b"mine");
        rustix::fs::ftruncate(a.nvm_log_fd.as_ref().unwrap(), bytes).unwrap();
        // After a kill the log in memory counts.
        daemon.abandon();
        drop(daemon);
        let daemon = place.start();
        let report = daemon.recovery();
        assert_eq!((report.logs, report.logs_left), (1, 0), "{report:?}");
        assert_eq!(content(&daemon.volume().view(), "mine"), b"mine");
        roots_is_untouched(&daemon);
        is_whole(&place, &daemon);
    }
}

/// After a power cut the copy counts, and is judged as any log that was left.
fn what_posix_forbids_in_a_copy() {
    let (place, daemon, ino, mut a) = buffered();
    a.make(1, "good", b"mine");
    a.put(write(ino, 0, b"evil"));
    let (from, bytes) = (a.byte(0), a.head as usize);
    let mut records = vec![0; bytes];
    a.log.load(from, &mut records);
    a.nvm_log.as_ref().unwrap().store(from, &records);
    daemon.abandon();
    drop((daemon, a));
    std::fs::remove_dir_all(place.config().volume.buffer_dir()).unwrap();
    let daemon = place.start();
    let report = daemon.recovery();
    assert_eq!((report.logs, report.logs_refused), (1, 1), "{report:?}");
    assert_eq!(names(&daemon.volume().view()), ["good", "root's"]);
    roots_is_untouched(&daemon);
    is_whole(&place, &daemon);
}

#[test]
fn lies_about_copies_harm_nobody() {
    CASES.iter().for_each(|(_, case)| case());
}
