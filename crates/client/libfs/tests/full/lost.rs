//! A block below NVM that cannot be read, and of which somebody changes a part: it is lost, and nothing else.

use crate::pieces::pinned;
use crate::place::{ME, Place};
use shale_format::limits::BLOCK_BYTES;
use shale_format::{FileBlock, Ino};
use shale_libfs::{Errno, Session, WriteFlags};
use shale_volume::Mapping;
use std::ops::ControlFlow;

const BLOCKS: u64 = 64;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// The blocks that go bad, and what is done to each: 10 bytes, a part punched out, the end cut off in it.
const WRITTEN: u64 = 10;
const PUNCHED: u64 = 20;
const CUT: u64 = 50;
const PUNCH: u32 = 3;

fn write(session: &Session, ino: u64, at: u64, data: &[u8]) {
    let flags = WriteFlags::default();
    session.write(&ME, ino, at, data, flags).expect("a write");
}

fn block_of(session: &Session, ino: u64, fb: u64) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; BLOCK_BYTES];
    let read = session.read(&ME, ino, fb * BLOCK, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Where a block of a file lies in the image of the flash.
fn image_byte(place: &Place, ino: u64, fb: u64) -> u64 {
    let view = place.daemon().volume().view();
    let inode = view.inode(Ino(ino)).unwrap().unwrap();
    match view.map_block(&inode, FileBlock(fb)).unwrap() {
        Mapping::Data { addr, .. } => place.flash_byte(addr.index()),
        other => panic!("{other:?}"),
    }
}

/// A file that lies on flash, with three bad blocks. Gives where these are in the image.
fn spoilt(place: &mut Place) -> (u64, Vec<u64>) {
    let session = place.attach(false);
    let a = session.create(&ME, Ino::ROOT.0, b"a", 0o644, 0).unwrap();
    for fb in 0..BLOCKS {
        write(&session, a.ino, fb * BLOCK, &[fb as u8 + 1; BLOCK_BYTES]);
    }
    session.digest().unwrap();
    session.detach().unwrap();
    drop(session);
    assert!(place.daemon().migrate(None).unwrap() >= BLOCKS);
    let bytes = [WRITTEN, PUNCHED, CUT];
    let bytes = bytes.map(|fb| image_byte(place, a.ino, fb)).to_vec();
    place.stop();
    bytes.iter().for_each(|&byte| place.flip(byte));
    place.start();
    (a.ino, bytes)
}

/// Changes a part of each, then something else.
fn change(session: &Session, ino: u64) -> u64 {
    write(session, ino, WRITTEN * BLOCK + 100, b"0123456789");
    session
        .fallocate(&ME, ino, PUNCH, PUNCHED * BLOCK + 7, 100)
        .unwrap();
    session
        .truncate(&ME, ino, CUT * BLOCK + 1000, false)
        .unwrap();
    // One of the same file that is whole.
    write(session, ino, (WRITTEN + 1) * BLOCK + 5, b"abc");
    let new = session.create(&ME, Ino::ROOT.0, b"new", 0o644, 0).unwrap();
    write(session, new.ino, 0, &[7; 3 * BLOCK_BYTES]);
    new.ino
}

fn verify(session: &Session, ino: u64) {
    for fb in 0..=CUT {
        let found = block_of(session, ino, fb);
        if [WRITTEN, PUNCHED, CUT].contains(&fb) {
            assert_eq!(found, Err(Errno::IO), "block {fb}");
            continue;
        }
        let mut block = vec![fb as u8 + 1; BLOCK_BYTES];
        if fb == WRITTEN + 1 {
            block[5..8].copy_from_slice(b"abc");
        }
        assert!(found.unwrap() == block, "block {fb}");
    }
    let new = session.lookup(&ME, Ino::ROOT.0, b"new").unwrap();
    assert_eq!(new.size, 3 * BLOCK);
    assert!(block_of(session, new.ino, 2).unwrap() == [7; BLOCK_BYTES]);
}

/// What is bad stays bad when the device is well again, and is well when it is written as a whole.
fn heals(place: &mut Place, ino: u64, bytes: &[u64]) {
    place.stop();
    bytes.iter().for_each(|&byte| place.flip(byte));
    place.start();
    let session = place.attach(false);
    verify(&session, ino);
    let named = |place: &Place| place.daemon().status_values().bad_blocks.len();
    assert_eq!(named(place), 3);
    for fb in [WRITTEN, PUNCHED, CUT] {
        write(&session, ino, fb * BLOCK, &[9; BLOCK_BYTES]);
    }
    session.digest().unwrap();
    assert_eq!(named(place), 0);
    for fb in [WRITTEN, PUNCHED, CUT] {
        assert!(block_of(&session, ino, fb).unwrap() == [9; BLOCK_BYTES]);
    }
    session.detach().unwrap();
    drop(session);
    assert_eq!(place.daemon().status_values().digest.last_error, None);
    place.stop();
    place.check();
}

#[test]
fn a_bad_block_that_is_changed_in_part_is_lost_and_nothing_else() {
    let mut place = Place::new(34);
    assert!(place.add_flash(64));
    let (ino, bytes) = spoilt(&mut place);
    let session = place.attach(false);
    change(&session, ino);
    session.digest().unwrap();
    verify(&session, ino);
    let status = place.daemon().status_values();
    let error = status.digest.last_error.expect("it is reported");
    assert!(error.contains("cannot be read"), "{error}");
    assert_eq!(status.bad_blocks.len(), 3);
    session.detach().unwrap();
    drop(session);
    heals(&mut place, ino, &bytes);
}

#[test]
fn a_bad_block_that_is_changed_in_part_is_lost_at_recovery_and_nothing_else() {
    let mut place = Place::new(34);
    assert!(place.add_flash(64));
    let (ino, bytes) = spoilt(&mut place);
    let session = place.attach(false);
    change(&session, ino);
    place.kill();
    drop(session);
    place.start();
    let session = place.attach(false);
    verify(&session, ino);
    session.detach().unwrap();
    drop(session);
    heals(&mut place, ino, &bytes);
}

/// Blocks of a file that fills most of the flash, over and over; one of them is bad, alone in its zone in the end.
#[test]
fn a_zone_with_a_bad_block_alone_does_not_keep_others_from_being_cleaned() {
    const FILE_BLOCKS: u64 = 8_000;
    const BAD: u64 = 1_000;
    let mut place = Place::new(34);
    assert!(place.add_flash(48));
    let session = place.attach(false);
    pinned(&place, &session);
    let a = session.create(&ME, Ino::ROOT.0, b"a", 0o644, 0).unwrap();
    for fb in 0..FILE_BLOCKS {
        write(&session, a.ino, fb * BLOCK, &[fb as u8; BLOCK_BYTES]);
    }
    session.digest().unwrap();
    place.daemon().migrate(None).unwrap();
    let byte = image_byte(&place, a.ino, BAD);
    session.detach().unwrap();
    drop(session);
    place.stop();
    place.flip(byte);
    place.start();
    let session = place.attach(false);
    let mut at = 7;
    for n in 0..5 * FILE_BLOCKS {
        at = (at * 5 + 3) % 8_192;
        if at < FILE_BLOCKS && at != BAD {
            write(&session, a.ino, at * BLOCK, &[(at + n) as u8; BLOCK_BYTES]);
        }
    }
    session.digest().unwrap();
    assert_eq!(block_of(&session, a.ino, BAD).err(), Some(Errno::IO));
    let status = place.daemon().status_values();
    assert_eq!(status.bad_blocks.len(), 1);
    assert!(status.tiers[0].zones_erased > 20, "{:?}", status.tiers[0]);
    session.detach().unwrap();
    drop(session);
    place.stop();
    place.check();
}

/// The block in which a file ends is kept in memory when it goes below: from there a bad one is given, and rewritten.
#[test]
fn a_bad_block_of_which_there_is_a_copy_is_repaired() {
    let mut place = Place::new(34);
    assert!(place.add_flash(64));
    let session = place.attach(false);
    let a = session.create(&ME, Ino::ROOT.0, b"a", 0o644, 0).unwrap();
    write(&session, a.ino, 0, &[1; 3 * BLOCK_BYTES + 100]);
    session.digest().unwrap();
    assert!(place.daemon().migrate(None).unwrap() >= 4);
    let last = image_byte(&place, a.ino, 3);
    // While the daemon has the device.
    place.flip(last);
    let all = |session: &Session| {
        let mut bytes = vec![0; 4 * BLOCK_BYTES];
        let n = session.read(&ME, a.ino, 0, &mut bytes).unwrap();
        n == 3 * BLOCK_BYTES + 100 && bytes[..n].iter().all(|b| *b == 1)
    };
    assert!(all(&session));
    let report = place.daemon().scrub(&mut |_| ControlFlow::Continue(()));
    assert_eq!(
        (report.errors, report.repaired_blocks),
        (0, 1),
        "{report:?}"
    );
    assert_ne!(image_byte(&place, a.ino, 3), last);
    assert_eq!(place.daemon().status_values().bad_blocks, []);
    session.detach().unwrap();
    drop(session);
    place.stop();
    place.start();
    // Nothing is in memory now: of what goes bad there is no other copy.
    let session = place.attach(false);
    assert!(all(&session));
    place.flip(image_byte(&place, a.ino, 3));
    let report = place.daemon().scrub(&mut |_| ControlFlow::Continue(()));
    assert_eq!(
        (report.errors, report.repaired_blocks),
        (1, 0),
        "{report:?}"
    );
    let block = BLOCK_BYTES as u64;
    assert_eq!(report.damage[0].bytes, Some(3 * block..3 * block + 100));
    session.detach().unwrap();
    drop(session);
    place.stop();
    place.check();
}
