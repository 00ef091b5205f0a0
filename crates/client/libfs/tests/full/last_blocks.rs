//! The last block of a file that went below NVM is still in memory when the file is appended to.

use crate::place::{ME, Place};
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_libfs::{Session, WriteFlags};
use shale_volume::Mapping;

const BLOCK: u64 = BLOCK_BYTES as u64;
const SIZE: usize = 10 * BLOCK_BYTES + 77;
const FLASH_MIB: u64 = 16;

/// Bytes that differ from block to block.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let word = |n: u64| (n + (seed << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let words = (0..bytes.div_ceil(8) as u64).flat_map(|n| word(n).to_le_bytes());
    words.take(bytes).collect()
}

fn write(session: &Session, ino: u64, at: u64, data: &[u8]) {
    let flags = WriteFlags::default();
    session.write(&ME, ino, at, data, flags).expect("a write");
}

/// A new file of these bytes, digested.
fn make(session: &Session, name: &[u8], data: &[u8]) -> u64 {
    let ino = session
        .create(&ME, Ino::ROOT.0, name, 0o644, 0)
        .unwrap()
        .ino;
    write(session, ino, 0, data);
    session.digest().unwrap();
    ino
}

fn addr(place: &Place, ino: u64, fb: u64) -> BlockAddr {
    let view = place.daemon().volume().view();
    let inode = view.inode(Ino(ino)).unwrap().unwrap();
    match view.map_block(&inode, FileBlock(fb)).unwrap() {
        Mapping::Data { addr, .. } => addr,
        other => panic!("{other:?}"),
    }
}

/// Bytes read from the flash, and blocks that were found in memory.
fn reads(place: &Place) -> (u64, u64) {
    let status = place.daemon().status_values();
    let kept = status.migration.unwrap().counts.tail_cache_hits;
    (status.tiers[0].devices[0].read_bytes, kept)
}

fn content(place: &Place, ino: u64) -> Vec<u8> {
    let session = place.attach(false);
    let mut bytes = vec![0; SIZE * 2];
    let read = session.read(&ME, ino, 0, &mut bytes).unwrap();
    bytes.truncate(read);
    session.detach().unwrap();
    bytes
}

#[test]
fn an_append_reads_nothing_from_flash() {
    appends_read_nothing(TierId::Ssd);
}

#[test]
fn nor_from_a_disk() {
    appends_read_nothing(TierId::Hdd);
}

fn appends_read_nothing(tier: TierId) {
    let mut place = Place::new(34);
    assert!(place.add(tier, FLASH_MIB));
    let session = place.attach(false);
    let mut expected = pattern(1, SIZE);
    let ino = make(&session, b"a", &expected);
    for round in 1..4 {
        assert!(place.daemon().migrate(None).unwrap() > 0);
        let (before, _) = reads(&place);
        let more = pattern(1 + round, 100);
        write(&session, ino, expected.len() as u64, &more);
        session.digest().unwrap();
        expected.extend(more);
        assert_eq!(reads(&place), (before, round));
    }
    place.daemon().migrate(None).unwrap();
    assert!(content(&place, ino) == expected);
    // A client that wants this block alone does not wait for a disk either; flash it reads by itself.
    let (before, kept) = reads(&place);
    let reader = place.attach(false);
    let mut end = [0; 99];
    let at = 10 * BLOCK + 7;
    assert_eq!(reader.read(&ME, ino, at, &mut end).unwrap(), 99);
    assert!(end[..] == expected[at as usize..][..99]);
    let asked = u64::from(tier == TierId::Hdd);
    assert_eq!(reads(&place), (before, kept + asked));
    reader.detach().unwrap();
    session.detach().unwrap();
    drop((reader, session));
    place.stop();
    place.check();
}

/// A block that was some file's last is found no more when its zone was erased and rewritten.
#[test]
fn what_was_kept_is_not_found_behind_an_erasure() {
    let mut place = Place::new(34);
    assert!(place.add_flash(FLASH_MIB));
    let session = place.attach(false);
    let ino = make(&session, b"a", &pattern(1, SIZE));
    place.daemon().migrate(None).unwrap();
    let last = addr(&place, ino, 10);
    let generation = || place.daemon().volume().view().generation(last).unwrap();
    let erased_before = generation();
    session.unlink(&ME, Ino::ROOT.0, b"a").unwrap();
    let bytes = pattern(9, 8 << 20);
    let blocks = bytes.len() as u64 / BLOCK;
    let (ino, fb) = (0..20)
        .find_map(|n| {
            let name = format!("file {n}").into_bytes();
            let ino = make(&session, &name, &bytes);
            place.daemon().migrate(None).unwrap();
            let found = (0..blocks).find(|&fb| addr(&place, ino, fb) == last);
            let again = found.filter(|_| generation() != erased_before);
            if again.is_none() {
                session.unlink(&ME, Ino::ROOT.0, &name).unwrap();
                session.digest().unwrap();
            }
            again.map(|fb| (ino, fb))
        })
        .expect("the zone is rewritten");
    let reader = place.attach(false);
    let mut block = [0; BLOCK_BYTES];
    reader.read(&ME, ino, fb * BLOCK, &mut block).unwrap();
    assert!(block[..] == bytes[(fb * BLOCK) as usize..][..BLOCK_BYTES]);
    assert_eq!(reads(&place).1, 0);
    reader.detach().unwrap();
    session.detach().unwrap();
    drop((reader, session));
    place.stop();
    place.check();
}
