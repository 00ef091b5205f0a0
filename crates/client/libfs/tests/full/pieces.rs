//! Files whose pieces die all over the flash: it is cleaned, also while NVM is full.

use crate::place::{ME, Place};
use shale_format::{Ino, TierId};
use shale_libfs::{Session, WriteFlags};
use std::collections::BTreeMap;

const BLOCK: usize = 4096;
/// What nothing can move out of NVM.
const PINNED_MIB: u64 = 28;
/// By inode: the byte that each block is filled with; 0: a hole.
type Files = BTreeMap<u64, Vec<u8>>;

/// Most of NVM is taken by what stays there.
pub fn pinned(place: &Place, session: &Session) {
    let big = session.create(&ME, Ino::ROOT.0, b"big", 0o644, 0).unwrap();
    session.digest().unwrap();
    place.daemon().pin(&[big.ino], Some(TierId::Nvm)).unwrap();
    for mib in 0..PINNED_MIB {
        put(session, big.ino, mib << 20, &vec![7; 1 << 20]);
    }
    session.digest().unwrap();
}

fn put(session: &Session, ino: u64, at: u64, data: &[u8]) {
    let flags = WriteFlags::default();
    let n = session.write(&ME, ino, at, data, flags);
    let n = n.unwrap_or_else(|e| panic!("inode {ino}, byte {at}: {e}"));
    assert_eq!(n, data.len());
}

fn put_block(session: &Session, files: &mut Files, ino: u64, fb: usize, byte: u8) {
    put(session, ino, (fb * BLOCK) as u64, &[byte; BLOCK]);
    let file = files.entry(ino).or_default();
    file.resize(file.len().max(fb + 1), 0);
    file[fb] = byte;
}

fn file(session: &Session, n: u32) -> u64 {
    let name = format!("file {n}").into_bytes();
    let made = session.create(&ME, Ino::ROOT.0, &name, 0o644, 0);
    made.unwrap_or_else(|e| panic!("file {n}: {e}")).ino
}

#[track_caller]
fn verify(session: &Session, files: &Files) {
    for (&ino, blocks) in files {
        let mut bytes = vec![0x55; blocks.len() * BLOCK];
        let n = session.read(&ME, ino, 0, &mut bytes).unwrap();
        assert_eq!(n, bytes.len(), "inode {ino}");
        let found: Vec<u8> = bytes.chunks(BLOCK).map(|b| b[0]).collect();
        assert_eq!(found, *blocks, "inode {ino}");
        assert!(bytes.chunks(BLOCK).all(|b| b.iter().all(|x| *x == b[0])));
    }
}

fn below(place: &Place) -> u64 {
    let volume = place.daemon().volume();
    volume.extent_leaves_below(TierId::Ssd)
}

/// Flash that is full of what is dead is cleaned, though that brings leaves back to a NVM that is full.
#[test]
fn what_is_dead_below_is_cleaned_where_nvm_is_full() {
    let mut place = Place::new(34);
    assert!(place.add_flash(48));
    let session = place.attach(false);
    pinned(&place, &session);
    let mut files = Files::new();
    // Pieces of all files lie in all zones.
    for round in 0..14_usize {
        for n in 0..400_usize {
            let ino = match round {
                0 => file(&session, n as u32),
                _ => *files.keys().nth(n).unwrap(),
            };
            put_block(&session, &mut files, ino, round * 2, (n + round) as u8 | 1);
        }
    }
    let inos: Vec<u64> = files.keys().copied().collect();
    for round in 0..12 {
        place.daemon().migrate(None).unwrap();
        place.daemon().demote_extents().unwrap();
        assert!(below(&place) > 390, "{} leaves below", below(&place));
        // Those of the others stay below, until their zones are cleaned.
        for (n, &ino) in inos.iter().enumerate().skip(round % 2).step_by(2) {
            for part in 0..7 {
                let fb = (n + part * 2 + round) % 14 * 2;
                let byte = (n + part + round) as u8 | 1;
                put_block(&session, &mut files, ino, fb, byte);
            }
        }
        session.digest().unwrap();
    }
    verify(&session, &files);
    session.digest().unwrap();
    let status = place.daemon().status_values();
    assert!(status.tiers[0].zones_erased > 10, "{:?}", status.tiers[0]);
    assert_eq!(status.digest.last_error, None);
    session.detach().unwrap();
    drop(session);
    place.stop();
    place.check();
}
