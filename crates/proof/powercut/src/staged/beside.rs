//! What a call that waits for a commit finds beside its own records: little, also while others write much.

use super::syncs::{ROOT, Scene};
use crate::workloads::campaign::Switched;
use shale_libfs::WriteFlags;

const PIECE: usize = 32 << 10;
/// What is written, in pieces.
const BYTES: usize = 1 << 20;
/// What is written where it is to be staged, and not digested at once because it is so much.
const STAGED_BYTES: usize = 896 << 10;
/// What may stand before a call's own records on a fast device, and the piece that is being written.
const BESIDE: u64 = (256 + 64) << 10;

/// Most bytes that are published and not hardened while one file is written, after an fsync of another one.
fn unhardened_beside_fsync(mutant: Option<&'static str>) -> u64 {
    let scene = Scene::new(1, |_| ());
    let (session, ino) = &scene.clients[0];
    let other = session.create(&ROOT, 1, b"other", 0o600, 0).unwrap().ino;
    let write = |ino: u64, at: usize, bytes: &[u8]| {
        let flags = WriteFlags::default();
        session.write(&ROOT, ino, at as u64, bytes, flags).unwrap();
        scene.staged().unhardened_bytes
    };
    let all = |ino: u64| (0..BYTES).step_by(PIECE).map(move |at| (ino, at));
    let most = all(*ino).map(|(ino, at)| write(ino, at, &[1; PIECE])).max();
    assert!(most >= Some(BYTES as u64), "nobody waits: {most:?}");
    // The first one has all of it before its own record; those after it show how fast the device is.
    for at in 0..20 {
        write(other, at, b"commit");
        session.fsync(&ROOT, other, true).unwrap();
    }
    let most = {
        let _switched = Switched::on(mutant, false);
        all(*ino).map(|(ino, at)| write(ino, at, &[2; PIECE])).max()
    };
    scene.end();
    most.expect("something is written")
}

/// Commits that a client's fsync of so many bytes takes beside another client that has just waited for one, and bytes of all of them.
fn commits_of_much(bytes: usize, mutant: Option<&'static str>) -> (u64, u64) {
    let scene = Scene::new(2, |_| ());
    let [(much, ino), (little, other)] = &scene.clients[..] else {
        panic!("two clients")
    };
    let flags = WriteFlags::default;
    for at in (0..bytes).step_by(PIECE) {
        much.write(&ROOT, *ino, at as u64, &[1; PIECE], flags())
            .unwrap();
    }
    little.write(&ROOT, *other, 0, b"commit", flags()).unwrap();
    little.fsync(&ROOT, *other, true).unwrap();
    let before = scene.staged();
    assert!(before.unhardened_bytes >= bytes as u64);
    {
        let _switched = Switched::on(mutant, false);
        much.fsync(&ROOT, *ino, true).unwrap();
    }
    let after = scene.staged();
    scene.end();
    (
        after.commits - before.commits,
        after.commit_bytes - before.commit_bytes,
    )
}

#[test]
fn what_is_written_beside_fsyncs_is_hardened_as_it_comes() {
    let most = unhardened_beside_fsync(None);
    assert!(most <= BESIDE, "{most} bytes");
}

#[test]
fn batches_are_small_while_others_wait() {
    let (commits, _) = commits_of_much(STAGED_BYTES, None);
    assert!(commits >= STAGED_BYTES as u64 / BESIDE, "{commits} commits");
    // Of more the data goes to its place, and no batch has it.
    let (commits, bytes) = commits_of_much(BYTES, None);
    assert!(
        commits >= 1 && bytes / commits <= BESIDE,
        "{commits} commits of {bytes} bytes"
    );
}

#[cfg(feature = "mutants")]
#[test]
fn a_copy_that_fsyncs_have_to_wait_for_is_found() {
    let most = unhardened_beside_fsync(Some("fsync-unpaced"));
    assert!(most > BESIDE, "{most} bytes");
    let (commits, _) = commits_of_much(STAGED_BYTES, Some("batches-unshared"));
    assert!(commits <= 2, "{commits} commits");
}
