//! Fragmented files until NVM is full of nodes of extents: their leaves go below, and every byte is found right.

use crate::place::{ME, Place};
use shale_format::{Ino, TierId};
use shale_libfs::{Errno, SEEK_DATA, SEEK_HOLE, Session, WriteFlags};
use shale_volume::leaves_below;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const BLOCK: usize = 4096;
/// Blocks of each file that are written: every second one.
const PARTS: u64 = 3;
/// What nothing can move out of NVM.
const PINNED_MIB: u64 = 26;

/// Files by number: the inode, and the byte of each part.
type Files = BTreeMap<u32, (u64, [u8; PARTS as usize])>;

fn write(session: &Session, ino: u64, part: u64, byte: u8) -> Result<(), Errno> {
    let at = part * 2 * BLOCK as u64;
    let flags = WriteFlags::default();
    let done = session.write(&ME, ino, at, &[byte; BLOCK], flags);
    done.map(drop)
}

/// Makes a file, as far as there is space.
fn make(session: &Session, files: &mut Files, n: u32) -> Result<(), Errno> {
    let name = format!("file {n}").into_bytes();
    let ino = session.create(&ME, Ino::ROOT.0, &name, 0o644, 0)?.ino;
    let mut parts = [0; PARTS as usize];
    for part in 0..PARTS {
        let byte = (n as u8 ^ part as u8) | 1;
        if let Err(e) = write(session, ino, part, byte) {
            session.unlink(&ME, Ino::ROOT.0, &name).expect("unlink");
            return Err(e);
        }
        parts[part as usize] = byte;
    }
    files.insert(n, (ino, parts));
    Ok(())
}

fn read(session: &Session, ino: u64) -> Vec<u8> {
    let mut data = vec![0xee; PARTS as usize * 2 * BLOCK];
    let n = session.read(&ME, ino, 0, &mut data).expect("read");
    data.truncate(n);
    data
}

fn expected(parts: &[u8]) -> Vec<u8> {
    let whole = parts.iter().flat_map(|&b| [[b; BLOCK], [0; BLOCK]]);
    let mut data = whole.collect::<Vec<_>>().concat();
    data.truncate(data.len() - BLOCK);
    data
}

fn verify(session: &Session, files: &Files) {
    for (n, (ino, parts)) in files {
        let found = read(session, *ino);
        assert!(found == expected(parts), "file {n}");
    }
    let (_, (ino, _)) = files.iter().next().unwrap();
    let seek = |from, whence| session.lseek(&ME, *ino, from, whence);
    assert_eq!(seek(1, SEEK_HOLE), Ok(BLOCK as u64));
    assert_eq!(seek(BLOCK as u64, SEEK_DATA), Ok(2 * BLOCK as u64));
}

fn pinned(place: &Place, session: &Session) {
    let big = session.create(&ME, Ino::ROOT.0, b"big", 0o644, 0).unwrap();
    session.digest().unwrap();
    place.daemon().pin(&[big.ino], Some(TierId::Nvm)).unwrap();
    for mib in 0..PINNED_MIB {
        let data = vec![7; 1 << 20];
        let flags = WriteFlags::default();
        session
            .write(&ME, big.ino, mib << 20, &data, flags)
            .unwrap();
    }
    session.digest().unwrap();
}

fn below(place: &Place) -> u64 {
    place.daemon().volume().extent_leaves_below(TierId::Ssd)
}

fn leaves_of(place: &Place, ino: u64) -> u64 {
    let view = place.daemon().volume().view();
    leaves_below(&view.inode(Ino(ino)).unwrap().unwrap())
}

#[test]
fn fragmented_files_go_on_where_nvm_is_full_of_extents() {
    let mut place = Place::new(34);
    assert!(place.add_flash(96));
    let session = place.attach(false);
    pinned(&place, &session);
    let mut files = Files::new();
    for n in 0..4000 {
        if let Err(e) = make(&session, &mut files, n) {
            panic!("file {n}: {e:?}");
        }
    }
    session.digest().unwrap();
    assert!(below(&place) > 1500, "{} leaves below", below(&place));
    verify(&session, &files);
    // One like the kernel's front end.
    let other = place.attach(true);
    verify(&other, &files);
    for (ino, parts) in files.values_mut().step_by(9) {
        write(&session, *ino, 1, 0xaa).expect("write");
        parts[1] = 0xaa;
        session.digest().unwrap();
        assert_eq!(leaves_of(&place, *ino), 0, "what changes is in NVM");
    }
    let gone: Vec<u32> = files.keys().copied().skip(1).step_by(5).collect();
    for n in gone {
        let name = format!("file {n}").into_bytes();
        session.unlink(&ME, Ino::ROOT.0, &name).expect("unlink");
        files.remove(&n);
    }
    verify(&session, &files);
    verify(&other, &files);
    other.detach().unwrap();
    assert_eq!(place.daemon().status_values().digest.last_error, None);
    session.detach().unwrap();
    drop((session, other));
    place.stop();
    place.check();
    place.start();
    assert!(below(&place) > 0);
    let session = place.attach(false);
    verify(&session, &files);
    for n in files.keys() {
        let name = format!("file {n}").into_bytes();
        session.unlink(&ME, Ino::ROOT.0, &name).expect("unlink");
    }
    session.detach().unwrap();
    drop(session);
    assert_eq!(below(&place), 0);
    place.stop();
    place.check();
}

/// Where a leaf of extents cannot be read, what it tells of is lost until repair, and nothing else; the file stays
/// as it is.
#[test]
fn a_leaf_of_extents_that_cannot_be_read_is_an_error_for_its_part() {
    let mut place = Place::new(34);
    assert!(place.add_flash(64));
    let session = place.attach(false);
    let ino = session
        .create(&ME, Ino::ROOT.0, b"a", 0o644, 0)
        .unwrap()
        .ino;
    (0..400).for_each(|part| write(&session, ino, part, part as u8 | 1).unwrap());
    session.digest().unwrap();
    session.detach().unwrap();
    drop(session);
    place.daemon().migrate(None).unwrap();
    assert!(place.daemon().demote_extents().unwrap() >= 3);
    let view = place.daemon().volume().view();
    let file = view.inode(Ino(ino)).unwrap().unwrap();
    let bad = view.leaves(&file).unwrap()[0].index();
    let byte = place.flash_byte(bad);
    drop(view);
    place.stop();
    place.flip(byte + 100);
    place.start();
    let session = place.attach(false);
    let read = |part: u64| {
        let mut block = [0xee; BLOCK];
        let read = session.read(&ME, ino, part * 2 * BLOCK as u64, &mut block);
        read.map(|n| (n, block[0], block[BLOCK - 1]))
    };
    for part in [0, 40, 70] {
        assert_eq!(read(part), Err(Errno::IO), "part {part}");
    }
    for part in [200, 300, 399] {
        let byte = part as u8 | 1;
        assert_eq!(read(part), Ok((BLOCK, byte, byte)), "part {part}");
    }
    assert_eq!(write(&session, ino, 399, 7), Err(Errno::IO));
    assert_eq!(session.unlink(&ME, Ino::ROOT.0, b"a"), Err(Errno::IO));
    let named = place.daemon().status_values().bad_blocks;
    assert!(named.iter().any(|b| b.block == bad), "{named:?}");
    session.detach().unwrap();
}

/// A client that changes files and reads them goes on while their leaves sink.
#[test]
fn clients_go_on_while_extents_are_demoted() {
    let place = Place::new(34);
    assert!(place.add_flash(96));
    let (one, two) = (place.attach(false), place.attach(false));
    let mut files = Files::new();
    for n in 0..300 {
        make(&one, &mut files, n).unwrap();
    }
    one.digest().unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                place.daemon().migrate(None).unwrap();
                place.daemon().demote_extents().unwrap();
            }
        });
        for round in 0..300_u32 {
            let (writer, reader) = match round % 2 {
                0 => (&one, &two),
                _ => (&two, &one),
            };
            let (ino, parts) = files.get_mut(&(round * 7 % 300)).unwrap();
            let part = u64::from(round) % PARTS;
            write(writer, *ino, part, round as u8 | 1).expect("write");
            parts[part as usize] = round as u8 | 1;
            assert!(read(reader, *ino) == expected(parts), "round {round}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    one.digest().unwrap();
    two.digest().unwrap();
    place.daemon().migrate(None).unwrap();
    place.daemon().demote_extents().unwrap();
    assert_eq!(below(&place), 300);
    verify(&one, &files);
    verify(&two, &files);
    one.detach().unwrap();
    two.detach().unwrap();
}
